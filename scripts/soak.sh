#!/usr/bin/env bash
# A card for a long time: programs killed at random moments, hostile programs that scribble on its shared memory in the
# second half, bystanders that check every frame. What `make soak` does.
#
#   scripts/soak.sh                      an hour, of which half with hostile programs, and 10,000 kills at least
#   SOAK_SECONDS=60 scripts/soak.sh      a minute, and as many kills as belong to it
#   scripts/soak.sh --kills 500 --json   any options of `millrace soak`
#
# Before that, 1,000 connections of each QUIC stack, of which `make test` has fewer where a stack is slow.
set -euo pipefail
. "$(dirname "$0")/env.sh"
QUIC_CLIENTS=1000 CARGO_TARGET_DIR=$target "$root/tests/run.sh" quic-stacks
exec "$target/release/millrace" soak "$@"
