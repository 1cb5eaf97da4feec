use super::{Item, RuleFile};
use crate::generate;
use crate::meter::{MeterSpec, Unit};
use crate::quic::{GroupSpec as QuicSpec, LbSpec, NameSpec, Other};
use crate::rss::{Choices, GroupSpec, MICROSOFT_KEY, Tuple};
use crate::table::Miss;
use crate::version::{Limits, Writer};
use proptest::prelude::*;

fn group() -> impl Strategy<Value = Item> {
    let tuple = || prop::sample::select(vec![Tuple::None, Tuple::Two, Tuple::Four, Tuple::Five]);
    let choices = (tuple(), tuple(), tuple(), tuple(), tuple(), any::<bool>()).prop_map(|(a, b, c, d, e, same)| {
        let all = Choices { tcp4: a, udp4: b, sctp4: c, ip4: d, tcp6: e, udp6: a, sctp6: b, ip6: c };
        if same { crate::language::group::all(a) } else { all }
    });
    let table = (0u32..10).prop_flat_map(|power| prop::collection::vec(0u16..20, 1 << power));
    let queues = prop::collection::vec(any::<u16>(), 1..300).prop_map(|queues| crate::language::group::spread(&queues));
    let key = prop_oneof![Just(MICROSOFT_KEY.to_vec()), prop::collection::vec(any::<u8>(), 40..=64)];
    let spec = (key, prop_oneof![table, queues], choices, any::<bool>(), any::<bool>())
        .prop_map(|(key, table, choices, symmetric, inner)| GroupSpec { key, table, choices, symmetric, inner });
    (any::<u32>(), spec).prop_map(|(number, rss)| Item::Group { number, rss })
}

fn quic() -> impl Strategy<Value = Item> {
    let some = |most| prop::collection::vec(0u16..4, 1..most);
    let word = || prop::option::of("[a-z*][a-z.0-9-]{0,20}");
    let name = (word(), "[a-z0-9]{1,5}", some(4)).prop_map(|(sni, alpn, queues)| NameSpec {
        alpn: sni.is_none().then_some(alpn),
        sni,
        queues,
    });
    let lb = (4usize..12, prop::option::of(any::<[u8; 16]>()), some(4)).prop_map(|(nonce, key, queues)| {
        let servers = queues.iter().enumerate().map(|(at, queue)| (vec![at as u8, 7], *queue)).collect();
        LbSpec { config: 0, nonce, key, servers }
    });
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), 1usize..1000, 1u32..1000);
    let lists = (
        prop::collection::vec(name, 0..3),
        prop::option::of(lb),
        prop::option::of(prop::collection::vec(0u16..4, 0..4)),
    );
    (any::<u32>(), lists, flags, some(5)).prop_map(
        |(number, (names, lb, new), (keys, one_way, hash, few, rate), streams)| {
            let spec = QuicSpec::over(vec![3, 0, 1, 2]);
            let steering = QuicSpec {
                names,
                lb: lb.into_iter().collect(),
                new,
                streams: if keys { streams } else { Vec::new() },
                keys,
                one_way,
                other: if hash { Other::Hash } else { Other::Drop },
                connections: if hash { few } else { spec.connections },
                handshakes: if hash { few } else { spec.handshakes },
                per_source: if hash { 1 } else { spec.per_source },
                idle: rate,
                decryptions: rate - 1,
                arrivals: rate,
                lessons: rate,
                ..spec
            };
            Item::Quic { number, steering }
        },
    )
}

fn meter() -> impl Strategy<Value = Item> {
    let unit = prop::sample::select(vec![Unit::Bytes, Unit::Packets]);
    let round = (1u64..5000, prop::sample::select(vec![1, 1_000, 1_000_000]));
    let rate = prop_oneof![1..u64::MAX / 8, round.prop_map(|(number, scale)| number * scale)];
    let remark = prop::sample::select(vec![None, Some(1), Some(2)]);
    (any::<u32>(), unit, rate, 1u64..3600, remark).prop_map(|(number, unit, rate, burst, remark)| {
        let bucket = MeterSpec { unit, rate, burst, remark };
        Item::Meter { number, bucket }
    })
}

fn item() -> impl Strategy<Value = Item> {
    let misses = prop::sample::select(vec![Miss::Normal, Miss::Drop, Miss::Punt]);
    prop_oneof![generate::rule(false, 64).prop_map(Item::Rule), group(), quic(), meter(), misses.prop_map(Item::Miss)]
}

proptest! {
    #[test]
    fn what_is_printed_parses_to_the_same(item in item()) {
        let text = item.to_string();
        prop_assert_eq!(Item::parse(&text), Ok(item.clone()), "{}", text);
        let json = serde_json::to_string(&item).unwrap();
        prop_assert_eq!(Item::parse(&json), Ok(item), "{}", json);
    }

    #[test]
    fn nothing_panics_on_words(words in prop::collection::vec(prop::sample::select(vec![
        "group=", "meter=", "miss=", "1", ",", "rss", "queues=", "table=", "0-7", "(", ")", "-", "fields=", "5tuple", "tcp4=", "2tuple", "symmetric",
        "inner", "key=", "0x", "ff", "rate=", "10M", "bit", "pps", "burst=", "64k", "drop", "é", " ", "{", "}", "\"rule\"", ":", "\"group\"", "[",
        "quic", "name(", "sni=", "a.test", "alpn=", "lb(", "config=0", "nonce=8", "servers=(", "01:0", "keys", "streams=", "one_way", "other=hash",
    ]), 0..14)) {
        let text = words.concat();
        if let Ok(file) = RuleFile::parse(&text) {
            prop_assert_eq!(RuleFile::parse(&file.to_string()).unwrap().to_string(), file.to_string());
        }
    }
}

#[test]
fn items_as_they_are_written() {
    for (given, printed) in [
        ("group=1,rss,queues=0-7,fields=5tuple,symmetric", "group=1,rss,queues=0-7,fields=5tuple,symmetric"),
        ("group=0x10 rss queues=(0-2,6) inner", "group=16,rss,queues=(0-2,6),inner"),
        ("group=2,rss,table=(3,3,0,1),udp4=2tuple", "group=2,rss,table=(3,3,0-1),udp4=2tuple"),
        ("group=2,quic,queues=0-3,one_way,other=drop", "group=2,quic,queues=0-3,one_way"),
        (
            "group=2 quic queues=(4,5) new=none name(sni=*.a.test,alpn=h3,queues=5) lb(config=1,nonce=0x8,servers=(0A:4))",
            "group=2,quic,queues=4-5,new=none,name(sni=*.a.test,alpn=h3,queues=5),lb(config=1,nonce=8,servers=(0a:4))",
        ),
        ("group=2,rss,queues=0-1,fields=4tuple", "group=2,rss,queues=0-1"),
        ("meter=1,rate=10Mbit,burst=64k", "meter=1,rate=10Mbit,burst=64k"),
        ("meter=2,rate=1500pps,burst=1.5k", "meter=2,rate=1500pps,burst=1500"),
        ("meter=3,rate=2.5Gbit/s,burst=1e6", "meter=3,rate=2500Mbit,burst=1M"),
        ("miss=punt", "miss=punt"),
        (
            r#"{"meter":{"number":1,"bucket":{"unit":"bytes","rate":1250000,"burst":64000}}}"#,
            "meter=1,rate=10Mbit,burst=64k",
        ),
        (r#"{"rule":{"match":{"dl_type":2048},"actions":["queue:3"]}}"#, "table=0,priority=32768,ip,actions=queue:3"),
    ] {
        assert_eq!(Item::parse(given).unwrap_or_else(|error| panic!("{error}")).to_string(), printed);
    }
}

#[test]
fn errors_point_at_line_and_column() {
    for (given, line, place, says) in [
        ("group=1,queues=0-7", 1, "group", "write group=N,rss"),
        ("group=1,rss", 1, "group", "queues=LIST"),
        ("group=x,rss,queues=0", 1, "x,", "a number"),
        ("group=1,rss,queues=7-3", 1, "7-3", "up to 512"),
        ("group=1,rss,queues=0-9999", 1, "0-9999", "up to 512"),
        ("group=1,rss,queues=()", 1, "()", "such as 0-7"),
        ("group=1,quic", 1, "group", "queues=LIST"),
        ("group=1,quic,queues=0-1,new=2", 1, "group", "queue 2 is none"),
        ("group=1,quic,queues=(0,0)", 1, "group", "each once"),
        ("group=1,quic,queues=0,streams=0", 1, "group", "keys are handed over"),
        ("group=1,quic,queues=0,name(queues=0)", 1, "group", "sni, alpn or both"),
        ("group=1,quic,queues=0,name(sni=a)", 1, "sni=a", "queues=LIST"),
        ("group=1,quic,queues=0,lb(config=7,nonce=8,servers=(01:0))", 1, "7,nonce", "0 to 6"),
        (
            "group=1,quic,queues=0,lb(config=1,nonce=8,servers=(01:0,0102:0))",
            1,
            "group",
            "the length of its configuration",
        ),
        ("group=1,quic,queues=0,connections=9000000", 1, "group", "1 to 262144"),
        ("group=1,quic,queues=0,symmetric", 1, "symmetric", "no 'symmetric'"),
        ("group=1,rss,queues=0,1", 1, "1", "no '1'"),
        ("group=1,rss,table=0-2", 1, "group", "power of two"),
        ("group=1,rss,queues=0,fields=6tuple", 1, "6tuple", "5tuple"),
        ("group=1,rss,queues=0,key=0xabc", 1, "0xabc", "hexadecimal"),
        ("group=1,rss,queues=0,key=0xabcd", 1, "group", "40 to 64 are right"),
        ("meter=1,rate=10Mbit", 1, "meter", "burst=64k"),
        ("meter=1,rate=10,burst=5", 1, "10,", "10kpps"),
        ("meter=1,rate=10bit,burst=5", 1, "10bit", "divisible by 8"),
        ("meter=1,rate=8bit,burst=1G", 1, "meter", "more than 3600 s"),
        ("meter=1,rate=0bit,burst=1", 1, "meter", "at least 1"),
        ("meter=1,rate=8bit,brust=1", 1, "brust", "burst=64k"),
        ("miss=perhaps", 1, "perhaps", "miss=normal"),
        ("\n  tcp,tcp_dst=x,actions=drop", 2, "x,", "a number"),
        ("miss=drop\n\nmiss=drop # again", 3, "miss", "set up twice"),
        ("actions=drop\nmeter=1,rate=8bit,burst=1\nmeter=1,rate=8bit,burst=1", 3, "meter", "meter 1 is set up twice"),
        (r#"{"rule":{"actions":["drop"],"prio":3}}"#, 1, "", "unknown field `prio`"),
        (r#"{"rule":"#, 1, "", "EOF"),
        (r#"{"rule":{"actions":["qeue:1"]}}"#, 1, "", "did you mean 'queue'"),
        (r#"{"group":{"number":1,"rss":{"key":[],"table":[0]}}}"#, 1, "{", "40 to 64 are right"),
    ] {
        let error = RuleFile::parse(given).expect_err(given);
        assert_eq!(error.line, Some(line), "{given}: {error}");
        assert!(error.text[error.at..].starts_with(place), "{given}: {error}");
        assert!(error.to_string().contains(says), "{given}: {error}");
    }
    assert_eq!(RuleFile::parse("  é=1,actions=drop").unwrap_err().column(), 3);
}

#[test]
fn a_file_is_one_transaction() {
    let mut writer = Writer::new(1, Limits::default());
    // A rule may stand before the group that it names.
    let good = "ip,actions=meter:3,rss:1\ngroup=1,rss,queues=0-3\nmeter=3,rate=1Mbit,burst=2k\nmiss=drop\n";
    let file = RuleFile::parse(good).unwrap();
    assert_eq!(file.load(&mut writer, 0).unwrap().added, 1);
    assert_eq!((writer.miss(), writer.group(1).unwrap().spec().table.len()), (Miss::Drop, 128));
    for (text, line, place) in [
        ("actions=drop\ntcp,actions=rss:7", 2, "rss:7"),
        ("actions=drop\n\n tcp,actions=dec_ttl,meter:9,queue:1", 3, "meter:9"),
        ("group=5000,rss,queues=0", 1, "group"),
    ] {
        let error = RuleFile::parse(text).unwrap().load(&mut writer, 0).expect_err(text);
        assert_eq!(error.line, Some(line), "{error}");
        assert!(error.text[error.at..].starts_with(place), "{error}");
    }
    assert_eq!((writer.len(), writer.current().version()), (1, 1), "nothing of what was refused is done");
}

#[test]
fn queues_that_are_not_there_are_found() {
    let file = RuleFile::parse("actions=queue:3\ngroup=1,rss,queues=0-7\nmeter=1,rate=8bit,burst=1").unwrap();
    assert_eq!(file.check_queues(8), Ok(()));
    let error = file.check_queues(4).unwrap_err();
    assert_eq!((error.line, &error.text[error.at..]), (Some(2), "queues=0-7"));
    let error = file.check_queues(2).unwrap_err();
    assert_eq!((error.line, &error.text[error.at..]), (Some(1), "queue:3"));
}
