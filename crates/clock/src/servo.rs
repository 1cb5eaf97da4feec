//! A servo: leads a clock after another one that it is compared with from time to time, by its speed, and by a step where that
//! would take too long. It first finds out how wrong the oscillator is, steps the clock, and then has a proportional and an
//! integral part.

/// What is to be done with the clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Correction {
    /// It is to go back or forward by so many ns, and so much faster than its nominal speed, in millionths.
    Step(i64, f64),
    /// It is to go so much faster than its nominal speed, in millionths.
    Frequency(f64),
}

/// What a servo knows and how far it is.
#[derive(Clone, Debug)]
pub struct Servo {
    step_above: i64,
    most_ppm: f64,
    seconds: f64,
    // What makes up for the oscillator, in millionths.
    integral: f64,
    stage: Stage,
    recent: [i64; RECENT],
    count: usize,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Comparing has begun: times and offsets, [`APART`] at least.
    Measuring(Vec<(u64, i64)>),
    /// The clock is led; it was compared last at this time.
    Leading(u64),
}

/// Offsets of which the middle one counts: one that comes of a machine that did something else does not.
const RECENT: usize = 5;
/// As many offsets are there at least before the clock is stepped because of them.
const ENOUGH: usize = 3;
/// How long the oscillator is measured at least, in ns, by how many comparisons, and with how few when it has taken so long.
const MEASURE: u64 = 1_000_000_000;
const SAMPLES: usize = 9;
const LONG: u64 = 2_500_000_000;
/// Comparisons that come sooner after one another say nothing new of the oscillator, in ns. So whoever sends a flood of them is
/// kept 65 of at the most, and each two of those are looked at.
const APART: u64 = MEASURE / 64;

impl Servo {
    /// A servo for a clock that now goes faster than nominal by `ppm`, and may by at most `most_ppm`. Offsets above `step_above`
    /// ns are stepped; others go away in some `seconds`: the longer, the less noise gets through.
    pub fn new(step_above: i64, most_ppm: f64, seconds: f64, ppm: f64) -> Self {
        let stage = Stage::Measuring(Vec::new());
        Self { step_above, most_ppm, seconds, integral: ppm, stage, recent: [0; RECENT], count: 0 }
    }

    /// The clock less what it is to follow is `offset` ns, at `now`, in ns of anything that goes on: what to do.
    pub fn sample(&mut self, now: u64, offset: i64) -> Correction {
        match &mut self.stage {
            Stage::Measuring(samples) => {
                match samples.last() {
                    // Time went back: somebody has set a clock by which it was told.
                    Some(&(last, _)) if now < last => samples.clear(),
                    Some(&(last, _)) if now - last < APART => return Correction::Frequency(self.integral),
                    _ => {}
                }
                samples.push((now, offset));
                let passed = now.saturating_sub(samples[0].0);
                if passed < MEASURE || (samples.len() < SAMPLES && passed < LONG) {
                    return Correction::Frequency(self.integral);
                }
                let samples = core::mem::take(samples);
                self.begin(now, &samples)
            }
            &mut Stage::Leading(before) => self.lead(now, before, offset),
        }
    }

    /// The oscillator gains by the middle one of what each two comparisons say, which one that is wrong does not move.
    fn begin(&mut self, now: u64, samples: &[(u64, i64)]) -> Correction {
        let slope = |one: (u64, i64), other: (u64, i64)| {
            let passed = other.0.saturating_sub(one.0).max(1) as f64;
            other.1.saturating_sub(one.1) as f64 / passed
        };
        let pairs =
            samples.iter().enumerate().flat_map(|(at, &one)| samples[at + 1..].iter().map(move |&other| (one, other)));
        let drift = middle_of(pairs.map(|(one, other)| slope(one, other)).collect());
        let offsets = samples.iter().map(|&(at, offset)| offset as f64 + drift * now.saturating_sub(at) as f64);
        let offset = middle_of(offsets.collect());
        // Somebody has set one of the clocks meanwhile, if it is more than any oscillator gains.
        if drift.abs() * 1e6 > self.most_ppm {
            return Correction::Frequency(self.integral);
        }
        self.integral = self.bounded(self.integral - drift * 1e6);
        (self.stage, self.count) = (Stage::Leading(now), 0);
        Correction::Step(-(offset as i64), self.integral)
    }

    fn lead(&mut self, now: u64, before: u64, offset: i64) -> Correction {
        self.stage = Stage::Leading(now);
        // What is taken for longer than a second came late: it is not made up for all at once.
        let passed = (now.saturating_sub(before) as f64 * 1e-9).clamp(1e-3, 1.0);
        self.recent[self.count % RECENT] = offset;
        self.count += 1;
        let (middle, is_far) = (self.middle(), |offset: i64| offset.unsigned_abs() > self.step_above.unsigned_abs());
        // Of fewer the middle one may be the one that came late.
        if is_far(middle) && self.count >= ENOUGH {
            self.stage = Stage::Measuring(Vec::new());
            return Correction::Step(middle.saturating_neg(), self.integral);
        }
        // The middle one of seldom comparisons would come too late.
        let frequent = passed * RECENT as f64 <= self.seconds;
        if is_far(offset) && !frequent || is_far(middle) {
            return Correction::Frequency(self.integral);
        }
        let gain = (1.0 / self.seconds).min(0.7 / passed);
        let us = if frequent { middle } else { offset } as f64 * 1e-3;
        self.integral = self.bounded(self.integral - us * gain * gain / 4.0 * passed);
        Correction::Frequency(self.bounded(self.integral - us * gain))
    }

    /// The middle one of the last offsets, in ns; `None` while it measures the oscillator, or nothing has been measured since the
    /// clock was stepped.
    pub fn offset(&self) -> Option<i64> {
        (matches!(self.stage, Stage::Leading(_)) && self.count > 0).then(|| self.middle())
    }

    fn middle(&self) -> i64 {
        let count = self.count.min(RECENT);
        let mut recent = self.recent;
        recent[..count].sort_unstable();
        recent[count / 2]
    }

    fn bounded(&self, ppm: f64) -> f64 {
        ppm.clamp(-self.most_ppm, self.most_ppm)
    }

    /// At which speed it would neither gain nor lose, as far as is known, in millionths.
    pub fn holdover(&self) -> f64 {
        self.integral
    }
}

fn middle_of(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: u64 = 100_000_000;

    /// Runs a clock whose oscillator is wrong by `drift` for so many tenths of seconds; the offsets, each measured wrong by what
    /// `noise` says.
    fn run(servo: &mut Servo, drift: f64, mut offset: f64, tenths: u64, noise: impl Fn(u64) -> f64) -> Vec<f64> {
        let mut ppm = servo.holdover();
        let mut offsets = Vec::new();
        for tenth in 0..tenths {
            offset += (drift + ppm) * 100.0;
            offsets.push(offset);
            match servo.sample(tenth * TENTH, (offset + noise(tenth)) as i64) {
                Correction::Step(ns, faster) => (offset, ppm) = (offset + ns as f64, faster),
                Correction::Frequency(faster) => ppm = faster,
            }
        }
        offsets
    }

    fn worst(offsets: &[f64]) -> f64 {
        offsets.iter().fold(0.0, |worst: f64, offset| worst.max(offset.abs()))
    }

    #[test]
    fn a_wrong_oscillator_is_led_to_nothing() {
        for drift in [-100.0, -1.0, 0.0, 30.0, 100.0] {
            let mut servo = Servo::new(1_000_000, 500.0, 2.0, 0.0);
            let offsets = run(&mut servo, drift, 5e9, 200, |_| 0.0);
            assert!((offsets[0] - 5e9).abs() < 1e6);
            assert!(worst(&offsets[100..]) < 20.0, "{drift}: {}", worst(&offsets[100..]));
            assert!((servo.holdover() + drift).abs() < 0.05, "{} {drift}", servo.holdover());
        }
    }

    #[test]
    fn what_is_measured_badly_is_averaged_and_what_is_measured_very_badly_is_not_seen() {
        let noise = |tenth: u64| {
            let chance = (tenth + 1).wrapping_mul(6_364_136_223_846_793_005) >> 33;
            if tenth > 20 && chance.is_multiple_of(50) { 100_000.0 } else { (chance % 2_001) as f64 - 1_000.0 }
        };
        let mut servo = Servo::new(1_000_000, 500.0, 2.0, 0.0);
        let offsets = run(&mut servo, 40.0, 1e6, 600, noise);
        assert!(worst(&offsets[200..]) < 1_500.0, "{}", worst(&offsets[200..]));
    }

    #[test]
    fn a_clock_that_jumps_is_put_back_and_its_speed_is_kept() {
        let mut servo = Servo::new(1_000_000, 500.0, 2.0, 0.0);
        run(&mut servo, 10.0, 0.0, 100, |_| 0.0);
        let mut sample = |tenth: u64, offset| servo.sample(10_000_000_000 + tenth * TENTH, offset);
        let is_as_before = |ppm: f64| (ppm + 10.0).abs() < 0.1;
        for tenth in 0..2 {
            let Correction::Frequency(ppm) = sample(tenth, 2_000_000) else { panic!("a step for what came late once") };
            assert!(is_as_before(ppm), "{ppm}");
        }
        let Correction::Step(-2_000_000, ppm) = sample(2, 2_000_000) else { panic!("no step") };
        assert!(is_as_before(ppm), "{ppm}");
        assert!(matches!(sample(3, i64::MIN), Correction::Frequency(ppm) if is_as_before(ppm)));
        assert!(matches!(sample(40, i64::MAX), Correction::Frequency(ppm) if is_as_before(ppm)));
    }

    #[test]
    fn one_offset_that_is_far_steps_nothing_not_even_right_behind_a_step() {
        for late in 0..12 {
            let mut servo = Servo::new(1_000_000, 500.0, 2.0, 0.0);
            run(&mut servo, 10.0, 0.0, 11, |_| 0.0);
            let offset = |tenth| if tenth == late { 8_000_000 } else { 0 };
            for tenth in 0..12 {
                let correction = servo.sample(2_000_000_000 + tenth * TENTH, offset(tenth));
                assert!(matches!(correction, Correction::Frequency(_)), "{late} {tenth}: {correction:?}");
            }
        }
    }

    fn kept(servo: &Servo) -> usize {
        match &servo.stage {
            Stage::Measuring(samples) => samples.len(),
            Stage::Leading(_) => 0,
        }
    }

    #[test]
    fn a_flood_is_measured_as_well_as_what_comes_seldom_and_little_of_it_is_kept() {
        let mut servo = Servo::new(1_000_000, 500.0, 2.0, 0.0);
        // A clock that gains 20 ppm, compared each microsecond.
        for us in 0..1_000_000 {
            assert_eq!(servo.sample(us * 1_000, (us / 50) as i64), Correction::Frequency(0.0), "{us}");
            assert!(kept(&servo) <= 65, "{} of {us} are kept", kept(&servo));
        }
        let Correction::Step(ns, ppm) = servo.sample(1_000_000_000, 20_000) else { panic!("a second is over") };
        assert!((ppm + 20.0).abs() < 0.1 && (ns + 20_000).abs() <= 1, "{ns} {ppm}");
    }

    #[test]
    fn times_that_jump_keep_it_from_nothing() {
        let mut servo = Servo::new(1_000_000, 500.0, 2.0, 0.0);
        for round in 0..100_000u64 {
            let now = round.wrapping_mul(6_364_136_223_846_793_005) >> (round % 64);
            servo.sample(now, 0);
            assert!(kept(&servo) <= 65, "{} of {round} are kept", kept(&servo));
        }
        let mut servo = Servo::new(1_000_000, 500.0, 2.0, 0.0);
        servo.sample(u64::MAX, 0);
        let offsets = run(&mut servo, 30.0, 0.0, 200, |_| 0.0);
        assert!(worst(&offsets[100..]) < 20.0, "what was set back is begun anew");
    }

    #[test]
    fn it_never_steers_beyond_its_bound() {
        let mut servo = Servo::new(1_000_000, 500.0, 0.1, 0.0);
        for tenth in 0..100 {
            if let Correction::Frequency(ppm) = servo.sample(tenth * TENTH, 900_000) {
                assert!(ppm.abs() <= 500.0);
            }
        }
    }
}
