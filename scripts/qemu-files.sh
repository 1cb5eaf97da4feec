#!/usr/bin/env bash
# A QEMU that speaks vfio-user, in a folder: scripts/qemu-files.sh FOLDER
#
# That of Debian 12 does not; those from 10.1 on do, and Debian 13's backports have one. Its packages and the libraries that it needs are
# unpacked, not installed, and run by their own loader (FOLDER/qemu): nothing of this machine changes, and it takes no root.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
[ ! -e "$1/qemu" ] || exit 0
mkdir -p "$(dirname "$1")"
folder=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
scratch=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch"/{state/lists/partial,cache/archives/partial,made}
# As if nothing were installed, so that everything that is needed is had.
: >"$scratch/status"
for suite in trixie trixie-backports; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main"
done >"$scratch/sources.list"
apt=(apt-get -o "Dir::State=$scratch/state" -o "Dir::State::status=$scratch/status" -o "Dir::Cache=$scratch/cache"
    -o "Dir::Etc::sourcelist=$scratch/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null
    -o "APT::Sandbox::User=$(id -un)" -o Debug::NoLocking=1)
{ "${apt[@]}" update &&
    "${apt[@]}" install -y --download-only --no-install-recommends -t trixie-backports qemu-system-x86; } >"$scratch/log" 2>&1 ||
    { cat "$scratch/log" >&2; exit 1; }
for package in "$scratch"/cache/archives/*.deb; do
    dpkg-deb --extract "$package" "$scratch/made"
done
cat >"$scratch/made/qemu" <<'END'
#!/bin/sh
# qemu-system-x86_64 of this folder.
here=$(dirname "$(readlink -f "$0")")
exec "$here/usr/lib64/ld-linux-x86-64.so.2" --library-path "$here/usr/lib/x86_64-linux-gnu" \
    "$here/usr/bin/qemu-system-x86_64" -L "$here/usr/share/qemu" -L "$here/usr/share/seabios" "$@"
END
chmod +x "$scratch/made/qemu"
"$scratch/made/qemu" --version >/dev/null || { echo "$0: what was downloaded does not run" >&2; exit 1; }
# In one step; somebody else may have been faster.
mv -T "$scratch/made" "$folder" 2>/dev/null || [ -e "$folder/qemu" ]
