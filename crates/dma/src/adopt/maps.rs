//! What is mapped in this process, as `/proc/thread-self/maps` says.

use super::error::AdoptError;
use super::file::Identity;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

/// More than all of a line but the end of a long name.
const LINE: usize = 160;

/// What kind of memory a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Anonymous memory: arenas, `mmap`, the inside of `.bss`.
    Anonymous,
    /// What `brk` moves the end of.
    Heap,
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
    /// Allocates nothing.
    fn parse(line: &[u8]) -> Option<Self> {
        // What begins a name that is not ASCII is enough of it.
        let ascii = line.iter().take_while(|byte| byte.is_ascii()).count();
        let line = core::str::from_utf8(&line[..ascii]).ok()?;
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
        "" if inode == 0 => Kind::Anonymous,
        "[heap]" => Kind::Heap,
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

/// Calls `act` for each mapping that an open `/proc/PID/maps` lists. It may change mappings up to the one that it is called
/// for. Allocates nothing. Returns whether all were read, and `act` was always content.
pub(super) fn each(file: &OwnedFd, mut act: impl FnMut(&Mapped) -> bool) -> bool {
    let (mut bytes, mut line, mut len) = ([0_u8; 4096], [0_u8; LINE], 0);
    loop {
        let read = match rustix::io::read(file, &mut bytes) {
            Ok(0) => return true,
            Ok(read) => read,
            Err(Errno::INTR) => continue,
            Err(_) => return false,
        };
        for byte in &bytes[..read] {
            if *byte != b'\n' {
                // The rest of a name tells nothing.
                if len < LINE {
                    line[len] = *byte;
                    len += 1;
                }
                continue;
            }
            if Mapped::parse(&line[..len]).is_some_and(|mapped| !act(&mapped)) {
                return false;
            }
            len = 0;
        }
    }
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
            Kind::Heap,
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
        let file = std::fs::File::open("/proc/self/maps").unwrap().into();
        let mut streamed = Vec::with_capacity(10_000);
        assert!(each(&file, |mapped| {
            streamed.push(*mapped);
            true
        }));
        // Other tests map and unmap meanwhile.
        let files = |maps: &[Mapped]| maps.iter().filter(|mapped| mapped.kind == Kind::File).count();
        assert!(files(&streamed) > 0 && streamed.iter().any(|mapped| mapped.kind == Kind::Stack));
        assert!(!each(&std::fs::File::open("/proc/self/maps").unwrap().into(), |_| false));
    }
}
