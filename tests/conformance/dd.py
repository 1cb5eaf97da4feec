"""What DD queues, which no NFB program knows, are to those that name a queue by its number (docs/nfb.md)."""
from .catalogue import check
from .lab import Lab, Said, equal, expect, own_card
from .traffic import captures, second_user


@check("dd", "DD queues: by their number, and alone")
def own_queues(lab: Lab) -> str:
    with own_card(lab, "dd", ["--queues", "2", "--engine", "dd"]) as card:
        firmware = card.info()["firmware"]
        equal("queues that nfb-info counts", (firmware["rx_queues"], firmware["tx_queues"]), (0, 0))
        shared = card.attempt("ndp-generate", "-i", str(card.queue), "-s", "64", "-p", "10")
        expect(shared.code != 0 and "DD queue" in shared.err and "direct:" in shared.err, shared.complaint)
        speeds = []
        # With the user-space flag, and with a name for programs that cannot give it.
        for form, user, options in ((" -U", card, ["-U"]), (" on direct:", card.with_card(f"direct:{card.name}"), [])):
            speeds.append(f"ndp-loopback-hw{form}: {looped(user, *options).fields['Avg speed [Mpps]']} Mpps")
        expect(second_user(card, "ndp-read", "-U"), "a second reader of the same queue is not refused")
        return f"refused as by default; {', '.join(speeds)}; {captures(user)}"


def looped(lab: Lab, *options: str) -> Said:
    """Packets go round, and nothing is lost on the way: MACs count, for nfb-dma knows no DD."""
    lab.fresh()
    there = ["-i", str(lab.queue), "-s", "64-1500", "-p", str(lab.packets)]
    said = lab.run("ndp-loopback-hw", *there, *options, seconds=120)
    equal("packets", said.packets, lab.packets)
    equal("through the MACs", (lab.mac_sum("txmac", "pass"), lab.mac_sum("rxmac", "pass")), (lab.packets, lab.packets))
    return said
