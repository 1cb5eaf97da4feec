//! Keeps the engine attached where it should be: decides for each interface that was asked for, and attaches and detaches what is different.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::advice::{self, Advice};
use super::changes::report;
use super::choice::{self, Look, Place};
use super::claims::{self, Claim, Held, Holder};
use super::off::Off;
use super::pattern::Pattern;
use super::protocol::Interface;
use super::sight::Sight;
use crate::engine::{Engine, How};
use crate::kernel::link::Link;
use crate::kernel::shaping::Shaping;

/// An interface that could not be attached to is tried again after that.
const AGAIN: Duration = Duration::from_secs(10);

/// The same of one that another router has, which may only have looked at it.
const CLAIMED_AGAIN: Duration = Duration::from_secs(1);

/// Interfaces of the router.
pub struct Interfaces {
    wanted: Vec<Pattern>,
    /// `None`: where it does best.
    place: Option<Place>,
    known: BTreeMap<u32, Known>,
    switched_off: Vec<Pattern>,
    /// Numbers of XDP programs that a dead router has left, by interface. Linux tells late, or not at all, that another one has their place.
    left: BTreeMap<u32, u32>,
    /// Those that nobody has left, by interface.
    strange: BTreeMap<u32, Strange>,
    /// How often its own programs were lost at an interface, and put back.
    pub put_back: u64,
}

/// An XDP program of somebody who lives.
struct Strange {
    program: u32,
    /// The router that has the interface, in words.
    router: Option<String>,
    found: Instant,
}

/// An interface that was asked for.
#[derive(Default)]
struct Known {
    name: String,
    /// Where the engine is.
    place: Option<Place>,
    off: Option<Off>,
    /// Number of our own XDP program there.
    own_xdp: u32,
    failed: Option<Instant>,
    /// Says to other routers that this one has the interface; goes with the process.
    claim: Option<Claim>,
    /// Whether no other router had it when this one began with it, and what was left there is this one's.
    may_take: bool,
    features: BTreeSet<String>,
    /// Whether it took tags off when it was looked at last; Linux does not tell when that changes.
    tags_taken: bool,
}

impl Interfaces {
    /// Those that fit.
    pub fn new(wanted: Vec<Pattern>, place: Option<Place>) -> Self {
        let (known, left, strange) = Default::default();
        Self { wanted, place, known, switched_off: Vec::new(), left, strange, put_back: 0 }
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
            if let Some(known) = self.known.remove(&index) {
                if known.may_take {
                    engine.give_up(index);
                }
                if !sight.mirror.links.contains_key(&index) {
                    tracing::info!("{}: the interface is gone; one of that name is taken when it comes", known.name);
                }
            }
        }
        let shapings = self.shaping(sight, engine, &wanted.iter().map(|link| link.index).collect());
        let lost: BTreeSet<u32> =
            wanted.iter().map(|link| link.index).filter(|index| self.is_lost(*index, shapings, engine)).collect();
        let of = |link: &Link| shapings.get(&link.index).cloned().unwrap_or_default();
        let looks: Vec<(Link, Shaping)> =
            wanted.into_iter().map(|link| (of(&link), link)).map(|(s, l)| (l, s)).collect();
        for (link, shaping) in &looks {
            self.take_over(link, shaping, engine);
        }
        let place = self.place_for_all(&looks, sight);
        for (link, shaping) in &looks {
            report(engine.set_shaped(link.index, shaping.qdisc.is_some()));
            self.one(link, shaping, place, lost.contains(&link.index), sight, engine);
        }
    }

    /// Traffic control at interfaces, read anew where the router's own filters are not as they should be: it may have been read before they were put there,
    /// of which Linux tells a little later.
    fn shaping<'a>(&self, sight: &'a mut Sight, engine: &Engine, of: &BTreeSet<u32>) -> &'a BTreeMap<u32, Shaping> {
        let known = sight.shaping(of);
        let lost: BTreeSet<u32> = of.iter().copied().filter(|index| self.is_lost(*index, known, engine)).collect();
        sight.forget_shaping(&lost);
        sight.shaping(of)
    }

    /// Whether the router's programs are not where it has put them, as far as that could be read.
    fn is_lost(&self, index: u32, shapings: &BTreeMap<u32, Shaping>, engine: &Engine) -> bool {
        self.is_attached(index) && shapings.get(&index).is_some_and(|shaping| engine.has_lost(index, shaping.ours))
    }

    /// Reads anew what program of somebody else is on an interface: where that was attached by a link, nobody tells that it has gone.
    fn look_again(&self, sight: &mut Sight) {
        let is_due = |known: &Known| known.failed.is_some() && !known.is_to_wait();
        for (&index, _) in self.known.iter().filter(|(_, known)| known.place.is_none() && is_due(known)) {
            let program = sight.xdp_of(index);
            if let Some(link) = sight.mirror.links.get_mut(&index) {
                link.xdp = program;
            }
        }
    }

    /// Takes over what a router has left that was killed. The claim of the interface is held from before.
    fn take_over(&mut self, link: &Link, shaping: &Shaping, engine: &Engine) {
        let known = self.known.entry(link.index).or_default();
        let is_ours = known.place.is_some() || known.own_xdp == link.xdp;
        let strange = self.strange.get(&link.index).filter(|strange| strange.program == link.xdp);
        // Finding out whose a program is takes a look at all programs of the machine.
        let again = |one: &Strange| if one.router.is_some() { CLAIMED_AGAIN } else { AGAIN };
        let is_looked_at = self.left.get(&link.index) == Some(&link.xdp)
            || strange.is_some_and(|one| one.found.elapsed() < again(one));
        if link.xdp == 0 || is_ours || is_looked_at {
            return;
        }
        let router = match known.hold(link, shaping, engine) {
            Ok(()) if engine.adopt(link.index, link.xdp) => {
                tracing::info!(
                    "{}: a router that was killed has left XDP program {} there, whose place is taken",
                    link.name,
                    link.xdp
                );
                self.left.insert(link.index, link.xdp);
                self.strange.remove(&link.index);
                return;
            }
            Ok(()) => None,
            Err(who) => Some(who.to_string()),
        };
        self.strange.insert(link.index, Strange { program: link.xdp, router, found: Instant::now() });
    }

    /// A program of somebody else may be another router's.
    fn whose(&self, off: Off, index: u32) -> Off {
        let router = self.strange.get(&index).and_then(|strange| strange.router.clone());
        match off {
            Off::ForeignXdp(_) => router.map_or(off, Off::OtherRouter),
            _ => off,
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

    fn one(&mut self, link: &Link, shaping: &Shaping, place: Place, is_lost: bool, sight: &mut Sight, engine: &Engine) {
        let features = sight.features(link.index);
        let look = self.look(link, shaping, sight, &features);
        let mut off = choice::obstacle(&look).map(|off| self.whose(off, link.index));
        if place == Place::Xdp {
            off = off.or_else(|| choice::against_xdp(&look));
        }
        let known = self.known.entry(link.index).or_default();
        known.name.clone_from(&link.name);
        known.tags_taken = features.contains(choice::TAGS_TAKEN);
        if let Some(off) = off {
            known.leave(link.index, off, engine);
            return;
        }
        if matches!(known.off, Some(Off::ForeignXdp(_) | Off::OtherRouter(_))) {
            known.failed = None;
        }
        if known.place.is_some() && is_lost {
            tracing::warn!("{}: somebody has taken the router's programs away; they are put back", known.name);
            known.place = None;
            self.put_back += 1;
        }
        if known.place == Some(place) || known.is_to_wait() {
            return;
        }
        if known.place.is_none() {
            known.features = features;
        }
        known.take(link, shaping, place, sight, engine);
    }

    /// Whether one could not be attached to, and should be tried again by now.
    pub fn has_failed(&self) -> bool {
        self.known.values().any(|known| known.failed.is_some() && !known.is_to_wait())
    }

    /// Whether one takes tags off by now that did not, or the other way round.
    pub fn takes_tags_anew(&self, sight: &mut Sight) -> bool {
        self.known.iter().any(|(index, known)| {
            let counts = known.place.is_some() || known.off == Some(Off::VlanOffload);
            counts && sight.features(*index).contains(choice::TAGS_TAKEN) != known.tags_taken
        })
    }

    /// Whether programs of the router are not where it has put them: nobody tells when a link of BPF ends.
    pub fn has_lost(&self, sight: &mut Sight, engine: &Engine) -> bool {
        let attached: BTreeSet<u32> =
            self.known.iter().filter(|(_, known)| known.place.is_some()).map(|(index, _)| *index).collect();
        let shapings = self.shaping(sight, engine, &attached);
        attached.iter().any(|index| self.is_lost(*index, shapings, engine))
    }

    /// Tells those who ask who has an interface; and who had the claim of one that this router has may have gone.
    pub fn look_after_claims(&mut self) {
        for (index, known) in self.known.iter_mut().filter(|(_, known)| known.place.is_some()) {
            match &known.claim {
                Some(claim) => claim.answer(),
                None => known.claim = claims::again(*index),
            }
        }
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

/// When an interface that is off is looked at again, of which Linux does not tell.
fn again(off: &Off) -> Duration {
    if matches!(off, Off::OtherRouter(_)) { CLAIMED_AGAIN } else { AGAIN }
}

/// Takes away what routers have left that were killed, where this one has nothing: XDP programs, what is kept of them, and filters.
pub fn clear_away(sight: &mut Sight, engine: &Engine, is_ours: impl Fn(u32) -> bool) {
    let others: BTreeSet<u32> = sight.mirror.links.keys().copied().filter(|index| !is_ours(*index)).collect();
    let programs: BTreeMap<u32, u32> = sight.mirror.links.values().map(|link| (link.index, link.xdp)).collect();
    let shapings = sight.shaping(&others);
    let kept = engine.left_behind();
    let left = |index: u32| {
        let [ingress, egress] = shapings.get(&index).map(|shaping| shaping.ours).unwrap_or_default();
        [programs.get(&index).copied().unwrap_or_default(), ingress, egress]
    };
    let all = others.iter().chain(kept.iter().filter(|index| !is_ours(**index))).copied().collect::<BTreeSet<u32>>();
    for index in all {
        let left = left(index);
        if left == [0; 3] && !kept.contains(&index) {
            continue;
        }
        // Those of a router that lives are its own. For as long as this is held, none begins there.
        let Ok(held) = claims::hold_left(index, |within| engine.signs_of_life(&left, within)) else { continue };
        if left[0] != 0 {
            engine.adopt(index, left[0]);
        }
        if engine.give_up(index) {
            tracing::info!("what a router that was killed has left at interface {index} is taken away");
        }
        if left[1..] != [0; 2] {
            engine.remove_filters(index);
        }
        drop(held);
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
        if std::mem::take(&mut self.may_take) {
            engine.give_up(index);
        }
        // Nobody tells when another router lets go of an interface, or is killed: however often this comes about, it is looked again then.
        let failed = matches!(off, Off::ForeignXdp(_) | Off::OtherRouter(_))
            .then(|| self.failed.filter(|failed| failed.elapsed() < again(&off)).unwrap_or_else(Instant::now));
        // The number of the program stays ours: Linux tells a little later that it is not there any more.
        (self.off, self.claim, self.failed) = (Some(off), None, failed);
    }

    /// Whether it is too early to try again.
    fn is_to_wait(&self) -> bool {
        self.failed.is_some_and(|failed| failed.elapsed() < self.off.as_ref().map_or(AGAIN, again))
    }

    /// Takes an interface that no other router has, so that none does from then on.
    fn hold(&mut self, link: &Link, shaping: &Shaping, engine: &Engine) -> Result<(), Holder> {
        if self.claim.is_some() {
            return Ok(());
        }
        let programs = [link.xdp, shaping.ours[0], shaping.ours[1]];
        match claims::hold(link.index, |within| engine.signs_of_life(&programs, within))? {
            Held::Claim(claim) => self.claim = Some(claim),
            Held::PassedOver(who) => {
                tracing::warn!("{}: its claim is held by {who}, who is no router and is passed over", link.name);
            }
        }
        self.may_take = true;
        Ok(())
    }

    fn take(&mut self, link: &Link, shaping: &Shaping, place: Place, sight: &mut Sight, engine: &Engine) {
        if let Err(who) = self.hold(link, shaping, engine) {
            // Another router has taken its place, and nothing of this one may be left in the engine.
            report(engine.detach(link.index));
            (self.place, self.may_take) = (None, false);
            (self.off, self.failed) = (Some(Off::OtherRouter(who.to_string())), Some(Instant::now()));
            return;
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
                engine.give_up(link.index);
                (self.place, self.claim, self.may_take) = (None, None, false);
                (self.off, self.failed) = (Some(Off::Failed(error.to_string())), Some(Instant::now()));
            }
        }
    }
}
