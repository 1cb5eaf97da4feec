//! The examples do what they say: each checks what it receives.

#[path = "../examples/own_port.rs"]
mod own_port;
#[path = "../examples/pool_forward.rs"]
mod pool_forward;
#[path = "../examples/send_receive.rs"]
mod send_receive;
#[path = "../examples/shared_readers.rs"]
mod shared_readers;

#[test]
fn send_and_receive() {
    send_receive::main().unwrap();
}

#[test]
fn several_readers_of_a_queue() {
    shared_readers::main().unwrap();
}

#[test]
fn forwarding_between_queues_over_a_pool() {
    pool_forward::main().unwrap();
}

#[test]
fn a_port_of_ones_own() {
    own_port::main().unwrap();
}
