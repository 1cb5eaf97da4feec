//! vfio-user as bytes: what messages look like (`message`), and how they come by a socket that is not trusted (`stream`).

pub(crate) mod message;
pub(crate) mod stream;
