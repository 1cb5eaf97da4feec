#!/usr/bin/env bash
# With --json every command prints one object per line and nothing else on standard output, with the agreed names.
. "$(dirname "$0")/../lib.sh"
needs python3

# json NAMES COMMAND...: at least one line; each parses and has the names.
json() {
    local names=$1
    shift
    "$millrace" "$@" --json >"$scratch/lines" 2>"$scratch/error.log" || fail "millrace $* --json ended with $?"
    python3 - "$names" "$scratch/lines" <<'END' || fail "millrace $* --json"
import json, sys
names, file = sys.argv[1].split(), sys.argv[2]
rows = [json.loads(line) for line in open(file)]
if not rows:
    sys.exit("nothing was printed")
for row in rows:
    missing = [name for name in names if name not in row]
    if not isinstance(row, dict) or missing:
        sys.exit(f"{row} lacks {missing}")
END
}

counts="command queue frames bytes seconds mpps gbps"
quality="lost corrupt reordered duplicates"
times="mean_ns geomean_ns p50_ns p90_ns p99_ns p999_ns min_ns max_ns"
json "kind" info
json "node property" tree
json "part address register value access" regs
json "time_ns queues ports workers" stats --device embedded
json "$counts" generate --count 1000 --device embedded:port=null
json "$counts $quality" read --count 1000 --check --device embedded:port=generator
json "$counts" receive "$scratch/out.pcap" --count 1000 --device embedded:port=generator
json "$counts" transmit "$scratch/out.pcap" --device embedded:port=null
json "$counts" loopback --count 1000 --device embedded:port=generator
json "$counts $quality" loopback-hw --count 1000
json "$counts $quality $times" loopback-hw --count 1000 --latency
json "command queue flows sent sent_bytes seconds tx_mpps tx_gbps received received_bytes rx_mpps rx_gbps $quality other $times" \
    pktgen --count 1000 --latency
json "bench engine mode size count $times lost corrupt" bench latency --count 1000 --plot "$scratch/plot.svg"
python3 -c 'import sys, xml.etree.ElementTree as tree; tree.parse(sys.argv[1])' "$scratch/plot.svg" ||
    fail "the plot is no SVG"
json "bench engine mode size count direction mpps gbps lost corrupt" bench throughput --count 1000 --size 64,1518
json "bench engine mode step before_ns before_ns_sd sync_ns sync_ns_sd after_ns after_ns_sd" bench sync --count 200
names="bench metric millrace dpdk_vhost dpdk_memif bare_ring cacheline ratio_to_dpdk ratio_to_bare"
# Peers that cannot be measured here: the names are there all the same.
mkdir "$scratch/peers"
printf '#!/bin/sh\nexit 77\n' >"$scratch/peers/run.sh"
chmod +x "$scratch/peers/run.sh"
json "bench metric unit value rules" bench classify --rounds 1 --seconds 0.01 --rules 100 \
    --metric hit_ns,miss_ns,rule_updates_per_s,pair_updates_per_s
json "bench metric size value rss one no_rules count" bench classify --rounds 1 --seconds 0.1 --metric rss_overhead
json "bench metric size value on off encap decap ovs ratio_to_ovs count" \
    bench classify --rounds 1 --seconds 0.1 --metric vxlan_ratio --size 64
json "bench path work metric algorithm size value goal seal_ns cipher_ns open_to_cipher open_ns mpps gbps count" \
    bench esp --rounds 1 --seconds 0.01 --algorithm aes-gcm-128,chacha20-poly1305,aes-cbc-128-sha256
if command -v ovs-ofctl >/dev/null; then
    json "bench controller way flows flow_mods flow_mods_per_s goal refused frames_per_s frames dropped longest_us" \
        bench agent --flows 100 --seconds 0.1
fi
if [ -e /usr/include/infiniband/verbs.h ] && [ -e "$(dirname "$millrace")/verbs/libibverbs.so.1" ]; then
    json "bench metric op size placement wire unit millrace peer peer_is ratio goal cpu_app cpu_target cpu_card copies count" \
        bench rdma --rounds 1 --seconds 0.1 --metric register_1m_again_us,write_1m_to_cma,slurpoe_to_roce
    json "bench op path placement wire size post_ns doorbell_ns engine_ns wire_ns deliver_ns poll_ns total_ns count" \
        bench rdma --stages --seconds 0.1
fi
# Not everybody may make network namespaces.
if is_root && unshare -n true 2>/dev/null && command -v nft ethtool >/dev/null; then
    json "bench path work protocol size flows cores mpps gbps rounds ns ns_net ratio_to_kernel ratio_net" \
        bench router --only-cells --work route,snat --frame 64 --flows 1,10 --path kernel --rounds 1 --seconds 0.01
fi
message="scheme mtu optimisations gbps latency_p50_ns cpu_send cpu_receive copies"
json "bench metric size unit millrace peer peer_is ratio goal $message count" \
    bench message --rounds 1 --seconds 0.05 --metric small_to_ucx,doorbell_to_cacheline,large_to_message_mode,overlap
json "bench size $message regret" bench message --sweep --seconds 0.01
json "$names" bench peers --rounds 1 --seconds 0.1 --peers "$scratch/peers" --metric rtt_p50,tx_mpps_64,tx_gbps_1518
json "command" message table
json "command size way chosen ns times why" message explain 64KiB
name=json-$$
background listener "$millrace" message listen "$name" --json
json "command to bytes_each messages bytes seconds mps gbps crc32" message send "$name" --bytes 2000 --count 100 --check
json "command to bytes_each count $times" message latency "$name" --count 100
python3 - "$scratch/listener.out" <<'END' || fail "message listen --json"
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    assert row["complete"] == "yes" and {"command", "from", "messages", "bytes", "seconds", "gbps", "crc32"} <= row.keys(), row
END
json "demo engine" demo

# Without a card: packets and what rules do with them. What is printed of a file of rules is one itself.
printf 'group=1,rss,queues=0-3\nip,actions=rss:1\n' >"$scratch/rules"
json "command kind" explain "$scratch/out.pcap" --rules "$scratch/rules" --packet 1-3
"$millrace" flow check "$scratch/rules" --json >"$scratch/rules.json"
"$millrace" flow check "$scratch/rules.json" >"$scratch/again"
"$millrace" flow check "$scratch/rules" | cmp - "$scratch/again" || fail "flow check: text and JSON differ"

# Rules of a card.
start_card --queues 4 --rules "$scratch/rules"
export MILLRACE_DEVICE=$device
json "command dry_run version added modified removed changed omitted" flow add tcp,actions=drop
json "kind packets bytes lost mpps gbps age_s idle_s owner rule version number" flow stats ip
json "kind" flow stats
"$millrace" flow neighbours add 192.0.2.2 02:00:00:00:00:02
json "address mac port state age_s waiting" flow neighbours
json "command kind" explain "$scratch/out.pcap" --card --packet 1-3
"$millrace" flow list --json >"$scratch/rules.json"
"$millrace" flow replace "$scratch/rules.json" | grep -q "added 0, modified 0, removed 0" || fail "flow list: text and JSON differ"

# A card says when it can be used, and where.
background card "$millrace" card --json --listen "$scratch/card.sock"
await 10 test -s "$scratch/card.out" || fail "the card says nothing"
[ "$(field device <"$scratch/card.out")" = "unix:$(realpath "$scratch")/card.sock" ] || fail "the card's name"
MILLRACE_DEVICE=unix:$scratch/card.sock "$millrace" stats --watch 0.05 --count 3 --json >"$scratch/watch"
[ "$(wc -l <"$scratch/watch")" -eq 3 ] || fail "stats --watch --count 3 printed $(wc -l <"$scratch/watch") lines"
python3 -c '
import json, sys, time
times = [json.loads(line)["time_ns"] for line in open(sys.argv[1])]
assert times == sorted(times) and abs(times[0] / 1e9 - time.time()) < 3600, times' "$scratch/watch" || fail "stats --watch: no times"

# What several commands print has one form in all of them (docs/json.md).
export MILLRACE_DEVICE=unix:$scratch/card.sock
"$millrace" ports plug 0 null >/dev/null
background reader "$millrace" read --queue 1 --share drop
same() {
    python3 - "$("$millrace" stats --json)" "$("$millrace" info --json)" "$("$millrace" ports --json)" "$("$millrace" workers --json)" <<'END'
import json, sys
stats, info, ports, workers = [[json.loads(line) for line in text.splitlines()] for text in sys.argv[1:]]
[stats] = stats
queues = {queue["queue"]: queue for queue in stats["queues"]}
moving = {"passes", "sleeps", "queues"}
for rows, others in ((ports, stats["ports"]), (workers, stats["workers"])):
    for row, other in zip(rows, others, strict=True):
        if differ := [name for name in row if name not in moving and row[name] != other[name]]:
            sys.exit(f"failed: {differ} differ between {row} and {other}")
for row in (row for row in info if row["kind"] == "queue"):
    for name in ("engine", "holders"):
        if row[name] != queues[row["queue"]][name]:
            sys.exit(f"failed: {name} differs in {row}")
if not queues["rx1"]["holders"]:
    sys.exit("nobody reads")
END
}
await 20 same >"$scratch/same.log" 2>&1 || fail "$(same 2>&1)"
