#!/usr/bin/env bash
# Messages from Python, as it is installed: buffers of all kinds (arrays of numpy among them), memory that is handed over, doorbells, threads, and
# the death of the other one.
. "$(dirname "$0")/../lib.sh"
needs /usr/bin/python3
install_library
export PYTHONPATH=$scratch/usr/lib/python3/dist-packages LD_LIBRARY_PATH=$scratch/usr/lib
background server timeout 120 /usr/bin/python3 "$tests/python/message.py" serve "case-python-$$"
server=$started
timeout 120 /usr/bin/python3 "$tests/python/message.py" drive "case-python-$$" >"$scratch/drive.out" 2>"$scratch/drive.log" ||
    fail "drive: $(cat "$scratch/drive.out" "$scratch/drive.log" "$scratch/server.log")"
await 10 is_gone "$server" || fail "the server has not died"
/usr/bin/python3 -c "import numpy" 2>/dev/null && arrays="arrays of numpy" || arrays="no numpy"
diff "$scratch/drive.out" - <<SAID || fail "drive has said something else"
buffers of all kinds
$arrays
messages that nobody keeps
short messages
memory that is handed over
ends
SAID
# As two hosts.
timeout 60 /usr/bin/python3 - "$scratch/wire" <<'END' >"$scratch/hosts.log" 2>&1 || fail "between hosts: $(cat "$scratch/hosts.log")"
import sys, millrace
with millrace.Endpoint("solver", rails=["vhost-user:" + sys.argv[1]], host="b") as one, \
        millrace.Endpoint(rails=["virtio-user:" + sys.argv[1]], host="a") as other:
    to, room = other.connect("b:solver", 30), bytearray(300_000)
    wanted, sent = one.receive(room, tag=7), other.send(to, bytes(range(250)) * 1000, tag=7)
    assert wanted.wait(30) and sent.wait(30) and room[:250_000] == bytes(range(250)) * 1000
    assert (other.who(to).host, one.who(wanted.peer).host) == ("b", "a")
END
# The document's ten lines.
/usr/bin/python3 - "$tests/../docs/message.md" <<'END' >"$scratch/both.py" || fail "docs/message.md has no program in Python"
import re, sys
blocks = re.findall(r"```python\n(.*?)```", open(sys.argv[1]).read(), re.S)
assert len(blocks) == 2
print("import threading\nprograms = [" + ", ".join(repr(block.replace(chr(34) + "solver", chr(34) + "case-python-doc")) for block in blocks) + "]")
print("threads = [threading.Thread(target=exec, args=(program, {})) for program in programs]")
print("[thread.start() for thread in threads]; [thread.join() for thread in threads]")
END
timeout 60 /usr/bin/python3 "$scratch/both.py" >"$scratch/both.out" 2>&1 || fail "$(cat "$scratch/both.out")"
grep -q "^100000 bytes of" "$scratch/both.out" || fail "the programs of docs/message.md say: $(cat "$scratch/both.out")"
echo "the programs of docs/message.md, buffers of all kinds, $arrays"
