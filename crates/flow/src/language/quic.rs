//! QUIC groups as text: `group=2,quic,queues=0-3,name(sni=*.example.com,queues=0-1),lb(config=0,nonce=8,servers=(0a:0,0b:1))`.

use super::scan::Part;
use super::{ParseError, list};
use crate::quic::{GroupSpec, LbSpec, NameSpec, Other};
use std::fmt::Write as _;

const FORM: &str = "group=N,quic,queues=LIST[,new=LIST][,name(...)][,lb(...)][,keys][,streams=LIST][,one_way]\
    [,other=drop|hash][,connections=N][,handshakes=N][,per_source=N][,idle=SECONDS][,decryptions=N][,arrivals=N][,lessons=N]";
const NAME_FORM: &str = "name([sni=HOST][,alpn=PROTOCOL],queues=LIST)";
const LB_FORM: &str = "lb(config=0 to 6,nonce=BYTES[,key=HEX],servers=(HEX:QUEUE,...))";
/// Most queues of a list.
const MOST: usize = 512;

/// Whether the pieces of a line are those of a QUIC group.
pub(super) fn is_one(pieces: &[Part<'_>]) -> bool {
    pieces.iter().any(|piece| piece.text == "quic")
}

/// A group from the pieces of its line; the first is `group=N`.
pub(super) fn parse(pieces: &[Part<'_>]) -> Result<(u32, GroupSpec), ParseError> {
    let (number, options) = super::file::head(pieces, "group")?;
    let mut spec = GroupSpec::over(Vec::new());
    for option in options {
        if let Some((name, inside)) = option.call().filter(|(name, _)| !name.text.contains('=')) {
            match name.text {
                "name" => spec.names.push(self::name(inside)?),
                "lb" => spec.lb.push(lb(inside)?),
                _ => return Err(unknown(name)),
            }
            continue;
        }
        let (name, value) = pair(*option);
        match name.text {
            "quic" if value.text.is_empty() => {}
            "keys" if value.text.is_empty() => spec.keys = true,
            "one_way" if value.text.is_empty() => spec.one_way = true,
            "queues" => spec.queues = list::parse(value, MOST)?,
            "new" if value.text == "none" => spec.new = Some(Vec::new()),
            "new" => spec.new = Some(list::parse(value, MOST)?),
            "streams" => spec.streams = list::parse(value, MOST)?,
            "other" => {
                spec.other = match value.text {
                    "drop" => Other::Drop,
                    "hash" => Other::Hash,
                    _ => return Err(value.error("write other=drop or other=hash")),
                }
            }
            "connections" => spec.connections = value.number(name.text, 1 << 32)?,
            "handshakes" => spec.handshakes = value.number(name.text, 1 << 32)?,
            "per_source" => spec.per_source = value.number(name.text, 1 << 32)?,
            "idle" => spec.idle = value.number(name.text, u32::MAX.into())?,
            "decryptions" => spec.decryptions = value.number(name.text, u32::MAX.into())?,
            "arrivals" => spec.arrivals = value.number(name.text, u32::MAX.into())?,
            "lessons" => spec.lessons = value.number(name.text, u32::MAX.into())?,
            _ => return Err(unknown(name)),
        }
    }
    let whole = pieces[0];
    if spec.queues.is_empty() {
        return Err(whole.error(format!("write {FORM}")));
    }
    spec.check().map_err(|wrong| whole.error(wrong.to_string()))?;
    Ok((number, spec))
}

fn unknown(name: Part<'_>) -> ParseError {
    name.error(format!("a QUIC group has no '{}': write {FORM}", name.text))
}

/// `name=value`; without `=` the value is empty.
fn pair(part: Part<'_>) -> (Part<'_>, Part<'_>) {
    part.split("=").unwrap_or((part, part.cut(part.text.len(), part.text.len())))
}

fn name(inside: Part<'_>) -> Result<NameSpec, ParseError> {
    let mut spec = NameSpec { sni: None, alpn: None, queues: Vec::new() };
    for option in inside.pieces()? {
        let (name, value) = pair(option);
        match name.text {
            "sni" => spec.sni = Some(value.text.to_owned()),
            "alpn" => spec.alpn = Some(value.text.to_owned()),
            "queues" => spec.queues = list::parse(value, MOST)?,
            _ => return Err(name.error(format!("write {NAME_FORM}"))),
        }
    }
    if spec.queues.is_empty() { Err(inside.error(format!("write {NAME_FORM}"))) } else { Ok(spec) }
}

fn lb(inside: Part<'_>) -> Result<LbSpec, ParseError> {
    let mut spec = LbSpec { config: 0, nonce: 0, key: None, servers: Vec::new() };
    for option in inside.pieces()? {
        let (name, value) = pair(option);
        match name.text {
            "config" => spec.config = value.number("config", 6)?,
            "nonce" => spec.nonce = value.number("nonce", 18)?,
            "key" => {
                let key = unhex(value)?.try_into().map_err(|_| value.error("key takes 16 bytes in hexadecimal"))?;
                spec.key = Some(key);
            }
            "servers" => spec.servers = servers(value)?,
            _ => return Err(name.error(format!("write {LB_FORM}"))),
        }
    }
    if spec.servers.is_empty() { Err(inside.error(format!("write {LB_FORM}"))) } else { Ok(spec) }
}

fn servers(value: Part<'_>) -> Result<Vec<(Vec<u8>, u16)>, ParseError> {
    let inside = match value.text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
        Some(inside) => value.cut(1, 1 + inside.len()),
        None => value,
    };
    let server = |piece: Part<'_>| {
        let (id, queue) = piece.split(":").ok_or_else(|| piece.error("write SERVER_ID:QUEUE, such as 0a01:3"))?;
        Ok((unhex(id)?, queue.number("a queue", 0xffff)?))
    };
    inside.pieces()?.into_iter().map(server).collect()
}

fn unhex(part: Part<'_>) -> Result<Vec<u8>, ParseError> {
    let digits = part.text.strip_prefix("0x").unwrap_or(part.text).as_bytes();
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let bytes = match digits.as_chunks::<2>() {
        (pairs, []) => pairs.iter().map(|[high, low]| Some((digit(high)? << 4 | digit(low)?) as u8)).collect(),
        _ => None,
    };
    bytes.ok_or_else(|| part.error("write bytes in hexadecimal, such as 0a01"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A group as [`parse`] reads it.
pub(super) fn print(number: u32, spec: &GroupSpec) -> String {
    let usual = GroupSpec::over(Vec::new());
    let mut text = format!("group={number},quic,queues={}", list::print(&spec.queues));
    if let Some(new) = &spec.new {
        let _ = write!(text, ",new={}", if new.is_empty() { "none".to_owned() } else { list::print(new) });
    }
    for name in &spec.names {
        let word =
            |key: &str, word: &Option<String>| word.as_ref().map_or(String::new(), |word| format!("{key}={word},"));
        let (sni, alpn) = (word("sni", &name.sni), word("alpn", &name.alpn));
        let _ = write!(text, ",name({sni}{alpn}queues={})", list::print(&name.queues));
    }
    for lb in &spec.lb {
        let key = lb.key.map_or(String::new(), |key| format!(",key={}", hex(&key)));
        let servers: Vec<_> = lb.servers.iter().map(|(id, queue)| format!("{}:{queue}", hex(id))).collect();
        let _ = write!(text, ",lb(config={},nonce={}{key},servers=({}))", lb.config, lb.nonce, servers.join(","));
    }
    if spec.keys {
        text += ",keys";
    }
    if !spec.streams.is_empty() {
        let _ = write!(text, ",streams={}", list::print(&spec.streams));
    }
    if spec.one_way {
        text += ",one_way";
    }
    if spec.other == Other::Hash {
        text += ",other=hash";
    }
    for (name, value, usual) in [
        ("connections", spec.connections, usual.connections),
        ("handshakes", spec.handshakes, usual.handshakes),
        ("per_source", spec.per_source, usual.per_source),
        ("idle", spec.idle as usize, usual.idle as usize),
        ("decryptions", spec.decryptions as usize, usual.decryptions as usize),
        ("arrivals", spec.arrivals as usize, usual.arrivals as usize),
        ("lessons", spec.lessons as usize, usual.lessons as usize),
    ] {
        if value != usual {
            let _ = write!(text, ",{name}={value}");
        }
    }
    text
}
