#!/usr/bin/env python3
"""Copies an extension library for libnfb and gives the copy another version of the ABI.

  abi_version.py LIBRARY COPY MAJOR MINOR
"""
import re
import struct
import subprocess
import sys
from pathlib import Path

SYMBOL = "libnfb_ext_abi_version"


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def place(library: Path) -> int:
    """Where in the file the version is: two words, the major and the minor number."""
    address = int(re.search(rf"^([0-9a-f]+) \w {SYMBOL}$", said("nm", "-D", str(library)), re.M)[1], 16)
    for segment in re.findall(r"LOAD\s+(0x\w+) (0x\w+) 0x\w+ (0x\w+)", said("readelf", "-lW", str(library))):
        offset, start, size = (int(field, 16) for field in segment)
        if start <= address < start + size:
            return offset + address - start
    raise ValueError(f"{library}: {SYMBOL} is not in the file")


def change(library: Path, copy: Path, major: int, minor: int) -> None:
    data, at = bytearray(library.read_bytes()), place(library)
    if struct.unpack_from("<II", data, at) != (1, 0):
        raise ValueError(f"{library}: not version 1.0")
    struct.pack_into("<II", data, at, major, minor)
    copy.write_bytes(data)


if __name__ == "__main__":
    change(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
