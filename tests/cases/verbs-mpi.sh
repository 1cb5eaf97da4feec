#!/usr/bin/env bash
# MPI programs over two queues of a card, by `millrace verbs`: MPICH and Open MPI take the device through UCX; messages, all to all and
# windows arrive as they were sent.
# alone: its ranks poll
. "$(dirname "$0")/../lib.sh"
library=$(dirname "$millrace")/verbs
[ -e "$library/libibverbs.so.1" ] || skip "$library/libibverbs.so.1 has not been built; \`make build\` does that"
# compiles NAME: whether that MPI and its headers are there.
compiles() {
    echo '#include <mpi.h>' >"$scratch/probe.c"
    command -v "mpicc.$1" >/dev/null && "mpicc.$1" -fsyntax-only "$scratch/probe.c" >/dev/null 2>&1
}
compiles mpich || compiles openmpi || skip "neither libmpich-dev nor libopenmpi-dev is installed"
"$millrace" verbs true 2>"$scratch/namespace.log" || skip "$(tail -n 1 "$scratch/namespace.log")"
start_card --queues 2
export UCX_TLS=rc_v,ud_v,self UCX_NET_DEVICES=millrace0:1
# Nothing of it is asked of root alone; Open MPI wants to be told.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# runs NAME LAUNCHER...: the program, compiled for that MPI, with two ranks.
runs() {
    local name=$1
    shift
    "mpicc.$name" -O2 -o "$scratch/$name" "$tests/c/mpi.c" || fail "$name does not compile the program"
    "$millrace" verbs timeout 120 "$@" -n 2 "$scratch/$name" 300000 >"$scratch/$name.out" 2>"$scratch/$name.log" ||
        fail "$name: $(tail -n 5 "$scratch/$name.out" "$scratch/$name.log")"
    grep -q "ranks 2 ok" "$scratch/$name.out" || fail "$name: $(cat "$scratch/$name.out")"
    done+=" $name"
}

done=
if compiles mpich; then runs mpich mpiexec.hydra; fi
if compiles openmpi; then
    runs openmpi mpiexec.openmpi --oversubscribe --mca pml ucx --mca osc ucx --mca btl self
fi
for name in mpich openmpi; do
    [[ $done == *" $name"* ]] || echo "without $name: lib$name-dev is not installed"
done
echo "MPI:$done"
