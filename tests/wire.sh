# shellcheck shell=bash
# Frames over a wire whose other end is an interface of this host. After lib.sh, and in a namespace of its own
# (`private_network`).

# frames_pass INTERFACE [LONGEST]: 100 frames from the interface to the card, and 100 back.
frames_pass() {
    local receiver
    rm -f "$scratch/out.pcap"
    background receive "$millrace" receive "$scratch/out.pcap" --count 100 --json
    receiver=$started
    await 10 test -e "$scratch/out.pcap" || fail "nobody receives"
    python3 "$tests/wire.py" "$1" "$millrace" "$scratch" ${2:+"$2"} || fail "frames do not pass $1"
    ended "$receiver" 10
    (cd "$tests" && python3 -c '
import sys
import frames
made, got = (frames.read(name) for name in sys.argv[1:])
problem = frames.difference(made, got)
sys.exit("failed: Linux to card: " + problem if problem else 0)' "$scratch/in.pcap" "$scratch/out.pcap")
    check_counting
}
