# shellcheck shell=bash
# Verbs programs of Debian over our library. After lib.sh.

needs ibv_rc_pingpong ib_write_bw
verbs_library=$(dirname "$millrace")/verbs
[ -e "$verbs_library/libibverbs.so.1" ] || skip "$verbs_library/libibverbs.so.1 has not been built; \`make build\` does that"

# ours COMMAND...: with our library. To which end it belongs is in MILLRACE_VERBS.
ours() {
    LD_LIBRARY_PATH=$verbs_library "$@"
}

# listens PORT PID: whether the process listens there, or has ended.
listens() {
    grep -q ":$(printf %04X "$1") .* 0A " /proc/net/tcp /proc/net/tcp6 || is_gone "$2"
}

# both COMMAND...: a server and its client, over the two ${ends[@]}, which are what MILLRACE_VERBS says to each. What they say is in server.out
# and client.out.
both() {
    local server code_of_client=0 port=$((25000 + $$ % 5000))
    background server env MILLRACE_VERBS="${ends[0]}" LD_LIBRARY_PATH="$verbs_library" timeout 120 "$@" -p "$port"
    server=$started
    await 30 listens "$port" "$server" || fail "$*: the server does not listen"
    MILLRACE_VERBS=${ends[1]} ours timeout 120 "$@" -p "$port" localhost >"$scratch/client.out" 2>"$scratch/client.log" || code_of_client=$?
    ended "$server" 30
    [ "$code_of_client" -eq 0 ] ||
        fail "$*: the client ended with $code_of_client, the server with $code: $(tail -n 3 "$scratch"/{client,server}.{out,log})"
    [ "$code" -eq 0 ] || fail "$*: the server ended with $code: $(tail -n 3 "$scratch/server.out" "$scratch/server.log")"
}

# wire_is_up: whether the first two ports of the card are the ends of one wire.
wire_is_up() {
    [ "$("$millrace" stats --json | python3 -c '
import json, sys
print(sum(port["link"] for port in json.load(sys.stdin)["ports"]))')" = 2 ]
}
