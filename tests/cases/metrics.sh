#!/usr/bin/env bash
# What Prometheus is told of a card: every counter, its health, and that while a thousand connections say nothing.
. "$(dirname "$0")/../lib.sh"
needs python3
start_card --port loopback
"$millrace" loopback-hw --count 1000 --queue 0 >"$scratch/traffic.log" 2>&1 || fail "loopback-hw"
port=$((20000 + $$ % 10000))
background metrics "$millrace" metrics --listen "127.0.0.1:$port"
metrics=$started
await 10 grep -q listens "$scratch/metrics.log" || fail "metrics does not listen"

cat >"$scratch/ask.py" <<'END'
import os, resource, socket, sys, time, urllib.error, urllib.request
port, what = int(sys.argv[1]), sys.argv[2]
def get(path):
    try:
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10)
        return answer.status, answer.read().decode(), answer.headers["content-type"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), ""
if what == "counts":
    status, text, kind = get("/metrics")
    assert status == 200 and kind.startswith("application/openmetrics-text"), (status, kind)
    assert text.endswith("# EOF\n"), text[-200:]
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for name in ("millrace_queue_passed_frames_total{queue=\"rx0\"}", "millrace_queue_passed_frames_total{queue=\"tx0\"}"):
        assert float(lines[name]) == 1000, (name, lines.get(name))
    assert "millrace_worker_passes_total{worker=\"0\"}" in lines and "millrace_clock_state{state=\"free\"}" in lines
    assert get("/health")[:2] == (200, "ok\n") and get("/nothing")[0] == 404
elif what == "silent":
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    silent = []
    for number in range(1000):
        one = socket.create_connection(("127.0.0.1", port), timeout=10)
        one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "[: number % 40])
        silent.append(one)
    begin = time.monotonic()
    assert get("/metrics")[0] == 200
    took = time.monotonic() - begin
    assert took < 5, f"an answer took {took} s beside 1,000 who say nothing"
    fds = len(os.listdir(f"/proc/{sys.argv[3]}/fd"))
    assert fds < 200, f"{fds} fds are open beside 1,000 connections: these are not bounded"
    print(f"1,000 connections that say nothing; an answer in {took * 1e3:.0f} ms, {fds} fds")
elif what == "gone":
    status, text, _ = get("/health")
    assert status == 503 and text, (status, text)
END
ask() { python3 "$scratch/ask.py" "$port" "$1" "$metrics" || fail "$1"; }
ask counts
ask silent
# One that is stopped does not answer: that is said, and in time.
kill -STOP "$card"
ask gone
kill -CONT "$card"
ask_again() { python3 "$scratch/ask.py" "$port" counts "$metrics" 2>"$scratch/again.log"; }
await 60 ask_again || fail "it goes on and is not found again: $(cat "$scratch/again.log")"
kill "$card"
ended "$card" 10
ask gone
# A card that comes back is found again.
background again "$millrace" card --json --listen "${device#unix:}" --port loopback
await 10 grep -q device "$scratch/again.out" || fail "the card does not come back"
"$millrace" loopback-hw --count 1000 --queue 0 >"$scratch/traffic.log" 2>&1 || fail "loopback-hw at the card that came back"
ask counts
