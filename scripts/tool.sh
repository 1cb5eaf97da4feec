#!/usr/bin/env bash
# Installs a command of cargo into target/tools, unless that version is there: scripts/tool.sh NAME VERSION.
set -euo pipefail
. "$(dirname "$0")/env.sh"
name=$1 version=$2 tools=$target/tools
[ ! -e "$tools/bin/$name" ] || ! grep -q "\"$name $version " "$tools/.crates.toml" || exit 0
echo "installing $name $version into $tools, which takes minutes"
CARGO_TARGET_DIR=$tools/build cargo install --quiet --locked --root "$tools" "$name" --version "$version"
rm -rf "$tools/build"
