"""Bridges that filter VLANs, and what changes of those under a flow. Only kernels that have that: in a guest (tests/cases/router-guest.sh)."""

from scenario import Do, Scenario, Send, Settle
from scenarios.bridge import ENDS, SETUP, A, B, lan, tagged

# A bridge that filters VLANs: `left` and `right` have 10, with and without a tag; `third` and `right` have 20 with one.
VLANS = (
    SETUP.replace("forward_delay 0", "forward_delay 0 vlan_filtering 1 vlan_default_pvid 0")
    + """
bridge vlan add vid 10 dev left pvid untagged; bridge vlan add vid 10 dev right
bridge vlan add vid 20 dev left; bridge vlan add vid 20 dev right; bridge vlan add vid 20 dev third pvid untagged
"""
)


def in_vlans(*steps) -> list:
    """Both hosts are known in VLAN 10, and the flow from `left` is fast."""
    learn = [Send("left", lan(A, B)), Send("right", tagged(lan(B, A), 10)), Send("left", tagged(lan(A, B), 20))]
    learn += [Send("right", tagged(lan(B, A), 20)), Settle(), Send("left", lan(A, B, 2)), Settle()]
    return [*learn, Send("left", lan(A, B, 4)), *steps]


def changes(*scripts: str) -> list:
    steps = []
    for script in scripts:
        steps += [Do(script), Send("left", lan(A, B, 4)), Settle(), Send("left", lan(A, B, 4))]
    return in_vlans(*steps)


SCENARIOS = [
    # In another VLAN, in one that the port has not; with another priority; with a priority alone, which is a frame without a tag to the bridge.
    Scenario(
        "the same addresses, other tags",
        in_vlans(
            Send("right", tagged(lan(B, A, 6), 10)),
            Send("left", tagged(lan(A, B, 6), 20)),
            Send("left", tagged(lan(A, B, 6), 30)),
            Send("right", tagged(lan(B, A, 4), 20)),
            Settle(),
            Send("right", tagged(lan(B, A, 4), 20, prio=5)),
            Send("left", tagged(lan(A, B, 4), 20)),
            Send("left", tagged(lan(A, B, 4), 20, prio=3)),
            Send("left", tagged(lan(A, B, 4), 0, prio=3)),
        ),
        setup=VLANS,
        ends=ENDS,
        fast=16,
    ),
    # Both ports lose the VLAN and get it again, one sends it without a tag and with one; what has no tag is of another one, and of this again.
    Scenario(
        "changes",
        changes(
            "bridge vlan delete vid 10 dev left",
            "bridge vlan add vid 10 dev left pvid untagged",
            "bridge vlan delete vid 10 dev right",
            "bridge vlan add vid 10 dev right",
            "bridge vlan add vid 10 dev right untagged",
            "bridge vlan add vid 10 dev right",
            "bridge vlan add vid 20 dev left pvid untagged",
            "bridge vlan add vid 10 dev left pvid untagged",
        ),
        setup=VLANS,
        ends=ENDS,
        fast=8,
    ),
    Scenario(
        "the bridge filters no more",
        changes("ip link set br0 type bridge vlan_filtering 0", "ip link set br0 type bridge vlan_filtering 1"),
        setup=VLANS,
        ends=ENDS,
        fast=6,
    ),
]
