//! What is mapped in this process, as `/proc/thread-self/maps` says.

use super::error::AdoptError;
use super::file::Identity;

/// What kind of memory a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Anonymous memory: heap, arenas, `mmap`, the inside of `.bss`.
    Anonymous,
    /// Private huge pages.
    HugePages,
    /// A private mapping of a file.
    File,
    /// Shared memory: this file, from this offset on.
    Shared(Identity, u64),
    /// The stack of the first thread.
    Stack,
    /// Something of the kernel's.
    Special,
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) writable: bool,
    pub(super) executable: bool,
    pub(super) kind: Kind,
}

impl Mapped {
    fn parse(line: &[u8]) -> Option<Self> {
        let line = String::from_utf8_lossy(line);
        let mut fields = line.split_ascii_whitespace();
        let hex = |digits| u64::from_str_radix(digits, 16).ok();
        let (first, end) = fields.next()?.split_once('-')?;
        let (first, end) = (hex(first)?, hex(end)?);
        let rights = fields.next()?.as_bytes();
        let [read, write, execute, share] = *rights.first_chunk()?;
        let offset = hex(fields.next()?)?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let inode = fields.next()?.parse().ok()?;
        let name = fields.next().unwrap_or("");
        let identity = Identity { device: (hex(major)?, hex(minor)?), inode };
        let kind = if share == b's' { Kind::Shared(identity, offset) } else { kind_of(name, inode) };
        let writable = read == b'r' && write == b'w';
        (first < end).then_some(Self { first, end, writable, executable: execute == b'x', kind })
    }
}

/// Of a private mapping.
fn kind_of(name: &str, inode: u64) -> Kind {
    match name {
        "" | "[heap]" if inode == 0 => Kind::Anonymous,
        _ if name.starts_with("[anon:") => Kind::Anonymous,
        "[stack]" => Kind::Stack,
        _ if name.starts_with('[') => Kind::Special,
        _ if name.starts_with("/anon_hugepage") => Kind::HugePages,
        _ => Kind::File,
    }
}

/// All mappings in ascending order.
pub(super) fn read() -> Result<Vec<Mapped>, AdoptError> {
    let read = |path| std::fs::read(path);
    // Of a thread: the file of the process is empty when its first thread has ended.
    let bytes = read("/proc/thread-self/maps").or_else(|_| read("/proc/self/maps")).map_err(AdoptError::Maps)?;
    Ok(parse(&bytes))
}

fn parse(maps: &[u8]) -> Vec<Mapped> {
    maps.split(|byte| *byte == b'\n').filter_map(Mapped::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line_is_told_apart() {
        let maps = parse(
            b"55d0c0000000-55d0c0002000 rw-p 00002000 fd:01 77  /usr/bin/a program\n\
              55d0c0002000-55d0c0003000 rw-p 00000000 00:00 0\n\
              55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0  [heap]\n\
              7f0000000000-7f0000021000 rwxp 00000000 00:00 0  [anon:jit]\n\
              7f0000200000-7f0000400000 rw-p 00000000 00:10 9  /anon_hugepage (deleted)\n\
              7f0001000000-7f0001001000 rw-s 0003a000 00:01 1066  /memfd:x (deleted)\n\
              7f0002000000-7f0002001000 r--p 00000000 00:00 0  [vvar]\n\
              7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0  [stack]\n\
              bad line\n7-6 rw-p 0 00:00 0\n",
        );
        let kinds: Vec<_> = maps.iter().map(|mapped| mapped.kind).collect();
        let shared = Kind::Shared(Identity { device: (0, 1), inode: 1066 }, 0x3a000);
        let expected = [
            Kind::File,
            Kind::Anonymous,
            Kind::Anonymous,
            Kind::Anonymous,
            Kind::HugePages,
            shared,
            Kind::Special,
            Kind::Stack,
        ];
        assert_eq!(kinds, expected);
        assert!(maps[3].executable && maps[3].writable && !maps[6].writable);
        assert_eq!((maps[5].first, maps[5].end), (0x7f00_0100_0000, 0x7f00_0100_1000));
    }

    #[test]
    fn this_process_is_read() {
        let here = core::ptr::from_ref(&()).addr() as u64;
        let maps = read().unwrap();
        assert!(maps.windows(2).all(|two| two[0].end <= two[1].first));
        assert!(maps.iter().any(|mapped| mapped.kind == Kind::Stack), "{here:#x}");
    }
}
