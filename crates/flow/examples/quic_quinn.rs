//! Servers and clients of quinn for tests/cases/quic-stacks.sh; tests/quic has the same with other stacks.
//!
//!     quic_quinn server ADDRESS NUMBER           answers on every stream which server it is
//!     quic_quinn client ADDRESS COUNT FIRST      COUNT connections from 10.1.0.0 + FIRST on; each asks, and has another port
//!                                                before it asks again, twice; prints what came of it as JSON
//!     quic_quinn streams ADDRESS COUNT GO        one connection, which asks on COUNT streams, one after the other, once the file GO is
//!                                                there; stream number N has 200 + 100 * (N % 4) bytes. Half-way its keys are updated
//!
//! A server writes its keys where SSLKEYLOGFILE says.

use bytes::BytesMut;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event, ServerConfig,
    StreamId, TransportConfig, VarInt,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn Error>;

const PROTOCOL: &[u8] = b"mr";
/// Connections that are opened, or ask, at one time.
const AT_ONCE: usize = 50;
/// Datagrams of a connection in one go.
const BURST: usize = 32;
/// Seconds that an answer may take, unless QUIC_PATIENCE says otherwise.
const PATIENCE: u64 = 40;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", address, number] => serve(address.parse()?, number),
        ["streams", address, count, go] => ask_on_streams(address.parse()?, count.parse()?, go),
        ["client", address, count, first] => connect(address.parse()?, count.parse()?, first.parse()?),
        _ => Err("server ADDRESS NUMBER, client ADDRESS COUNT FIRST or streams ADDRESS COUNT GO".into()),
    }
}

fn patience() -> Duration {
    let given = std::env::var("QUIC_PATIENCE").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(given.unwrap_or(PATIENCE))
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(VarInt::from_u32(120_000).into())).enable_segmentation_offload(false);
    Arc::new(transport)
}

/// A socket that does not block.
fn socket(own: SocketAddr) -> Result<UdpSocket, Failure> {
    let socket = UdpSocket::bind(own)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The next datagram that waits at a socket.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Result<Option<(usize, SocketAddr)>, Failure> {
    match socket.recv_from(buffer) {
        Ok(received) => Ok(Some(received)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends what a connection has, and tells its endpoint what it has to say. Returns whether the connection is at its end.
fn drive(endpoint: &mut Endpoint, handle: ConnectionHandle, connection: &mut Connection, socket: &UdpSocket) -> bool {
    let now = Instant::now();
    if connection.poll_timeout().is_some_and(|timeout| timeout <= now) {
        connection.handle_timeout(now);
    }
    while let Some(event) = connection.poll_endpoint_events() {
        if let Some(event) = endpoint.handle_event(handle, event) {
            connection.handle_event(event);
        }
    }
    for _ in 0..BURST {
        let mut datagram = Vec::new();
        let Some(transmit) = connection.poll_transmit(now, 1, &mut datagram) else { break };
        // What finds no room is lost, and sent again.
        let _ = socket.send_to(&datagram, transmit.destination);
    }
    connection.is_drained()
}

fn serve(address: SocketAddr, number: &str) -> Result<(), Failure> {
    let certificate = rcgen::generate_simple_self_signed(["server.test".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut crypto = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key.into())?;
    crypto.alpn_protocols = vec![PROTOCOL.to_vec()];
    crypto.key_log = Arc::new(rustls::KeyLogFile::new());
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(crypto)?));
    config.transport_config(transport());
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), Some(Arc::new(config)), false, None);
    let mut connections: HashMap<ConnectionHandle, Connection> = HashMap::new();
    let (socket, mut buffer) = (socket(address)?, vec![0; 65536]);
    loop {
        let mut idle = true;
        while let Some((len, from)) = receive(&socket, &mut buffer)? {
            idle = false;
            let (now, mut response) = (Instant::now(), Vec::new());
            let data = BytesMut::from(&buffer[..len]);
            match endpoint.handle(now, from, None, None, data, &mut response) {
                Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                    if let Some(connection) = connections.get_mut(&handle) {
                        connection.handle_event(event);
                    }
                }
                Some(DatagramEvent::NewConnection(incoming)) => {
                    let accepted = endpoint.accept(incoming, now, &mut response, None);
                    let (handle, connection) = accepted.map_err(|error| error.cause)?;
                    connections.insert(handle, connection);
                }
                Some(DatagramEvent::Response(transmit)) => {
                    let _ = socket.send_to(&response[..transmit.size], transmit.destination);
                }
                None => {}
            }
        }
        connections.retain(|handle, connection| {
            answer(connection, number);
            !drive(&mut endpoint, *handle, connection, &socket)
        });
        if idle {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Says on each new stream which server this is.
fn answer(connection: &mut Connection, number: &str) {
    while connection.poll().is_some() {}
    while let Some(stream) = connection.streams().accept(Dir::Bi) {
        let mut send = connection.send_stream(stream);
        let _ = send.write(number.as_bytes());
        let _ = send.finish();
    }
}

/// A client, which believes any server.
struct Client {
    own: Ipv4Addr,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    connection: Connection,
    socket: UdpSocket,
    /// Whom it asks, and since when.
    asked: Option<(StreamId, Instant)>,
    answer: Vec<u8>,
    server: Option<String>,
    failed: Option<String>,
}

impl Client {
    fn new(own: Ipv4Addr, to: SocketAddr, crypto: &Arc<QuicClientConfig>) -> Result<Self, Failure> {
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, false, None);
        let mut config = ClientConfig::new(crypto.clone());
        config.transport_config(transport());
        let (handle, connection) = endpoint.connect(Instant::now(), config, to, "server.test")?;
        let socket = socket((own, 0).into())?;
        let (asked, answer) = (None, Vec::new());
        Ok(Self { own, endpoint, handle, connection, socket, asked, answer, server: None, failed: None })
    }

    /// Begins to ask which server it is.
    fn ask(&mut self) {
        self.ask_with(b"who?");
    }

    fn ask_with(&mut self, question: &[u8]) {
        let Some(stream) = self.connection.streams().open(Dir::Bi) else {
            self.failed = Some("no stream".to_owned());
            return;
        };
        let mut send = self.connection.send_stream(stream);
        let _ = send.write(question);
        let _ = send.finish();
        self.asked = Some((stream, Instant::now()));
    }

    /// Sends, receives, and looks for the answer. Returns whether it waits for one.
    fn pass(&mut self, buffer: &mut [u8]) -> Result<bool, Failure> {
        while let Some((len, from)) = receive(&self.socket, buffer)? {
            let data = BytesMut::from(&buffer[..len]);
            let event = self.endpoint.handle(Instant::now(), from, None, None, data, &mut Vec::new());
            if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                self.connection.handle_event(event);
            }
        }
        while let Some(event) = self.connection.poll() {
            if let Event::ConnectionLost { reason } = event {
                self.failed = Some(reason.to_string());
            }
        }
        self.read();
        drive(&mut self.endpoint, self.handle, &mut self.connection, &self.socket);
        match self.asked {
            Some((_, since)) if since.elapsed() > patience() => self.failed = Some("no answer".to_owned()),
            _ => {}
        }
        Ok(self.failed.is_none() && self.asked.is_some())
    }

    fn read(&mut self) {
        let Some((stream, _)) = self.asked else { return };
        let mut receive = self.connection.recv_stream(stream);
        let Ok(mut chunks) = receive.read(true) else { return };
        let ended = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => self.answer.extend_from_slice(&chunk.bytes),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let _ = chunks.finalize();
        if ended {
            let answer = String::from_utf8_lossy(&std::mem::take(&mut self.answer)).into_owned();
            let server = self.server.get_or_insert_with(|| answer.clone());
            if *server != answer {
                self.failed = Some(format!("server {answer} answers instead of {server}"));
            }
            self.asked = None;
        }
    }
}

fn client_crypto() -> Result<Arc<QuicClientConfig>, Failure> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut crypto = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    crypto.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Arc::new(QuicClientConfig::try_from(crypto)?))
}

/// One connection, and question after question.
fn ask_on_streams(to: SocketAddr, count: usize, go: &str) -> Result<(), Failure> {
    let mut clients = [Client::new(Ipv4Addr::new(10, 1, 0, 1), to, &client_crypto()?)?];
    // The first stream has number 0.
    round(&mut clients, 0..1, true)?;
    let begin = Instant::now();
    while !std::path::Path::new(go).exists() {
        clients[0].pass(&mut vec![0; 65536])?;
        std::thread::sleep(Duration::from_millis(1));
        if begin.elapsed() > patience() {
            return Err("nobody says go".into());
        }
    }
    for number in 1..count {
        if number == count / 2 {
            clients[0].connection.force_key_update();
        }
        clients[0].ask_with(&vec![b'?'; 200 + 100 * (number % 4)]);
        let begin = Instant::now();
        while clients[0].pass(&mut vec![0; 65536])? {
            std::thread::sleep(Duration::from_micros(500));
        }
        if let Some(reason) = clients[0].failed.take() {
            return Err(format!("stream {number}, after {:?}: {reason}", begin.elapsed()).into());
        }
    }
    println!("{}", serde_json::json!({ "streams": count }));
    Ok(())
}

fn connect(to: SocketAddr, count: usize, first: u32) -> Result<(), Failure> {
    let crypto = client_crypto()?;
    let network = Ipv4Addr::new(10, 1, 0, 0).to_bits();
    let mut clients = Vec::new();
    // Each step for some clients after the others, while those that had it stay as they are.
    let mut failed: BTreeMap<String, u64> = BTreeMap::new();
    for (at, what) in ["open", "first move", "second move"].into_iter().enumerate() {
        for from in (0..count).step_by(AT_ONCE) {
            let some = from..count.min(from + AT_ONCE);
            for number in some.clone() {
                if at == 0 {
                    clients.push(Client::new(Ipv4Addr::from_bits(network + first + number as u32), to, &crypto)?);
                    continue;
                }
                let client = &mut clients[number];
                client.socket = socket((client.own, 0).into())?;
            }
            round(&mut clients, some, at == 0)?;
        }
        for client in &mut clients {
            if let Some(reason) = client.failed.take() {
                *failed.entry(format!("{what}: {reason}")).or_default() += 1;
            }
        }
    }
    let mut servers: BTreeMap<String, u64> = BTreeMap::new();
    clients
        .iter()
        .filter_map(|client| client.server.clone())
        .for_each(|server| *servers.entry(server).or_default() += 1);
    println!("{}", serde_json::json!({ "connections": count, "failed": failed, "servers": servers }));
    Ok(())
}

/// Some clients ask; all of them go on until those have an answer or have failed.
fn round(clients: &mut [Client], some: std::ops::Range<usize>, opens: bool) -> Result<(), Failure> {
    let (mut buffer, begin) = (vec![0; 65536], Instant::now());
    if !opens {
        clients[some.clone()].iter_mut().for_each(Client::ask);
    }
    loop {
        let mut waiting = false;
        for client in &mut clients[some.clone()] {
            waiting |= client.pass(&mut buffer)?;
            if opens && client.server.is_none() && client.failed.is_none() {
                waiting = true;
                if client.asked.is_none() && !client.connection.is_handshaking() {
                    client.ask();
                }
                if begin.elapsed() > patience() {
                    client.failed = Some("no handshake".to_owned());
                }
            }
        }
        if !waiting {
            return Ok(());
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Certificates are not what is tested.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
