//! RFC 9001 appendix A and RFC 9369 appendix A. Long packets are made from their parts, and compared by their first bytes and
//! their tag, which covers all of them.

use super::{hex, protect};
use crate::quic::hello::{Hello, Progress};
use crate::quic::initial::{Opened, open};
use crate::quic::keys::{Secret, Side, Version};
use crate::quic::protection::Scratch;

/// The client's CRYPTO frame, the same in both standards.
const CLIENT_FRAME: &str = "060040f1010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e86804fe3a47f06a2b69484c\
    00000413011302010000c000000010000e00000b6578616d706c652e636f6dff01000100000a00080006001d0017001800100007000504616c\
    706e000500050100000000003300260024001d00209370b2c9caa47fbabaf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b0003\
    020304000d0010000e0403050306030203080408050806002d00020101001c00024001003900320408ffffffffffffffff05048000ffff0704\
    8000ffff0801100104800075300901100f088394c8f03e51570806048000ffff";
/// The server's frames.
const SERVER_FRAMES: &str = "02000000000600405a020000560303eefce7f7b37ba1d1632e96677825ddf73988cfc79825df566dc5430b9a\
    045a1200130100002e00330024001d00209d3c940d89690b84d08a60993c144eca684d1081287c834d5311bcf32bb9da1a002b00020304";
/// What the client first writes to.
const DESTINATION: &str = "8394c8f03e515708";

struct Vectors {
    version: Version,
    client_header: &'static str,
    client_start: &'static str,
    client_tag: &'static str,
    server_header: &'static str,
    server_packet: &'static str,
}

const V1: Vectors = Vectors {
    version: Version::V1,
    client_header: "c300000001088394c8f03e5157080000449e00000002",
    client_start: "c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11",
    client_tag: "e221af44860018ab0856972e194cd934",
    server_header: "c1000000010008f067a5502a4262b50040750001",
    server_packet: "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a5816b6394100f37a1c69797554780bb3\
        8cc5a99f5ede4cf73c3ec2493a1839b3dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b562bfb19fb84022f8ef4cdd937\
        95d77d06edbb7aaf2f58891850abbdca3d20398c276456cbc42158407dd074ee",
};

const V2: Vectors = Vectors {
    version: Version::V2,
    client_header: "d36b3343cf088394c8f03e5157080000449e00000002",
    client_start: "d76b3343cf088394c8f03e5157080000449ea0c95e82ffe67b6abcdb4298b485",
    client_tag: "a18b2faa745b6fe189cf772a9f84cbfc",
    server_header: "d16b3343cf0008f067a5502a4262b50040750001",
    server_packet: "dc6b3343cf0008f067a5502a4262b5004075d92faaf16f05d8a4398c47089698baeea26b91eb761d9b89237bbf872630\
        17915358230035f7fd3945d88965cf17f9af6e16886c61bfc703106fbaf3cb4cfa52382dd16a393e42757507698075b2c984c707f0a081\
        2d8cd5a6881eaf21ceda98f4bd23f6fe1a3e2c43edd9ce7ca84bed8521e2e140",
};

fn sealed(version: Version, side: Side, header: &str, number: u64, number_len: usize, payload: &[u8]) -> Vec<u8> {
    let secret = Secret::initial(version, &hex(DESTINATION), side).unwrap();
    let keys = (secret.header_key().unwrap(), secret.packet_key().unwrap());
    protect(&keys.0, &keys.1, number, hex(header), number_len, payload)
}

fn opened(packet: &[u8], side: Side) -> Option<Vec<u8>> {
    let mut scratch = Scratch::default();
    match open(packet, &hex(DESTINATION), side, &mut scratch) {
        Opened::Frames(frames) => Some(frames.to_vec()),
        _ => None,
    }
}

#[test]
fn initial_secrets() {
    for (version, side, secret) in [
        (Version::V1, Side::Client, "c00cf151ca5be075ed0ebfb5c80323c42d6b7db67881289af4008f1f6c357aea"),
        (Version::V2, Side::Client, "14ec9d6eb9fd7af83bf5a668bc17a7e283766aade7ecd0891f70f9ff7f4bf47b"),
        (Version::V2, Side::Server, "0263db1782731bf4588e7e4d93b7463907cb8cd8200b5da55a8bd488eafc37c1"),
    ] {
        assert!(Secret::initial(version, &hex(DESTINATION), side).unwrap().is(&hex(secret)), "{version:?} {side:?}");
    }
}

#[test]
fn client_initial() {
    for vectors in [V1, V2] {
        let mut payload = hex(CLIENT_FRAME);
        payload.resize(1162, 0);
        let packet = sealed(vectors.version, Side::Client, vectors.client_header, 2, 4, &payload);
        assert_eq!(packet.len(), 1200);
        assert!(packet.starts_with(&hex(vectors.client_start)));
        assert!(packet.ends_with(&hex(vectors.client_tag)));
        assert_eq!(opened(&packet, Side::Client).unwrap(), payload);
        assert!(opened(&packet, Side::Server).is_none(), "keys of the other side");
        let mut hello = Hello::default();
        assert_eq!(hello.add(&payload), Progress::Whole);
        let hello = hello.get().unwrap();
        assert_eq!(hello.server_name(), Some(&b"example.com"[..]));
        assert_eq!(hello.protocols().collect::<Vec<_>>(), [b"alpn"]);
    }
}

#[test]
fn server_initial() {
    for vectors in [V1, V2] {
        let packet = sealed(vectors.version, Side::Server, vectors.server_header, 1, 2, &hex(SERVER_FRAMES));
        assert_eq!(packet, hex(vectors.server_packet));
        assert_eq!(opened(&packet, Side::Server).unwrap(), hex(SERVER_FRAMES));
    }
}

#[test]
fn any_byte_that_is_damaged() {
    let packet = hex(V1.server_packet);
    for at in (5..packet.len()).filter(|at| !(7..15).contains(at)) {
        let mut damaged = packet.clone();
        damaged[at] ^= 1;
        let is_open = opened(&damaged, Side::Server).is_some();
        assert!(!is_open, "{at}");
    }
}
