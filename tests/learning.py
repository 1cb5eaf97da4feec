"""A learning switch of os-ken: learning.py PORT. It installs an entry for each pair of addresses that it has seen, and says so."""

import sys

from os_ken import cfg
from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.lib.packet import ethernet, packet
from os_ken.ofproto import ofproto_v1_3


class Learning(app_manager.OSKenApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.known = {}

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def begin(self, event):
        path, words, parser = event.msg.datapath, event.msg.datapath.ofproto, event.msg.datapath.ofproto_parser
        print(f"switch {path.id:016x}", flush=True)
        actions = [parser.OFPActionOutput(words.OFPP_CONTROLLER, words.OFPCML_NO_BUFFER)]
        self.add(path, 0, parser.OFPMatch(), actions)

    def add(self, path, priority, match, actions):
        words, parser = path.ofproto, path.ofproto_parser
        todo = [parser.OFPInstructionActions(words.OFPIT_APPLY_ACTIONS, actions)]
        path.send_msg(parser.OFPFlowMod(datapath=path, priority=priority, match=match, instructions=todo))

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def heard(self, event):
        message = event.msg
        path, words, parser = message.datapath, message.datapath.ofproto, message.datapath.ofproto_parser
        came = message.match["in_port"]
        frame = packet.Packet(message.data).get_protocols(ethernet.ethernet)[0]
        self.known[frame.src] = came
        goes = self.known.get(frame.dst, words.OFPP_FLOOD)
        actions = [parser.OFPActionOutput(goes)]
        if goes != words.OFPP_FLOOD:
            match = parser.OFPMatch(in_port=came, eth_dst=frame.dst, eth_src=frame.src)
            self.add(path, 1, match, actions)
            print(f"learned {frame.src} {frame.dst} {came} {goes}", flush=True)
        path.send_msg(
            parser.OFPPacketOut(
                datapath=path, buffer_id=words.OFP_NO_BUFFER, in_port=came, actions=actions, data=message.data
            )
        )

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def refused(self, event):
        print(f"error {event.msg.type} {event.msg.code}", flush=True)


if __name__ == "__main__":
    cfg.CONF(project="os_ken", args=["--ofp-tcp-listen-port", sys.argv[1], "--ofp-listen-host", "127.0.0.1"])
    # Applications are looked for by the name of their module.
    sys.modules["learning"] = sys.modules["__main__"]
    app_manager.AppManager.run_apps(["learning"])
