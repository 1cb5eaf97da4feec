//! Questions whose answers may be long, and parts of these (section 7.3.5).

use super::error::{Refusal, request};
use super::flow::{FlowQuestion, FlowStats};
use super::group::{GroupDesc, GroupFeatures, GroupStats};
use super::meter::{MeterConfig, MeterFeatures, MeterStats};
use super::port::{Port, PortStats, QueueStats};
use super::reader::{Put, Reader};
use super::table::{TableFeatures, TableStats};

/// More parts follow.
pub const MORE: u16 = 1;

mod kind {
    pub const DESC: u16 = 0;
    pub const FLOW: u16 = 1;
    pub const AGGREGATE: u16 = 2;
    pub const TABLE: u16 = 3;
    pub const PORT_STATS: u16 = 4;
    pub const QUEUE: u16 = 5;
    pub const GROUP: u16 = 6;
    pub const GROUP_DESC: u16 = 7;
    pub const GROUP_FEATURES: u16 = 8;
    pub const METER: u16 = 9;
    pub const METER_CONFIG: u16 = 10;
    pub const METER_FEATURES: u16 = 11;
    pub const TABLE_FEATURES: u16 = 12;
    pub const PORT_DESC: u16 = 13;
    pub const EXPERIMENTER: u16 = 0xffff;
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Who has made the switch.
    Desc,
    /// Entries.
    Flow(FlowQuestion),
    /// Sums over entries.
    Aggregate(FlowQuestion),
    /// Counters of tables.
    Table,
    /// Counters of a port, or of [all](super::port::number::ANY).
    PortStats(u32),
    /// Counters of a queue of a port; either may be all, which is 0xffffffff.
    Queue(u32, u32),
    /// Counters of a group, or of all.
    Group(u32),
    /// Descriptions of groups.
    GroupDesc,
    /// What groups can do.
    GroupFeatures,
    /// Counters of a meter, or of all.
    Meter(u32),
    /// Descriptions of a meter, or of all.
    MeterConfig(u32),
    /// What meters can do.
    MeterFeatures,
    /// What tables can do; not empty: what they are to be able to do.
    TableFeatures(Vec<TableFeatures>),
    /// Descriptions of ports.
    PortDesc,
    /// One of an experimenter.
    Experimenter {
        /// Which one.
        experimenter: u32,
        /// The rest of it.
        data: Vec<u8>,
    },
}

/// The question, and whether more of it follows.
pub(super) fn decode_question(mut body: Reader<'_>) -> Result<(u16, Question), Refusal> {
    let (kind, flags) = (body.u16()?, body.u16()?);
    body.skip(4)?;
    let numbered = |mut body: Reader<'_>| -> Result<u32, Refusal> {
        let number = body.u32()?;
        body.skip(4)?;
        body.end()?;
        Ok(number)
    };
    let question = match kind {
        kind::DESC => Question::Desc,
        kind::FLOW => return Ok((flags, Question::Flow(FlowQuestion::decode(body)?))),
        kind::AGGREGATE => return Ok((flags, Question::Aggregate(FlowQuestion::decode(body)?))),
        kind::TABLE => Question::Table,
        kind::PORT_STATS => return Ok((flags, Question::PortStats(numbered(body)?))),
        kind::QUEUE => Question::Queue(body.u32()?, body.u32()?),
        kind::GROUP => return Ok((flags, Question::Group(numbered(body)?))),
        kind::GROUP_DESC => Question::GroupDesc,
        kind::GROUP_FEATURES => Question::GroupFeatures,
        kind::METER => return Ok((flags, Question::Meter(numbered(body)?))),
        kind::METER_CONFIG => return Ok((flags, Question::MeterConfig(numbered(body)?))),
        kind::METER_FEATURES => Question::MeterFeatures,
        kind::TABLE_FEATURES => Question::TableFeatures(all(&mut body, TableFeatures::decode)?),
        kind::PORT_DESC => Question::PortDesc,
        kind::EXPERIMENTER => Question::Experimenter { experimenter: body.u32()?, data: body.rest().to_vec() },
        _ => return Err(request::BAD_MULTIPART),
    };
    body.end()?;
    Ok((flags, question))
}

impl Question {
    pub(super) fn encode(&self, flags: u16, out: &mut Vec<u8>) {
        let head = |out: &mut Vec<u8>, kind: u16| {
            out.u16(kind);
            out.u16(flags);
            out.zeros(4);
        };
        let numbered = |out: &mut Vec<u8>, kind: u16, number: u32| {
            head(out, kind);
            out.u32(number);
            out.zeros(4);
        };
        match self {
            Self::Desc => head(out, kind::DESC),
            Self::Flow(question) => {
                head(out, kind::FLOW);
                question.encode(out);
            }
            Self::Aggregate(question) => {
                head(out, kind::AGGREGATE);
                question.encode(out);
            }
            Self::Table => head(out, kind::TABLE),
            Self::PortStats(port) => numbered(out, kind::PORT_STATS, *port),
            Self::Queue(port, queue) => {
                head(out, kind::QUEUE);
                out.u32(*port);
                out.u32(*queue);
            }
            Self::Group(group) => numbered(out, kind::GROUP, *group),
            Self::GroupDesc => head(out, kind::GROUP_DESC),
            Self::GroupFeatures => head(out, kind::GROUP_FEATURES),
            Self::Meter(meter) => numbered(out, kind::METER, *meter),
            Self::MeterConfig(meter) => numbered(out, kind::METER_CONFIG, *meter),
            Self::MeterFeatures => head(out, kind::METER_FEATURES),
            Self::TableFeatures(tables) => {
                head(out, kind::TABLE_FEATURES);
                tables.iter().for_each(|table| table.encode(out));
            }
            Self::PortDesc => head(out, kind::PORT_DESC),
            Self::Experimenter { experimenter, data } => {
                head(out, kind::EXPERIMENTER);
                out.u32(*experimenter);
                out.bytes(data);
            }
        }
    }
}

fn all<T>(body: &mut Reader<'_>, one: impl Fn(&mut Reader<'_>) -> Result<T, Refusal>) -> Result<Vec<T>, Refusal> {
    let mut list = Vec::new();
    while !body.is_empty() {
        list.push(one(body)?);
    }
    Ok(list)
}

/// Who has made the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desc {
    /// The maker, up to 255 bytes.
    pub maker: String,
    /// The hardware, up to 255 bytes.
    pub hardware: String,
    /// The software, up to 255 bytes.
    pub software: String,
    /// The serial number, up to 31 bytes.
    pub serial: String,
    /// For people, up to 255 bytes.
    pub datapath: String,
}

/// An answer, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Who has made the switch.
    Desc(Desc),
    /// Entries.
    Flow(Vec<FlowStats>),
    /// Sums over entries: packets, bytes, entries.
    Aggregate(u64, u64, u32),
    /// Counters of tables.
    Table(Vec<TableStats>),
    /// Counters of ports.
    PortStats(Vec<PortStats>),
    /// Counters of queues.
    Queue(Vec<QueueStats>),
    /// Counters of groups.
    Group(Vec<GroupStats>),
    /// Descriptions of groups.
    GroupDesc(Vec<GroupDesc>),
    /// What groups can do.
    GroupFeatures(GroupFeatures),
    /// Counters of meters.
    Meter(Vec<MeterStats>),
    /// Descriptions of meters.
    MeterConfig(Vec<MeterConfig>),
    /// What meters can do.
    MeterFeatures(MeterFeatures),
    /// What tables can do.
    TableFeatures(Vec<TableFeatures>),
    /// Descriptions of ports.
    PortDesc(Vec<Port>),
    /// One of an experimenter.
    Experimenter {
        /// Which one.
        experimenter: u32,
        /// The rest of it.
        data: Vec<u8>,
    },
}

pub(super) fn decode_answer(mut body: Reader<'_>) -> Result<(u16, Answer), Refusal> {
    let (kind, flags) = (body.u16()?, body.u16()?);
    body.skip(4)?;
    let answer = match kind {
        kind::DESC => Answer::Desc(Desc {
            maker: body.text(256)?,
            hardware: body.text(256)?,
            software: body.text(256)?,
            serial: body.text(32)?,
            datapath: body.text(256)?,
        }),
        kind::FLOW => Answer::Flow(all(&mut body, FlowStats::decode)?),
        kind::AGGREGATE => {
            let answer = Answer::Aggregate(body.u64()?, body.u64()?, body.u32()?);
            body.skip(4)?;
            answer
        }
        kind::TABLE => Answer::Table(all(&mut body, TableStats::decode)?),
        kind::PORT_STATS => Answer::PortStats(all(&mut body, PortStats::decode)?),
        kind::QUEUE => Answer::Queue(all(&mut body, QueueStats::decode)?),
        kind::GROUP => Answer::Group(all(&mut body, GroupStats::decode)?),
        kind::GROUP_DESC => Answer::GroupDesc(all(&mut body, GroupDesc::decode)?),
        kind::GROUP_FEATURES => Answer::GroupFeatures(GroupFeatures::decode(&mut body)?),
        kind::METER => Answer::Meter(all(&mut body, MeterStats::decode)?),
        kind::METER_CONFIG => Answer::MeterConfig(all(&mut body, MeterConfig::decode)?),
        kind::METER_FEATURES => Answer::MeterFeatures(MeterFeatures::decode(&mut body)?),
        kind::TABLE_FEATURES => Answer::TableFeatures(all(&mut body, TableFeatures::decode)?),
        kind::PORT_DESC => Answer::PortDesc(all(&mut body, Port::decode)?),
        kind::EXPERIMENTER => Answer::Experimenter { experimenter: body.u32()?, data: body.rest().to_vec() },
        _ => return Err(request::BAD_MULTIPART),
    };
    body.end()?;
    Ok((flags, answer))
}

impl Answer {
    pub(super) fn encode(&self, flags: u16, out: &mut Vec<u8>) {
        out.u16(self.kind());
        out.u16(flags);
        out.zeros(4);
        match self {
            Self::Desc(desc) => {
                out.text(&desc.maker, 256);
                out.text(&desc.hardware, 256);
                out.text(&desc.software, 256);
                out.text(&desc.serial, 32);
                out.text(&desc.datapath, 256);
            }
            Self::Flow(flows) => flows.iter().for_each(|one| one.encode(out)),
            Self::Aggregate(packets, bytes, flows) => {
                out.u64(*packets);
                out.u64(*bytes);
                out.u32(*flows);
                out.zeros(4);
            }
            Self::Table(tables) => tables.iter().for_each(|one| one.encode(out)),
            Self::PortStats(ports) => ports.iter().for_each(|one| one.encode(out)),
            Self::Queue(queues) => queues.iter().for_each(|one| one.encode(out)),
            Self::Group(groups) => groups.iter().for_each(|one| one.encode(out)),
            Self::GroupDesc(groups) => groups.iter().for_each(|one| one.encode(out)),
            Self::GroupFeatures(features) => features.encode(out),
            Self::Meter(meters) => meters.iter().for_each(|one| one.encode(out)),
            Self::MeterConfig(meters) => meters.iter().for_each(|one| one.encode(out)),
            Self::MeterFeatures(features) => features.encode(out),
            Self::TableFeatures(tables) => tables.iter().for_each(|one| one.encode(out)),
            Self::PortDesc(ports) => ports.iter().for_each(|one| one.encode(out)),
            Self::Experimenter { experimenter, data } => {
                out.u32(*experimenter);
                out.bytes(data);
            }
        }
    }

    fn kind(&self) -> u16 {
        match self {
            Self::Desc(_) => kind::DESC,
            Self::Flow(_) => kind::FLOW,
            Self::Aggregate(..) => kind::AGGREGATE,
            Self::Table(_) => kind::TABLE,
            Self::PortStats(_) => kind::PORT_STATS,
            Self::Queue(_) => kind::QUEUE,
            Self::Group(_) => kind::GROUP,
            Self::GroupDesc(_) => kind::GROUP_DESC,
            Self::GroupFeatures(_) => kind::GROUP_FEATURES,
            Self::Meter(_) => kind::METER,
            Self::MeterConfig(_) => kind::METER_CONFIG,
            Self::MeterFeatures(_) => kind::METER_FEATURES,
            Self::TableFeatures(_) => kind::TABLE_FEATURES,
            Self::PortDesc(_) => kind::PORT_DESC,
            Self::Experimenter { .. } => kind::EXPERIMENTER,
        }
    }
}
