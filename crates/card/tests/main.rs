//! All of them in one program, which is linked once, and whose tests run beside one another.

mod common;

mod calypte;
mod dd;
mod mac;
mod phy;
mod registers;
mod tsu;
