#!/usr/bin/env bash
# Other QUIC stacks, to which tests/cases/quic-stacks.sh listens, each by its own package manager into one folder: aioquic by pip,
# quic-go as a module of Go. What cannot be had is said, and its variants of the case are skipped.
#
#   scripts/quic-peers.sh FOLDER
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$1
mkdir -p "$folder"
# Both of one day; go.mod has that of quic-go.
aioquic=1.7.2

if ! "$folder/python/bin/python" -c 'import aioquic' 2>/dev/null; then
    echo "quic-peers: installing aioquic $aioquic"
    { python3 -m venv "$folder/python" && "$folder/python/bin/pip" install -q "aioquic==$aioquic"; } >"$folder/python.log" 2>&1 ||
        { tail -n 3 "$folder/python.log"; echo "quic-peers: aioquic cannot be had"; }
fi

# So that an older one does not stay, it is made whenever its source is newer.
if [ ! -x "$folder/quic-go" ] || [ -n "$(find "$here/tests/quic/go" -newer "$folder/quic-go" -type f)" ]; then
    if ! command -v go >/dev/null; then
        echo "quic-peers: there is no Go (1.24 or newer), so there is no quic-go"
    else
        echo "quic-peers: fetching quic-go"
        (cd "$here/tests/quic/go" && go build -mod=readonly -o "$folder/quic-go" .) >"$folder/go.log" 2>&1 ||
            { tail -n 3 "$folder/go.log"; echo "quic-peers: quic-go cannot be had; it takes Go 1.24"; }
    fi
fi
exit 0
