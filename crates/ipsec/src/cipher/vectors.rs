//! What the RFCs and drafts print.

use super::*;
use aws_lc_rs::hmac;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
    pairs.collect()
}

struct Vector {
    name: &'static str,
    key: &'static str,
    spi: u32,
    sequence: Sequence,
    iv: &'static str,
    plain: &'static str,
    cipher: &'static str,
    check: &'static str,
}

const GCM: &str = "rfc4106(gcm(aes))";

/// draft-mcgrew-gcm-test-01 §4, the first, the one with 192 bits and the first with 256; RFC 7634, appendix A.
const AEAD: [Vector; 4] = [
    Vector {
        name: GCM,
        key: "4c80cdefbb5d10da906ac73c3613a634 2e443b68",
        spi: 0x4321,
        sequence: Sequence { number: 0x8765_4321_0000_0000, is_extended: true },
        iv: "4956ed7e3b244cfe",
        plain: "45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000
                00000000045f736970045f756470037369700963796265726369747902646b00
                0021000101020201",
        cipher: "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34
                 cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247aeabb786b93bce
                 61bc17d768fd9732",
        check: "459018148f6cbe722fd04796562dfdb4",
    },
    Vector {
        name: GCM,
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c cafebabe",
        spi: 0xa5f8,
        sequence: Sequence { number: 10, is_extended: false },
        iv: "facedbaddecaf888",
        plain: "45000028a4ad4000400678800a01038f0a010612802306b8cb712602dd6bb03e501016d075680001",
        cipher: "a5b1f8066029aea40e598b8122de02420938b3ab33f828e687b8858b5bfbdbd0315b27452144cc77",
        check: "95457b9652037f5318027b5b4cd7a636",
    },
    Vector {
        name: GCM,
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab 11223344",
        spi: 0x4a2c_bfe3,
        sequence: Sequence { number: 2, is_extended: false },
        iv: "0102030405060708",
        plain: "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee000000000
                7002400020bf0000020405b40101040201020201",
        cipher: "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763
                 748a637985771d347f0545659f14e99def842d8e",
        check: "b335f4eecfdbf831824b4c4915956c96",
    },
    Vector {
        name: "rfc7539esp(chacha20,poly1305)",
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f a0a1a2a3",
        spi: 0x0102_0304,
        sequence: Sequence { number: 5, is_extended: false },
        iv: "1011121314151617",
        plain: "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec10
                0007362708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223
                2425262728292a2b2c2d2e2f3031323334353637 01020204",
        cipher: "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c6
                 14ee8099d52844eb61aa95dfab4c02f72aa71e7c4c4f64c9befe2facc638e8f3
                 cbec163fac469b502773f6fb94e664da9165b82829f641e0",
        check: "76aaa8266b7fb0f7b11b369907e1ad43",
    },
];

#[test]
fn aead_both_ways() {
    for vector in AEAD {
        let Vector { key, spi, sequence, iv, plain, cipher, check, .. } = vector;
        let mut context = Context::new(&Keys::aead(vector.name, &bytes(key), 128).unwrap()).unwrap();
        let iv = bytes(iv);
        let Expanded::Aead { mask, .. } = &mut context.keys else { panic!("an AEAD") };
        // So that the IV is the one that is printed.
        *mask = u64::from_be_bytes(iv[..].try_into().unwrap()) ^ sequence.number;
        let header = [spi.to_be_bytes(), (sequence.number as u32).to_be_bytes()].concat();
        let wanted = [&header[..], &iv, &bytes(cipher), &bytes(check)].concat();

        let mut packet = [&header[..], &[0; 8], &bytes(plain), &[0; 16]].concat();
        context.seal(&mut packet, sequence).unwrap();
        assert_eq!(packet, wanted, "{}", vector.name);
        context.open(&mut packet, sequence).unwrap();
        assert_eq!(packet[16..packet.len() - 16], bytes(plain));

        for place in 0..wanted.len() {
            let mut packet = wanted.clone();
            packet[place] ^= 1;
            // The lower half of the number is in the header; where numbers are extended, it is the number that counts.
            if sequence.is_extended && (4..8).contains(&place) {
                continue;
            }
            assert_eq!(context.open(&mut packet, sequence), Err(Failed), "byte {place}");
        }
    }
}

/// RFC 3602 §4, cases 5, 6: they have no check value, so they get one that is made apart.
#[test]
fn cbc() {
    let case_5 = (
        1,
        "e96e8c08ab465763fd098d45dd3ff893",
        "f663c25d325c18c6a9453e194e120849a4870b66cc6b9965330013b4898dc856a4699e523a55db080b59ec3a8e4b7e52
         775b07d1db34ed9c538ab50c551b874aa269add047ad2d5913ac19b7cfbad4a6",
        "08000ebda70a00008e9c083db95b070008090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021222324252627
         28292a2b2c2d2e2f3031323334353637 0102030405060708090a0b0c0d0e 0e01",
    );
    let case_6 = (
        8,
        "69d08df7d203329db093fc4924e5bd80",
        "f51995881ec4e0c4488987ce742e8109689bb379d2d750c0d915dca346a89f75",
        "0800b5e8a80a0500a69c083d0b660e0077777777777777777777777701 02 0201",
    );
    let (key, hash_key) = (bytes("90d382b410eeba7ad938c46cec1a82bf"), [7; 32]);
    let keys = Keys::separate(("cbc(aes)", &key), ("hmac(sha256)", &hash_key, 128)).unwrap();
    let context = Context::new(&keys).unwrap();
    for (number, iv, cipher, plain) in [case_5, case_6] {
        let header = [0x4321u32.to_be_bytes(), u32::to_be_bytes(number)].concat();
        let mut packet = [&header[..], &bytes(iv), &bytes(cipher)].concat();
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &hash_key), &packet);
        packet.extend_from_slice(&tag.as_ref()[..16]);
        let sequence = Sequence { number: u64::from(number), is_extended: false };
        let sealed = packet.clone();
        context.open(&mut packet, sequence).unwrap();
        let text = &packet[24..packet.len() - 16];
        assert_eq!(text[..bytes(plain).len()], bytes(plain), "case of number {number}");
        assert!(context.open(&mut sealed[..sealed.len() - 1].to_vec(), sequence).is_err());
        for place in 0..sealed.len() {
            let mut packet = sealed.clone();
            packet[place] ^= 0x80;
            assert!(context.open(&mut packet, sequence).is_err(), "byte {place}");
        }
    }
}

#[test]
fn initial_values_differ_and_cannot_be_told_beforehand() {
    let keys = Keys::separate(("cbc(aes)", &[1; 16]), ("hmac(sha256)", &[2; 32], 128)).unwrap();
    let gcm = Keys::aead(GCM, &[3; 20], 128).unwrap();
    for keys in [keys, gcm] {
        let mut seen = std::collections::HashSet::new();
        for context in [Context::new(&keys).unwrap(), Context::new(&keys).unwrap()] {
            for number in 1..100 {
                let mut packet = vec![0; 8 + context.shape.iv + 32 + 16];
                context.seal(&mut packet, Sequence { number, is_extended: false }).unwrap();
                assert!(seen.insert(packet[8..8 + context.shape.iv].to_vec()), "twice for one key");
            }
        }
    }
}
