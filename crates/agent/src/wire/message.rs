//! All messages.

use super::bundle::{BundleAdd, BundleControl, subtype};
use super::error::{self, ErrorMessage, Refusal, request, switch_config};
use super::flow::{FlowMod, FlowRemoved};
use super::group::GroupMod;
use super::header::{self, HEADER, Header};
use super::hello::Hello;
use super::meter::MeterMod;
use super::multipart::{self, Answer, Question};
use super::oxm::ONF;
use super::packet::{PacketIn, PacketOut};
use super::port::{PortMod, PortStatus, QueueConfig};
use super::reader::{Put, Reader};
use super::switch::{Config, Features, Role, TableMod, Wants};

/// A message, without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words of the specification, section 7.1")]
pub enum Message {
    Hello(Hello),
    Error(ErrorMessage),
    EchoRequest(Vec<u8>),
    EchoReply(Vec<u8>),
    BundleControl(BundleControl),
    BundleAdd(BundleAdd),
    /// Of an experimenter that is not known: which one, its type, and the rest.
    Experimenter(u32, u32, Vec<u8>),
    FeaturesRequest,
    FeaturesReply(Features),
    GetConfigRequest,
    GetConfigReply(Config),
    SetConfig(Config),
    PacketIn(PacketIn),
    FlowRemoved(FlowRemoved),
    PortStatus(PortStatus),
    PacketOut(PacketOut),
    FlowMod(FlowMod),
    GroupMod(GroupMod),
    PortMod(PortMod),
    TableMod(TableMod),
    /// With the flags.
    MultipartRequest(u16, Question),
    /// With the flags.
    MultipartReply(u16, Answer),
    BarrierRequest,
    BarrierReply,
    /// Of which port.
    QueueConfigRequest(u32),
    QueueConfigReply(QueueConfig),
    RoleRequest(Role),
    RoleReply(Role),
    WantsRequest,
    WantsReply(Wants),
    SetWants(Wants),
    MeterMod(MeterMod),
}

/// Types of messages.
pub mod kind {
    #![allow(missing_docs, reason = "the words of the specification")]
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    pub const EXPERIMENTER: u8 = 4;
    pub const FEATURES_REQUEST: u8 = 5;
    pub const FEATURES_REPLY: u8 = 6;
    pub const GET_CONFIG_REQUEST: u8 = 7;
    pub const GET_CONFIG_REPLY: u8 = 8;
    pub const SET_CONFIG: u8 = 9;
    pub const PACKET_IN: u8 = 10;
    pub const FLOW_REMOVED: u8 = 11;
    pub const PORT_STATUS: u8 = 12;
    pub const PACKET_OUT: u8 = 13;
    pub const FLOW_MOD: u8 = 14;
    pub const GROUP_MOD: u8 = 15;
    pub const PORT_MOD: u8 = 16;
    pub const TABLE_MOD: u8 = 17;
    pub const MULTIPART_REQUEST: u8 = 18;
    pub const MULTIPART_REPLY: u8 = 19;
    pub const BARRIER_REQUEST: u8 = 20;
    pub const BARRIER_REPLY: u8 = 21;
    pub const QUEUE_CONFIG_REQUEST: u8 = 22;
    pub const QUEUE_CONFIG_REPLY: u8 = 23;
    pub const ROLE_REQUEST: u8 = 24;
    pub const ROLE_REPLY: u8 = 25;
    pub const WANTS_REQUEST: u8 = 26;
    pub const WANTS_REPLY: u8 = 27;
    pub const SET_WANTS: u8 = 28;
    pub const METER_MOD: u8 = 29;
}

impl Message {
    /// A message of version 1.3, whole with its header. A hello and an error are read whatever version they have.
    ///
    /// # Errors
    /// What is to be answered. Lengths have to be right to the byte.
    pub fn decode(header: &Header, message: &[u8]) -> Result<Self, Refusal> {
        let any_version = matches!(header.kind, kind::HELLO | kind::ERROR);
        if header.version != header::VERSION && !any_version {
            return Err(request::BAD_VERSION);
        }
        let mut body = Reader::new(message.get(HEADER..).ok_or(request::BAD_LEN)?, request::BAD_LEN);
        let empty = |message: Self, body: &Reader<'_>| body.end().map(|()| message);
        match header.kind {
            kind::HELLO => Hello::decode(body).map(Self::Hello),
            kind::ERROR => decode_error(body),
            kind::ECHO_REQUEST => Ok(Self::EchoRequest(body.rest().to_vec())),
            kind::ECHO_REPLY => Ok(Self::EchoReply(body.rest().to_vec())),
            kind::EXPERIMENTER => decode_experimenter(body),
            kind::FEATURES_REQUEST => empty(Self::FeaturesRequest, &body),
            kind::FEATURES_REPLY => Features::decode(body).map(Self::FeaturesReply),
            kind::GET_CONFIG_REQUEST => empty(Self::GetConfigRequest, &body),
            kind::GET_CONFIG_REPLY => Config::decode(body).map(Self::GetConfigReply),
            kind::SET_CONFIG => Config::decode(Reader::new(body.rest(), switch_config::BAD_LEN)).map(Self::SetConfig),
            kind::PACKET_IN => PacketIn::decode(body).map(Self::PacketIn),
            kind::FLOW_REMOVED => FlowRemoved::decode(body).map(Self::FlowRemoved),
            kind::PORT_STATUS => PortStatus::decode(body).map(Self::PortStatus),
            kind::PACKET_OUT => PacketOut::decode(body).map(Self::PacketOut),
            kind::FLOW_MOD => FlowMod::decode(body).map(Self::FlowMod),
            kind::GROUP_MOD => GroupMod::decode(body).map(Self::GroupMod),
            kind::PORT_MOD => PortMod::decode(body).map(Self::PortMod),
            kind::TABLE_MOD => TableMod::decode(body).map(Self::TableMod),
            kind::MULTIPART_REQUEST => {
                multipart::decode_question(body).map(|(flags, question)| Self::MultipartRequest(flags, question))
            }
            kind::MULTIPART_REPLY => {
                multipart::decode_answer(body).map(|(flags, answer)| Self::MultipartReply(flags, answer))
            }
            kind::BARRIER_REQUEST => empty(Self::BarrierRequest, &body),
            kind::BARRIER_REPLY => empty(Self::BarrierReply, &body),
            kind::QUEUE_CONFIG_REQUEST => {
                let port = body.u32()?;
                body.skip(4)?;
                empty(Self::QueueConfigRequest(port), &body)
            }
            kind::QUEUE_CONFIG_REPLY => QueueConfig::decode(body).map(Self::QueueConfigReply),
            kind::ROLE_REQUEST => Role::decode(body).map(Self::RoleRequest),
            kind::ROLE_REPLY => Role::decode(body).map(Self::RoleReply),
            kind::WANTS_REQUEST => empty(Self::WantsRequest, &body),
            kind::WANTS_REPLY => Wants::decode(body).map(Self::WantsReply),
            kind::SET_WANTS => Wants::decode(body).map(Self::SetWants),
            kind::METER_MOD => MeterMod::decode(body).map(Self::MeterMod),
            _ => Err(request::BAD_TYPE),
        }
    }

    /// Writes it behind `out`, with its header. `false`: it is longer than [`LONGEST`](super::LONGEST), and nothing was written.
    pub fn encode(&self, xid: u32, out: &mut Vec<u8>) -> bool {
        header::message(out, self.kind(), xid, |out| self.encode_body(out))
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => hello.encode(out),
            Self::Error(error) => encode_error(error, out),
            Self::EchoRequest(data) | Self::EchoReply(data) => out.bytes(data),
            Self::BundleControl(message) => {
                out.u32(ONF);
                out.u32(subtype::CONTROL);
                message.encode(out);
            }
            Self::BundleAdd(message) => {
                out.u32(ONF);
                out.u32(subtype::ADD);
                message.encode(out);
            }
            Self::Experimenter(experimenter, kind, data) => {
                out.u32(*experimenter);
                out.u32(*kind);
                out.bytes(data);
            }
            Self::FeaturesRequest
            | Self::GetConfigRequest
            | Self::BarrierRequest
            | Self::BarrierReply
            | Self::WantsRequest => {}
            Self::FeaturesReply(features) => features.encode(out),
            Self::GetConfigReply(config) | Self::SetConfig(config) => config.encode(out),
            Self::PacketIn(packet) => packet.encode(out),
            Self::FlowRemoved(removed) => removed.encode(out),
            Self::PortStatus(status) => status.encode(out),
            Self::PacketOut(packet) => packet.encode(out),
            Self::FlowMod(change) => change.encode(out),
            Self::GroupMod(change) => change.encode(out),
            Self::PortMod(change) => change.encode(out),
            Self::TableMod(change) => change.encode(out),
            Self::MultipartRequest(flags, question) => question.encode(*flags, out),
            Self::MultipartReply(flags, answer) => answer.encode(*flags, out),
            Self::QueueConfigRequest(port) => {
                out.u32(*port);
                out.zeros(4);
            }
            Self::QueueConfigReply(config) => config.encode(out),
            Self::RoleRequest(role) | Self::RoleReply(role) => role.encode(out),
            Self::WantsReply(wants) | Self::SetWants(wants) => wants.encode(out),
            Self::MeterMod(change) => change.encode(out),
        }
    }

    /// Its type.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => kind::HELLO,
            Self::Error(_) => kind::ERROR,
            Self::EchoRequest(_) => kind::ECHO_REQUEST,
            Self::EchoReply(_) => kind::ECHO_REPLY,
            Self::BundleControl(_) | Self::BundleAdd(_) | Self::Experimenter(..) => kind::EXPERIMENTER,
            Self::FeaturesRequest => kind::FEATURES_REQUEST,
            Self::FeaturesReply(_) => kind::FEATURES_REPLY,
            Self::GetConfigRequest => kind::GET_CONFIG_REQUEST,
            Self::GetConfigReply(_) => kind::GET_CONFIG_REPLY,
            Self::SetConfig(_) => kind::SET_CONFIG,
            Self::PacketIn(_) => kind::PACKET_IN,
            Self::FlowRemoved(_) => kind::FLOW_REMOVED,
            Self::PortStatus(_) => kind::PORT_STATUS,
            Self::PacketOut(_) => kind::PACKET_OUT,
            Self::FlowMod(_) => kind::FLOW_MOD,
            Self::GroupMod(_) => kind::GROUP_MOD,
            Self::PortMod(_) => kind::PORT_MOD,
            Self::TableMod(_) => kind::TABLE_MOD,
            Self::MultipartRequest(..) => kind::MULTIPART_REQUEST,
            Self::MultipartReply(..) => kind::MULTIPART_REPLY,
            Self::BarrierRequest => kind::BARRIER_REQUEST,
            Self::BarrierReply => kind::BARRIER_REPLY,
            Self::QueueConfigRequest(_) => kind::QUEUE_CONFIG_REQUEST,
            Self::QueueConfigReply(_) => kind::QUEUE_CONFIG_REPLY,
            Self::RoleRequest(_) => kind::ROLE_REQUEST,
            Self::RoleReply(_) => kind::ROLE_REPLY,
            Self::WantsRequest => kind::WANTS_REQUEST,
            Self::WantsReply(_) => kind::WANTS_REPLY,
            Self::SetWants(_) => kind::SET_WANTS,
            Self::MeterMod(_) => kind::METER_MOD,
        }
    }
}

fn decode_error(mut body: Reader<'_>) -> Result<Message, Refusal> {
    let refusal = Refusal { kind: body.u16()?, code: body.u16()? };
    let experimenter = if refusal.kind == error::EXPERIMENTER { body.u32()? } else { 0 };
    Ok(Message::Error(ErrorMessage { refusal, experimenter, data: body.rest().to_vec() }))
}

fn encode_error(error: &ErrorMessage, out: &mut Vec<u8>) {
    out.u16(error.refusal.kind);
    out.u16(error.refusal.code);
    if error.refusal.kind == error::EXPERIMENTER {
        out.u32(error.experimenter);
    }
    out.bytes(&error.data);
}

fn decode_experimenter(mut body: Reader<'_>) -> Result<Message, Refusal> {
    match (body.u32()?, body.u32()?) {
        (ONF, subtype::CONTROL) => BundleControl::decode(body).map(Message::BundleControl),
        (ONF, subtype::ADD) => BundleAdd::decode(body).map(Message::BundleAdd),
        (experimenter, kind) => Ok(Message::Experimenter(experimenter, kind, body.rest().to_vec())),
    }
}
