#!/usr/bin/env bash
# Captures that are none, or are damaged: an error that names the file, what can be read is sent, nothing hangs.
. "$(dirname "$0")/../lib.sh"
needs python3
start_card --port null

(cd "$tests" && python3 -c '
import sys
from pathlib import Path
import frames
folder = Path(sys.argv[1])
frames.write(folder / "good.pcap", [bytes([number]) * 100 for number in range(10)])
good = (folder / "good.pcap").read_bytes()
(folder / "truncated.pcap").write_bytes(good[:-1])
(folder / "magic.pcap").write_bytes(b"\x00\x01\x02\x03" + good[4:])
(folder / "empty.pcap").write_bytes(b"")
(folder / "header.pcap").write_bytes(good[:24])
(folder / "huge.pcap").write_bytes(good[:24 + 5 * 116 + 8] + b"\xff\xff\xff\x7f" * 2 + good[24 + 5 * 116 + 16:])
(folder / "pcapng.pcap").write_bytes(bytes.fromhex("0a0d0d0a1c0000004d3c2b1a01000000ffffffffffffffff1c000000"))
' "$scratch")

# sends FRAMES FILE: fails, after so many frames.
sends() {
    local code=0
    timeout 10 "$millrace" transmit "$scratch/$2" --json >"$scratch/out" 2>"$scratch/error" || code=$?
    [ "$code" -eq 1 ] || fail "$2 ended with $code"
    grep -q "$2" "$scratch/error" || { cat "$scratch/error"; fail "the message about $2 does not name it"; }
    local sent=0
    [ -s "$scratch/out" ] && sent=$(field frames <"$scratch/out")
    [ "$sent" -eq "$1" ] || fail "$sent frames of $2 were sent instead of $1"
    tail -n 1 "$scratch/error" | sed "s:$scratch/::g"
}

"$millrace" transmit "$scratch/good.pcap" --json >"$scratch/out" || fail "a good capture was not sent"
sends 9 truncated.pcap
sends 0 magic.pcap
sends 0 empty.pcap
sends 0 header.pcap
sends 5 huge.pcap
sends 0 pcapng.pcap
grep -qi pcapng "$scratch/error" || fail "the message does not say what the file is"
for file in magic.pcap pcapng.pcap; do
    if timeout 10 "$millrace" info --device "embedded:port=pcap:$scratch/$file" >"$scratch/out" 2>"$scratch/error"; then
        fail "a port took $file"
    fi
done
check_counting
