//! Clients and servers of `quinn`, with a relay between them that steers. Time is the test's own, so nothing waits.

use crate::quic::routable::tests::encode;
use crate::quic::{Answer, Config, KeyLogLine, NameRule, Path, RoutableSpec, Steering, Why};
use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, ConnectionId, ConnectionIdGenerator, DatagramEvent, Dir, Endpoint,
    EndpointConfig, RandomConnectionIdGenerator, ServerConfig, StreamId,
};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SERVERS: u16 = 4;
const ADDRESS: &str = "10.0.0.1:4433";
/// What a client or a server sends in one go.
const MOST_DATAGRAMS: usize = 64;

/// Lines of the key logs of all servers.
#[derive(Debug, Default)]
struct KeyLog(Mutex<Vec<String>>);

impl rustls::KeyLog for KeyLog {
    fn log(&self, label: &str, random: &[u8], secret: &[u8]) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        self.0.lock().unwrap().push(format!("{label} {} {}", hex(random), hex(secret)));
    }
}

/// Ids that say which server they belong to.
struct Routable {
    spec: RoutableSpec,
    server: u8,
    next: u64,
}

impl ConnectionIdGenerator for Routable {
    fn generate_cid(&mut self) -> ConnectionId {
        self.next += 1;
        ConnectionId::new(&encode(&self.spec, &[self.server], &self.next.to_be_bytes()))
    }

    fn cid_len(&self) -> usize {
        1 + self.spec.server_id_len + self.spec.nonce_len
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

struct Client {
    endpoint: Endpoint,
    handle: ConnectionHandle,
    connection: Connection,
    address: SocketAddr,
    name: String,
    /// The server that accepted it.
    owner: Option<u16>,
    held: VecDeque<Vec<u8>>,
    echoes: usize,
    sent: Vec<StreamId>,
}

struct Server {
    endpoint: Endpoint,
    connections: HashMap<ConnectionHandle, Connection>,
}

/// What became of the datagrams of clients.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    right: u64,
    wrong: u64,
    nobody: u64,
    /// Which a hash over addresses and ports would have sent elsewhere.
    wrong_by_path: u64,
}

struct World {
    now: Instant,
    start: Instant,
    clients: Vec<Client>,
    servers: Vec<Server>,
    steering: Steering,
    key_log: Arc<KeyLog>,
    path_hash: RandomState,
    tally: Tally,
    whys: HashMap<String, u64>,
    next_port: u16,
}

impl World {
    fn new(config: Config, clients: usize) -> Self {
        let names = ["a.even.test".to_owned(), "b.odd.test".to_owned()];
        let certificate = rcgen::generate_simple_self_signed(names.clone()).unwrap();
        let key_log = Arc::new(KeyLog::default());
        let start = Instant::now();
        let servers = (0..SERVERS).map(|at| server(at as u8, &config, &certificate, &key_log)).collect();
        let mut world = Self {
            now: start,
            start,
            clients: Vec::new(),
            servers,
            steering: Steering::new(config).unwrap(),
            key_log,
            path_hash: RandomState::new(),
            tally: Tally::default(),
            whys: HashMap::new(),
            next_port: 10_000,
        };
        let crypto = client_crypto(&certificate);
        for at in 0..clients {
            let client = world.client(&crypto, &names[at % 2]);
            world.clients.push(client);
        }
        world
    }

    fn client(&mut self, crypto: &Arc<QuicClientConfig>, name: &str) -> Client {
        let mut config = EndpointConfig::default();
        config.cid_generator(|| Box::new(RandomConnectionIdGenerator::new(5)));
        let mut endpoint = Endpoint::new(Arc::new(config), None, false, None);
        let config = ClientConfig::new(crypto.clone());
        let (handle, connection) = endpoint.connect(self.now, config, ADDRESS.parse().unwrap(), name).unwrap();
        let address = self.address();
        let name = name.to_owned();
        Client {
            endpoint,
            handle,
            connection,
            address,
            name,
            owner: None,
            held: VecDeque::new(),
            echoes: 0,
            sent: vec![],
        }
    }

    fn address(&mut self) -> SocketAddr {
        self.next_port += 1;
        SocketAddr::from(([192, 0, 2, 1], self.next_port))
    }

    fn now_ns(&self) -> u64 {
        (self.now - self.start).as_nanos() as u64
    }

    /// Until nobody has anything to send, and then on to the next timer, until `done`.
    fn run(&mut self, what: &str, done: impl Fn(&Client) -> bool) {
        for _ in 0..2000 {
            while self.pass() {}
            if self.clients.iter().all(&done) {
                return;
            }
            let clients = self.clients.iter_mut().map(|client| &mut client.connection);
            let servers = self.servers.iter_mut().flat_map(|server| server.connections.values_mut());
            let timers: Vec<Instant> = clients.chain(servers).filter_map(Connection::poll_timeout).collect();
            let Some(next) = timers.into_iter().min() else { break };
            self.now = self.now.max(next);
            for client in &mut self.clients {
                client.connection.handle_timeout(self.now);
            }
            for server in &mut self.servers {
                server.connections.values_mut().for_each(|connection| connection.handle_timeout(self.now));
            }
        }
        panic!("{what}: not done, {:?} {:?}", self.tally, self.whys);
    }

    /// Everybody sends what there is. Returns whether there was something.
    fn pass(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.clients.len() {
            let mut out = Vec::new();
            let client = &mut self.clients[at];
            drain(self.now, &mut client.endpoint, client.handle, &mut client.connection, &mut out);
            moved |= !out.is_empty();
            for (_, datagram) in out {
                self.up(at, datagram);
            }
        }
        for at in 0..self.servers.len() {
            moved |= self.serve(at);
        }
        moved
    }

    fn serve(&mut self, at: usize) -> bool {
        let mut out = Vec::new();
        let server = &mut self.servers[at];
        for (handle, connection) in &mut server.connections {
            echo(connection);
            drain(self.now, &mut server.endpoint, *handle, connection, &mut out);
        }
        let moved = !out.is_empty();
        for (address, datagram) in out {
            self.down(at as u16, address, &datagram);
        }
        moved
    }

    fn steer(&mut self, at: usize, datagram: &[u8]) -> Answer {
        let path = path(self.clients[at].address);
        let answer = self.steering.steer(self.now_ns(), &path, datagram);
        *self.whys.entry(format!("{:?}", answer.why).split('(').next().unwrap().to_owned()).or_default() += 1;
        answer
    }

    fn up(&mut self, at: usize, datagram: Vec<u8>) {
        let answer = self.steer(at, &datagram);
        if answer.why == Why::HelloIncomplete {
            self.clients[at].held.push_back(datagram);
            return;
        }
        self.deliver(at, answer, datagram);
        while let Some(held) = self.clients[at].held.pop_front() {
            let answer = self.steer(at, &held);
            assert_ne!(answer.why, Why::HelloIncomplete);
            self.deliver(at, answer, held);
        }
    }

    fn deliver(&mut self, at: usize, answer: Answer, datagram: Vec<u8>) {
        let client = &self.clients[at];
        let by_path = (self.path_hash.hash_one(client.address) % u64::from(SERVERS)) as u16;
        let Some(target) = answer.target else {
            self.tally.nobody += 1;
            return;
        };
        match client.owner {
            Some(owner) if owner != target.instance => self.tally.wrong += 1,
            _ => self.tally.right += 1,
        }
        self.tally.wrong_by_path += u64::from(client.owner.is_some_and(|owner| owner != by_path));
        let address = client.address;
        let server = &mut self.servers[usize::from(target.instance)];
        let mut response = Vec::new();
        let data = BytesMut::from(&datagram[..]);
        match server.endpoint.handle(self.now, address, None, None, data, &mut response) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(connection) = server.connections.get_mut(&handle) {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = server.endpoint.accept(incoming, self.now, &mut response, None);
                let (handle, connection) = accepted.map_err(|error| error.cause).unwrap();
                server.connections.insert(handle, connection);
                self.clients[at].owner = Some(target.instance);
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    fn down(&mut self, server: u16, address: SocketAddr, datagram: &[u8]) {
        for line in self.key_log.0.lock().unwrap().drain(..) {
            if let Some(line) = KeyLogLine::parse(&line).unwrap() {
                self.steering.hand_over(1, &line);
            }
        }
        let now_ns = self.now_ns();
        self.steering.sent(now_ns, server, &path(address), datagram);
        // What is sent to an address that a client has left is lost.
        let Some(client) = self.clients.iter_mut().find(|client| client.address == address) else { return };
        let data = BytesMut::from(datagram);
        let from = ADDRESS.parse().unwrap();
        if let Some(DatagramEvent::ConnectionEvent(_, event)) =
            client.endpoint.handle(self.now, from, None, None, data, &mut Vec::new())
        {
            client.connection.handle_event(event);
        }
        client.collect();
    }

    /// Each client sends on a new stream, and waits for the echo.
    fn round(&mut self, what: &str) {
        let wanted = self.clients.iter().map(|client| client.echoes).max().unwrap_or(0) + 1;
        for client in &mut self.clients {
            let stream = client.connection.streams().open(Dir::Bi).unwrap();
            let mut send = client.connection.send_stream(stream);
            send.write(b"to be echoed").unwrap();
            send.finish().unwrap();
            client.sent.push(stream);
        }
        self.run(what, |client| client.echoes == wanted);
    }

    /// Every client has another address from now on. Whether it knows, and so takes another id, is up to `knows`.
    fn move_all(&mut self, knows: bool) {
        for at in 0..self.clients.len() {
            let address = self.address();
            self.clients[at].address = address;
            if knows {
                self.clients[at].connection.local_address_changed();
            }
        }
    }

    /// A handshake and an echo, then twice another address and an echo.
    fn run_all(&mut self, knows: bool) {
        self.run("handshake", |client| !client.connection.is_handshaking());
        self.round("first round");
        for _ in 0..2 {
            self.move_all(knows);
            self.round("after a move");
        }
        self.steering.check();
        assert!(self.clients.iter().all(|client| !client.connection.is_closed()));
        assert_eq!(self.steering.connections(), self.clients.len());
    }
}

impl Client {
    fn collect(&mut self) {
        let connection = &mut self.connection;
        let done = self.sent.extract_if(.., |stream| {
            let mut receive = connection.recv_stream(*stream);
            let Ok(mut chunks) = receive.read(true) else { return false };
            let mut bytes = Vec::new();
            let ended = loop {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => bytes.extend_from_slice(&chunk.bytes),
                    Ok(None) => break true,
                    Err(_) => break false,
                }
            };
            let _ = chunks.finalize();
            ended
        });
        self.echoes += done.count();
    }
}

/// Sends back what is on streams.
fn echo(connection: &mut Connection) {
    while connection.poll().is_some() {}
    while let Some(stream) = connection.streams().accept(Dir::Bi) {
        let mut bytes: Vec<Bytes> = Vec::new();
        let mut receive = connection.recv_stream(stream);
        let mut chunks = receive.read(true).unwrap();
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            bytes.push(chunk.bytes);
        }
        let _ = chunks.finalize();
        let mut send = connection.send_stream(stream);
        for part in bytes {
            send.write(&part).unwrap();
        }
        send.finish().unwrap();
    }
}

/// What a connection wants to send, and what it tells its endpoint.
fn drain(
    now: Instant,
    endpoint: &mut Endpoint,
    handle: ConnectionHandle,
    connection: &mut Connection,
    out: &mut Vec<(SocketAddr, Vec<u8>)>,
) {
    while let Some(event) = connection.poll_endpoint_events() {
        if let Some(event) = endpoint.handle_event(handle, event) {
            connection.handle_event(event);
        }
    }
    for _ in 0..MOST_DATAGRAMS {
        let mut datagram = Vec::new();
        let Some(transmit) = connection.poll_transmit(now, 1, &mut datagram) else { break };
        out.push((transmit.destination, datagram));
    }
}

fn path(client: SocketAddr) -> Path {
    let local: SocketAddr = ADDRESS.parse().unwrap();
    Path { remote: (client.ip(), client.port()), local: (local.ip(), local.port()) }
}

type Certificate = rcgen::CertifiedKey<rcgen::KeyPair>;

fn server(at: u8, config: &Config, certificate: &Certificate, key_log: &Arc<KeyLog>) -> Server {
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut crypto = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key.into())
        .unwrap();
    crypto.key_log = key_log.clone();
    let crypto = QuicServerConfig::try_from(crypto).unwrap();
    let mut endpoint = EndpointConfig::default();
    let routable = config.routable.first().cloned();
    endpoint.cid_generator(move || match &routable {
        Some(spec) => Box::new(Routable { spec: spec.clone(), server: at, next: 0 }),
        None => Box::new(RandomConnectionIdGenerator::new(8)),
    });
    let server_config = ServerConfig::with_crypto(Arc::new(crypto));
    let endpoint = Endpoint::new(Arc::new(endpoint), Some(Arc::new(server_config)), false, None);
    Server { endpoint, connections: HashMap::new() }
}

fn client_crypto(certificate: &Certificate) -> Arc<QuicClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let crypto = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(QuicClientConfig::try_from(crypto).unwrap())
}

fn config() -> Config {
    let all: Vec<u16> = (0..SERVERS).collect();
    Config { queues: all.clone(), instances: all, ..Config::default() }
}

/// NAT gives each of 1,000 clients another port, of which they know nothing.
#[test]
fn rebinding_by_ids_of_the_handshake() {
    let mut world = World::new(config(), 1000);
    world.run_all(false);
    assert_eq!((world.tally.wrong, world.tally.nobody), (0, 0), "{:?}", world.whys);
    assert!(world.tally.wrong_by_path > world.tally.right / 2, "{:?}", world.tally);
    assert_eq!(world.steering.counters().moved, 2000);
}

/// Each client takes another id when it moves, which was encrypted when it was issued; but it says which server it is of.
#[test]
fn migration_by_routable_ids() {
    for key in [None, Some([7; 16])] {
        let servers = (0..SERVERS).map(|server| (vec![server as u8], server)).collect();
        let spec = RoutableSpec { configuration: 2, server_id_len: 1, nonce_len: 8, key, servers };
        let mut world = World::new(Config { routable: vec![spec], ..config() }, 40);
        world.run_all(true);
        assert_eq!((world.tally.wrong, world.tally.nobody), (0, 0), "{:?}", world.whys);
        assert!(world.steering.counters().routable > 80, "{:?}", world.whys);
    }
}

/// The same with ids that say nothing, and keys that the servers hand over.
#[test]
fn migration_with_keys() {
    let mut world = World::new(Config { keys: true, ..config() }, 40);
    world.run_all(true);
    assert_eq!((world.tally.wrong, world.tally.nobody), (0, 0), "{:?}", world.whys);
    assert_eq!(world.steering.counters().secrets_refused, 0);
}

/// The same with neither: nobody can say whose the new ids are, and nobody pretends to.
#[test]
fn migration_that_cannot_be_followed() {
    let mut world = World::new(config(), 20);
    world.run("handshake", |client| !client.connection.is_handshaking());
    world.round("first round");
    world.move_all(true);
    while world.pass() {}
    assert_eq!(world.tally.wrong, 0);
    assert_eq!(world.tally.nobody, world.steering.counters().unknown);
    assert!(world.tally.nobody >= 20, "{:?}", world.whys);
}

/// With keys of post-quantum key exchange a ClientHello is in two datagrams, so the first one waits for the second.
#[test]
fn server_names() {
    let rule = |name: &str, instances| NameRule { server_name: Some(name.into()), protocol: None, instances };
    let names = vec![rule("*.even.test", vec![0, 2]), rule("b.odd.test", vec![1, 3])];
    let mut world = World::new(Config { names, ..config() }, 40);
    world.run_all(false);
    assert_eq!((world.tally.wrong, world.tally.nobody), (0, 0), "{:?}", world.whys);
    for client in &world.clients {
        assert_eq!(client.owner.unwrap() % 2 == 0, client.name == "a.even.test");
    }
    assert!(world.steering.counters().hello_incomplete > 0, "{:?}", world.whys);
    assert!(world.steering.counters().name >= 40, "{:?}", world.whys);
}

/// Streams of one connection go to several queues, by the keys of its client.
#[test]
fn streams() {
    let config = Config { keys: true, streams: vec![10, 11, 12], ..config() };
    let mut world = World::new(config, 10);
    world.run_all(false);
    assert_eq!((world.tally.wrong, world.tally.nobody), (0, 0), "{:?}", world.whys);
    assert!(world.steering.counters().stream >= 30, "{:?}", world.whys);
}
