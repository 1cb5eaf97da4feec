//! The server: `/metrics` and `/health`, for many who come at once and for some who never say what they want.
//!
//! Each connection is for one request, has so long for it, and there are so many at once: when there is one more, the oldest goes of those that have
//! not asked anything yet. The card is asked once at a time, whoever goes meanwhile, and what it has said serves all who come within a moment. While it
//! says nothing, those who wait are told so.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// What OpenMetrics calls itself.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; one more ends the oldest that has not asked anything yet, or the oldest.
    pub connections: usize,
    /// How long a connection has from its beginning to its end.
    pub time: Duration,
    /// How long what the card has said is handed out.
    pub fresh: Duration,
    /// How long the card has to answer, before those who wait are told that it does not.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            time: Duration::from_secs(10),
            fresh: Duration::from_millis(100),
            patience: Duration::from_secs(5),
        }
    }
}

/// What the card says, or why it says nothing.
pub type Answer = Result<String, String>;

/// A server that waits for connections.
pub struct Server {
    listener: TcpListener,
    router: Router,
    limits: Limits,
}

struct Source {
    ask: Box<dyn Fn() -> Answer + Send + Sync>,
    limits: Limits,
    /// Since when the card is asked; `None`: nobody asks it.
    asking: Mutex<Option<Instant>>,
    last: watch::Sender<Option<(Instant, Answer)>>,
}

impl Source {
    fn new(ask: Box<dyn Fn() -> Answer + Send + Sync>, limits: Limits) -> Arc<Self> {
        Arc::new(Self { ask, limits, asking: Mutex::new(None), last: watch::Sender::new(None) })
    }

    async fn answer(self: Arc<Self>) -> Answer {
        let mut news = self.last.subscribe();
        let since = {
            let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((at, answer)) = &*self.last.borrow()
                && asking.is_none()
                && at.elapsed() < self.limits.fresh
            {
                return answer.clone();
            }
            news.mark_unchanged();
            *asking.get_or_insert_with(|| {
                // It goes on when the one who has begun it goes, so that nobody makes the card answer for nothing.
                tokio::spawn(self.clone().renew());
                Instant::now()
            })
        };
        let silent = format!("the card has not answered for {} ms", self.limits.patience.as_millis());
        let wait = tokio::time::timeout_at((since + self.limits.patience).into(), news.changed());
        match wait.await {
            Ok(Ok(())) => news.borrow().as_ref().map_or_else(|| Err(silent), |(_, answer)| answer.clone()),
            _ => Err(silent),
        }
    }

    /// Asks the card, on a thread where that may wait.
    async fn renew(self: Arc<Self>) {
        let source = self.clone();
        let asked = tokio::task::spawn_blocking(move || (source.ask)()).await;
        let answer = asked.unwrap_or_else(|error| Err(error.to_string()));
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        *asking = None;
        self.last.send_replace(Some((Instant::now(), answer)));
    }
}

async fn metrics(State(source): State<Arc<Source>>) -> Response {
    match source.answer().await {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

async fn health(State(source): State<Arc<Source>>) -> Response {
    match source.answer().await {
        Ok(_) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

impl Server {
    /// Listens at an address; `ask` asks the card, on a thread where it may wait.
    ///
    /// # Errors
    /// What the system says.
    pub async fn bind(
        address: SocketAddr,
        limits: Limits,
        ask: impl Fn() -> Answer + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let source = Source::new(Box::new(ask), limits);
        let router = Router::new().route("/metrics", get(metrics)).route("/health", get(health)).with_state(source);
        Ok(Self { listener: TcpListener::bind(address).await?, router, limits })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves whoever comes, without an end.
    pub async fn run(self) {
        let mut connections: VecDeque<Connection> = VecDeque::new();
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                // There are no fds left for one more: there will be, when others have ended.
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            connections.retain(|connection| !connection.task.is_finished());
            if connections.len() >= self.limits.connections {
                make_room(&mut connections);
            }
            let (inner, time) = (TowerToHyperService::new(self.router.clone()), self.limits.time);
            let has_asked = Arc::new(AtomicBool::new(false));
            let asks = has_asked.clone();
            let task = tokio::spawn(async move {
                let service = service_fn(move |request| {
                    asks.store(true, Relaxed);
                    inner.call(request)
                });
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(time).keep_alive(false).max_buf_size(16 * 1024);
                // Who goes, or is too slow, is not told why.
                let _ = tokio::time::timeout(time, http.serve_connection(TokioIo::new(stream), service)).await;
            });
            connections.push_back(Connection { task: task.abort_handle(), has_asked });
        }
    }
}

struct Connection {
    task: AbortHandle,
    /// Its request is there. Relaxed is enough: it carries no data.
    has_asked: Arc<AtomicBool>,
}

/// Ends the oldest of those who have not asked yet; if all have, the oldest.
fn make_room(connections: &mut VecDeque<Connection>) {
    let silent = connections.iter().position(|connection| !connection.has_asked.load(Relaxed));
    if let Some(one) = connections.remove(silent.unwrap_or(0)) {
        one.task.abort();
    }
}
