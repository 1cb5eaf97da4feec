//! How fast rules change while a worker looks up: one core each. The worker checks every verdict.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use millrace_flow::action::Action;
use millrace_flow::table::{BURST, Classifier, VerdictId};
use millrace_flow::version::{Change, Filter, Writer};
use millrace_flow::{Field, Key, Match, RuleSpec};
use millrace_tool::clock::Moment;
use millrace_tool::failure::Failure;
use millrace_tool::{cores, stop};

use super::traffic::{self, SIZE};
use crate::rig::Cores;

/// Changes between two looks at the clock.
const BATCH: usize = 64;
/// Rules that are added and removed in turns.
const CHANGING: u32 = 1000;
/// Below all others, so that a verdict on a flow with a rule stays what it was.
const LOWEST: u16 = 7;

/// What was counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Rules that changed in a second.
    pub rules_per_s: f64,
    /// Lookups of the worker meanwhile.
    pub lookups: u64,
    /// Lookups without a verdict, or with another one than every version has.
    pub wrong: u64,
    /// Lookups that saw one of two rules changed by a transaction and the other one not.
    pub halves: u64,
}

/// Transactions of one rule, added and removed in turns, into tables of so many rules.
pub fn single(rules: u32, frames: &[[u8; SIZE]], cores: Cores, seconds: f64) -> Result<Counted, Failure> {
    let mut writer = traffic::writer(rules)?;
    // Rules that are sure to be met by some frames, and below all others.
    let mut random = fastrand::Rng::with_seed(7);
    let changing = (0..CHANGING).map(|number| traffic::rule(number, &mut random)).collect::<Result<Vec<_>, _>>()?;
    let changing: Vec<_> = changing.into_iter().map(|rule| RuleSpec { priority: LOWEST, ..rule }).collect();
    let keys = decided(&writer, frames);
    let check = |keys: &[(Key, Vec<Action>)], classifier: &mut Classifier, counted: &mut Counted| {
        let (mut burst, mut ids) = ([Key::ZERO; BURST], [VerdictId::default(); BURST]);
        for chunk in keys.chunks(BURST) {
            burst.iter_mut().zip(chunk).for_each(|(to, (key, _))| *to = *key);
            let done = classifier.lookup(0, &burst[..chunk.len()], &mut ids);
            counted.lookups += done as u64;
            let right =
                |((_, actions), id): &(&(Key, Vec<Action>), &VerdictId)| classifier.verdict(**id).actions == *actions;
            counted.wrong += (chunk.len() - chunk.iter().zip(&ids[..done]).filter(right).count()) as u64;
        }
    };
    let mut next = 0;
    beside(
        &mut writer,
        cores,
        seconds,
        |classifier, counted| check(&keys, classifier, counted),
        |writer| {
            let rule = &changing[next / 2 % changing.len()];
            let change = if next % 2 == 0 {
                Change::Add(rule.clone())
            } else {
                let (table, priority) = (Some(0), Some(LOWEST));
                Change::Delete(Filter { table, priority, matching: rule.matching, strict: true, ..Filter::default() })
            };
            next += 1;
            traffic::commit(writer, vec![change]).map(|()| 1)
        },
    )
}

/// Transactions that change two rules to the same queue: a worker that looks up both sees the same queue twice.
pub fn pairs(rules: u32, cores: Cores, seconds: f64) -> Result<Counted, Failure> {
    let mut writer = traffic::writer(rules)?;
    let wrong = |error: millrace_flow::matching::MatchError| Failure::Found(error.to_string());
    let both = [1, 2].map(|number| Match::ANY.with(Field::Metadata, number));
    let [one, other] = both;
    let both = [one.map_err(wrong)?, other.map_err(wrong)?];
    let to = |matching: &Match, queue: u16| RuleSpec {
        priority: u16::MAX,
        matching: *matching,
        actions: vec![Action::Queue(queue)],
        ..RuleSpec::default()
    };
    let changes = move |queue: u16| both.iter().map(|matching| Change::Add(to(matching, queue))).collect::<Vec<_>>();
    traffic::commit(&mut writer, changes(0))?;
    let keys = both.map(|matching| *matching.key());
    let mut next = 0u16;
    beside(
        &mut writer,
        cores,
        seconds,
        |classifier, counted| {
            let mut ids = [VerdictId::default(); 2];
            counted.lookups += classifier.lookup(0, &keys, &mut ids) as u64;
            let [one, other] = ids.map(|id| &classifier.verdict(id).actions);
            counted.halves += u64::from(one != other);
            counted.wrong += u64::from(one.is_empty()) + u64::from(other.is_empty());
        },
        |writer| {
            next = (next + 1) % 1024;
            traffic::commit(writer, changes(next)).map(|()| 2)
        },
    )
}

/// The frames whose verdict comes from a rule, with what it does.
fn decided(writer: &Writer, frames: &[[u8; SIZE]]) -> Vec<(Key, Vec<Action>)> {
    let mut classifier = writer.classifier(1, 8);
    let keys = frames.iter().map(|frame| traffic::key(frame));
    let with_actions = keys.map(|key| {
        let mut id = [VerdictId::default()];
        classifier.lookup(0, &[key], &mut id);
        (key, classifier.verdict(id[0]).actions.clone())
    });
    with_actions.filter(|(_, actions)| !actions.is_empty()).collect()
}

/// `look` again and again on the card's core, `change` on the application's, for so many seconds. `change` says how many rules
/// it has changed.
fn beside(
    writer: &mut Writer,
    cores: Cores,
    seconds: f64,
    mut look: impl FnMut(&mut Classifier, &mut Counted) + Send,
    mut change: impl FnMut(&mut Writer) -> Result<u64, Failure>,
) -> Result<Counted, Failure> {
    let mut classifier = writer.classifier(0, 32 * 1024);
    let (end, looked) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let (end, looked) = (&end, &looked);
        let looking = scope.spawn(move || {
            if let Some(core) = cores.card {
                // Whoever cannot be pinned was told so before.
                let _ = cores::pin(core);
            }
            let mut counted = Counted::default();
            while !end.load(Relaxed) {
                look(&mut classifier, &mut counted);
                looked.store(counted.lookups, Relaxed);
            }
            counted
        });
        // Both are at work before the clock starts.
        while looked.load(Relaxed) == 0 && !looking.is_finished() {
            thread::yield_now();
        }
        let (start, mut changed) = (Moment::now(), 0);
        let mut outcome: Result<(), Failure> = Ok(());
        while outcome.is_ok() && start.seconds() < seconds && !stop::asked() {
            outcome = (0..BATCH).try_for_each(|_| {
                changed += change(writer)?;
                Ok(())
            });
        }
        let passed = start.seconds();
        end.store(true, Relaxed);
        let counted = looking.join().map_err(|_| Failure::Found("the thread that looks up has ended".to_owned()))?;
        outcome?;
        Ok(Counted { rules_per_s: changed as f64 / passed, ..counted })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Cores = Cores { app: None, card: None };

    #[test]
    fn nothing_is_wrong_and_nothing_is_half() {
        let frames = traffic::frames(500);
        for counted in [single(200, &frames, ANY, 0.05).unwrap(), pairs(200, ANY, 0.05).unwrap()] {
            assert!(counted.rules_per_s > 0.0 && counted.lookups > 0, "{counted:?}");
            assert_eq!((counted.wrong, counted.halves), (0, 0), "{counted:?}");
        }
    }
}
