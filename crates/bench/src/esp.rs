//! `millrace bench esp`: ESP beside the bare cipher, on one core: what is around the encryption of a packet costs the difference.

use std::hint::black_box;
use std::ops::Range;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{self, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use clap::Args;
use millrace_ipsec::algorithm::Keys;
use millrace_ipsec::association::{Id, Parameters};
use millrace_ipsec::database::{Change, Database, Handle};
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{Output, Row};
use millrace_tool::progress::Steps;
use millrace_tool::stop;

use crate::matrix::single_sizes;
use crate::median::median;

/// Packets of a pass: as many as an engine takes at once.
const BURST: usize = 64;
/// Bytes before and behind a packet.
const ROOM: usize = 128;
/// An IPv4 header.
const HEADER: usize = 20;
const KEY: [u8; 36] = [7; 36];

/// Options of `bench esp`.
#[derive(Debug, Args)]
#[command(after_help = "\
esp_to_cipher: IPv4 packets of --size bytes (default 1400) are put into a tunnel,
in bursts of 64, on one core: outer header, sequence number, IV, padding, lifetime
and counters with the encryption; and as many bytes, padding included, are
encrypted by aws-lc-rs alone, in turns of one burst each. value is cipher_ns /
seal_ns. open_to_cipher is the same for packets that arrive: association looked
up, window, policies not. gbps is that of the packets inside, while they are sealed.

Values are medians of --rounds rounds, each the median of its bursts.

Examples:
  millrace bench esp
  millrace bench esp --size 64,576,1400 --algorithm aes-gcm-256,aes-cbc-128-sha256 --json")]
pub struct EspArgs {
    /// Which algorithms
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "aes-gcm-128")]
    algorithm: Vec<Algorithm>,
    /// How often to measure everything
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Algorithm {
    #[value(name = "aes-gcm-128")]
    AesGcm128,
    #[value(name = "aes-gcm-256")]
    AesGcm256,
    #[value(name = "chacha20-poly1305")]
    ChaCha20Poly1305,
    #[value(name = "aes-cbc-128-sha256")]
    AesCbc128Sha256,
}

/// Nanoseconds per packet.
#[derive(Clone, Copy, Default)]
struct Costs {
    seal: f64,
    encrypt: f64,
    open: f64,
    decrypt: f64,
}

/// Runs the benchmark.
pub fn run(shared: &Shared, args: &EspArgs) -> Result<(), Failure> {
    let sizes: Vec<usize> = single_sizes(shared, &[1400])?.into_iter().map(|size| size as usize).collect();
    if let Some(size) = sizes.iter().find(|size| !(HEADER..=9000).contains(*size)) {
        return Err(Failure::Usage(format!("--size {size}: from {HEADER} to 9000 bytes")));
    }
    let cases: Vec<(Algorithm, usize)> =
        args.algorithm.iter().flat_map(|algorithm| sizes.iter().map(|size| (*algorithm, *size))).collect();
    let mut costs: Vec<Vec<Costs>> = vec![Vec::new(); cases.len()];
    let steps = Steps::new("esp", u64::from(args.rounds) * cases.len() as u64);
    for _ in 0..args.rounds {
        for ((algorithm, size), costs) in cases.iter().zip(&mut costs) {
            steps.next(format!("{}, {size} bytes", algorithm.name()));
            costs.push(measure(*algorithm, *size, args.seconds)?);
            if stop::asked() {
                return Err(Failure::Interrupted);
            }
        }
    }
    drop(steps);
    let rows: Vec<Row> =
        cases.iter().zip(&costs).map(|((algorithm, size), costs)| row(*algorithm, *size, costs)).collect();
    Ok(Output::new(shared.json).rows(&format!("medians of {} rounds, ns per packet, one core", args.rounds), &rows)?)
}

/// The row of AES-GCM-128 with 1400 bytes, on this thread's core.
pub fn beside_the_cipher(rounds: u32, seconds: f64) -> Result<Row, Failure> {
    const SIZE: usize = 1400;
    let costs: Result<Vec<Costs>, Failure> =
        (0..rounds).map(|_| measure(Algorithm::AesGcm128, SIZE, seconds)).collect();
    Ok(row(Algorithm::AesGcm128, SIZE, &costs?))
}

fn row(algorithm: Algorithm, size: usize, costs: &[Costs]) -> Row {
    let of = |part: fn(&Costs) -> f64| median(&costs.iter().map(part).collect::<Vec<_>>());
    let ratio = |cipher: fn(&Costs) -> f64, esp: fn(&Costs) -> f64| {
        median(&costs.iter().map(|cost| cipher(cost) / esp(cost)).collect::<Vec<_>>())
    };
    let is_goal = algorithm == Algorithm::AesGcm128 && size == 1400;
    let seal = of(|cost| cost.seal);
    Row::new()
        .tag("bench", "router")
        .tag("path", "user")
        .tag("work", "esp")
        .text("metric", "esp_to_cipher")
        .text("algorithm", algorithm.name())
        .count("size", size as u64)
        .maybe("value", ratio(|cost| cost.encrypt, |cost| cost.seal), 3)
        .text("goal", if is_goal { ">= 0.8" } else { "-" })
        .maybe("seal_ns", seal, 0)
        .maybe("cipher_ns", of(|cost| cost.encrypt), 0)
        .maybe("open_to_cipher", ratio(|cost| cost.decrypt, |cost| cost.open), 3)
        .maybe("open_ns", of(|cost| cost.open), 0)
        .maybe("mpps", seal.map(|ns| 1000.0 / ns), 3)
        .maybe("gbps", seal.map(|ns| size as f64 * 8.0 / ns), 2)
        .count("count", costs.len() as u64)
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::AesGcm128 => "aes-gcm-128",
            Self::AesGcm256 => "aes-gcm-256",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
            Self::AesCbc128Sha256 => "aes-cbc-128-sha256",
        }
    }

    fn keys(self) -> Result<Keys, Failure> {
        let keys = match self {
            Self::AesGcm128 => Keys::aead("rfc4106(gcm(aes))", &KEY[..20], 128),
            Self::AesGcm256 => Keys::aead("rfc4106(gcm(aes))", &KEY, 128),
            Self::ChaCha20Poly1305 => Keys::aead("rfc7539esp(chacha20,poly1305)", &KEY, 128),
            Self::AesCbc128Sha256 => Keys::separate(("cbc(aes)", &KEY[..16]), ("hmac(sha256)", &KEY[..32], 128)),
        };
        keys.map_err(|why| Failure::Found(why.to_string()))
    }
}

/// Buffers with a packet each.
struct Packets {
    buffers: Vec<Vec<u8>>,
    /// Where the packets are: in the middle, until they are sealed.
    places: Vec<Range<usize>>,
    header: [u8; HEADER],
    size: usize,
}

impl Packets {
    fn new(size: usize) -> Self {
        let mut header = [0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 10, 1, 0, 1, 10, 2, 0, 1];
        header[2..4].copy_from_slice(&(size as u16).to_be_bytes());
        let buffers = (0..BURST).map(|at| vec![at as u8; ROOM + size + ROOM]).collect();
        Self { buffers, places: vec![ROOM..ROOM + size; BURST], header, size }
    }

    /// Packets again where there were: what is behind the header does not matter.
    fn renew(&mut self) {
        for (buffer, place) in self.buffers.iter_mut().zip(&mut self.places) {
            buffer[ROOM..ROOM + HEADER].copy_from_slice(&self.header);
            *place = ROOM..ROOM + self.size;
        }
    }
}

fn measure(algorithm: Algorithm, size: usize, seconds: f64) -> Result<Costs, Failure> {
    let (mut here, handle) = database(algorithm)?;
    let (mut there, _) = database(algorithm)?;
    let bare = Bare::new(algorithm)?;
    let (mut packets, mut texts) = (Packets::new(size), Packets::new(size));
    let mut times: [Vec<f64>; 4] = Default::default();
    let start = Moment::now();
    while times[3].is_empty() || (start.seconds() < seconds && !stop::asked()) {
        packets.renew();
        times[0].push(timed(|| seal(&mut here, handle, &mut packets))?);
        times[1]
            .push(timed(|| texts.buffers.iter_mut().try_for_each(|buffer| bare.encrypt(&mut buffer[ROOM..], size)))?);
        times[2].push(timed(|| open(&mut there, &mut packets))?);
        times[3]
            .push(timed(|| texts.buffers.iter_mut().try_for_each(|buffer| bare.decrypt(&mut buffer[ROOM..], size)))?);
    }
    let [seal, encrypt, open, decrypt] = times.map(|times| median(&times).unwrap_or(f64::NAN));
    Ok(Costs { seal, encrypt, open, decrypt })
}

/// Nanoseconds per packet.
fn timed(work: impl FnOnce() -> Option<()>) -> Result<f64, Failure> {
    let begin = Moment::now();
    let done = black_box(work());
    let nanos = Moment::now().nanos_since(begin) as f64 / BURST as f64;
    done.map(|()| nanos).ok_or_else(|| Failure::Found("a packet was refused".to_owned()))
}

/// One tunnel; the kernel would have it in a policy, which is asked once for a flow.
fn database(algorithm: Algorithm) -> Result<(Database, Handle), Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::Found(format!("no association: {why}"));
    let address = |last| std::net::Ipv4Addr::new(192, 0, 2, last).into();
    let id = Id { destination: address(2), spi: 0x1000 };
    let mut database = Database::new();
    let parameters = Box::new(Parameters::tunnel(address(1), id, algorithm.keys()?));
    database.apply(Change::Associate(parameters), 1).map_err(|why| failed(&why))?;
    let handle = database.find_arriving(id, 0).map_err(|refusal| failed(&refusal.name()))?;
    Ok((database, handle))
}

#[inline(never)]
fn seal(database: &mut Database, handle: Handle, packets: &mut Packets) -> Option<()> {
    for (buffer, place) in packets.buffers.iter_mut().zip(&mut packets.places) {
        *place = database.seal(handle, buffer, place.clone(), 1).ok()?;
    }
    Some(())
}

#[inline(never)]
fn open(database: &mut Database, packets: &mut Packets) -> Option<()> {
    for (buffer, place) in packets.buffers.iter_mut().zip(&mut packets.places) {
        let (opened, _) = database.open(buffer, place.clone(), 0, 1).ok()??;
        *place = opened.packet;
    }
    Some(())
}

/// The library of ciphers, called as somebody would who has nothing else to do.
enum Bare {
    Aead(LessSafeKey),
    Cbc(Box<(EncryptingKey, DecryptingKey, hmac::Key)>),
}

impl Bare {
    fn new(algorithm: Algorithm) -> Result<Self, Failure> {
        let aead = match algorithm {
            Algorithm::AesGcm128 => &aead::AES_128_GCM,
            Algorithm::AesGcm256 => &aead::AES_256_GCM,
            Algorithm::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
            Algorithm::AesCbc128Sha256 => return Self::cbc().ok_or_else(no_cipher),
        };
        let key = UnboundKey::new(aead, &KEY[..aead.key_len()]).map_err(|_| no_cipher())?;
        Ok(Self::Aead(LessSafeKey::new(key)))
    }

    fn cbc() -> Option<Self> {
        let key = || UnboundCipherKey::new(&cipher::AES_128, &KEY[..16]).ok();
        let (encrypt, decrypt) = (EncryptingKey::cbc(key()?).ok()?, DecryptingKey::cbc(key()?).ok()?);
        Some(Self::Cbc(Box::new((encrypt, decrypt, hmac::Key::new(hmac::HMAC_SHA256, &KEY[..32])))))
    }

    /// Bytes of the text of a packet: it, padding, and two.
    fn text_len(&self, size: usize) -> usize {
        (size + 2).next_multiple_of(if matches!(self, Self::Aead(_)) { 4 } else { 16 })
    }

    fn encrypt(&self, bytes: &mut [u8], size: usize) -> Option<()> {
        let (text, rest) = bytes.split_at_mut(self.text_len(size));
        match self {
            Self::Aead(key) => {
                let nonce = Nonce::assume_unique_for_key([0; 12]);
                key.seal_in_place_scatter(nonce, Aad::from([0; 8]), text, &[], &mut rest[..16]).ok()
            }
            Self::Cbc(keys) => {
                keys.0.less_safe_encrypt(text, EncryptionContext::Iv128(FixedLength::from([0; 16]))).ok()?;
                hmac::sign_to_buffer(&keys.2, text, rest).ok().map(|_| ())
            }
        }
    }

    fn decrypt(&self, bytes: &mut [u8], size: usize) -> Option<()> {
        let (text, rest) = bytes.split_at_mut(self.text_len(size));
        match self {
            Self::Aead(key) => {
                let nonce = Nonce::assume_unique_for_key([0; 12]);
                key.open_in_place_separate_tag(nonce, Aad::from([0; 8]), &rest[..16], text).ok().map(|_| ())
            }
            Self::Cbc(keys) => {
                hmac::verify(&keys.2, text, &rest[..32]).ok()?;
                let context = DecryptionContext::Iv128(FixedLength::from([0; 16]));
                keys.1.decrypt(text, context).ok().map(|_| ())
            }
        }
    }
}

fn no_cipher() -> Failure {
    Failure::Found("aws-lc-rs cannot be used".to_owned())
}
