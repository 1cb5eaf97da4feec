//! How long a register of a PCI function takes to answer, beside a message between two threads by a socket of the same kind, which is
//! the least that any answer takes: `cargo run --release -p millrace-pci --example register_time`.

use millrace_abi::name::CardOptions;
use millrace_card::Card;
use millrace_driver::Driver;
use millrace_pci::Functions;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;
use vfio_user::Client;

const ROUNDS: usize = 20_000;

/// The median and the 99th of a hundred, in ns.
fn measure(mut once: impl FnMut()) -> (u128, u128) {
    let mut times: Vec<u128> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            once();
            begin.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    (times[ROUNDS / 2], times[ROUNDS * 99 / 100])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut here, mut there) = UnixStream::pair()?;
    let echo = std::thread::spawn(move || {
        let mut message = [0; 36];
        while there.read_exact(&mut message).is_ok() && there.write_all(&message).is_ok() {}
    });
    let mut message = [0; 36];
    let (socket, socket_99) = measure(|| {
        here.write_all(&message).expect("a socket");
        here.read_exact(&mut message).expect("a socket");
    });
    drop(here);
    let _ = echo.join();

    let folder = std::env::temp_dir().join(format!("millrace-pci-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let options = CardOptions::default();
    let mut functions = Functions::listen(&options, &folder.join("pci"), 1)?;
    functions.start(&Arc::new(Driver::embedded(Card::new(&options)?)?))?;
    let mut client = Client::new(&folder.join("pci"))?;
    let mut word = [0; 4];
    // STATUS of the first RX queue.
    let (register, register_99) = measure(|| client.region_read(0, 0x0100_0004, &mut word).expect("a register"));
    println!("socket, there and back    p50 {socket} ns  p99 {socket_99} ns");
    println!("register, read            p50 {register} ns  p99 {register_99} ns");
    drop(client);
    drop(functions);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
