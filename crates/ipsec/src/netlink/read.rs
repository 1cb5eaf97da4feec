//! Messages of the kernel, as changes of a database.

use netlink_packet_core::NlasIterator;
use netlink_packet_core::Parseable;
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::{
    LifetimeConfig, Selector as KernelSelector, UserExpire, UserPolicyDefault, UserPolicyExpire, UserPolicyId,
    UserPolicyInfo, UserSaId, UserSaInfo, UserTemplate, XFRM_USER_EXPIRE_LEN, XFRM_USER_POLICY_EXPIRE_LEN,
    XFRM_USER_POLICY_ID_LEN, XFRM_USER_POLICY_INFO_LEN, XFRM_USER_SA_ID_LEN, XFRM_USER_SA_INFO_LEN, XfrmAttrs,
};

use super::{address, ring_bit};
use crate::algorithm::{Keys, Unsupported};
use crate::association::{Encapsulation, HeaderRules, Id, Mode, Parameters, Progress};
use crate::database::Change;
use crate::ip::protocol;
use crate::lifetime::{Limits, Usage};
use crate::policy::{Action, Direction, Policy, PolicyKey, Template};
use crate::selector::{Mark, Port, Prefix, Selector};

/// Why a message makes no change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not what the kernel writes.
    #[error("a message of kind {0:#x} is not whole, or contradicts itself")]
    Malformed(u16),
    /// It is an association that stays the kernel's. If there was one by its name, [`Change::Dissociate`] it.
    #[error("SPI {:#x} to {}: {why}", .id.spi, .id.destination)]
    Unsupported {
        /// Which.
        id: Id,
        /// Its mark.
        mark: Mark,
        /// Why.
        why: Unsupported,
    },
}

/// Attributes that say something here.
#[derive(Default)]
struct Attributes {
    aead: Option<netlink_packet_xfrm::AlgAead>,
    cipher: Option<netlink_packet_xfrm::Alg>,
    hash: Option<netlink_packet_xfrm::AlgAuth>,
    untruncated_hash: Option<netlink_packet_xfrm::Alg>,
    encapsulation: Option<netlink_packet_xfrm::EncapTmpl>,
    replay: Option<netlink_packet_xfrm::Replay>,
    replay_ring: Option<netlink_packet_xfrm::ReplayEsn>,
    mark: Mark,
    if_id: u32,
    extra_flags: u32,
    fill_to: u32,
    is_offloaded: bool,
    is_sub_policy: bool,
    templates: Vec<UserTemplate>,
    policy: Option<UserPolicyInfo>,
}

impl Attributes {
    const WANTED: [u16; 15] = [
        XFRMA_ALG_AEAD,
        XFRMA_ALG_CRYPT,
        XFRMA_ALG_AUTH,
        XFRMA_ALG_AUTH_TRUNC,
        XFRMA_ENCAP,
        XFRMA_REPLAY_VAL,
        XFRMA_REPLAY_ESN_VAL,
        XFRMA_MARK,
        XFRMA_IF_ID,
        XFRMA_SA_EXTRA_FLAGS,
        XFRMA_TFCPAD,
        XFRMA_OFFLOAD_DEV,
        XFRMA_POLICY_TYPE,
        XFRMA_TMPL,
        XFRMA_POLICY,
    ];

    fn read(body: &[u8], header: usize) -> Option<Self> {
        let mut all = Self::default();
        for attribute in NlasIterator::new(body.get(header..)?) {
            let attribute = attribute.ok()?;
            if Self::WANTED.contains(&attribute.kind()) {
                all.take(XfrmAttrs::parse(&attribute).ok()?);
            }
        }
        Some(all)
    }

    fn take(&mut self, attribute: XfrmAttrs) {
        match attribute {
            XfrmAttrs::EncryptionAlgAead(aead) => self.aead = Some(aead),
            XfrmAttrs::EncryptionAlg(cipher) => self.cipher = Some(cipher),
            XfrmAttrs::AuthenticationAlgTrunc(hash) => self.hash = Some(hash),
            XfrmAttrs::AuthenticationAlg(hash) => self.untruncated_hash = Some(hash),
            XfrmAttrs::EncapsulationTemplate(encapsulation) => self.encapsulation = Some(encapsulation),
            XfrmAttrs::ReplayState(replay) => self.replay = Some(replay),
            XfrmAttrs::ReplayStateEsn(ring) => self.replay_ring = Some(ring),
            XfrmAttrs::Mark(mark) => self.mark = Mark { value: mark.value, mask: mark.mask },
            XfrmAttrs::IfId(if_id) => self.if_id = if_id,
            XfrmAttrs::ExtraFlags(flags) => self.extra_flags = flags,
            XfrmAttrs::TfcPadding(bytes) => self.fill_to = bytes,
            XfrmAttrs::OffloadDevice(_) => self.is_offloaded = true,
            XfrmAttrs::PolicyType(kind) => self.is_sub_policy = kind.ptype != XFRM_POLICY_TYPE_MAIN,
            XfrmAttrs::Template(templates) => self.templates = templates,
            XfrmAttrs::PolicyInfo(info) => self.policy = Some(info),
            _ => {}
        }
    }
}

/// What a message of this kind says, by its body: nothing, or one change, or several. `kind` is that of `nlmsghdr`.
///
/// # Errors
/// [`Error`].
pub fn read(kind: u16, body: &[u8]) -> Result<Vec<Change>, Error> {
    let change = match kind {
        XFRM_MSG_NEWSA | XFRM_MSG_UPDSA => return association(kind, body).map(|change| vec![change]),
        XFRM_MSG_DELSA => dissociate(body),
        XFRM_MSG_EXPIRE => expire(body),
        XFRM_MSG_FLUSHSA => {
            body.first().map(|proto| matches!(*proto, 0 | protocol::ESP | u8::MAX).then_some(Change::FlushAssociations))
        }
        XFRM_MSG_NEWPOLICY | XFRM_MSG_UPDPOLICY => policy(body),
        XFRM_MSG_DELPOLICY => remove_policy(body),
        XFRM_MSG_POLEXPIRE => expire_policy(body),
        XFRM_MSG_FLUSHPOLICY => {
            Attributes::read(body, 0).map(|attributes| (!attributes.is_sub_policy).then_some(Change::FlushPolicies))
        }
        XFRM_MSG_SETDEFAULT | XFRM_MSG_GETDEFAULT => return defaults(body).ok_or(Error::Malformed(kind)),
        _ => Some(None),
    };
    change.map(|change| change.into_iter().collect()).ok_or(Error::Malformed(kind))
}

fn association(kind: u16, body: &[u8]) -> Result<Change, Error> {
    let malformed = Error::Malformed(kind);
    let info = UserSaInfo::parse(body).map_err(|_| malformed.clone())?;
    let attributes = Attributes::read(body, XFRM_USER_SA_INFO_LEN).ok_or(malformed.clone())?;
    let id = Id { destination: address(&info.id.daddr, info.family), spi: info.id.spi };
    let mark = attributes.mark;
    match parameters(id, &info, &attributes) {
        Ok(parameters) => parameters.map(|made| Change::Associate(Box::new(made))).ok_or(malformed),
        Err(why) => Err(Error::Unsupported { id, mark, why }),
    }
}

fn parameters(id: Id, info: &UserSaInfo, attributes: &Attributes) -> Result<Option<Parameters>, Unsupported> {
    if info.id.proto != protocol::ESP {
        return Err(Unsupported::Protocol(info.id.proto));
    }
    let mode = mode(info.mode).ok_or(Unsupported::Mode(info.mode))?;
    if attributes.is_offloaded {
        return Err(Unsupported::Offloaded);
    }
    let encapsulation = match &attributes.encapsulation {
        None => None,
        Some(udp) if udp.encap_type == UDP_ENCAP_ESPINUDP => {
            Some(Encapsulation { source_port: udp.encap_sport, destination_port: udp.encap_dport })
        }
        Some(other) => return Err(Unsupported::Encapsulation(other.encap_type)),
    };
    let Some(keys) = keys(attributes)? else { return Ok(None) };
    let is_extended = info.flags & XFRM_STATE_ESN != 0;
    let usage = Usage {
        bytes: info.lifetime_cur.bytes,
        packets: info.lifetime_cur.packets,
        added: info.lifetime_cur.add_time,
        used: info.lifetime_cur.use_time,
    };
    let ring = attributes.replay_ring.as_ref();
    let window = ring.map_or(u32::from(info.replay_window), |ring| ring.replay_window);
    if window > crate::window::MAX_WINDOW {
        return Err(Unsupported::Window(window));
    }
    let progress = match ring {
        Some(ring) => from_ring(ring, is_extended, usage),
        None => attributes.replay.as_ref().map_or(Progress { usage, ..Progress::default() }, |replay| Progress {
            sent: replay.oseq.into(),
            received: replay.seq.into(),
            came: vec![replay.bitmap.into()],
            usage,
        }),
    };
    Ok(Some(Parameters {
        id,
        source: address(&info.saddr, info.family),
        mode,
        keys,
        reqid: info.reqid,
        is_extended,
        window,
        kernel_words: ring.map(|ring| ring.bmp_len),
        encapsulation,
        limits: limits(&info.lifetime_cfg),
        selector: selector(&info.selector),
        mark: attributes.mark,
        if_id: attributes.if_id,
        headers: HeaderRules {
            dscp_out: attributes.extra_flags & XFRM_SA_XFLAG_DONT_ENCAP_DSCP == 0,
            dscp_in: info.flags & XFRM_STATE_DECAP_DSCP != 0,
            ecn: info.flags & XFRM_STATE_NOECN == 0,
            df: info.flags & XFRM_STATE_NOPMTUDISC == 0,
        },
        fill_to: u16::try_from(attributes.fill_to).unwrap_or(u16::MAX),
        progress,
    }))
}

fn from_ring(ring: &netlink_packet_xfrm::ReplayEsn, is_extended: bool, usage: Usage) -> Progress {
    let whole = |high: u32, low: u32| if is_extended { u64::from(high) << 32 | u64::from(low) } else { low.into() };
    let (sent, received) = (whole(ring.oseq_hi, ring.oseq), whole(ring.seq_hi, ring.seq));
    let mut came = vec![0u64; (ring.replay_window as usize).div_ceil(64)];
    for back in 0..u64::from(ring.replay_window).min(received) {
        let bit = ring_bit(received, received - back, ring.replay_window);
        // What the kernel does not say has come.
        if ring.bmp.get(bit / 32).is_none_or(|word| word & (1 << (bit % 32)) != 0) {
            came[(back / 64) as usize] |= 1 << (back % 64);
        }
    }
    Progress { sent, received, came, usage }
}

/// `None`: a key is not as long as its attribute says.
fn keys(attributes: &Attributes) -> Result<Option<Keys>, Unsupported> {
    fn key(bytes: &[u8], bits: u32) -> Option<&[u8]> {
        bytes.get(..(bits as usize).div_ceil(8))
    }
    if let Some(aead) = &attributes.aead {
        let Some(key) = key(&aead.alg_key, aead.alg_key_len) else { return Ok(None) };
        return Keys::aead(&name(&aead.alg_name), key, aead.alg_icv_len as usize).map(Some);
    }
    let Some(cipher) = &attributes.cipher else { return Err(Unsupported::NoAlgorithm) };
    let (hash_name, hash_key, hash_len, bits) = match (&attributes.hash, &attributes.untruncated_hash) {
        (Some(hash), _) => (name(&hash.alg_name), &hash.alg_key, hash.alg_key_len, hash.alg_trunc_len as usize),
        (None, Some(hash)) => {
            let name = name(&hash.alg_name);
            // What Linux cuts to when nobody says.
            let bits = match &*name {
                "hmac(sha384)" => 192,
                "hmac(sha512)" => 256,
                _ => 96,
            };
            (name, &hash.alg_key, hash.alg_key_len, bits)
        }
        (None, None) => return Err(Unsupported::NoIntegrity),
    };
    let (Some(cipher_key), Some(hash_key)) = (key(&cipher.alg_key, cipher.alg_key_len), key(hash_key, hash_len)) else {
        return Ok(None);
    };
    Keys::separate((&name(&cipher.alg_name), cipher_key), (&hash_name, hash_key, bits)).map(Some)
}

fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

const fn mode(number: u8) -> Option<Mode> {
    match number {
        XFRM_MODE_TRANSPORT => Some(Mode::Transport),
        XFRM_MODE_TUNNEL => Some(Mode::Tunnel),
        _ => None,
    }
}

fn limits(config: &LifetimeConfig) -> Limits {
    Limits {
        soft_bytes: config.soft_byte_limit,
        hard_bytes: config.hard_byte_limit,
        soft_packets: config.soft_packet_limit,
        hard_packets: config.hard_packet_limit,
        soft_added: config.soft_add_expires_seconds,
        hard_added: config.hard_add_expires_seconds,
        soft_used: config.soft_use_expires_seconds,
        hard_used: config.hard_use_expires_seconds,
    }
}

fn selector(kernel: &KernelSelector) -> Selector {
    let prefix = |bytes, len| (kernel.family != 0).then(|| Prefix { address: address(bytes, kernel.family), len });
    Selector {
        source: prefix(&kernel.saddr, kernel.prefixlen_s),
        destination: prefix(&kernel.daddr, kernel.prefixlen_d),
        protocol: kernel.proto,
        source_port: Port { value: kernel.sport, mask: kernel.sport_mask },
        destination_port: Port { value: kernel.dport, mask: kernel.dport_mask },
        // Negative numbers are none.
        interface: u32::try_from(kernel.ifindex).unwrap_or(0),
    }
}

fn dissociate(body: &[u8]) -> Option<Option<Change>> {
    let id = UserSaId::parse(body).ok()?;
    let attributes = Attributes::read(body, XFRM_USER_SA_ID_LEN)?;
    let place = Id { destination: address(&id.daddr, id.family), spi: id.spi };
    Some((id.proto == protocol::ESP).then_some(Change::Dissociate(place, attributes.mark)))
}

/// The end of a life: when it is the hard one, the kernel says nothing else of the association being gone.
fn expire(body: &[u8]) -> Option<Option<Change>> {
    let expire = UserExpire::parse(body).ok()?;
    let attributes = Attributes::read(body, XFRM_USER_EXPIRE_LEN)?;
    let info = expire.state;
    let id = Id { destination: address(&info.id.daddr, info.family), spi: info.id.spi };
    let is_gone = expire.hard != 0 && info.id.proto == protocol::ESP;
    Some(is_gone.then_some(Change::Dissociate(id, attributes.mark)))
}

const fn direction(number: u8) -> Option<Direction> {
    match number {
        XFRM_POLICY_IN => Some(Direction::In),
        XFRM_POLICY_OUT => Some(Direction::Out),
        XFRM_POLICY_FWD => Some(Direction::Forward),
        // Of one socket.
        _ => None,
    }
}

fn policy(body: &[u8]) -> Option<Option<Change>> {
    let info = UserPolicyInfo::parse(body).ok()?;
    let attributes = Attributes::read(body, XFRM_USER_POLICY_INFO_LEN)?;
    let Some(direction) = direction(info.direction).filter(|_| !attributes.is_sub_policy) else { return Some(None) };
    let policy = Policy {
        selector: selector(&info.selector),
        direction,
        priority: info.priority,
        index: info.index,
        action: if info.action == XFRM_POLICY_ALLOW { Action::Allow } else { Action::Block },
        mark: attributes.mark,
        if_id: attributes.if_id,
        templates: attributes.templates.iter().map(template).collect(),
    };
    Some(Some(Change::Policy(Box::new(policy))))
}

fn template(kernel: &UserTemplate) -> Template {
    let end = |bytes| Some(address(bytes, kernel.family)).filter(|address| !address.is_unspecified());
    Template {
        source: end(&kernel.saddr),
        destination: end(&kernel.id.daddr),
        protocol: kernel.id.proto,
        spi: kernel.id.spi,
        reqid: kernel.reqid,
        mode: mode(kernel.mode),
        is_optional: kernel.optional != 0,
    }
}

fn remove_policy(body: &[u8]) -> Option<Option<Change>> {
    let id = UserPolicyId::parse(body).ok()?;
    let attributes = Attributes::read(body, XFRM_USER_POLICY_ID_LEN)?;
    let Some(direction) = direction(id.direction).filter(|_| !attributes.is_sub_policy) else { return Some(None) };
    let (mut index, mut selects) = (id.index, id.selector);
    // The whole of it, where the kernel says it.
    if let Some(info) = &attributes.policy {
        (index, selects) = (info.index, info.selector);
    }
    let key =
        PolicyKey { direction, index, selector: selector(&selects), mark: attributes.mark, if_id: attributes.if_id };
    Some(Some(Change::RemovePolicy(key)))
}

fn expire_policy(body: &[u8]) -> Option<Option<Change>> {
    let expire = UserPolicyExpire::parse(body).ok()?;
    let attributes = Attributes::read(body, XFRM_USER_POLICY_EXPIRE_LEN)?;
    let Some(direction) = direction(expire.pol.direction).filter(|_| expire.hard != 0) else { return Some(None) };
    let key = PolicyKey {
        direction,
        index: expire.pol.index,
        selector: selector(&expire.pol.selector),
        mark: attributes.mark,
        if_id: attributes.if_id,
    };
    Some(Some(Change::RemovePolicy(key)))
}

fn defaults(body: &[u8]) -> Option<Vec<Change>> {
    let said = UserPolicyDefault::parse(body).ok()?;
    let sides = [(Direction::In, said.input), (Direction::Forward, said.forward), (Direction::Out, said.output)];
    let changes = sides.into_iter().filter_map(|(direction, action)| match action {
        XFRM_USERPOLICY_BLOCK => Some(Change::Default(direction, Action::Block)),
        XFRM_USERPOLICY_ACCEPT => Some(Change::Default(direction, Action::Allow)),
        _ => None,
    });
    Some(changes.collect())
}
