"""A router that changes all the time, with many flows and every packet compared: what its rules would have sent is what Linux sends.

python3 changes.py MILLRACE SECONDS FLOWS [SEED]

In namespaces of its own (places.py). Frames of FLOWS flows (IPv4 and IPv6, UDP and echoes, routed and translated) come from three ends; between two looks
something changes at random: routes, policy rules, next hops, neighbours, addresses, links, MTUs, filters, translations, marks, DSCP, conntrack, settings. Every
packet is compared by the router itself (`--shadow all`), and now and then, when nothing changes, what it has found has to be nothing.
Prints a line of JSON: packets, changes, `compared`, `different`, `overtaken`, `unpaired`. Exit code 1 if anything is different, or nothing was compared.
"""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

from engine import Millrace  # noqa: E402
from packets import Way, host  # noqa: E402
from places import Failed, Wires, batch, up_again, mac, v4, v6  # noqa: E402

ENDS = ("left", "right", "third")
NFT = "nft -f - <<'END'\nflush ruleset\n{}\nEND\n"
FORWARD = "table inet f {{ chain c {{ type filter hook forward priority 0; {} }} }}"
POST = "table ip n {{ chain c {{ type nat hook postrouting priority srcnat; {} }} }}"


def changes(pick: random.Random) -> str:
    """A script; each of them leaves a router that can go on."""
    gateway, other = pick.choice([("right", pick.randrange(2, 10)), ("third", pick.randrange(2, 10))])[0:2]
    net = f"198.18.{pick.randrange(4)}.0/24"
    net6 = f"2001:db8:77:{pick.randrange(4)}::/64"
    end = pick.choice(ENDS[1:])
    one = pick.randrange(2, 10)
    port = pick.randrange(1000, 1100)
    return pick.choice(
        [
            f"ip route replace {net} via {v4(gateway, other)}",
            f"ip -6 route replace {net6} via {v6(gateway, other)}",
            f"ip route replace {net} {pick.choice(['blackhole', 'unreachable', 'prohibit'])} || ip route replace {pick.choice(['blackhole', 'prohibit'])} {net}",
            f"ip route del {net} 2>/dev/null || true; ip -6 route del {net6} 2>/dev/null || true",
            f"ip route replace {net} nexthop via {v4('right', 3)} nexthop via {v4('third', 4)} weight {pick.randrange(1, 4)}",
            f"ip route replace {net} via {v4(gateway, other)} mtu {pick.choice([1200, 1400])}",
            f"ip neighbour replace {v4(end, one)} lladdr 02:00:00:00:9{pick.randrange(10)}:0{one} dev {end} nud permanent",
            f"ip neighbour replace {v6(end, one)} lladdr {mac(end, one)} dev {end} nud permanent",
            f"ip neighbour replace {v4(end, one)} lladdr {mac(end, one)} dev {end} nud permanent",
            f"ip rule add from {v4('left', one)} lookup 100 pref {port} 2>/dev/null; ip route replace default via {v4(end, other)} table 100",
            f"ip rule add fwmark {one} lookup 100 pref {port} 2>/dev/null; ip route replace default via {v4(end, other)} table 100",
            f"ip rule del pref {port} 2>/dev/null || true",
            f"for n in $(ip rule | sed -n 's/^\\(10[0-9][0-9]\\):.*/\\1/p'); do ip rule del pref $n; done",
            f"ip address replace 10.77.0.{one}/32 dev lo; ip address add {v4('right', one)}/32 dev lo 2>/dev/null; ip address del {v4('right', one)}/32 dev lo",
            f"ip link set {end} mtu {pick.choice([1300, 1500])}",
            f"ip link set {end} down; {up_again(end)}ip route replace default via {v4('right', 2)}; ip -6 route replace default via {v6('right', 2)}",
            NFT.format(FORWARD.format("ct state established accept")),
            NFT.format(FORWARD.format(f"udp dport {port} drop")),
            NFT.format(FORWARD.format("ip dscp set af21") + "\n" + POST.format("oifname right masquerade")),
            NFT.format(POST.format(f"oifname third snat to {v4('third')}:{2000 + one}-2999")),
            NFT.format(f"table ip m {{ chain c {{ type filter hook prerouting priority mangle; ip saddr {v4('left', one)} meta mark set {one}; }} }}"),
            "nft flush ruleset",
            "conntrack -F 2>/dev/null || true",
            f"conntrack -D -s {v4('left', one)} >/dev/null 2>&1 || true",
            f"sysctl -qw net.ipv4.conf.left.forwarding=0; sysctl -qw net.ipv4.conf.left.forwarding=1",
            f"sysctl -qw net.ipv4.conf.{pick.choice(ENDS)}.rp_filter={pick.randrange(3)}",
        ]
    )


def ways(count: int) -> list[tuple[Way, Way]]:
    """There, and back from where it leads."""
    made = []
    for number in range(count):
        one, far, ports = 2 + number % 8, number // 8 % 8, (1000 + number, 2000 + number % 50)
        kind = number % 4
        if kind == 0:
            to = f"198.18.{far % 4}.{number % 250 + 1}"
        elif kind == 1:
            to = f"2001:db8:77:{far % 4}::{number:x}"
        else:
            to = host("right" if kind == 2 else "third", 2 + far, 4)
        there = Way("left", one, to, ports)
        end = "third" if kind == 3 else "right"
        back = Way(end, 2 + far, host("left", one, there.version), ports[::-1], source=to)
        made.append((there, back))
    return made


class Long:
    """A run of it."""

    def __init__(self, millrace: str, flows: int, seed: int):
        self.pick = random.Random(seed)
        self.wires = Wires()
        self.engine = Millrace(self.wires, millrace, ["--shadow", "all"])
        self.engine.prepare(ENDS, ())
        self.router = self.engine.network.router
        self.engine.take(ENDS)
        # Frames made once: what differs between packets of a flow is not what is tried here.
        self.frames = [((there.end, there.udp(1)[0]), (back.end, back.udp(1)[0])) for there, back in ways(flows)]
        self.changed = self.sent = self.unsent = self.refused = self.policy = 0

    def send(self, flows: list, rounds: int) -> None:
        for _ in range(rounds):
            for number, both in enumerate(flows):
                for end, frame in both:
                    try:
                        self.engine.network.ends[end].send(frame)
                        self.sent += 1
                    except OSError:
                        # The link is down just now.
                        self.unsent += 1
                if number % (Wires.AT_MOST // 2) == 0:
                    self.wires.wait()
            self.take()

    def take(self) -> None:
        self.wires.wait()
        for end in self.engine.network.ends.values():
            end.taken()

    def change_policy(self) -> None:
        """How Linux chooses between next hops. It tells nobody: the router sees it within a second, and until then packets would go the old way."""
        self.policy = 1 - self.policy
        before = self.settings()
        self.router.run(f"sysctl -qw net.ipv4.fib_multipath_hash_policy={self.policy}")
        self.changed += 1
        end = time.monotonic() + 20
        while self.settings() == before:
            if time.monotonic() > end:
                raise Failed("the router does not see that Linux chooses in another way")
            time.sleep(0.2)

    def settings(self) -> int:
        return dict(self.ask("status")["changes"]).get("settings", 0)

    def found(self) -> dict:
        return self.ask("shadow")

    def ask(self, command: str) -> dict:
        done = subprocess.run(self.engine.command(command, "--json"), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"millrace router {command}: {done.stderr} {self.engine.log.read_text()[-2000:]}")
        return json.loads(done.stdout)

    def turn(self) -> None:
        """Packets while something changes, and when nothing does."""
        if self.pick.randrange(20) == 0:
            self.change_policy()
        some = self.pick.sample(self.frames, min(len(self.frames), 100))
        under_way = self.router.begin(changes(self.pick))
        self.changed += 1
        self.send(some, 1)
        try:
            under_way.end()
        except Failed:
            self.refused += 1
        self.engine.network.links_settle()
        self.engine.settle()
        self.send(some, 3)

    def close(self) -> None:
        self.engine.close()
        self.wires.close()


def main() -> int:
    millrace, seconds, flows = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    long = Long(millrace, flows, seed)
    try:
        # Every flow once, so that there are rules for all of them.
        long.send(long.frames, 2)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            long.turn()
        # What was still on its way.
        time.sleep(1.2)
        found = long.found()
    finally:
        long.close()
    said = {name: found[name] for name in ("compared", "different", "overtaken", "unpaired")}
    print(json.dumps({"seconds": seconds, "flows": flows, "packets": long.sent, "unsent": long.unsent, "changes": long.changed, "impossible": long.refused, **said}), flush=True)
    for line in found["last"]:
        print(f"  {line}")
    if found["different"]:
        return 1
    return 0 if found["compared"] > 10 * long.changed else 2


if __name__ == "__main__":
    sys.exit(main())
