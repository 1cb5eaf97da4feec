//! The functions of a card by the socket, with the client of `vfio_user`, which is what Cloud Hypervisor has, and with bytes.

mod anything;
mod bytes;
mod driver;
mod handed;
mod handover;
mod hostile;
mod machine;
mod queues;
mod space;
