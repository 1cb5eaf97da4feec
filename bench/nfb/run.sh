#!/bin/sh
# Builds the program and runs it with these arguments.
cd "$(dirname "$0")" || exit 1
make -s burst >&2 || { echo "run.sh: the build failed, see above; it needs cc and make" >&2; exit 1; }
exec ./burst "$@"
