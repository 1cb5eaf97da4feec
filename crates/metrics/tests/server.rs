//! The server beside a card that is slow or says nothing, and clients that go or never ask.

use millrace_metrics::{Limits, Server};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ASK: &[u8] = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
/// Longer than anything here takes on a machine that stands still now and then.
const LONG: Duration = Duration::from_secs(60);

async fn serve(limits: Limits, ask: impl Fn() -> Result<String, String> + Send + Sync + 'static) -> SocketAddr {
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), limits, ask).await.unwrap();
    let address = server.address().unwrap();
    tokio::spawn(server.run());
    address
}

async fn get(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(ASK).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Who asks and goes costs the card one question at most, and the next comer gets the answer to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_does_not_make_the_card_answer_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let count = asked.clone();
    let limits = Limits { patience: LONG, time: LONG, fresh: LONG, ..Limits::default() };
    let address = serve(limits, move || {
        count.fetch_add(1, SeqCst);
        wait.lock().unwrap().recv().unwrap();
        Ok("text".to_owned())
    })
    .await;
    for _ in 0..100 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(ASK).await.unwrap();
        drop(stream);
    }
    let honest = tokio::spawn(get(address));
    while asked.load(SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // As many answers as there could be questions.
    (0..200).for_each(|_| go.send(()).unwrap_or_default());
    let text = tokio::time::timeout(LONG, honest).await.expect("no answer").unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert_eq!(asked.load(SeqCst), 1);
}

/// A card that says nothing: whoever asks is told so, also behind the one who has asked first, and the card is not asked again meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_card_is_unavailable() {
    let asked = Arc::new(AtomicUsize::new(0));
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let count = asked.clone();
    let limits = Limits { patience: Duration::from_millis(50), time: LONG, fresh: Duration::ZERO, ..Limits::default() };
    let address = serve(limits, move || {
        count.fetch_add(1, SeqCst);
        wait.lock().unwrap().recv().unwrap();
        Ok("text".to_owned())
    })
    .await;
    for _ in 0..20 {
        let text = get(address).await;
        assert!(text.starts_with("HTTP/1.1 503"), "{text}");
        assert!(text.ends_with("the card has not answered for 50 ms\n"), "{text}");
    }
    assert_eq!(asked.load(SeqCst), 1);
    // It answers again.
    (0..1000).for_each(|_| go.send(()).unwrap_or_default());
    for _ in 0..1000 {
        if get(address).await.starts_with("HTTP/1.1 200") {
            return;
        }
    }
    panic!("it is not found again");
}

/// Those who say nothing make room, not the one whose question is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_asked_is_not_ended_for_those_who_have_not() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let limits = Limits { connections: 4, patience: LONG, time: LONG, ..Limits::default() };
    let address = serve(limits, move || {
        count.fetch_add(1, SeqCst);
        wait.lock().unwrap().recv().unwrap();
        Ok("text".to_owned())
    })
    .await;
    let honest = tokio::spawn(get(address));
    while asked.load(SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    // The first of them has been ended: so all but the last have made room for another.
    let mut byte = [0];
    let ended = tokio::time::timeout(LONG, silent[0].read(&mut byte)).await.expect("it stays");
    assert!(!matches!(ended, Ok(1)));
    go.send(()).unwrap();
    let text = tokio::time::timeout(LONG, honest).await.expect("no answer").unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}
