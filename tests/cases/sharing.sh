#!/usr/bin/env bash
# What docs/sharing.md shows: a second user gets two queues and nothing else. And what an administrator sees and ends.
. "$(dirname "$0")/../lib.sh"
needs setpriv python3
is_root || skip "becoming another user takes root"
as_nobody=(setpriv --reuid=nobody --regid=nogroup --clear-groups --)
"${as_nobody[@]}" true 2>/dev/null || skip "setpriv may not change the user here"
# Where the program was built may be closed to others.
chmod 755 "$scratch"
cp "$millrace" "$scratch/millrace"
chmod 755 "$scratch/millrace"
millrace=$scratch/millrace
lines=$(shown docs/sharing.md "Two queues for a second user, and nothing else")
[ "$(wc -l <<<"$lines")" -eq 5 ] || fail "not five lines"
follow "$lines"
export MILLRACE_DEVICE=unix:$scratch/card.sock

# refused RIGHT COMMAND...: as the other user, with the missing right named.
refused() {
    local right=$1
    shift
    "${as_nobody[@]}" "$millrace" "$@" >"$scratch/said" 2>&1 && fail "nobody may $*"
    grep -q -- "--grant user:nobody=$right" "$scratch/said" || fail "not said how: $(cat "$scratch/said")"
}
refused use:rx0 read --count 1
refused configure:ports ports plug 0 null
refused configure:workers workers --move 0=0
refused admin clients --end 1
refused admin locks --end /nothing

# A program of the other user is seen with what it has, and an administrator can end it.
background reader "${as_nobody[@]}" "$millrace" read --queue 1
listed() {
    id=$("$millrace" clients --json | python3 -c 'import json, sys
print(*[row["id"] for row in map(json.loads, sys.stdin) if row["user"] == "nobody" and row["queues"] == ["rx1"]])')
    [ -n "$id" ]
}
await 60 listed || fail "the reader is not listed: $("$millrace" clients)"
"$millrace" info --json | python3 -c 'import json, sys
[row] = [row for row in map(json.loads, sys.stdin) if row.get("user") == "nobody" and row.get("quota") == "queues"]
sys.exit((row["used"], row["limit"]) != (1, 4))' || fail "the quota is not shown: $("$millrace" info)"
"$millrace" clients --end "$id" >/dev/null
ended "$started" 60
[ "$code" -ne 0 ] || fail "the reader has not noticed"
listed && fail "the reader is still there"

# What cannot be is said before anything is opened.
wrong() {
    local text=$1
    shift
    timeout 60 "$millrace" card --listen "$scratch/none.sock" "$@" 2>"$scratch/said" && fail "millrace card $* works"
    grep -q -- "$text" "$scratch/said" || fail "millrace card $*: $(cat "$scratch/said")"
    [ ! -e "$scratch/none.sock" ] || fail "millrace card $* has left a socket"
}
wrong "there are connections, queues" --quota wood=1
wrong "/etc/passwd has no user" --grant user:nobody2=admin
wrong "/etc/passwd has no such user" --user nobody2
wrong "/etc/group has no such group" --grant everyone=use:all --group x
wrong "rx7 is granted, but the card has" --queues 2 --grant everyone=use:rx7

# A card that root starts keeps nothing that it does not need, in no thread; with --user it is that user's.
kept() {
    grep -hE '^Cap(Prm|Eff):|^Uid:' /proc/"$1"/task/*/status | sort -u
}
card=${pids[0]}
[ "$(kept "$card" | grep -c '0000000000000000$')" = 2 ] || fail "privileges are left: $(kept "$card")"
mkdir -m 777 "$scratch/open"
background dropped "$millrace" card --listen "$scratch/open/card.sock" --user nobody
dropped=$started
await 60 grep -q "keeps: none" "$scratch/dropped.log" || fail "the card does not say what it keeps"
[ "$(kept "$dropped" | grep -c "^Uid:.*$(id -u nobody).*$(id -u nobody)")" = 1 ] || fail "$(kept "$dropped")"
"${as_nobody[@]}" "$millrace" loopback-hw --device "unix:$scratch/open/card.sock" --count 1000 >/dev/null ||
    fail "the card's own user may not use it"
