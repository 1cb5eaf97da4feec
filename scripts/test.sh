#!/usr/bin/env bash
# Runs all steps, or those named, whatever became of the ones before; says at the end what passed and fails if anything
# did not.
#
#   scripts/test.sh                all of them: what `make test` and CI do
#   scripts/test.sh unit loom      only these
#
# A step is a function below. It may write how many checks it made to $results ("passed failed skipped"); one that does
# not is one check. Exit code 77 means that it could not be done here, and its last line says why. All output is also
# in target/test-logs/STEP.log.
#
# Nothing holds a run up for ever (docs/decisions/0131-nothing-holds-up-a-run.md): a program of tests has TEST_SECONDS (default 600), a case
# CASE_SECONDS; what is left running after a step is named and ended; and at a SIGTERM the run says what it was at.
set -uo pipefail
. "$(dirname "$0")/env.sh"
cd "$root" || exit 1
export CARGO_TARGET_DIR=$target CARGO_TERM_COLOR=never
# What a build keeps for the next one makes a build from nothing slower, and that is what a whole run mostly is.
export CARGO_INCREMENTAL=0

steps=(setup format clippy doc header build unit loom fuzz sanitize unsafe licences documents end-to-end)
logs=$target/test-logs
fuzz_seconds=${FUZZ_SECONDS:-6}

skip() {
    echo "skipped: $*"
    return 77
}

# Adds up the closing lines of `cargo test`.
count_cargo_tests() {
    awk '/^test result:/ { for (i = 1; i < NF; i++) {
            if ($(i + 1) ~ /^passed/) passed += $i
            if ($(i + 1) ~ /^failed/) failed += $i
            if ($(i + 1) ~ /^ignored/) skipped += $i } }
        END { print passed + 0, failed + 0, skipped + 0 }'
}

# cargo test, in which no program of tests runs for ever.
bounded_cargo_test() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
    env "CARGO_TARGET_${host}_RUNNER=$root/scripts/bounded.sh" cargo test --locked "$@"
}

# Runs cargo test and counts, with what the step has run before.
cargo_test() {
    local code
    bounded_cargo_test "$@"
    code=$?
    count_cargo_tests <"$logs/$step.log" >"$results"
    grep -q '^0 0 ' "$results" && { echo "no test ran"; return 1; }
    return "$code"
}

step_setup() {
    scripts/setup.sh && cargo fetch --locked
}

step_format() {
    cargo fmt --version >/dev/null 2>&1 || { skip "this Rust has no rustfmt"; return; }
    cargo fmt --all --check
}

step_clippy() {
    cargo clippy --version >/dev/null 2>&1 || { skip "this Rust has no clippy"; return; }
    cargo clippy --workspace --all-targets --locked -- -D warnings
}

step_doc() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
}

# The C header is the one that its source gives.
step_header() {
    scripts/header.sh "$logs/millrace.h" || return
    diff -u include/millrace.h "$logs/millrace.h" && return 0
    echo "include/millrace.h is not what crates/c/src/boundary.rs says: make header"
    return 1
}

step_build() {
    make -s build
}

# More threads than cores, because many tests wait for other processes. What failed beside others runs once more with nothing beside
# it, as cases do (docs/decisions/0121-once-more-alone.md).
step_unit() {
    RUST_TEST_THREADS=$((2 * $(nproc))) cargo_test --workspace --no-fail-fast || once_more
}

# failed_tests LOG: a line for each program of tests that failed: what cargo wants for it, a tab, and the names of those that failed.
# Programs that did not come to an end have none: cargo says how they ended, unless failed tests ended them (101).
failed_tests() {
    awk 'function flush() { if (program) print program "\t" mine; program = "" }
        /^test .* FAILED$/ { names = names " " $2 }
        /^error: test failed, to rerun pass `/ { flush(); split($0, part, "`"); program = part[2]; mine = names; names = "" }
        /process didn.t exit successfully: / && !/\(exit status: 101\)/ { mine = "" }
        END { flush() }' "$1"
}

# runs_alone NAME PROGRAM [TEST]: whether it passes with nothing beside it. A program that did not come to an end runs as a whole.
runs_alone() {
    local program=$2 only=() wanted='^test result: ok'
    [ $# -lt 3 ] || only=(--exact "$3" --test-threads 1) wanted='^test result: ok. 1 passed'
    # With the features that all of it has, or it would all be built again.
    # shellcheck disable=SC2086
    bounded_cargo_test --workspace ${program#-p * } -- "${only[@]}" >"$logs/$1.again" 2>&1
    cat "$logs/$1.again"
    ! grep -q '^error: ' "$logs/$1.again" && grep -q "$wanted" "$logs/$1.again"
}

# Runs what failed again, one by one: five at most, for where more fail, it is not that the machine was busy.
once_more() {
    local program tests name passed failed skipped ended=0 wanted=0 list
    read -r passed failed skipped <"$results"
    list=$(failed_tests "$logs/$step.log")
    while IFS=$'\t' read -r program tests; do
        for name in ${tests:-whole}; do wanted=$((wanted + 1)); done
    done <<<"$list"
    [ -n "$list" ] && [ "$wanted" -le 5 ] || return 1
    while IFS=$'\t' read -r program tests; do
        # shellcheck disable=SC2086
        for name in ${tests:-""}; do
            runs_alone "$step" "$program" ${name:+"$name"} || continue
            echo "passed only when it ran once more: ${name:-all of it, which did not come to an end} ($program)"
            ended=$((ended + 1))
        done
    done <<<"$list"
    # Programs that did not end have counted nothing.
    failed=$((wanted - ended))
    echo "$((passed + ended)) $failed $skipped" >"$results"
    [ "$failed" -eq 0 ]
}

# The rings again, over memory that the model checker watches. Its flag changes everything, hence a folder of its own.
step_loom() {
    local CARGO_TARGET_DIR=$target/loom RUSTFLAGS="--cfg loom"
    export CARGO_TARGET_DIR RUSTFLAGS
    # The second: memory that is taken away under those who use it.
    cargo_test -p millrace-ring --profile model --test ring loom &&
        cargo_test -p millrace-message --profile model --test message loom &&
        cargo_test -p millrace-rdma --profile model --test loom &&
        cargo_test -p millrace-dma --profile model --lib model
}

# fuzz_target PROGRAM NAME: with what it found before, and says what became of it.
fuzz_target() {
    local corpus=$target/fuzz/corpus/$2 log=$logs/fuzz-$2.log
    mkdir -p "$corpus"
    local folders=("$corpus")
    [ -d "fuzz/corpus/$2" ] && folders+=("fuzz/corpus/$2")
    if "$1" -max_total_time="$fuzz_seconds" -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 \
        -artifact_prefix="$logs/$2-" "${folders[@]}" >"$log" 2>&1
    then
        touch "$logs/fuzz-$2.passed"
        echo "$2: $(grep '^Done' "$log")"
    else
        printf '%s FAILED:\n%s\n' "$2" "$(tail -n 40 "$log")"
    fi
}

# The targets are built as `cargo fuzz` builds them, but without needing it: coverage comes from switches that every
# compiler has.
step_fuzz() {
    local flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
        -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1"
    local passed failed source name names=() host
    [ -e fuzz/Cargo.toml ] || { skip "there are no fuzz targets"; return; }
    host=$(rustc -vV | sed -n 's/^host: //p')
    # With --target the flags are not used for build scripts.
    CARGO_TARGET_DIR=$target/fuzz RUSTFLAGS=$(echo $flags) \
        cargo build --manifest-path fuzz/Cargo.toml --release --locked --target "$host" || return 1
    rm -f "$logs"/fuzz-*
    for source in fuzz/fuzz_targets/*.rs; do names+=("$(basename "$source" .rs)"); done
    echo "${#names[@]} targets, $fuzz_seconds s each, one on each core"
    for name in "${names[@]}"; do
        [ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] || wait -n
        fuzz_target "$target/fuzz/$host/release/$name" "$name" &
    done
    wait
    passed=$(find "$logs" -name 'fuzz-*.passed' | wc -l)
    failed=$((${#names[@]} - passed))
    echo "$passed $failed 0" >"$results"
    [ "$failed" -eq 0 ]
}

# The unsafe code of the product is in `dma` and `port`; `ring` drives it hardest.
step_sanitize() {
    local host runtime
    host=$(rustc -vV | sed -n 's/^host: //p')
    runtime=$(rustc --print sysroot)/lib/rustlib/$host/lib
    if compgen -G "$runtime/librustc-*_rt.asan.a" >/dev/null; then
        echo "AddressSanitizer"
        # The switch counts as unstable, the compiler is the released one all the same.
        CARGO_TARGET_DIR=$target/asan RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" \
            cargo_test -p millrace-dma -p millrace-ring -p millrace-fuzzing -p millrace-port --lib --target "$host"
    elif command -v valgrind >/dev/null; then
        echo "Valgrind, because this Rust has no AddressSanitizer"
        local runner
        runner=CARGO_TARGET_$(echo "$host" | tr 'a-z-' 'A-Z_')_RUNNER
        # Without the tests in which threads hammer a word: Valgrind runs one thread at a time.
        env CARGO_TARGET_DIR="$target/valgrind" PROPTEST_CASES=8 \
            "$runner=valgrind -q --error-exitcode=9 --fair-sched=yes" \
            bash -c 'cargo test --locked -p millrace-dma -p millrace-ring --lib -- --skip order --skip survives \
                --skip runs_away --skip no_wake --skip for_every_reader --skip running_reader' \
            2>&1
        local code=$?
        count_cargo_tests <"$logs/$step.log" >"$results"
        return "$code"
    else
        skip "this Rust has no AddressSanitizer, and there is no valgrind"
    fi
}

# Files with the word in code, comments aside, are exactly those of the list.
step_unsafe() {
    local file
    git ls-files --cached --others --exclude-standard 'crates/*.rs' 'fuzz/*.rs' 'bench/*.rs' | while read -r file; do
        # Not `grep -q`: it would leave before sed is done, which then fails.
        [ -e "$file" ] && sed 's://.*::' "$file" | grep -w unsafe >/dev/null && echo "$file"
    done | sort >"$logs/unsafe-files.txt"
    diff -u scripts/unsafe-files.txt "$logs/unsafe-files.txt" && return 0
    echo "unsafe code has moved: justify it in its module, and bring scripts/unsafe-files.txt up to date"
    return 1
}

# The fuzz targets are no part of the workspace, and their lock file is forgotten when a crate takes something new.
step_licences() {
    cargo metadata --format-version 1 --locked --manifest-path fuzz/Cargo.toml >/dev/null || return
    cargo metadata --format-version 1 --locked --filter-platform "$(rustc -vV | sed -n "s,^host: ,,p")" |
        python3 scripts/check-licences.py
}

step_documents() {
    python3 scripts/check-documents.py
}

step_end-to-end() {
    tests/run.sh --results "$results"
}

# failed_parts STEP: which of its tests or cases failed, or its last lines, for readers of the end only. Of a case, its first
# line, its reason and its last lines.
failed_parts() {
    local parts
    parts=$(awk '
        function flush(from, i) { for (i = (said > 4 ? said - 4 : 0); i < said; i++) print lines[i]; said = 0 }
        /^failed: / { flush(); print; inside = 1; first = 1; next }
        inside && first && NF { first = 0; print; next }
        inside && /^ +failed: / { print; next }
        inside && NF { lines[said++] = $0; next }
        /^(test .* FAILED$|.* FAILED:$|error)/ { print }
        END { flush() }' "$logs/$1.log" | head -n 40)
    printf '%s:\n%s\n' "$1" "${parts:-$(tail -n 10 "$logs/$1.log")}"
}

# left_running STEP: names what it has left running, and ends it. What setup leaves are services that packages have started.
left_running() {
    local pid
    [ "$1" != setup ] || return 0
    for pid in $(grep -lzs "^MILLRACE_TEST_STEP=$1-$$\$" /proc/[0-9]*/environ | cut -d / -f 3); do
        echo "left running by $1: $(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c 1-300)"
        kill -KILL "$pid" 2>/dev/null
    done
}

# run_step STEP: its output is shown and logged by a file, for whatever a step leaves running would hold a pipe open, and its reader
# would wait for ever.
run_step() {
    local code
    : >"$logs/$1.log"
    tail -n +1 -s 0.2 -f "$logs/$1.log" --pid=$$ &
    shows=$!
    (export MILLRACE_TEST_STEP=$1-$$; "step_$1") </dev/null >>"$logs/$1.log" 2>&1 &
    running=$!
    wait "$running"
    code=$?
    running=
    left_running "$1" >>"$logs/$1.log"
    # The last lines are to be shown, too.
    sleep 0.5
    kill "$shows"
    wait "$shows" 2>/dev/null
    return "$code"
}

# stopped SIGNAL: says what the run was at, and ends it.
stopped() {
    echo
    printf '%s\n' "${summary[@]}"
    echo "stopped by SIG$1 after $((SECONDS - begin)) s, in step $step, which had run for $((SECONDS - start)) s; its last lines:"
    tail -n 30 "$logs/$step.log"
    echo "what was running:"
    # shellcheck disable=SC2046
    ps -o pid,ppid,etime,wchan:20,args -p "$(grep -lzs "^MILLRACE_TEST_STEP=$step-$$\$" /proc/[0-9]*/environ | cut -d / -f 3 | paste -sd ,)" |
        cut -c 1-220
    [ -z "$running" ] || kill -TERM -- "-$running"
    sleep 1
    left_running "$step" >/dev/null
    kill "$shows" 2>/dev/null
    exit 1
}

[ $# -gt 0 ] && steps=("$@")
for step in "${steps[@]}"; do
    declare -F "step_$step" >/dev/null || { echo "there is no step $step; there are: ${steps[*]}" >&2; exit 2; }
done
mkdir -p "$logs"
find_rust || true
passed=0 failed=0 skipped=0 summary=() failures=()
begin=$SECONDS start=$SECONDS running= shows=
# A process group for each step: what is in the background ignores Ctrl-C otherwise.
set -m
trap 'stopped INT' INT
trap 'stopped TERM' TERM
for step in "${steps[@]}"; do
    results=$logs/$step.results
    rm -f "$results"
    echo
    echo "== $step"
    start=$SECONDS
    run_step "$step"
    code=$?
    # Setup may just have installed Rust.
    [ "$step" = setup ] && find_rust
    p=0 f=0 s=0
    [ -s "$results" ] && read -r p f s <"$results"
    case $code in
    0) word=passed; [ $((p + f + s)) -eq 0 ] && p=1 ;;
    77) word=skipped; [ "$s" -eq 0 ] && s=1 ;;
    *) word=FAILED; [ "$f" -eq 0 ] && f=1; failures+=("$step") ;;
    esac
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    summary+=("$(printf '%-12s %-8s %5d s  %5d passed %3d failed %3d skipped' \
        "$step" "$word" $((SECONDS - start)) "$p" "$f" "$s")")
    echo "== $step: $word, $((SECONDS - start)) s"
done

echo
printf '%s\n' "${summary[@]}"
for step in "${failures[@]}"; do failed_parts "$step"; done
for step in "${steps[@]}"; do grep -E '^(passed only when it ran once more|left running by .*): ' "$logs/$step.log"; done
echo "all of it: $((SECONDS - begin)) s; logs in $logs"
grep -h '^skipped: ' "$logs"/*.log 2>/dev/null | sort | uniq -c | sort -rn | head -n 20
echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
