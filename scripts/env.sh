# shellcheck shell=bash
# Sourced by the other scripts: where the repository is, where things are built, and a Rust that is new enough.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$PWD/$target ;; esac
# Must agree with `rust-version` in Cargo.toml.
rust_wanted=1.95

# Whether the first version is at least the second.
at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# Version of a cargo; nothing if it does not work.
cargo_version() {
    "$1" --version 2>/dev/null | sed -n 's/^cargo \([0-9.]*\).*/\1/p'
}

# Puts the first folder of $PATH (or of where rustup installs) with a cargo that is new enough in front. The machine may
# have several: Debian 12 ships 1.63 as `cargo` and a current one as `cargo-web`.
find_rust() {
    local folder version
    while read -r folder; do
        [ -x "$folder/cargo" ] || continue
        version=$(cargo_version "$folder/cargo")
        if [ -n "$version" ] && at_least "$version" "$rust_wanted"; then
            PATH=$folder:$PATH
            return 0
        fi
    done < <(printf '%s' "$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin" | tr ':' '\n'; echo)
    return 1
}
