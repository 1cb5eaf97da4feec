//! Sessions of PPPoE that the kernel has (`/proc/net/pppoe`). It does not tell which interface of PPP each of them is for.

use std::fs;

/// More than that are not looked at.
const MOST: usize = 64;

/// A session, as its socket was connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its number.
    pub number: u16,
    /// Ethernet address of the other end.
    pub peer: [u8; 6],
    /// The name of the Ethernet interface that it goes by.
    pub interface: String,
}

/// Those of this network namespace; none where the kernel has no PPPoE.
pub fn sessions() -> Vec<Session> {
    fs::read_to_string("/proc/thread-self/net/pppoe").map(|text| read(&text)).unwrap_or_default()
}

fn read(text: &str) -> Vec<Session> {
    // A heading, and a line for each.
    text.lines().skip(1).filter_map(line).take(MOST).collect()
}

fn line(text: &str) -> Option<Session> {
    let mut words = text.split_whitespace();
    // The number as it is on the wire, printed as if it were one of the processor.
    let number = u16::from_be(u16::from_str_radix(words.next()?, 16).ok()?);
    let mut bytes = words.next()?.split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
    let mut peer = [0; 6];
    for byte in &mut peer {
        *byte = bytes.next()??;
    }
    Some(Session { number, peer, interface: words.next()?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let text =
            "Id       Address              Device\n00003412 02:00:00:00:02:09       v7\n00000100 nonsense eth0\n";
        let session = Session { number: 0x1234, peer: [2, 0, 0, 0, 2, 9], interface: "v7".to_owned() };
        assert_eq!(read(text), [session]);
        assert_eq!(read(""), []);
    }
}
