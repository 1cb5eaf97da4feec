//! All of them in one program, which is linked once, and whose tests run beside one another.

mod captures;
mod no_allocation;
