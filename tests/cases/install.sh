#!/usr/bin/env bash
# `make install` installs these files and no others, builds nothing, and what it has installed works where it is.
. "$(dirname "$0")/../lib.sh"
needs make python3
[ -e "${CARGO_TARGET_DIR:-$root/target}/release/libmillrace.so" ] || fail "libmillrace.so has not been built; make build"
usr=$scratch/root/usr
# Neither a compiler nor a way to install packages: these would end the installation.
mkdir "$scratch/bin"
for command in cargo cc apt-get; do
    printf '#!/bin/sh\necho "%s was called" >&2\nexit 1\n' $command >"$scratch/bin/$command"
    chmod +x "$scratch/bin/$command"
done
PATH=$scratch/bin:$PATH make -s -C "$root" install DESTDIR="$scratch/root" PREFIX=/usr

commands=$("$millrace" --help | awk '/^Commands:/ { in_list = 1; next } /^$/ { in_list = 0 } in_list && /^  [a-z]/ { print $1 }')
pages=$(for command in $commands; do [ "$command" = help ] || echo "share/man/man1/millrace-$command.1"; done)
sort >"$scratch/expected" <<END
bin/millrace
bin/millrace-bench
include/millrace.h
lib/libmillrace.a
lib/libmillrace-socket.so
lib/libmillrace.so
lib/libmillrace.so.0
lib/libnfb-ext-millrace.so
lib/millrace/libibverbs.so.1
lib/millrace/libmillrace-memory.so
lib/millrace/librdmacm.so.1
lib/pkgconfig/millrace.pc
lib/python3/dist-packages/millrace.py
lib/systemd/system/millrace-card@.service
lib/systemd/system/millrace-router.service
share/bash-completion/completions/millrace
share/doc/millrace/examples/card.toml
share/doc/millrace/examples/router.toml
share/fish/vendor_completions.d/millrace.fish
share/man/man1/millrace.1
share/zsh/site-functions/_millrace
$pages
END
# What follows `agent`, `bench`, `flow`, `ivshmem`, `message`, `ports`, `pppoe`, `rdma`, `router` and `split` has pages of its own, as many as there are.
# The documents that help texts name.
for document in "$root"/docs/*.md; do
    cmp "$document" "$usr/share/doc/millrace/docs/$(basename "$document")" || fail "no $(basename "$document")"
done
(cd "$usr" && find . ! -type d ! -path './share/doc/millrace/docs/*' ! -name 'millrace-agent-*' ! -name 'millrace-bench-*' ! -name 'millrace-clock-*' ! -name 'millrace-flow-*' ! -name 'millrace-ivshmem-*' ! -name 'millrace-message-*' ! -name 'millrace-ports-*' ! -name 'millrace-pppoe-*' ! -name 'millrace-rdma-*' ! -name 'millrace-router-*' ! -name 'millrace-schedule-*' ! -name 'millrace-split-*' | sed 's,^\./,,' | sort) >"$scratch/found"
diff -u "$scratch/expected" "$scratch/found" || fail "other files than expected"
(cd "$usr/share/man/man1" && ls millrace-bench-latency.1 >/dev/null) || fail "no page for bench latency"
[ -z "$(find "$scratch/root" -type f -perm /022)" ] || fail "others may write to files"

"$usr/bin/millrace" --version | grep -Eq '^millrace [0-9.]+( \([0-9a-f]+\))?$' || fail "--version"
bash -n "$usr/share/bash-completion/completions/millrace" || fail "bash cannot read the completions"
# What bash offers behind `millrace bench lat` and `millrace h`.
offered() {
    bash -c '. "$1"; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _millrace millrace "${!#}" "${@: -2:1}"
        echo "${COMPREPLY[*]}"' _ "$usr/share/bash-completion/completions/millrace" "$@"
}
[ "$(offered millrace bench lat)" = latency ] || fail "completions: $(offered millrace bench lat)"
[ "$(offered millrace h)" = help ] || fail "hidden commands are offered: $(offered millrace h)"
[[ " $(offered millrace card --conf) " == *" --config "* ]] || fail "completions: $(offered millrace card --conf)"
if command -v zsh >/dev/null; then
    zsh -n "$usr/share/zsh/site-functions/_millrace" || fail "zsh cannot read the completions"
fi
if command -v fish >/dev/null; then
    fish -n "$usr/share/fish/vendor_completions.d/millrace.fish" || fail "fish cannot read the completions"
fi
if command -v man >/dev/null; then
    MANPAGER=cat man --warnings -l "$usr/share/man/man1/millrace-card.1" >"$scratch/page" 2>"$scratch/warnings"
    grep -q -- '--config' "$scratch/page" || fail "the page of card does not name its options"
    [ ! -s "$scratch/warnings" ] || fail "the page of card: $(cat "$scratch/warnings")"
fi

# That of the router does, too.
grep -qx 'ExecStart=/usr/bin/millrace router start --config /etc/millrace/router.toml' "$usr/lib/systemd/system/millrace-router.service" || fail "the router's unit"
if command -v systemd-analyze >/dev/null; then
    sed "s,/usr/bin/,$usr/bin/," "$usr/lib/systemd/system/millrace-router.service" >"$scratch/millrace-router.service"
    said=$(systemd-analyze verify "$scratch/millrace-router.service" 2>&1 | grep millrace-router.service | grep -v "Command 'man") || true
    [ -z "$said" ] || fail "systemd does not like the router's unit: $said"
fi

# The unit runs this program, with the file of the card if there is one; the example is such a file.
unit=$usr/lib/systemd/system/millrace-card@.service
start=$(sed -n 's/^ExecStart=//p' "$unit")
[[ $start == "/usr/bin/millrace card --config=-/etc/millrace/%i.toml "* ]] || fail "the unit starts $start"
start=${start//\/usr\/bin/$usr\/bin}
start=${start//\/etc\/millrace\/%i.toml/$scratch\/lab.toml}
start=${start//\/run\/millrace\/%i/$scratch}
for queues in 2 4; do
    # shellcheck disable=SC2086
    background unit $start
    await 20 test -S "$scratch/card.sock" || fail "no card"
    await 20 "$millrace" info --json --device "unix:$scratch/card.sock" >"$scratch/info" || fail "the card does not answer"
    found=$(head -n 1 "$scratch/info" | field rx_queues)
    [ "$found" = "$queues" ] || fail "$found queues instead of $queues"
    kill -INT "$started"
    ended "$started" 20
    cp "$usr/share/doc/millrace/examples/card.toml" "$scratch/lab.toml"
done

echo 'prot = "null"' >"$scratch/lab.toml"
"$usr/bin/millrace" card --config "$scratch/lab.toml" 2>"$scratch/wrong" && fail "an unknown key is taken"
grep -q "lab.toml:1: \"prot\" is not an option; there are .* port, " "$scratch/wrong" || fail "$(cat "$scratch/wrong")"
