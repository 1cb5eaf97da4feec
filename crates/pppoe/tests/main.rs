//! The client against an access concentrator that is played here, against nonsense, and against captures.

mod ac;
mod captures;
mod client;
mod hostile;
