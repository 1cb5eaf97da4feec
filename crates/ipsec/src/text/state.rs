//! Entries of associations.

use super::printed::Printed;
use super::words::{Words, number};
use super::{Entry, Error, Wrong};
use crate::algorithm::{Keys, Unsupported};
use crate::association::{Encapsulation, HeaderRules, Id, Mode, Parameters, Progress};
use crate::ip::protocol;
use crate::lifetime::Limits;
use crate::selector::{Mark, Prefix, Selector};

/// What was said of an association so far.
#[derive(Default)]
struct Said {
    source: Option<std::net::IpAddr>,
    destination: Option<std::net::IpAddr>,
    spi: Option<u32>,
    mode: Option<Mode>,
    protocol: Option<u8>,
    aead: Option<(String, Vec<u8>, usize)>,
    cipher: Option<(String, Vec<u8>)>,
    hash: Option<(String, Vec<u8>, usize)>,
    reqid: u32,
    window: u32,
    encapsulation: Option<Encapsulation>,
    limits: Limits,
    selector: Option<Selector>,
    mark: Mark,
    if_id: u32,
    headers: HeaderRules,
    fill_to: u16,
    is_extended: bool,
    is_of_all_families: bool,
    progress: Progress,
}

pub(super) fn parse(
    entry: &Entry<'_>,
    words: &mut Words<'_>,
    interface: &impl Fn(&str) -> Option<u32>,
) -> Result<Parameters, Error> {
    let mut said = Said::default();
    // What is only printed, and never typed, has lines of its own.
    let printed = Printed::of(entry, &mut said.limits, &mut said.progress);
    for line in &printed.lines {
        words.leave_out(*line);
    }
    while let Some(word) = words.next() {
        said.take(word, words, interface)?;
    }
    if let Some(window) = printed.window {
        said.window = window;
    }
    said.parameters().map_err(|what| words.wrong(what))
}

impl Said {
    fn take(
        &mut self,
        word: &str,
        words: &mut Words<'_>,
        interface: &impl Fn(&str) -> Option<u32>,
    ) -> Result<(), Error> {
        match word {
            "src" => self.source = Some(words.address(word)?),
            "dst" => self.destination = Some(words.address(word)?),
            "proto" => self.protocol = Some(words.protocol()?),
            "spi" => {
                // Printed as `0x00001000` and, with details, as `0x00001000(4096)`.
                let read = |word: &str| number(word.split('(').next()?)?.try_into().ok();
                self.spi = Some(words.read(word, "SPI", read)?);
            }
            "reqid" => {
                self.reqid = words.read(word, "number", |word| number(word.split('(').next()?)?.try_into().ok())?
            }
            "mode" => self.mode = Some(mode(words)?),
            "replay-window" => self.window = words.number(word)?,
            "replay-seq" => self.progress.received |= u64::from(words.number::<u32>(word)?),
            "replay-oseq" => self.progress.sent |= u64::from(words.number::<u32>(word)?),
            "replay-seq-hi" => self.progress.received |= u64::from(words.number::<u32>(word)?) << 32,
            "replay-oseq-hi" => self.progress.sent |= u64::from(words.number::<u32>(word)?) << 32,
            "flag" => self.flags(words),
            "extra-flag" | "extra_flag" => {
                while words.skip("oseq-may-wrap") {}
                self.headers.dscp_out &= !words.skip("dont-encap-dscp");
            }
            "aead" => self.aead = Some((words.value(word)?.into(), key(words)?, words.number(word)?)),
            "enc" => self.cipher = Some((words.value(word)?.into(), key(words)?)),
            "auth" => {
                let name = words.value(word)?;
                let bits = if name.contains("384") { 192 } else { 96 };
                // `auth` of SHA-512 means 256 bits in Linux, of SHA-256 it means 96.
                let bits = if name.contains("512") { 256 } else { bits };
                self.hash = Some((name.into(), key(words)?, bits));
            }
            "auth-trunc" => self.hash = Some((words.value(word)?.into(), key(words)?, words.number(word)?)),
            "encap" => self.encapsulation = Some(encapsulation(words)?),
            "limit" => self.limit(words)?,
            "sel" => self.selector = Some(selector(words, interface)?),
            "mark" => self.mark = words.mark(word)?,
            "if_id" => self.if_id = words.number(word)?,
            "tfcpad" => self.fill_to = words.number(word)?,
            "dir" | "seq" | "output-mark" | "coa" | "share" => {
                words.value(word)?;
            }
            "offload" | "crypto" => return Err(words.wrong(Unsupported::Offloaded)),
            "comp" => return Err(words.wrong(Unsupported::Protocol(108))),
            // Numbers of flags, which `ip -d` prints behind their names.
            word if word.starts_with('(') => {}
            word => return Err(words.wrong(Wrong::Word(word.into()))),
        }
        Ok(())
    }

    fn flags(&mut self, words: &mut Words<'_>) {
        loop {
            if words.skip("noecn") {
                self.headers.ecn = false;
            } else if words.skip("decap-dscp") {
                self.headers.dscp_in = true;
            } else if words.skip("nopmtudisc") {
                self.headers.df = false;
            } else if words.skip("esn") {
                self.is_extended = true;
            } else if words.skip("af-unspec") {
                self.is_of_all_families = true;
            } else if !(words.skip("align4") || words.skip("wildrecv") || words.skip("icmp")) {
                return;
            }
        }
    }

    fn limit(&mut self, words: &mut Words<'_>) -> Result<(), Error> {
        let kind = words.value("limit")?;
        let place = match kind {
            "byte-soft" => &mut self.limits.soft_bytes,
            "byte-hard" => &mut self.limits.hard_bytes,
            "packet-soft" => &mut self.limits.soft_packets,
            "packet-hard" => &mut self.limits.hard_packets,
            "time-soft" => &mut self.limits.soft_added,
            "time-hard" => &mut self.limits.hard_added,
            "time-use-soft" => &mut self.limits.soft_used,
            "time-use-hard" => &mut self.limits.hard_used,
            _ => return Err(words.wrong(Wrong::Value { word: kind.into(), what: "limit" })),
        };
        *place = words.number(kind)?;
        Ok(())
    }

    fn parameters(self) -> Result<Parameters, Wrong> {
        let destination = self.destination.ok_or(Wrong::Needed("dst"))?;
        let spi = self.spi.ok_or(Wrong::Needed("spi"))?;
        match self.protocol.ok_or(Wrong::Needed("proto"))? {
            protocol::ESP => {}
            other => return Err(Unsupported::Protocol(other).into()),
        }
        let keys = match (&self.aead, &self.cipher, &self.hash) {
            (Some((name, key, bits)), None, None) => Keys::aead(name, key, *bits)?,
            (None, Some((cipher, key)), Some((hash, hash_key, bits))) => {
                Keys::separate((cipher, key), (hash, hash_key, *bits))?
            }
            (None, Some(_), None) => return Err(Unsupported::NoIntegrity.into()),
            (None, None, _) => return Err(Wrong::Needed("aead or enc")),
            _ => return Err(Wrong::Word("aead with enc or auth".into())),
        };
        // As the kernel does: packets of the other family only if it is said.
        let all = Selector {
            source: Some(Prefix::all_like(destination)),
            destination: Some(Prefix::all_like(destination)),
            ..Selector::ALL
        };
        let selector = self.selector.unwrap_or(if self.is_of_all_families { Selector::ALL } else { all });
        Ok(Parameters {
            id: Id { destination, spi },
            source: self.source.ok_or(Wrong::Needed("src"))?,
            mode: self.mode.unwrap_or(Mode::Transport),
            keys,
            reqid: self.reqid,
            is_extended: self.is_extended,
            window: self.window,
            kernel_words: None,
            encapsulation: self.encapsulation,
            limits: self.limits,
            selector,
            mark: self.mark,
            if_id: self.if_id,
            headers: self.headers,
            fill_to: self.fill_to,
            progress: self.progress,
        })
    }
}

pub(super) fn mode(words: &mut Words<'_>) -> Result<Mode, Error> {
    let word = words.value("mode")?;
    match word {
        "transport" => Ok(Mode::Transport),
        "tunnel" => Ok(Mode::Tunnel),
        "ro" => Err(words.wrong(Unsupported::Mode(2))),
        "in_trigger" => Err(words.wrong(Unsupported::Mode(3))),
        "beet" => Err(words.wrong(Unsupported::Mode(4))),
        "iptfs" => Err(words.wrong(Unsupported::Mode(5))),
        _ => Err(words.wrong(Wrong::Value { word: word.into(), what: "mode" })),
    }
}

/// `0x` and digits, or the bytes themselves; nothing where there is no key.
fn key(words: &mut Words<'_>) -> Result<Vec<u8>, Error> {
    if words.is_at_end_of_line() {
        return Ok(Vec::new());
    }
    let word = words.value("algorithm")?;
    // `ip -d` says how many bits these are.
    if words.rest().next().is_some_and(|word| word.starts_with('(')) {
        words.next();
        words.skip("bits)");
    }
    if word.starts_with("<<") {
        return Err(words.wrong(Wrong::Hidden));
    }
    let Some(digits) = word.strip_prefix("0x") else { return Ok(word.as_bytes().to_vec()) };
    // Without the key itself, which would be in logs.
    let wrong = |words: &Words<'_>| {
        Err(words.wrong(Wrong::Value { word: "0x...".into(), what: "key: an even number of hexadecimal digits" }))
    };
    if digits.len() % 2 != 0 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return wrong(words);
    }
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
    Ok(digits.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect())
}

/// `espinudp SPORT DPORT OADDR`, or as it is printed.
fn encapsulation(words: &mut Words<'_>) -> Result<Encapsulation, Error> {
    words.skip("type");
    let kind = words.value("encap")?;
    match kind {
        "espinudp" => {}
        "espinudp-nonike" => return Err(words.wrong(Unsupported::Encapsulation(1))),
        "espintcp" => return Err(words.wrong(Unsupported::Encapsulation(7))),
        _ => return Err(words.wrong(Wrong::Value { word: kind.into(), what: "encapsulation" })),
    }
    words.skip("sport");
    let source_port = words.number(kind)?;
    words.skip("dport");
    let destination_port = words.number(kind)?;
    words.skip("addr");
    words.address(kind)?;
    Ok(Encapsulation { source_port, destination_port })
}

fn selector(words: &mut Words<'_>, interface: &impl Fn(&str) -> Option<u32>) -> Result<Selector, Error> {
    const PARTS: [&str; 9] = ["src", "dst", "proto", "sport", "dport", "type", "code", "dev", "uid"];
    let mut selector = Selector::ALL;
    while let Some(word) = words.take(&PARTS) {
        words.selector(word, &mut selector, interface)?;
    }
    Ok(selector)
}
