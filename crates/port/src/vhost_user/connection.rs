//! The thread that waits for a driver and speaks vhost-user with it.

use super::backend::{Backend, show_waiting};
use super::early;
use super::queue::Pair;
use crate::peer::{Connector, ControlThread, SocketError, user_of};
use crate::spec::VhostUserSpec;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::{BackendReqHandler, Error, VhostUserBackendReqHandlerMut};

/// Opens the socket, or begins to look for it. Both the socket and its thread end with the last port of the wire.
pub(super) fn start(spec: &VhostUserSpec, pairs: Arc<[Arc<Pair>]>) -> Result<ControlThread, SocketError> {
    let path = PathBuf::from(&spec.path);
    let role = if spec.client { "client" } else { "server" };
    show_waiting(&pairs, role);
    let talk = Talk { pairs, role, path: path.clone(), warned: false };
    ControlThread::start(&path, spec.client, move |connector| talk.run(&connector))
}

/// What the thread has.
struct Talk {
    pairs: Arc<[Arc<Pair>]>,
    role: &'static str,
    path: PathBuf,
    /// A driver has been complained about; the next is only mentioned at debug level.
    warned: bool,
}

impl Talk {
    fn run(mut self, connector: &Connector) {
        while let Some(stream) = connector.next() {
            self.serve(connector, stream);
        }
    }

    /// Speaks with one driver until it goes, or says what cannot be.
    fn serve(&mut self, connector: &Connector, stream: UnixStream) {
        let Ok(ours) = stream.try_clone() else { return };
        if !connector.begin(&stream) {
            return;
        }
        let backend = Arc::new(Mutex::new(Backend::new(self.pairs.clone(), self.role, user_of(&ours))));
        let mut handler = BackendReqHandler::from_stream(stream, backend.clone());
        while connector.wait(&ours) {
            if let Err(error) = Self::answer(&ours, &backend, &mut handler) {
                self.explain(&error);
                break;
            }
        }
        backend.lock().unwrap_or_else(PoisonError::into_inner).close();
        connector.end();
    }

    /// Answers the next request.
    fn answer(
        socket: &UnixStream,
        backend: &Mutex<Backend>,
        handler: &mut BackendReqHandler<Mutex<Backend>>,
    ) -> Result<(), Error> {
        let is_negotiated = backend.lock().unwrap_or_else(PoisonError::into_inner).is_negotiated();
        let enable =
            |index, state| backend.lock().unwrap_or_else(PoisonError::into_inner).set_vring_enable(index, state);
        if !is_negotiated && early::take(socket, enable)? {
            return Ok(());
        }
        handler.handle_request()
    }

    fn explain(&mut self, error: &Error) {
        let path = self.path.display();
        match error {
            Error::Disconnected | Error::SocketBroken(_) => tracing::debug!("vhost-user:{path}: the peer has gone"),
            _ if self.warned => tracing::debug!("vhost-user:{path}: connection closed: {error}"),
            _ => {
                self.warned = true;
                tracing::warn!("vhost-user:{path}: connection closed: {error}; further errors at debug level");
            }
        }
    }
}
