//! The server: `/metrics` and `/health`, for many who come at once and for some who never say what they want.
//!
//! Each connection is for one request, has so long for it, and there are so many at once: the oldest one goes when there is one more.
//! The card is asked once at a time, and what it has said serves all who come within a moment.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;

/// What OpenMetrics calls itself.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; one more ends the oldest.
    pub connections: usize,
    /// How long a connection has from its beginning to its end.
    pub time: Duration,
    /// How long what the card has said is handed out.
    pub fresh: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 128, time: Duration::from_secs(10), fresh: Duration::from_millis(100) }
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
    last: Mutex<Option<(Instant, Answer)>>,
    fresh: Duration,
}

impl Source {
    async fn answer(self: Arc<Self>) -> Answer {
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < self.fresh
        {
            return answer.clone();
        }
        let source = self.clone();
        let asked = tokio::task::spawn_blocking(move || (source.ask)()).await;
        let answer = asked.unwrap_or_else(|error| Err(error.to_string()));
        *last = Some((Instant::now(), answer.clone()));
        answer
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
        let source = Arc::new(Source { ask: Box::new(ask), last: Mutex::new(None), fresh: limits.fresh });
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
        let mut connections: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                // There are no fds left for one more: there will be, when others have ended.
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            connections.retain(|connection| !connection.is_finished());
            if connections.len() >= self.limits.connections
                && let Some(oldest) = connections.pop_front()
            {
                oldest.abort();
            }
            let (service, time) = (TowerToHyperService::new(self.router.clone()), self.limits.time);
            let task = tokio::spawn(async move {
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(time).keep_alive(false).max_buf_size(16 * 1024);
                // Who goes, or is too slow, is not told why.
                let _ = tokio::time::timeout(time, http.serve_connection(TokioIo::new(stream), service)).await;
            });
            connections.push_back(task.abort_handle());
        }
    }
}
