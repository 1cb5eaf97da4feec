"""Puts a program of BPF somewhere, for scenarios: programs that no other command at hand attaches.

python3 bpf.py tcx-ingress|tcx-egress INTERFACE VERDICT PIN
python3 bpf.py netfilter PRIORITY VERDICT PIN

The program says VERDICT (a number) about every packet: of tcx -1 (the next one) or 2 (drop), at the hook `forward` of netfilter 1 (accept) or 0 (drop). It is there
until the file PIN in a file system of BPF is removed.
"""

import ctypes
import os
import socket
import struct
import sys

# linux/bpf.h; the number of the system call is that of x86-64.
SYS_BPF = 321
PROG_LOAD, OBJ_PIN, LINK_CREATE = 5, 6, 28
SCHED_CLS, NETFILTER = 3, 32
AT = {"tcx-ingress": (SCHED_CLS, 46), "tcx-egress": (SCHED_CLS, 47), "netfilter": (NETFILTER, 45)}
IPV4, FORWARD = 2, 2

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes.ljust(144, b"\0"), 144)
    answer = libc.syscall(SYS_BPF, command, buffer, 144)
    if answer < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return answer


def main(where: str, place: str, verdict: str, pin: str) -> None:
    kind, attach = AT[where]
    # r0 = VERDICT; exit
    code = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xB7, 0, 0, int(verdict), 0x95, 0, 0, 0), 16)
    licence = ctypes.create_string_buffer(b"GPL")
    # type, instructions, where they and the licence are; the log (level, size, place), kernel version, flags, name, interface, how it is attached.
    load = struct.pack("<IIQQIIQII16sII", kind, 2, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0, 0, b"theirs", 0, attach)
    program = bpf(PROG_LOAD, load)
    if where == "netfilter":
        # Program, no target, how it is attached, no flags; family, hook, priority, no flags.
        link = bpf(LINK_CREATE, struct.pack("<IIIIIIiI", program, 0, attach, 0, IPV4, FORWARD, int(place), 0))
    else:
        link = bpf(LINK_CREATE, struct.pack("<IIII", program, socket.if_nametoindex(place), attach, 0))
    path = ctypes.create_string_buffer(pin.encode() + b"\0")
    bpf(OBJ_PIN, struct.pack("<QII", ctypes.addressof(path), link, 0))


main(*sys.argv[1:])
