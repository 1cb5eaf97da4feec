//! A card that does not answer: programs are told so in time, and go on with it when it answers again.

use crate::common::*;
use millrace::{Error, Mode, Sharing};
use std::time::{Duration, Instant};

fn silence<T>(result: Result<T, Error>) -> String {
    match result.err() {
        Some(Error::Client(error @ millrace_driver::ClientError::Silent { .. })) => error.to_string(),
        Some(error) => panic!("{error}"),
        None => panic!("the card has answered"),
    }
}

#[test]
fn a_stopped_card_is_named_and_works_again_when_it_goes_on() {
    let daemon = Daemon::start("queues=4,spin=20,buffers=256");
    let device = daemon.device();
    let mut receiver = rx(&device, 0, Mode::Direct, Sharing::Exclusive);
    let mut sender = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
    daemon.stop();
    let text = silence(device.rx(1).open());
    assert!(text.contains(daemon.socket()), "{text}");
    assert!(text.contains(&format!("process {}", daemon.process.pid())), "{text}");
    // Once is enough: what comes next does not wait as long again.
    let begin = Instant::now();
    for _ in 0..10 {
        silence(device.stats());
    }
    assert!(begin.elapsed() < Duration::from_secs(60));
    // A newcomer waits itself.
    silence(millrace::Device::open(&format!("unix:{}", daemon.path.display())));
    daemon.go_on();
    within(Duration::from_secs(60), || device.stats());
    // Replies belong to their requests, and the queue that nobody waited for is free.
    assert!(!device.device_tree().unwrap().is_empty());
    let (idle, _) = within(Duration::from_secs(60), || device.rx(1).open());
    drop(idle);
    send_all(&mut sender, 0, 100, 100);
    receive_all(&mut receiver, 0, 100);
}

/// A program that is asked to end while it waits.
pub fn hasty() {
    let device = millrace::Device::open(&format!("unix:{}", argument("SOCKET"))).unwrap();
    say("there");
    assert_eq!(listen(), "stopped");
    let waiting = std::thread::spawn(move || silence(device.stats()));
    std::thread::sleep(Duration::from_millis(200));
    millrace_driver::wait_no_longer();
    let text = waiting.join().unwrap();
    say(&text);
}

#[test]
fn who_is_asked_to_end_waits_no_longer() {
    let daemon = Daemon::start("queues=4,spin=20,buffers=256");
    let mut hasty = Process::start("hasty", &[("SOCKET", daemon.socket())]);
    hasty.expect("there");
    daemon.stop();
    hasty.tell("stopped");
    let text = hasty.hear().expect("it says why it ends");
    assert!(text.contains("has not answered for 1 s"), "{text}");
    daemon.go_on();
    assert!(hasty.wait().success());
}
