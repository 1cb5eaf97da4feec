//! How long a register of a PCI function takes to answer, beside a message between two threads by a socket of the same kind, which is
//! the least that any answer takes, and the same where the card has a keeper: `cargo run --release -p millrace-pci --example register_time`.

use millrace_abi::name::CardOptions;
use millrace_card::Card;
use millrace_driver::Driver;
use millrace_pci::{Functions, Keeper, Kept};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
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

/// Says to this program that it is the card of a keeper.
const KEPT: &str = "--kept";
/// The scratch register of the function, which is told a keeper when it is written.
const SCRATCH: u64 = 0x20;
/// STATUS of the first RX queue.
const STATUS: u64 = 0x0100_0004;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = CardOptions::default();
    if std::env::args().any(|word| word == KEPT) {
        let mut functions = Functions::kept(&options, Path::new("/nowhere"), 1, Kept::from_standard_input()?)?;
        functions.start(&Arc::new(Driver::embedded(Card::new(&options)?)?))?;
        // Until the keeper ends.
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(());
    }
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
    println!("socket, there and back    p50 {socket} ns  p99 {socket_99} ns");
    drop(here);
    let _ = echo.join();

    let folder = std::env::temp_dir().join(format!("millrace-pci-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut functions = Functions::listen(&options, &folder.join("pci"), 1)?;
    functions.start(&Arc::new(Driver::embedded(Card::new(&options)?)?))?;
    registers("", &folder.join("pci"))?;
    drop(functions);

    let keeper = Keeper::listen(&options, &folder.join("kept"), 1, None)?;
    let ends = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let launch =
            |socket: OwnedFd| Command::new(std::env::current_exe()?).arg(KEPT).stdin(Stdio::from(socket)).spawn();
        let runs = scope.spawn(move || keeper.run(launch, || ends.load(Ordering::Relaxed)));
        let done = registers(" by a keeper", &folder.join("kept"));
        ends.store(true, Ordering::Relaxed);
        runs.join().expect("a keeper").map(drop)?;
        done
    })?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Reads one, and writes one, at the function that is there.
fn registers(how: &str, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut client = Client::new(path)?;
    std::thread::sleep(Duration::from_millis(100));
    let mut word = [0; 4];
    let (read, read_99) = measure(|| client.region_read(0, STATUS, &mut word).expect("a register"));
    println!("register, read{how:12}     p50 {read} ns  p99 {read_99} ns");
    let (write, write_99) = measure(|| client.region_write(0, SCRATCH, &word).expect("a register"));
    println!("register, written{how:12}  p50 {write} ns  p99 {write_99} ns");
    Ok(())
}
