//! Bundles: messages that a controller wants to be done together or not at all.

use super::datapath::Datapath;
use super::{Switch, refusal_of};
use crate::wire::bundle::{BundleAdd, BundleControl, control, flag};
use crate::wire::error::{Refusal, bundle as refused};
use crate::wire::{Header, Message, first};
use std::collections::HashMap;
use std::time::Duration;

/// Most bundles of one controller; and bytes of the messages of all controllers' together, each of which takes some more.
const MOST_BUNDLES: usize = 8;
const MOST_BYTES: usize = 64 << 20;
const EACH: usize = 64;
/// How long a bundle stays without a word about it.
const IDLE: Duration = Duration::from_secs(10);

/// What a controller has begun.
#[derive(Debug, Default)]
pub(super) struct Bundles {
    open: HashMap<u32, Bundle>,
    bytes: usize,
}

#[derive(Debug)]
struct Bundle {
    flags: u16,
    closed: bool,
    messages: Vec<Vec<u8>>,
    /// When something was said about it.
    touched: Duration,
}

impl Bundles {
    fn forget(&mut self, number: u32) -> Option<Bundle> {
        let bundle = self.open.remove(&number)?;
        self.bytes -= bundle.messages.iter().map(|bytes| bytes.len() + EACH).sum::<usize>();
        Some(bundle)
    }
}

impl Switch {
    fn bundles(&mut self, controller: u64) -> Result<&mut Bundles, Refusal> {
        self.controllers.get_mut(&controller).map(|known| &mut known.bundles).ok_or(refused::EPERM)
    }

    pub(super) fn bundle_control(
        &mut self,
        controller: u64,
        asked: BundleControl,
        datapath: &mut dyn Datapath,
    ) -> Result<Message, Refusal> {
        let (number, now) = (asked.bundle, self.now);
        let bundles = self.bundles(controller)?;
        match asked.kind {
            control::OPEN if asked.flags & !(flag::ATOMIC | flag::ORDERED) != 0 => return Err(refused::BAD_FLAGS),
            control::OPEN if bundles.open.contains_key(&number) => {
                bundles.forget(number);
                return Err(refused::BUNDLE_EXIST);
            }
            control::OPEN if bundles.open.len() >= MOST_BUNDLES => return Err(refused::OUT_OF_BUNDLES),
            control::OPEN => {
                bundles
                    .open
                    .insert(number, Bundle { flags: asked.flags, closed: false, messages: Vec::new(), touched: now });
            }
            control::CLOSE => {
                let bundle = bundles.open.get_mut(&number).ok_or(refused::BAD_ID)?;
                bundle.touched = now;
                if std::mem::replace(&mut bundle.closed, true) || bundle.flags != asked.flags {
                    let closed = bundle.flags == asked.flags;
                    bundles.forget(number);
                    return Err(if closed { refused::BUNDLE_CLOSED } else { refused::BAD_FLAGS });
                }
            }
            control::COMMIT => {
                let bundle = bundles.forget(number).ok_or(refused::BAD_ID)?;
                if bundle.flags != asked.flags {
                    return Err(refused::BAD_FLAGS);
                }
                self.commit_bundle(controller, &bundle.messages, datapath)?;
            }
            control::DISCARD => {
                bundles.forget(number).ok_or(refused::BAD_ID)?;
            }
            _ => return Err(refused::BAD_TYPE),
        }
        Ok(Message::BundleControl(BundleControl { kind: asked.kind + 1, ..asked }))
    }

    /// One transaction of the datapath, whatever flags the bundle has: it is atomic and in order.
    fn commit_bundle(
        &mut self,
        controller: u64,
        messages: &[Vec<u8>],
        datapath: &mut dyn Datapath,
    ) -> Result<(), Refusal> {
        let mark = self.batch.mark();
        let mut last = None;
        for bytes in messages {
            let Some((header, message)) = read(bytes) else { continue };
            if let Err(refusal) = self.apply(&message) {
                let undo = self.batch.back_to(mark);
                self.undo(undo);
                self.refuse(controller, header.xid, refusal, bytes);
                return Err(refused::MSG_FAILED);
            }
            last = Some((header, message, bytes));
        }
        if let Err(rejected) = self.commit(datapath) {
            if let Some((header, message, bytes)) = last {
                self.refuse(controller, header.xid, refusal_of(&message, &rejected), bytes);
            }
            return Err(refused::MSG_FAILED);
        }
        Ok(())
    }

    /// Forgets bundles of which nothing was heard for long, and says so. Asked from time to time.
    pub fn look_at_bundles(&mut self) {
        let now = self.now;
        let mut over = Vec::new();
        for (controller, known) in &mut self.controllers {
            let open = known.bundles.open.iter();
            let old = open.filter(|(_, bundle)| now.saturating_sub(bundle.touched) > IDLE).map(|(number, _)| *number);
            for number in old.collect::<Vec<_>>() {
                known.bundles.forget(number);
                over.push(*controller);
            }
        }
        over.into_iter().for_each(|controller| self.refuse(controller, 0, refused::TIMEOUT, &[]));
    }

    pub(super) fn bundle_add(&mut self, controller: u64, xid: u32, add: BundleAdd) -> Result<(), Refusal> {
        let inner = first(&add.message).ok().flatten().map(|(header, bytes)| (header, bytes.to_vec()));
        let now = self.now;
        let all: usize = self.controllers.values().map(|known| known.bundles.bytes).sum();
        let bundles = self.bundles(controller)?;
        // A message for a bundle that there is not opens it (OpenFlow 1.4, section 7.3.9.3).
        if !bundles.open.contains_key(&add.bundle) {
            if bundles.open.len() >= MOST_BUNDLES {
                return Err(refused::OUT_OF_BUNDLES);
            }
            bundles
                .open
                .insert(add.bundle, Bundle { flags: add.flags, closed: false, messages: Vec::new(), touched: now });
        }
        let Some(bundle) = bundles.open.get_mut(&add.bundle) else { return Err(refused::BAD_ID) };
        let wrong = match &inner {
            _ if bundle.closed => Some(refused::BUNDLE_CLOSED),
            _ if bundle.flags != add.flags => Some(refused::BAD_FLAGS),
            None => Some(refused::MSG_BAD_LEN),
            Some((header, _)) if header.xid != xid => Some(refused::MSG_BAD_XID),
            Some((_, bytes)) if all + bytes.len() + EACH > MOST_BYTES => Some(refused::MSG_TOO_MANY),
            Some((header, bytes)) => match Message::decode(header, bytes) {
                Ok(Message::FlowMod(_) | Message::GroupMod(_) | Message::MeterMod(_)) => None,
                Ok(_) => Some(refused::MSG_UNSUP),
                Err(refusal) => {
                    bundles.forget(add.bundle);
                    return Err(refusal);
                }
            },
        };
        if let Some(refusal) = wrong {
            if matches!(refusal, refused::BUNDLE_CLOSED | refused::BAD_FLAGS) {
                bundles.forget(add.bundle);
            }
            return Err(refusal);
        }
        if let Some((_, bytes)) = inner {
            bundles.bytes += bytes.len() + EACH;
            bundle.messages.push(bytes);
            bundle.touched = now;
        }
        Ok(())
    }
}

fn read(bytes: &[u8]) -> Option<(Header, Message)> {
    let (header, whole) = first(bytes).ok().flatten()?;
    Message::decode(&header, whole).ok().map(|message| (header, message))
}
