/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Why a packet goes to Linux. Each reason belongs to one of the 17 steps (../src/step.rs). build.rs makes the enum of Rust from this very
 * list, so a line is one reason: its name, its step, what `millrace router why` says. New ones go to the end. */
#ifndef MILLRACE_STEPS_H
#define MILLRACE_STEPS_H

#define REASONS \
    REASON(FAST, EGRESS, "it was sent on by a rule, without Linux") \
    REASON(OFF, INGRESS, "the router is off for the interface that it came by") \
    REASON(STALE, INGRESS, "nobody has looked after the rules for too long: the daemon is gone, or had no processor for a second") \
    REASON(SHORT, ETHERNET, "the frame is too short for its headers") \
    REASON(MULTICAST, ETHERNET, "it is a multicast or a broadcast") \
    REASON(NOT_OURS, ETHERNET, "it is addressed to another Ethernet address") \
    REASON(NOT_IP, ETHERNET, "it is neither IPv4 nor IPv6") \
    REASON(VLAN_OFF, VLAN, "the part for VLANs is off") \
    REASON(VLAN_UNKNOWN, VLAN, "no interface has this VLAN") \
    REASON(TAGS, VLAN, "it has more than two tags") \
    REASON(PPPOE_OFF, PPPOE, "the part for PPPoE is off") \
    REASON(PPPOE_UNKNOWN, PPPOE, "no interface has this session of PPPoE") \
    REASON(PPPOE_CONTROL, PPPOE, "it is no IP in the session, but of PPP's own") \
    REASON(FDB_OFF, FDB, "the part for bridges is off, or rules of netfilter look at frames that a bridge forwards") \
    REASON(FDB_UNKNOWN, FDB, "the bridge does not know the address that it goes to") \
    REASON(FDB_MOVED, FDB, "the bridge knows its sender at another port, or not at all") \
    REASON(FDB_REFRESH, FDB, "the bridge sees one frame of each flow every few seconds, so that it does not forget the sender") \
    REASON(FAMILY_OFF, IP, "the part for this version of IP is off") \
    REASON(IP_HEADER, IP, "the version or a length in the header of IP is wrong") \
    REASON(IP_CHECKSUM, IP, "the checksum of the header is wrong") \
    REASON(IP_OPTIONS, IP, "it has options or extension headers") \
    REASON(MARTIAN, IP, "no packet that is routed has such an address") \
    REASON(FRAGMENT, FRAGMENT, "it is a fragment, and Linux may put it together with others before it looks at it") \
    REASON(PROTOCOL, FLOW, "it is neither TCP, UDP nor an ICMP echo") \
    REASON(L4_HEADER, FLOW, "the header of TCP, UDP or ICMP is wrong or cut off") \
    REASON(TRIAL, FLOW, "the rule is on trial: Linux shows what it does with the flow") \
    REASON(NEW_RULE, FLOW, "a rule was made for it just now") \
    REASON(TABLE_FULL, FLOW, "there is no room in the table where this flow belongs") \
    REASON(BUSY, FLOW, "another processor is making the rule at this moment") \
    REASON(EPOCH, FLOW, "routes, rules or neighbours have changed; the rule is on trial again") \
    REASON(LINUX_SILENT, FLOW, "Linux did not send it on: it is filtered, held back, or for the router itself") \
    REASON(MISMATCH_OUT, FLOW, "Linux sends it out of another interface than the rule would") \
    REASON(MISMATCH_ETHERNET, FLOW, "Linux sends it with other Ethernet addresses or tags than the rule would") \
    REASON(MISMATCH_TTL, FLOW, "Linux sends it with another hop limit than the rule would") \
    REASON(MISMATCH_SHADOW, FLOW, "a packet of it was compared with what Linux made of it, and was different") \
    REASON(KILLED, FLOW, "its rule was taken away by the daemon") \
    REASON(TCP_FLAGS, STATE, "SYN, FIN and RST of TCP, and segments without ACK, are conntrack's business") \
    REASON(NO_CONNTRACK, STATE, "conntrack has no entry for it") \
    REASON(NOT_ESTABLISHED, STATE, "conntrack has not seen both directions yet, or sees the connection end") \
    REASON(HELPER, STATE, "a helper of conntrack reads along") \
    REASON(SEQUENCE_ADJUST, STATE, "conntrack changes sequence numbers of it") \
    REASON(TIMEOUT_POLICY, STATE, "its entry in conntrack has timeouts of its own") \
    REASON(CONNTRACK_ICMP, STATE, "conntrack cannot be asked about ICMP: Linux shows again every few seconds what it does with the echo") \
    REASON(CONNTRACK_MISSING, STATE, "this kernel does not let the fast path ask conntrack") \
    REASON(NAT_OFF, NAT, "the part for NAT is off") \
    REASON(TOS_OFF, TOS, "Linux changes the DSCP, and the part for that is off") \
    REASON(TTL, HOP, "its hop limit ends here: Linux says so to the sender") \
    REASON(MTU, HOP, "it is longer than the next link takes") \
    REASON(ROUTE_LOCAL, HOP, "it is for the router itself, or the route forbids it") \
    REASON(ROUTE_NONE, HOP, "there is no route") \
    REASON(ROUTE_SPECIAL, HOP, "the route goes into a tunnel that the fast path does not know") \
    REASON(FORWARDING_OFF, HOP, "forwarding is off for the interface that it came by") \
    REASON(RP_FILTER, HOP, "rp_filter: the way back to its sender is not by the interface that it came by") \
    REASON(NEIGHBOUR, HOP, "the Ethernet address of the next router or host is not known yet") \
    REASON(HOPS_FULL, HOP, "there is no room for another next hop") \
    REASON(SESSION_ADDRESS, SESSION, "the session of PPPoE that it goes out by is not known") \
    REASON(ROOM, TAG, "there is no room in front of the frame for tags or the header of a session") \
    REASON(OUT_UNKNOWN, EGRESS, "it leaves by an interface that is none of the router's, or where the router is off") \
    REASON(OUT_DOWN, EGRESS, "it leaves by an interface that is down") \
    REASON(REDIRECT_FAILED, EGRESS, "the interface that it leaves by does not take frames from XDP") \
    REASON(SHADOW, EGRESS, "it was compared: Linux sent it, and its copy was what the rule makes of it") \
    REASON(BIG, HOP, "it is a large segment whose parts are longer than the next link takes") \
    REASON(PARTIAL, TAG, "at tc, neither sessions of PPPoE nor two tags are written") \
    REASON(QUEUE_FULL, EGRESS, "it is lost: the interface that it was to leave by had no room") \
    REASON(UNCOMPARED, EGRESS, "it was to be compared, and there was no room for the copy, or Linux had merged it with others") \
    REASON(LONGER, HOP, "it is the longest of its flow so far: Linux shows whether the route takes it") \
    REASON(MISMATCH_DSCP, FLOW, "Linux sends it with another DSCP than the rule would") \
    REASON(NO_ENGINE, DECRYPT, "the engine in user space does not serve the queue that it came by") \
    REASON(WINDOWS, STATE, "conntrack still looks at windows of this connection; the daemon is about to tell it not to") \
    REASON(DECRYPTED, DECRYPT, "Linux has decrypted it, and asks its policy about each packet") \
    REASON(FRAGMENT_OFF, FRAGMENT, "it is a fragment, and the part for fragments is off") \
    REASON(ERROR_SHOWN, HOP, "it cannot go on, and Linux shows what the sender is told about that") \
    REASON(ERROR_SENT, HOP, "it cannot go on: it is lost, and its sender was told so without Linux") \
    REASON(ERROR_LIMITED, HOP, "it cannot go on: it is lost, and its sender was told so often enough") \
    REASON(GROUP_OFF, FLOW, "it is to a group, and the part for multicast is off") \
    REASON(GROUP_NONE, FLOW, "it is to a group, and Linux has no route for it from this sender and interface, or one that is not for the fast path") \
    REASON(GROUP_REFRESH, FLOW, "Linux sees one packet to each group every few seconds, so that it knows that the group is in use") \
    REASON(GROUP_TTL, HOP, "it is to a group, and its hop limit is too low for one of the interfaces") \
    REASON(GROUP_LONG, HOP, "it is to a group, and longer than one of the interfaces takes") \
    REASON(FDB_TAG, FDB, "its tag is of another type than that of the frame by which the rule was made, and the bridge looks at tags") \
    REASON(MISMATCH_MARK, FLOW, "Linux marks it, or gives it another priority than the rule would, and a qdisc may look at that")

#define REASON(name, step, sentence) REASON_##name,
enum reason { REASONS REASON_COUNT };
#undef REASON

#endif
