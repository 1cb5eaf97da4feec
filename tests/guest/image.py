"""The root file system of the guest: image.py FOLDER INIT OUT [FILE...], FOLDER being what scripts/guest-files.sh made.

It is an archive of the form that `cpio -H newc` writes, which the kernel unpacks into memory. Each FILE of this machine, which may
be a program, is in it at the same place, with the libraries that it needs."""
import re
import subprocess
import sys
from pathlib import Path

FOLDER, PROGRAM, FILE = 0o040755, 0o100755, 0o100644


def entry(name: str, mode: int, data: bytes = b"") -> bytes:
    """Thirteen numbers of eight hexadecimal digits, the name and the data, both filled up to a multiple of four."""
    label = name.encode() + b"\0"
    # Inode, mode, user, group, links, time, size, device and number of special files, length of the name, checksum.
    numbers = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(label), 0]
    head = b"070701" + b"".join(b"%08x" % number for number in numbers) + label
    return head.ljust(-(-len(head) // 4) * 4, b"\0") + data.ljust(-(-len(data) // 4) * 4, b"\0")


def with_libraries(file: Path) -> set[Path]:
    """The file and the libraries that the loader would take for it; a file that is no program needs none."""
    said = subprocess.run(["ldd", file], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}).stdout
    return {file} | {Path(path) for path in re.findall(r"(/\S+) \(0x", said)}


def copies(files: list[Path]) -> list[bytes]:
    """Entries of files of this machine, after those of the folders that they are in."""
    wanted = set().union(*map(with_libraries, files))
    folders = {folder for path in wanted for folder in path.parents} - {Path("/"), Path("/bin")}
    made = [entry(str(folder)[1:], FOLDER) for folder in sorted(folders)]
    return made + [entry(str(path)[1:], PROGRAM, path.read_bytes()) for path in sorted(wanted)]


def main() -> None:
    parts, init, out, *files = (Path(word) for word in sys.argv[1:])
    order = (parts / "modules").read_bytes()
    archive = [entry(name, FOLDER) for name in ("bin", "dev", "modules")]
    archive.append(entry("init", PROGRAM, init.read_bytes()))
    archive.append(entry("bin/busybox", PROGRAM, (parts / "busybox").read_bytes()))
    archive.append(entry("modules/order", FILE, order))
    for name in order.decode().split():
        archive.append(entry(f"modules/{name}.ko", FILE, (parts / f"{name}.ko").read_bytes()))
    archive.extend(copies(files))
    archive.append(entry("TRAILER!!!", 0))
    out.write_bytes(b"".join(archive))


main()
