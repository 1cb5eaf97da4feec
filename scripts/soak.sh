#!/usr/bin/env bash
# A card for a long time: programs killed at random moments, hostile programs that scribble on its shared memory in the
# second half, bystanders that check every frame. What `make soak` does.
#
#   scripts/soak.sh                      an hour, of which half with hostile programs, and 10,000 kills at least
#   SOAK_SECONDS=60 scripts/soak.sh      a minute, and as many kills as belong to it
#   scripts/soak.sh --kills 500 --json   any options of `millrace soak`
#
# Before that, 1,000 connections of each QUIC stack, of which `make test` has fewer where a stack is slow, and ten minutes of a router with 10,000 flows in
# which everything changes, all scenarios of a router in an emulated machine, and a hundred QEMUs that are killed.
set -euo pipefail
. "$(dirname "$0")/env.sh"
QUIC_CLIENTS=1000 CARGO_TARGET_DIR=$target "$root/tests/run.sh" quic-stacks
CASE_SECONDS=1800 CHANGES_SECONDS=${CHANGES_SECONDS:-600} CHANGES_FLOWS=10000 CARGO_TARGET_DIR=$target "$root/tests/run.sh" router-changes
ROUTER_GUEST=all CASE_SECONDS=1800 CARGO_TARGET_DIR=$target "$root/tests/run.sh" router-guest:xdp router-guest:tc
MILLRACE_KILLS=100 CASE_SECONDS=1800 CARGO_TARGET_DIR=$target "$root/tests/run.sh" guest-kills
exec "$target/release/millrace" soak "$@"
