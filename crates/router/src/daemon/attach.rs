//! Keeps the engine attached where it should be: decides for each interface that was asked for, and attaches and detaches what is different.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;

use super::advice::{self, Advice};
use super::changes::report;
use super::choice::{self, Look, Place};
use super::control::{self, Holder};
use super::off::Off;
use super::pattern::Pattern;
use super::protocol::Interface;
use super::sight::Sight;
use crate::engine::{Engine, How};
use crate::kernel::link::Link;
use crate::kernel::shaping::Shaping;

/// An interface that could not be attached to is tried again after that.
const AGAIN: Duration = Duration::from_secs(10);

/// Interfaces of the router.
pub struct Interfaces {
    wanted: Vec<Pattern>,
    /// `None`: where it does best.
    place: Option<Place>,
    known: BTreeMap<u32, Known>,
    switched_off: Vec<Pattern>,
    /// Numbers of XDP programs that a dead router has left, by interface. Linux tells late, or not at all, that another one has their place.
    left: BTreeMap<u32, u32>,
    /// The same of programs that nobody has left, and when that was found.
    strange: BTreeMap<u32, (u32, Instant)>,
}

/// An interface that was asked for.
struct Known {
    name: String,
    /// Where the engine is.
    place: Option<Place>,
    off: Option<Off>,
    /// Number of our own XDP program there.
    own_xdp: u32,
    failed: Option<Instant>,
    /// Says to other routers that this one has the interface; goes with the process.
    claim: Option<OwnedFd>,
    features: BTreeSet<String>,
    /// Whether it took tags off when it was looked at last; Linux does not tell when that changes.
    tags_taken: bool,
}

/// The name by which an interface is claimed.
pub fn claim_of(index: u32) -> String {
    format!("{}-interface-{index}", control::NAME)
}

impl Interfaces {
    /// Those that fit.
    pub fn new(wanted: Vec<Pattern>, place: Option<Place>) -> Self {
        let (known, left, strange) = Default::default();
        Self { wanted, place, known, switched_off: Vec::new(), left, strange }
    }

    /// Takes more of them.
    pub fn add(&mut self, more: Vec<Pattern>) {
        for pattern in more {
            if !self.wanted.contains(&pattern) {
                self.wanted.push(pattern);
            }
        }
    }

    /// Asks no more for these; whether one of them was asked for.
    pub fn remove(&mut self, less: &[Pattern]) -> bool {
        let before = self.wanted.len();
        self.wanted.retain(|pattern| !less.contains(pattern));
        self.wanted.len() < before
    }

    /// Switches interfaces on or off; whether one that was asked for fits.
    pub fn switch(&mut self, on: bool, which: &Pattern) -> bool {
        let fits = self.known.values().any(|known| which.fits(&known.name)) || self.wanted.contains(which);
        self.switched_off.retain(|pattern| pattern != which);
        if on {
            // Those that were switched off by a wider name come back too.
            let known = &self.known;
            self.switched_off
                .retain(|pattern| !known.values().any(|one| pattern.fits(&one.name) && which.fits(&one.name)));
        } else if fits {
            self.switched_off.push(which.clone());
        }
        fits
    }

    /// Brings the engine to where it should be.
    pub fn settle(&mut self, sight: &mut Sight, engine: &Engine) {
        self.look_again(sight);
        let wanted: Vec<Link> =
            sight.mirror.links.values().filter(|link| choice::is_wanted(&self.wanted, link)).cloned().collect();
        let gone: Vec<u32> =
            self.known.keys().filter(|index| !wanted.iter().any(|link| link.index == **index)).copied().collect();
        for index in gone {
            if let Err(error) = engine.detach(index) {
                tracing::warn!("{error}");
            }
            // And its claim, now that nothing of it is there.
            self.known.remove(&index);
        }
        self.take_over(&wanted, engine);
        let shapings = sight.shaping(&wanted.iter().map(|link| link.index).collect());
        let of = |link: &Link| shapings.get(&link.index).cloned().unwrap_or_default();
        let looks: Vec<(Link, Shaping)> =
            wanted.into_iter().map(|link| (of(&link), link)).map(|(s, l)| (l, s)).collect();
        let place = self.place_for_all(&looks, sight);
        for (link, shaping) in &looks {
            report(engine.set_shaped(link.index, shaping.qdisc.is_some()));
            self.one(link, shaping, place, sight, engine);
        }
    }

    /// Reads anew what program of somebody else is on an interface: where that was attached by a link, nobody tells that it has gone.
    fn look_again(&self, sight: &mut Sight) {
        let is_due = |known: &Known| known.failed.is_some_and(|failed| failed.elapsed() >= AGAIN);
        for (&index, _) in self.known.iter().filter(|(_, known)| known.place.is_none() && is_due(known)) {
            let program = sight.xdp_of(index);
            if let Some(link) = sight.mirror.links.get_mut(&index) {
                link.xdp = program;
            }
        }
    }

    /// Takes over what routers have left that were killed.
    fn take_over(&mut self, wanted: &[Link], engine: &Engine) {
        for link in wanted.iter().filter(|link| link.xdp != 0) {
            let is_ours =
                self.known.get(&link.index).is_some_and(|known| known.claim.is_some() || known.place.is_some());
            let is_known = self.left.get(&link.index) == Some(&link.xdp);
            // Finding out whose a program is takes a look at all programs of the machine.
            let strange = self.strange.get(&link.index).filter(|(program, _)| *program == link.xdp);
            if is_ours || is_known || strange.is_some_and(|(_, found)| found.elapsed() < AGAIN) {
                continue;
            }
            if !is_nobodys(link.index, link.xdp, engine) || !engine.adopt(link.index, link.xdp) {
                self.strange.insert(link.index, (link.xdp, Instant::now()));
                continue;
            }
            tracing::info!(
                "{}: a router that was killed has left XDP program {} there, whose place is taken",
                link.name,
                link.xdp
            );
            self.left.insert(link.index, link.xdp);
        }
    }

    /// One place for all interfaces: frames that come by one leave by another. `auto` takes XDP where that is best for each of them, and goes
    /// around nobody.
    fn place_for_all(&mut self, looks: &[(Link, Shaping)], sight: &mut Sight) -> Place {
        if let Some(place) = self.place {
            return place;
        }
        let xdp_is_best = looks.iter().all(|(link, shaping)| {
            let mut features = sight.features(link.index);
            if let Some(known) = self.known.get(&link.index).filter(|known| known.place.is_some()) {
                // Those that it had before: attaching XDP changes them. But not where tags are.
                let tags_taken = features.take(choice::TAGS_TAKEN);
                features.clone_from(&known.features);
                features.remove(choice::TAGS_TAKEN);
                features.extend(tags_taken);
            }
            let look = self.look(link, shaping, sight, &features);
            choice::obstacle(&look).is_some()
                || (choice::against_xdp(&look).is_none() && choice::best(&look) == Place::Xdp)
        });
        if xdp_is_best { Place::Xdp } else { Place::Tc }
    }

    fn look<'a>(
        &self,
        link: &'a Link,
        shaping: &'a Shaping,
        sight: &'a Sight,
        offloads: &'a BTreeSet<String>,
    ) -> Look<'a> {
        let is_switched_off = self.switched_off.iter().any(|pattern| pattern.fits(&link.name));
        let own = self.known.get(&link.index).map_or(0, |known| known.own_xdp);
        let own_xdp = [own, self.left.get(&link.index).copied().unwrap_or_default()];
        Look { link, shaping, hooks: &sight.hooks, offloads, own_xdp, is_switched_off }
    }

    fn one(&mut self, link: &Link, shaping: &Shaping, place: Place, sight: &mut Sight, engine: &Engine) {
        let features = sight.features(link.index);
        let look = self.look(link, shaping, sight, &features);
        let is_ours = self.known.get(&link.index).is_some_and(|known| known.claim.is_some());
        let mut off = choice::obstacle(&look).map(|off| if is_ours { off } else { whose(off, link.index) });
        if place == Place::Xdp {
            off = off.or_else(|| choice::against_xdp(&look));
        }
        let known = self.known.entry(link.index).or_insert_with(|| Known {
            name: String::new(),
            place: None,
            off: None,
            own_xdp: 0,
            failed: None,
            claim: None,
            features: BTreeSet::new(),
            tags_taken: false,
        });
        known.name.clone_from(&link.name);
        known.tags_taken = features.contains(choice::TAGS_TAKEN);
        if let Some(off) = off {
            known.leave(link.index, off, engine);
            return;
        }
        if matches!(known.off, Some(Off::ForeignXdp(_) | Off::OtherRouter(_))) {
            known.failed = None;
        }
        if known.place.is_some() && engine.lacks_filters(link.index, shaping.ours) {
            tracing::warn!("{}: somebody has taken the router's filters away; they are put back", known.name);
            known.place = None;
        }
        if known.place.is_some() && known.claim.is_none() {
            // Who had it may have gone, and others are to know whose the interface is.
            known.claim = control::claim(&claim_of(link.index)).ok();
        }
        if known.place == Some(place) || known.failed.is_some_and(|failed| failed.elapsed() < AGAIN) {
            return;
        }
        if known.place.is_none() {
            known.features = features;
        }
        known.take(link, place, sight, engine);
    }

    /// Whether one could not be attached to, and should be tried again by now.
    pub fn has_failed(&self) -> bool {
        self.known.values().any(|known| known.failed.is_some_and(|failed| failed.elapsed() >= AGAIN))
    }

    /// Whether one takes tags off by now that did not, or the other way round.
    pub fn takes_tags_anew(&self, sight: &mut Sight) -> bool {
        self.known.iter().any(|(index, known)| {
            let counts = known.place.is_some() || known.off == Some(Off::VlanOffload);
            counts && sight.features(*index).contains(choice::TAGS_TAKEN) != known.tags_taken
        })
    }

    /// Tells those who ask who has an interface.
    pub fn answer_claims(&self) {
        self.known.values().filter_map(|known| known.claim.as_ref()).for_each(control::answer);
    }

    /// Why the engine is not on at an interface that was asked for.
    pub fn why_off(&self, index: u32) -> Option<String> {
        let known = self.known.get(&index)?;
        known.off.as_ref().map(|off| off.sentence(&known.name))
    }

    /// Whether the engine is attached to an interface.
    pub fn is_attached(&self, index: u32) -> bool {
        self.known.get(&index).is_some_and(|known| known.place.is_some())
    }

    /// How they are.
    pub fn status(&self, engine: &Engine) -> Vec<Interface> {
        let fast = engine.fast().unwrap_or_default();
        let count = |index| fast.iter().find(|(other, _)| *other == index).map(|(_, packets)| *packets);
        let one = |(&index, known): (&u32, &Known)| Interface {
            name: known.name.clone(),
            index,
            place: known.place,
            off: known.off.as_ref().map(|off| off.name().to_owned()),
            why: known.off.as_ref().map(|off| off.sentence(&known.name)),
            fast: count(index),
        };
        self.known.iter().map(one).collect()
    }

    /// Names that fit nothing yet.
    pub fn awaited(&self) -> Vec<String> {
        let fits = |pattern: &Pattern| self.known.values().any(|known| pattern.fits(&known.name));
        self.wanted.iter().filter(|pattern| !fits(pattern)).map(ToString::to_string).collect()
    }

    /// What is said once, when they are taken at the start.
    pub fn advice_at_start(&self, sight: &Sight) -> Vec<Advice> {
        let of = |(index, known): (&u32, &Known)| advice::at_start(sight.mirror.links.get(index)?, known.place?);
        self.known.iter().filter_map(of).collect()
    }

    /// What Linux would better be told about them.
    pub fn advice(&self, sight: &Sight) -> Vec<Advice> {
        let of = |(index, known): (&u32, &Known)| {
            let link = sight.mirror.links.get(index)?;
            Some(advice::of_interface(link, known.place?, &known.features))
        };
        self.known.iter().filter_map(of).flatten().collect()
    }
}

/// Whether no router that lives has an interface, on which there is XDP program `program`; 0 is none. A claim that somebody has who is no router says nothing:
/// then the program's own heartbeat does, and filters are nobody's to take away.
pub fn is_nobodys(index: u32, program: u32, engine: &Engine) -> bool {
    match control::claim(&claim_of(index)) {
        Ok(_) => true,
        // Who is silent may be one that does not get to its answers.
        Err(who) if who.may_be_router() || who == Holder::Silent => false,
        Err(_) => program != 0 && !engine.is_looked_after(program),
    }
}

/// A program of somebody else may be another router's, which says so by its claim.
fn whose(off: Off, index: u32) -> Off {
    if !matches!(off, Off::ForeignXdp(_)) {
        return off;
    }
    match control::claim(&claim_of(index)) {
        Err(who) if who.may_be_router() => Off::OtherRouter(who.to_string()),
        _ => off,
    }
}

impl Known {
    fn leave(&mut self, index: u32, off: Off, engine: &Engine) {
        if self.place.take().is_some() {
            tracing::info!("{}: the fast path is off: {}", self.name, off.sentence(&self.name));
            if let Err(error) = engine.detach(index) {
                tracing::warn!("{}: {error}", self.name);
            }
        }
        // Nobody tells when another router lets go of an interface, or is killed: however often this comes about, it is looked again then.
        let failed = matches!(off, Off::ForeignXdp(_) | Off::OtherRouter(_))
            .then(|| self.failed.filter(|failed| failed.elapsed() < AGAIN).unwrap_or_else(Instant::now));
        // The number of the program stays ours: Linux tells a little later that it is not there any more.
        (self.off, self.claim, self.failed) = (Some(off), None, failed);
    }

    fn take(&mut self, link: &Link, place: Place, sight: &mut Sight, engine: &Engine) {
        if self.claim.is_none() {
            match control::claim(&claim_of(link.index)) {
                Ok(claim) => self.claim = Some(claim),
                // Who may run no router has none there.
                Err(who) if !who.may_be_router() => {
                    tracing::warn!("{}: its claim is held by {who}, which is passed over", self.name);
                }
                Err(who) => {
                    self.off = Some(Off::OtherRouter(who.to_string()));
                    self.failed = Some(Instant::now());
                    return;
                }
            }
        }
        let how = match place {
            Place::Xdp => How::Xdp,
            Place::Tc => How::Tc,
        };
        match engine.attach(link.index, how) {
            Ok(_) => {
                tracing::info!("{}: the fast path is on, by {}", self.name, place.name());
                (self.place, self.off, self.failed) = (Some(place), None, None);
                if place == Place::Xdp {
                    self.own_xdp = sight.xdp_of(link.index);
                }
            }
            Err(error) => {
                tracing::warn!("{}: {error}", self.name);
                (self.place, self.claim) = (None, None);
                (self.off, self.failed) = (Some(Off::Failed(error.to_string())), Some(Instant::now()));
            }
        }
    }
}
