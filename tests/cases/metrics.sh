# What Prometheus is told of a card: every counter, its health, and that while a thousand connections say nothing.
. "$(dirname "$0")/../lib.sh"
needs python3
socket=$scratch/card.sock
"$millrace" card --listen "$socket" --port loopback >"$scratch/card.log" 2>&1 &
pids+=($!)
card=$!
for _ in $(seq 100); do [ -S "$socket" ] && break; sleep 0.05; done
"$millrace" loopback-hw --device "unix:$socket" --count 1000 --queue 0 >"$scratch/traffic.log" 2>&1
port=$((20000 + $$ % 20000))
"$millrace" metrics --device "unix:$socket" --listen "127.0.0.1:$port" 2>"$scratch/metrics.log" &
pids+=($!)
for _ in $(seq 100); do grep -q listens "$scratch/metrics.log" && break; sleep 0.05; done

cat >"$scratch/ask.py" <<'END'
import resource, socket, sys, time, urllib.error, urllib.request
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
    print(f"1,000 connections that say nothing; an answer in {took * 1e3:.0f} ms")
elif what == "gone":
    status, text, _ = get("/health")
    assert status == 503 and text, (status, text)
END
ask() { python3 "$scratch/ask.py" "$port" "$1" || fail "$1"; }
ask counts
ask silent
open=$(ls "/proc/${pids[1]}/fd" | wc -l)
[ "$open" -lt 200 ] || fail "$open fds are open: connections are not bounded"
kill "$card"
wait "$card" 2>/dev/null || true
ask gone
# A card that comes back is found again.
"$millrace" card --listen "$socket" --port loopback >"$scratch/again.log" 2>&1 &
pids+=($!)
for _ in $(seq 100); do [ -S "$socket" ] && break; sleep 0.05; done
sleep 0.3
"$millrace" loopback-hw --device "unix:$socket" --count 1000 --queue 0 >"$scratch/traffic.log" 2>&1
ask counts
