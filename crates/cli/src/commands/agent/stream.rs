//! A stream of bytes to a controller, plain or by TLS. Nothing waits.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use rustls::Connection;

/// Reads of the system for one read here.
const MOST_READS: usize = 32;
/// Bytes of one read.
const CHUNK: usize = 64 << 10;

/// A stream.
pub struct Stream {
    socket: TcpStream,
    tls: Option<Box<Connection>>,
    /// What is read goes through it: a part of a vector that is to be read into would have to be cleared each time.
    scratch: Box<[u8]>,
}

impl Stream {
    /// A stream over a connection of TCP.
    pub fn new(socket: TcpStream, tls: Option<Connection>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // What is said is said at once.
        let _ = socket.set_nodelay(true);
        Ok(Self { socket, tls: tls.map(Box::new), scratch: vec![0; CHUNK].into() })
    }

    /// What to wait for.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether TLS has something to say by itself.
    pub fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Whether TLS is still about who the other end is.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Whether the other end has shown a certificate: without one no handshake ends.
    pub fn is_certified(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| !tls.is_handshaking())
    }

    /// Reads some 64 KiB behind `to`, if they are there. `false`: nothing more will come.
    pub fn read(&mut self, to: &mut Vec<u8>) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return append(&mut self.socket, to, &mut self.scratch) };
        let begin = to.len();
        let (mut goes_on, mut left) = (true, MOST_READS);
        // Records may be empty: their number counts, too.
        while goes_on && to.len() - begin < CHUNK && left > 0 {
            left -= 1;
            match tls.read_tls(&mut self.socket) {
                Ok(0) => goes_on = false,
                Ok(_) => {}
                Err(error) if is_later(&error) => break,
                Err(error) => return Err(error),
            }
            if let Err(error) = tls.process_new_packets() {
                // It is to know why.
                let _ = tls.write_tls(&mut self.socket);
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
            // What has come is whole records, which are a few; the end is seen above.
            let _ = append(&mut tls.reader(), to, &mut self.scratch);
        }
        Ok(goes_on)
    }

    /// Writes what is taken now; how many bytes.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.write(bytes) };
        let taken = tls.writer().write(bytes)?;
        while tls.wants_write() {
            match tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if is_later(&error) => break,
                Err(error) => return Err(error),
            }
        }
        if taken == 0 && !bytes.is_empty() { Err(ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// Lets TLS say what it has to say.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.wants_write() { self.write(&[]).map(|_| ()) } else { Ok(()) }
    }
}

/// Reads once.
fn append(from: &mut impl Read, to: &mut Vec<u8>, scratch: &mut [u8]) -> io::Result<bool> {
    match from.read(scratch) {
        Ok(len) => {
            to.extend_from_slice(&scratch[..len]);
            Ok(len > 0)
        }
        Err(error) if is_later(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether it is to be tried later.
pub fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
