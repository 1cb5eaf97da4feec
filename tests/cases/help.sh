#!/usr/bin/env bash
# Every command explains itself, on standard output, with an example; what is no command or option is refused with 2.
. "$(dirname "$0")/../lib.sh"
commands="card clients locks info tree regs stats generate read receive transmit send schedule loopback forward loopback-hw pktgen explain flow verbs rdma message ivshmem socket pppoe router split bench demo"
for command in $commands; do
    "$millrace" --help | grep -q "^  $command " || fail "--help does not list $command"
    "$millrace" "$command" --help >"$scratch/help" 2>"$scratch/error" || fail "$command --help failed"
    [ -s "$scratch/error" ] && fail "$command --help writes to standard error"
    [ "$(wc -l <"$scratch/help")" -ge 10 ] || fail "$command --help is short"
    longest=$(awk '{ if (length > most) most = length } END { print most }' "$scratch/help")
    [ "$longest" -le 100 ] || fail "$command --help has a line of $longest letters"
done
for bench in sync latency throughput peers matrix queues nfb fairness classify rdma message esp; do
    "$millrace" bench $bench --help >"$scratch/help" || fail "bench $bench --help failed"
done
"$millrace" --version | grep -Eq '^millrace [0-9]+\.[0-9]+\.[0-9]+' || fail "--version"

# refused CODE WORDS...
refused() {
    local wanted=$1 code=0
    shift
    timeout 10 "$millrace" "$@" >"$scratch/out" 2>"$scratch/error" || code=$?
    [ "$code" -eq "$wanted" ] || fail "millrace $* ended with $code instead of $wanted"
    [ -s "$scratch/error" ] || fail "millrace $* says nothing"
    [ ! -s "$scratch/out" ] || fail "millrace $* writes to standard output"
}

# options COMMAND OPTION...: its help shows these of the shared options, and it refuses the others.
options() {
    local command=$1 option value
    shift
    "$millrace" $command --help >"$scratch/help"
    for option in --device --queue --engine --mode --size --count --burst --poll --json; do
        if [[ " $* " == *" $option "* ]]; then
            grep -q -- " $option\b" "$scratch/help" || fail "$command --help does not know $option"
            continue
        fi
        ! grep -q -- "^ .*-., $option\b\|^ \{0,8\}$option\b" "$scratch/help" || fail "$command --help shows $option"
        case $option in --poll | --json) value= ;; --device) value=embedded ;; --engine) value=sze ;; --mode) value=direct ;; *) value=1 ;; esac
        refused 2 $command $option $value
        grep -q -- "no use for $option" "$scratch/error" || fail "$command $option: $(cat "$scratch/error")"
    done
}

options card --engine --poll --json
options info --device --engine --json
options ports --device --json
options stats --device --queue --count --json
options "receive x.pcap" --device --queue --engine --mode --count --burst --poll --json
options loopback-hw --device --queue --engine --mode --size --count --burst --poll --json
options demo --json
options "explain x.pcap --rules x" --device --queue --count --json
options "flow check x" --json
options "pppoe connect --interface lo" --json
options "flow add x" --device --json
options "rdma qps" --count --json
options "flow list" --device --json
options "flow stats" --device --count --json
options "flow watch" --device --count --json
options "flow capture all" --device --count --json
options "flow modify x" --device --json
options "flow keys --group 1 x" --device --count --json
options "flow neighbours" --device --json
options "message listen x" --count --json
options "message receive x" --json
options "message send x" --count --json
options "message latency x" --count --json
options "message table" --json
options "message explain 64" --json
refused 2 message send x --bytes 5GiB
refused 2 message send x "$scratch/x" --bytes 5
refused 2 message send x --by frame
refused 2 message listen x --user nobody-of-that-name
refused 2 message receive x --json
refused 1 message listen 'no name'
refused 1 message send "x" "$scratch/nothing"
refused 2 stats --count 3
refused 2 rdma capture
refused 2 rdma qps x.pcap
refused 2 rdma qps --seconds 3
refused 2 rdma capture x.pcap --watch
refused 2 rdma capture x.pcap --seconds 0
refused 1 rdma stats --pid 4194305
for address in 224.0.0.1 127.0.0.1 0.0.0.0 255.255.255.255 ff02::1; do
    refused 2 card --rdma-cpu --rdma-ip $address
done
# Behind the program, options are the program's.
refused 2 verbs --queue 1 true
refused 2 verbs --set mtu true
refused 2 verbs
refused 127 verbs --dev host "$scratch/nothing"

refused 2 frobnicate
refused 2 read --frobnicate
refused 2 read --mode fast
refused 2 info --device pci:1
refused 2 generate --size 20000
refused 1 info --device "unix:$scratch/nobody"
refused 1 transmit "$scratch/nothing.pcap"
