//! Ports that are VXLAN tunnels, in the words of Open vSwitch.

use std::net::IpAddr;
use std::str::FromStr;

use millrace_agent::switch::tunnels::TunnelPort;
use millrace_flow::action::{MAX_VNI, VXLAN_PORT};
use millrace_tool::failure::Failure;

/// A port as it was asked for.
#[derive(Clone, Debug)]
pub struct Vxlan {
    pub port: TunnelPort,
}

const FORM: &str = "write NAME,ofport=N,uplink=PORT,local_ip=IP,remote_ip=IP or remote_ip=flow, and perhaps key=VNI (or key=flow), \
     dst_port=N, csum=true";

/// Numbers of ports above this stand for something else, or are not the agent's to give.
const LAST_PORT: u32 = 0xff00;

impl FromStr for Vxlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        read(text).ok_or_else(|| FORM.to_owned()).and_then(|port| match port.remote {
            Some(remote) if remote.is_ipv4() != port.local.is_ipv4() => {
                Err("local_ip and remote_ip have to be of one version of IP".to_owned())
            }
            None if !port.local.is_ipv4() => Err("remote_ip=flow is there for IPv4 only".to_owned()),
            _ => Ok(Self { port }),
        })
    }
}

fn read(text: &str) -> Option<TunnelPort> {
    let mut parts = text.split(',');
    let name = parts.next().filter(|name| !name.is_empty() && name.len() < 16 && !name.contains('='))?;
    let (mut number, mut uplink): (Option<u32>, Option<u32>) = (None, None);
    let (mut local, mut remote) = (None, None);
    let (mut vni, mut udp_dst, mut checksum) = (None, VXLAN_PORT, false);
    for part in parts {
        let (key, value) = part.split_once('=')?;
        match key {
            "ofport" => number = Some(value.parse().ok().filter(|number: &u32| (1..=LAST_PORT).contains(number))?),
            "uplink" => uplink = Some(value.parse().ok().filter(|number| *number > 0)?),
            "local_ip" => local = Some(value.parse().ok()?),
            "remote_ip" if value == "flow" => remote = Some(None),
            "remote_ip" => remote = Some(Some(value.parse::<IpAddr>().ok()?)),
            "key" if value == "flow" => vni = None,
            "key" => vni = Some(value.parse().ok().filter(|vni| *vni <= MAX_VNI)?),
            "dst_port" => udp_dst = value.parse().ok().filter(|port| *port > 0)?,
            "csum" => checksum = value.parse().ok()?,
            _ => return None,
        }
    }
    // Ports of the datapath are counted from 0.
    let (port, uplink) = (number? - 1, uplink? - 1);
    Some(TunnelPort { name: name.to_owned(), port, uplink, local: local?, remote: remote?, vni, udp_dst, checksum })
}

/// Whether they fit a card with so many ports.
pub fn check(tunnels: &[TunnelPort], ports: u32) -> Result<(), Failure> {
    for (at, tunnel) in tunnels.iter().enumerate() {
        let TunnelPort { name, port, uplink, .. } = tunnel;
        if *port < ports || tunnels[..at].iter().any(|other| other.port == *port) {
            return Err(Failure::Usage(format!(
                "{name}: ofport={} is another port's: take one behind {ports}",
                port + 1
            )));
        }
        if *uplink >= ports {
            return Err(Failure::Usage(format!("{name}: there is no port {}: the card has {ports}", uplink + 1)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_as_open_vswitch_writes_them() {
        let read = |text: &str| text.parse::<Vxlan>().map(|vxlan| vxlan.port);
        let port = read("vx0,ofport=10,uplink=2,local_ip=192.0.2.1,remote_ip=192.0.2.2,key=5,csum=true").unwrap();
        assert_eq!((port.port, port.uplink, port.vni, port.checksum), (9, 1, Some(5), true));
        assert_eq!(port.rule().unwrap().to_string().split("actions=").nth(1), Some("decap_vxlan(port=9),goto_table:1"));
        let flow = read("v,ofport=10,uplink=2,local_ip=192.0.2.1,remote_ip=flow").unwrap();
        assert_eq!((flow.remote, flow.vni, flow.udp_dst), (None, None, 4789));
        for wrong in [
            "",
            "vx0",
            "ofport=10,uplink=2,local_ip=192.0.2.1,remote_ip=192.0.2.2",
            "v,ofport=0,uplink=2,local_ip=192.0.2.1,remote_ip=192.0.2.2",
            "v,ofport=65281,uplink=2,local_ip=192.0.2.1,remote_ip=192.0.2.2",
            "v,ofport=10,uplink=0,local_ip=192.0.2.1,remote_ip=192.0.2.2",
            "v,ofport=10,uplink=2,local_ip=192.0.2.1",
            "v,ofport=10,uplink=2,local_ip=192.0.2.1,remote_ip=192.0.2.2,key=16777216",
            "v,ofport=10,uplink=2,local_ip=192.0.2.1,remote_ip=192.0.2.2,colour=red",
            "v,ofport=10,uplink=2,local_ip=192.0.2.1,remote_ip=2001:db8::2",
            "v,ofport=10,uplink=2,local_ip=2001:db8::1,remote_ip=flow",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(check(std::slice::from_ref(&port), 2).is_ok());
        assert!(check(std::slice::from_ref(&port), 10).is_err());
        assert!(check(std::slice::from_ref(&port), 1).is_err());
        assert!(check(&[port.clone(), port], 2).is_err());
    }
}
