//! What is done for those who ask about the flow table.

use super::super::quotas::{Charge, Ledger};
use super::super::replies::Refusal;
use super::keys::Keys;
use super::neighbours::{neighbours, send_in_tunnel, set_neighbour};
use super::paid::Paid;
use super::staging::Staged;
use super::{Applicant, words};
use millrace_abi::access::Names;
use millrace_abi::flow::{
    FlowChange, FlowEntry, FlowEvents, FlowExplained, FlowInfo, FlowOptions, FlowReply, FlowRequest, FlowTap,
    MAX_BETTER, MAX_EXPLAINED, MAX_FLOW_REPLY, MAX_FLOW_TEXT,
};
use millrace_abi::message::{ErrorCode, Reply};
use millrace_card::{Authority, Belongs, Card, Later, Owner, Tap, TapError, Transaction, line_of};
use millrace_flow::language::{Item, parse_filter};
use millrace_flow::rule::{Rule, TABLES};
use millrace_flow::table::Tables;
use millrace_flow::version::{CommitError, Part, Refusal as Refused};
use millrace_flow::{Ingress, Key, explain};
use millrace_packet::parse::Layers;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Most lists of one user that are under way; the oldest makes room.
const LISTS: usize = 4;
/// Most events of one reply.
const EVENTS: usize = 512;
/// Shortest line of an entry, with what is around it: bounds how many a reply has.
const ENTRY: usize = 64;

/// A list that is under way.
struct Listing {
    uid: u32,
    version: u64,
    /// What is no rule, as lines, and what meters did not admit.
    parts: VecDeque<(String, Owner, Option<u64>)>,
    rules: VecDeque<(Arc<Rule>, Owner)>,
    /// When it was begun, in order.
    begun: u64,
}

/// What a connection has.
#[derive(Default)]
struct Customer {
    owner: Option<Owner>,
    staged: Option<Staged>,
    list: Option<Listing>,
    watch: Option<Watch>,
    tap: Option<(Tap, Charge)>,
    keys: Keys,
}

/// How somebody is told that something has happened.
struct Watch {
    fd: OwnedFd,
    /// Whether only rules that have gone count.
    removed: bool,
    /// The last event that it has told of.
    told: u64,
    _paid: Charge,
}

/// Who serves those who ask about the flow table.
pub(super) struct Clerk {
    card: Arc<Card>,
    paid: Paid,
    customers: HashMap<u64, Customer>,
    lists: u64,
    /// An older version that somebody asked for, since it takes long to build.
    older: Option<Arc<Tables>>,
}

pub(super) type Served = Result<(Reply, Option<OwnedFd>), Refusal>;

pub(super) fn invalid(text: impl ToString) -> Refusal {
    Refusal::new(ErrorCode::Invalid, text)
}

fn answer(reply: FlowReply) -> Served {
    Ok((Reply::Flow(reply), None))
}

/// Why a transaction was refused. What `replace` is made of has other numbers than the changes that were sent.
fn refused(error: CommitError, replace: bool) -> Refusal {
    let code = match error.refusal {
        Refused::ForeignRule { .. } | Refused::ForeignPart(_) => ErrorCode::Denied,
        Refused::Quota(_) | Refused::TooManyRules(_) | Refused::TooManyQuics(_) => ErrorCode::Quota,
        _ => ErrorCode::Invalid,
    };
    match (&error.refusal, replace) {
        (Refused::Quota(text), _) => Refusal::new(code, text),
        (refusal, true) => Refusal::new(code, refusal),
        _ => Refusal::new(code, error),
    }
}

impl Clerk {
    pub fn new(card: Arc<Card>, ledger: Ledger, names: Names) -> Self {
        Self { card, paid: Paid::new(ledger, names), customers: HashMap::new(), lists: 0, older: None }
    }

    /// Carries out a request. What a connection may not was refused before.
    pub fn serve(&mut self, applicant: Applicant, request: FlowRequest) -> Served {
        let number = applicant.asker.connection;
        match request {
            FlowRequest::Once { options, changes, dry_run } => {
                self.customers.entry(number).or_default().staged = Some(Staged::new(options));
                self.add(applicant, &changes)?;
                self.commit(applicant, dry_run)
            }
            FlowRequest::Begin(options) => {
                self.customers.entry(number).or_default().staged = Some(Staged::new(options));
                Ok((Reply::Done, None))
            }
            FlowRequest::Add(changes) => {
                self.add(applicant, &changes)?;
                Ok((Reply::Done, None))
            }
            FlowRequest::Commit { dry_run } => self.commit(applicant, dry_run),
            FlowRequest::Abort => {
                self.customers.entry(number).or_default().staged = None;
                Ok((Reply::Done, None))
            }
            FlowRequest::List { filter, version } => {
                self.begin_list(applicant, &filter, version)?;
                self.list_more(number)
            }
            FlowRequest::More => self.list_more(number),
            FlowRequest::Info => answer(FlowReply::Info(self.info(applicant))),
            FlowRequest::Watch { removed } => self.watch(applicant, removed),
            FlowRequest::Events { after } => answer(FlowReply::Events(self.events(applicant, after))),
            FlowRequest::Explain { version, port, frame, better } => self.explain(version, port, &frame, better),
            FlowRequest::Tap(wanted) => self.tap(applicant, wanted),
            FlowRequest::Heard => self.heard(number),
            FlowRequest::Untap => {
                self.customers.entry(number).or_default().tap = None;
                Ok((Reply::Done, None))
            }
            FlowRequest::Keys { group, log } => {
                let keys = &mut self.customers.entry(number).or_default().keys;
                answer(FlowReply::Keys(keys.take(&self.card, &self.paid, applicant, group, &log)?))
            }
            FlowRequest::Neighbours { after } => answer(neighbours(&self.card, after)),
            FlowRequest::SetNeighbour { address, at } => set_neighbour(&self.card, applicant, address, at),
            FlowRequest::SendInTunnel { port, frame } => send_in_tunnel(&self.card, port, frame),
        }
    }

    fn add(&mut self, applicant: Applicant, changes: &[FlowChange]) -> Result<(), Refusal> {
        let customer = self.customers.entry(applicant.asker.connection).or_default();
        let Some(mut staged) = customer.staged.take() else { return Err(invalid("no transaction was begun")) };
        if changes.iter().map(FlowChange::len).sum::<usize>() > MAX_FLOW_TEXT {
            return Err(invalid(format!("at most {MAX_FLOW_TEXT} bytes of changes in one message")));
        }
        // One that is refused is gone, and with it the transaction.
        staged.add(changes, |count| self.paid.charge(applicant.account, count))?;
        customer.staged = Some(staged);
        Ok(())
    }

    fn authority(applicant: Applicant, options: FlowOptions) -> Authority {
        let uid = applicant.account.uid;
        let asker = applicant.asker;
        let owner = match options.keep {
            // What the card keeps for those who may do everything is one.
            true if applicant.admin => Owner::Card,
            true => Owner::User(uid),
            false => Owner::Program { connection: asker.connection, pid: asker.pid, uid },
        };
        Authority { owner, everyone: options.everyone && applicant.admin }
    }

    fn commit(&mut self, applicant: Applicant, dry_run: bool) -> Served {
        let customer = self.customers.entry(applicant.asker.connection).or_default();
        let Some(staged) = customer.staged.take() else { return Err(invalid("no transaction was begun")) };
        let Staged { options, changes, charge } = staged;
        // What was paid for while it was sent is paid for as what it is now.
        drop(charge);
        let authority = Self::authority(applicant, options);
        if !options.keep && !dry_run {
            customer.owner = Some(authority.owner);
        }
        let replace = options.replace;
        let transaction = Transaction { changes, replace, dry_run };
        let (paid, touched) = (&self.paid, RefCell::new(Vec::new()));
        let agree = |more: &[(Owner, i64)]| {
            touched.borrow_mut().extend(more.iter().map(|(owner, _)| *owner));
            paid.grow(more)
        };
        let done = self.card.change_flows_for(&authority, transaction, &agree);
        touched.into_inner().into_iter().for_each(|owner| paid.settle(owner, self.card.rule_units_of(owner) as u64));
        let done = done.map_err(|error| refused(error, replace))?;
        answer(FlowReply::Committed(words::committed(&done, options.brief)))
    }

    /// Ends what belongs to a connection: some of it. Whether there is more.
    pub fn end(&mut self, connection: u64) -> bool {
        let Some(customer) = self.customers.remove(&connection) else { return false };
        customer.keys.end(connection);
        let Some(owner) = customer.owner else { return false };
        let more = self.card.end_flows_of(owner);
        self.paid.settle(owner, self.card.rule_units_of(owner) as u64);
        if more {
            // What else it had is gone.
            self.customers.insert(connection, Customer { owner: Some(owner), ..Customer::default() });
        }
        more
    }

    /// Removes rules whose time is over, some of them. What there is to do later.
    pub fn expire(&mut self) -> Later {
        let card = &self.card;
        let look = |(owner, customer): (&u64, &mut Customer)| customer.keys.look_after(card, *owner);
        let keys = self.customers.iter_mut().map(look).fold(false, |any, has| any | has);
        let (ended, later) = self.card.expire_flows();
        let later = if keys && later == Later::Nothing { Later::Some } else { later };
        ended.into_iter().for_each(|owner| self.paid.settle(owner, self.card.rule_units_of(owner) as u64));
        later
    }

    /// Something ended with a panic.
    pub fn count_bug(&self) {
        self.card.count_flow_bug();
    }

    /// Tells those who watch that something has happened.
    pub fn tell(&mut self) {
        let [any, removed] = [false, true].map(|removed| self.card.last_flow_event(removed));
        for watch in self.customers.values_mut().filter_map(|customer| customer.watch.as_mut()) {
            let last = if watch.removed { removed } else { any };
            if watch.told < last {
                watch.told = last;
                // One that is full is readable already.
                let _ = rustix::io::write(&watch.fd, &1u64.to_ne_bytes());
            }
        }
    }

    fn watch(&mut self, applicant: Applicant, removed: bool) -> Served {
        let customer = self.customers.entry(applicant.asker.connection).or_default();
        customer.watch = None;
        let paid = self.paid.charge_fd(applicant.account).map_err(|text| Refusal::new(ErrorCode::Quota, text))?;
        let failed = |errno| Refusal::new(ErrorCode::System, errno);
        let watch = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let theirs = rustix::io::fcntl_dupfd_cloexec(&watch, 0).map_err(failed)?;
        let last = self.card.last_flow_event(false);
        customer.watch = Some(Watch { fd: watch, removed, told: last, _paid: paid });
        Ok((Reply::Flow(FlowReply::Watching { last }), Some(theirs)))
    }

    fn tap(&mut self, applicant: Applicant, wanted: FlowTap) -> Served {
        let customer = self.customers.entry(applicant.asker.connection).or_default();
        customer.tap = None;
        let memory = self.card.tap_bytes();
        let quota = |text| Refusal::new(ErrorCode::Quota, text);
        let paid = self.paid.charge_memory(applicant.account, memory).map_err(quota)?;
        let tap = self.card.tap(words::tap(wanted)).map_err(|error| match error {
            TapError::TooMany => Refusal::new(ErrorCode::Quota, error),
            TapError::Bounds => invalid(error),
            TapError::Silent => Refusal::new(ErrorCode::System, error),
        })?;
        customer.tap = Some((tap, paid));
        Ok((Reply::Done, None))
    }

    fn heard(&mut self, number: u64) -> Served {
        let tap = self.customers.get_mut(&number).and_then(|customer| customer.tap.as_mut());
        let Some((tap, _)) = tap else { return Err(invalid("this program does not listen to frames")) };
        answer(FlowReply::Heard(words::heard(tap.read(MAX_FLOW_REPLY))))
    }

    fn events(&self, applicant: Applicant, after: u64) -> FlowEvents {
        let watch = self.customers.get(&applicant.asker.connection).and_then(|customer| customer.watch.as_ref());
        let since = self.card.flow_events(after, EVENTS, watch.is_some_and(|watch| watch.removed));
        let (now, mut room) = (words::now_ns(), MAX_FLOW_REPLY);
        let mut told = FlowEvents { lost: since.lost, next: after.saturating_add(since.lost), ..FlowEvents::default() };
        for event in &since.events {
            let mut event = words::event(event, now);
            if !applicant.admin {
                event.line = words::without_keys(&event.line);
            }
            let Some(left) = room.checked_sub(event.line.len() + ENTRY) else { break };
            room = left;
            told.next = event.number;
            told.events.push(event);
        }
        if told.events.len() == since.events.len() {
            told.next = told.next.max(since.next);
        }
        told.more = told.next < since.last;
        told
    }

    fn info(&self, applicant: Applicant) -> FlowInfo {
        let keep = FlowOptions { keep: true, ..FlowOptions::default() };
        let own = self.card.rules_of(Self::authority(applicant, FlowOptions::default()).owner) as u64;
        let kept = self.card.rules_of(Self::authority(applicant, keep).owner) as u64;
        let unmatched =
            self.card.flow_counts().iter().find(|(name, _)| *name == "unmatched").map_or(0, |(_, count)| *count);
        self.card.flows(|writer| {
            let tables = writer.current();
            FlowInfo {
                version: tables.version(),
                oldest: writer.oldest(),
                rules: writer.len() as u64,
                groups: tables.groups().count() as u64,
                meters: tables.meters().count() as u64,
                own,
                kept,
                unmatched,
            }
        })
    }

    /// The tables of a version.
    fn tables(&mut self, version: Option<u64>) -> Result<Arc<Tables>, Refusal> {
        let not_kept = |error: millrace_flow::version::VersionError| Refusal::new(ErrorCode::NotFound, error);
        if let Some(older) = self.older.as_ref().filter(|older| Some(older.version()) == version) {
            return Ok(older.clone());
        }
        let (tables, newest) = self
            .card
            .flows(|writer| {
                let newest = writer.current().version();
                version
                    .map_or_else(|| Ok(writer.current().clone()), |version| writer.at(version))
                    .map(|tables| (tables, newest))
            })
            .map_err(not_kept)?;
        // Who holds the newest would keep the writer from making the next of it.
        if tables.version() != newest {
            self.older = Some(tables.clone());
        }
        Ok(tables)
    }

    fn begin_list(&mut self, applicant: Applicant, filter: &str, version: Option<u64>) -> Result<(), Refusal> {
        let everything = filter.trim().is_empty();
        let filter =
            parse_filter(filter).map_err(|error| invalid(format!("column {}: {}", error.column(), error.message)))?;
        let uid = applicant.account.uid;
        let current = self.card.flows(|writer| writer.current().version());
        let mut listing = match version.filter(|version| *version != current) {
            None => self.card.flows_and_owners(|writer, owner| {
                let rules = writer.rules(&filter);
                let rules = rules.into_iter().map(|rule| (rule.clone(), owner(Belongs::Author(rule.author)))).collect();
                let tables = writer.current();
                let groups = tables.groups().map(|(id, _)| Part::Group(id));
                let quics = tables.quics().map(|(id, _)| Part::Quic(id));
                let meters = tables.meters().map(|(id, _)| Part::Meter(id));
                let parts = [Part::Miss].into_iter().chain(groups).chain(quics).chain(meters).filter(|_| everything);
                let metered = |part| match part {
                    Part::Meter(id) => writer.meter(id).map(|meter| meter.dropped()),
                    _ => None,
                };
                let parts =
                    parts.filter_map(|part| Some((line_of(writer, part)?, owner(Belongs::Part(part)), metered(part))));
                Listing { uid, version: tables.version(), parts: parts.collect(), rules, begun: 0 }
            }),
            Some(_) => {
                let tables = self.tables(version)?;
                let rules = (0..TABLES).flat_map(|table| tables.rules(table)).filter(|rule| filter.covers(rule));
                let rules: Vec<Arc<Rule>> = rules.cloned().collect();
                let parts = if everything { old_parts(&tables) } else { Vec::new() };
                self.card.flows_and_owners(|_, owner| Listing {
                    uid,
                    version: tables.version(),
                    // Who had groups and meters then is not known any more.
                    parts: parts.into_iter().map(|line| (line, Owner::Card, None)).collect(),
                    rules: rules
                        .into_iter()
                        .map(|rule| {
                            let whose = owner(Belongs::Author(rule.author));
                            (rule, whose)
                        })
                        .collect(),
                    begun: 0,
                })
            }
        };
        if !applicant.admin {
            listing.parts.iter_mut().for_each(|(line, ..)| *line = words::without_keys(line));
        }
        self.lists += 1;
        listing.begun = self.lists;
        let of_user =
            self.customers.values().filter_map(|customer| customer.list.as_ref()).filter(|list| list.uid == uid);
        let (count, oldest) = of_user.fold((0, u64::MAX), |(count, oldest), list| (count + 1, list.begun.min(oldest)));
        if count >= LISTS {
            let is_oldest = |list: &mut Listing| list.begun == oldest;
            self.customers.values_mut().for_each(|customer| drop(customer.list.take_if(is_oldest)));
        }
        self.customers.entry(applicant.asker.connection).or_default().list = Some(listing);
        Ok(())
    }

    fn list_more(&mut self, number: u64) -> Served {
        let text = "this list has made room for newer ones of the same user, or was never begun; ask for it again";
        let customer = self.customers.entry(number).or_default();
        let Some(listing) = customer.list.as_mut() else { return Err(Refusal::new(ErrorCode::NotFound, text)) };
        let (now, mut room) = (words::now_ns(), MAX_FLOW_REPLY);
        let mut entries: Vec<FlowEntry> = Vec::new();
        let mut take = |line: String, owner, rule, metered| {
            // The first always fits: a line has at most 16 KiB.
            room = room.saturating_sub(line.len() + ENTRY);
            entries.push(FlowEntry { line, owner: words::owner(owner), rule, metered });
            room > 17 << 10
        };
        let mut goes_on = true;
        while goes_on && let Some((line, owner, metered)) = listing.parts.pop_front() {
            goes_on = take(line, owner, None, metered);
        }
        while goes_on && let Some((rule, owner)) = listing.rules.pop_front() {
            goes_on = take(rule.spec.to_string(), owner, Some(words::counts(&rule, now)), None);
        }
        let more = !(listing.parts.is_empty() && listing.rules.is_empty());
        let version = listing.version;
        if !more {
            customer.list = None;
        }
        answer(FlowReply::Listed { version, entries, more })
    }

    fn explain(&mut self, version: Option<u64>, port: u32, frame: &[u8], better: u32) -> Served {
        if frame.len() > MAX_EXPLAINED || better > MAX_BETTER {
            let text =
                format!("a frame has at most {MAX_EXPLAINED} bytes, and at most {MAX_BETTER} better rules are named");
            return Err(invalid(text));
        }
        let tables = self.tables(version)?;
        let layers = Layers::parse(frame);
        let ingress = Ingress { port, ..Ingress::default() };
        let key = Key::extract(frame, &layers, &ingress);
        let inner = layers.parse_inner(frame).map(|inner| Key::extract(frame, &inner, &ingress));
        let explained = explain::explain(&tables, 0, &key, inner.as_ref(), better as usize);
        // By the connections that the card knows.
        let explained = explained.with_quic(&tables, &layers, frame);
        let (mut text, json) = (explained.to_string(), serde_json::to_string(&explained).unwrap_or_default());
        let half = MAX_FLOW_REPLY / 2;
        text.truncate(text.floor_char_boundary(half));
        answer(FlowReply::Explained(FlowExplained { text, json: if json.len() > half { String::new() } else { json } }))
    }
}

/// What is no rule of an older version, as lines.
fn old_parts(tables: &Tables) -> Vec<String> {
    let groups = tables.groups().map(|(number, group)| Item::Group { number, rss: group.spec() });
    let meters = tables.meters().map(|(number, meter)| Item::Meter { number, bucket: meter.spec() });
    let quics = tables.quics().map(|(number, group)| Item::Quic { number, steering: group.spec().clone() });
    [Item::Miss(tables.miss())]
        .into_iter()
        .chain(groups)
        .chain(quics)
        .chain(meters)
        .map(|item| item.to_string())
        .collect()
}
