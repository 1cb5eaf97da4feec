# shellcheck shell=bash
# For cases with the socket library: sourced after lib.sh.

library=$(dirname "$millrace")/libmillrace_socket.so
[ -e "$library" ] || skip "$library has not been built; \`make build\` does that"
export MILLRACE_STREAMS="stats=$scratch/stats"

# with LIBRARY COMMAND...: becomes the command with the library preloaded, or as it is (-).
with() {
    local preloaded=$1
    shift
    if [ "$preloaded" != - ]; then export LD_PRELOAD=$preloaded; else unset LD_PRELOAD; fi
    exec "$@"
}

# counted PROGRAM FIELD: the sum of that field over all processes of the program that have ended; `kernel` is the sum of all reasons.
counted() {
    python3 - "$scratch/stats" "$@" <<'END'
import json, os, sys
path, program, field = sys.argv[1:]
lines = [json.loads(line) for line in open(path)] if os.path.exists(path) else []
rows = [line for line in lines if line["program"] == program]
print(sum(sum(row["kernel"].values()) if field == "kernel" else row[field] for row in rows))
END
}

# listens PORT: somebody does, which is state 0A there.
listens() {
    grep -qiE "$(printf ':%04X 0+:0000 0A ' "$1")" /proc/net/tcp /proc/net/tcp6
}
