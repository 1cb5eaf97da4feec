//! `millrace metrics`: what a card counts, for Prometheus.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use millrace::{Clock, Device};
use millrace_metrics::{Answer, Limits, Server};
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::note;
use millrace_tool::session::Session;
use millrace_tool::stop;

/// Options of `metrics`.
#[derive(Debug, Args)]
#[command(after_help = "\
GET /metrics has every counter and gauge that `millrace stats` shows, and how the
clock does, in the text format of OpenMetrics. GET /health says ok, or 503 and why
while the card does not answer; one that comes back is found again. A connection
is for one request and ten seconds; of more than 128 at once the oldest ends.

Nobody is asked who he is: listen where only those can connect who may know.

Examples:
  millrace metrics
  millrace metrics --listen 10.0.0.1:9184 --device unix:/tmp/card.sock
  curl http://127.0.0.1:9184/metrics")]
pub struct MetricsArgs {
    /// Address and port to listen at
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9184")]
    listen: SocketAddr,
}

/// A card that is opened again when it has gone.
struct Card {
    name: String,
    open: Mutex<Option<(Device, Option<Clock>)>>,
}

impl Card {
    fn answer(&self) -> Answer {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = self.ask(&mut open);
        if answer.is_err() {
            *open = None;
        }
        answer
    }

    fn ask(&self, open: &mut Option<(Device, Option<Clock>)>) -> Answer {
        if open.is_none() {
            let device = Device::open(&self.name).map_err(|error| error.to_string())?;
            // In another time namespace the rest can be told all the same.
            let clock = device.clock().ok();
            *open = Some((device, clock));
        }
        let Some((device, clock)) = open else { return Err("the card is not open".to_owned()) };
        let stats = device.stats().map_err(|error| error.to_string())?;
        let snapshot = clock.as_ref().and_then(|clock| clock.snapshot().ok());
        millrace_metrics::text(stats, snapshot).map_err(|error| error.to_string())
    }
}

/// Runs the command.
pub fn run(shared: &Shared, args: &MetricsArgs) -> Result<(), Failure> {
    let session = Session::open_running(shared, "there is nothing to count")?;
    let card = Card { name: session.name.clone(), open: Mutex::new(None) };
    drop(session);
    let failed = |error| Failure::Found(format!("cannot listen at {}: {error}", args.listen));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build();
    let runtime = runtime.map_err(failed)?;
    let done = runtime.block_on(async {
        let server = Server::bind(args.listen, Limits::default(), move || card.answer()).await.map_err(failed)?;
        note(format!("listens at http://{}/metrics", server.address().map_err(failed)?));
        let stopped = async {
            while !stop::asked() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = server.run() => {}
            () = stopped => {}
        }
        Ok(())
    });
    // A card that does not answer is not waited for.
    runtime.shutdown_background();
    done
}
