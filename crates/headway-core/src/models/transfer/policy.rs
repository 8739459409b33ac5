//! Never slower than the driver, checked while copies are made (specification of transfers, 2.5 and 3.1).
//!
//! A profile is a promise of another day. [`Watch`] compares it with what each copy took: a method that is slower than the
//! driver's own call several times in a row is not used for this size until probes show that it is faster again, or until the
//! driver's call shows that it is slower still: then all of the node is slower than on that day. A curve that is off by a quarter
//! is reported. No clock: everything counts calls.

use std::collections::{BTreeMap, VecDeque};

use super::{Direction, HostMemory, Method};
use crate::models::index::EndpointId;
use crate::units::{Bytes, Nanos, PPM};

/// Calls in a row slower than the driver's curve until a method is not used any more.
pub const SLOW_MAX: u32 = 8;
/// Of the calls that would use a demoted method, one in this many tries it, at first; after each slow one half as often.
pub const PROBE_EVERY: u32 = 32;
/// The least often that is tried.
pub const PROBE_EVERY_MAX: u32 = 4_096;
/// Probes in a row no slower than the driver's curve until the method is used again.
pub const PROBES_GOOD: u32 = 3;
/// Copies in a row by the driver's own call that took longer, by its curve, than the method had before it was demoted, until the
/// method is used again: then it is the curve that is wrong.
pub const DRIVER_SLOW: u32 = 3;
/// Copies for which the driver's curve is taken to be as far off as was found then.
pub const DRIVER_TRUSTED: u32 = 256;
/// Copies whose median of observed over predicted is looked at.
pub const WINDOW: usize = 32;
/// What this median may be, in ppm.
pub const TRUSTED_PPM: std::ops::RangeInclusive<u64> = 800_000..=1_250_000;
/// Buckets of copies that are judged: every size of some hundred pairs of situation and method. Copies of further ones are not.
const BUCKETS_MAX: usize = 4_096;

/// Copies that are judged together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket {
    pub gpu: EndpointId,
    pub direction: Direction,
    /// The host end.
    pub memory: HostMemory,
    /// The method that the profile chooses.
    pub method: Method,
    /// Sizes from 2 to the power of this to just below the next power; 0 has no byte too.
    pub exponent: u8,
}

impl Bucket {
    /// The bucket of copies of `bytes`.
    #[must_use]
    pub fn of(gpu: EndpointId, direction: Direction, memory: HostMemory, method: Method, bytes: Bytes) -> Self {
        let exponent = bytes.0.checked_ilog2().unwrap_or(0) as u8;
        Self { gpu, direction, memory, method, exponent }
    }
}

/// What a user should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// The driver's own call is used from here on.
    Demoted { bucket: Bucket },
    /// The bucket's method is used again.
    Restored { bucket: Bucket },
    /// Copies take another time than the curve says; remedy: `headway measure`.
    Suspect {
        bucket: Bucket,
        /// Median of observed over predicted, in ppm.
        median_ppm: u64,
    },
    /// They agree with it again.
    Trusted { bucket: Bucket },
}

impl std::fmt::Display for WatchEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Demoted { bucket }
        | Self::Restored { bucket }
        | Self::Suspect { bucket, .. }
        | Self::Trusted { bucket }) = self;
        let Bucket { gpu, direction, memory, method, exponent } = bucket;
        write!(f, "`{method}` {direction} of 2^{exponent} bytes and more, {memory} memory, GPU endpoint {} ", gpu.0)?;
        match self {
            Self::Demoted { .. } => {
                f.write_str("was slower than the driver several times in a row: the driver is used")
            }
            Self::Restored { .. } => f.write_str("is used again"),
            Self::Suspect { median_ppm, .. } => {
                let percent = median_ppm / 10_000;
                write!(f, "takes {percent} % of what the profile says; `headway measure` writes a new one")
            }
            Self::Trusted { .. } => f.write_str("takes what the profile says again"),
        }
    }
}

/// A method that is not used now.
#[derive(Clone, Copy, Debug)]
struct Demotion {
    /// Calls until the next probe.
    wait: u32,
    /// Calls between probes.
    every: u32,
    /// Probes in a row that were no slower.
    good: u32,
    /// What the method took over what the driver's curve said, in ppm: the median of the copies that demoted it.
    took_ppm: u64,
    /// Copies in a row by the driver that took longer than that, and the least of them in ppm.
    driver: (u32, u64),
}

#[derive(Clone, Debug, Default)]
struct State {
    /// What the last copies in a row that were slower than the driver took over what its curve said, in ppm.
    slow: Vec<u64>,
    /// What the driver was found to take over what its curve says, in ppm, and for how many copies that holds.
    found: Option<(u64, u32)>,
    demotion: Option<Demotion>,
    /// Observed over predicted, in ppm, the oldest first.
    ratios: VecDeque<u64>,
    suspect: bool,
}

/// Watches copies; see the module.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    buckets: BTreeMap<Bucket, State>,
}

impl Watch {
    /// Whether the copy that is about to be made goes by the driver's own call: its method is demoted, and it is no probe.
    pub fn handle_call(&mut self, bucket: Bucket) -> bool {
        let Some(demotion) = self.buckets.get_mut(&bucket).and_then(|state| state.demotion.as_mut()) else {
            return false;
        };
        demotion.wait = demotion.wait.saturating_sub(1);
        let waits = demotion.wait > 0;
        if !waits {
            demotion.wait = demotion.every;
        }
        waits
    }

    /// A copy of `bucket` took `observed` by the bucket's method; what a user should know. Not to be called for copies that went by the
    /// driver instead. `predicted` = what the method's curve said; `driver` = what the driver's curve says.
    pub fn handle_observed(
        &mut self,
        bucket: Bucket,
        observed: Nanos,
        predicted: Option<Nanos>,
        driver: Option<Nanos>,
    ) -> Vec<WatchEvent> {
        if self.buckets.len() >= BUCKETS_MAX && !self.buckets.contains_key(&bucket) {
            return Vec::new();
        }
        let state = self.buckets.entry(bucket).or_default();
        let compared = driver.and_then(|driver| state.compare(bucket, ppm(observed, driver)));
        let rated = predicted.and_then(|predicted| state.rate(bucket, observed, predicted));
        compared.into_iter().chain(rated).collect()
    }

    /// A copy of `bucket`, which is demoted, took `observed` by the driver's own call, whose curve says `driver`.
    pub fn handle_instead(&mut self, bucket: Bucket, observed: Nanos, driver: Nanos) -> Option<WatchEvent> {
        self.buckets.get_mut(&bucket)?.doubt(bucket, ppm(observed, driver))
    }
}

/// `observed` over `said`, in ppm, rounded up: what is a nanosecond longer is longer.
fn ppm(observed: Nanos, said: Nanos) -> u64 {
    let ppm = (u128::from(observed.0) * u128::from(PPM)).div_ceil(u128::from(said.0.max(1)));
    u64::try_from(ppm).unwrap_or(u64::MAX)
}

impl State {
    /// Counts a copy that took so many ppm of what the driver's curve says.
    fn compare(&mut self, bucket: Bucket, took_ppm: u64) -> Option<WatchEvent> {
        let driver_ppm = match &mut self.found {
            Some((found, left)) if *left > 0 => {
                *left -= 1;
                *found
            }
            _ => PPM,
        };
        let slower = took_ppm > driver_ppm;
        if let Some(demotion) = &mut self.demotion {
            if slower {
                demotion.good = 0;
                demotion.every = demotion.every.saturating_mul(2).min(PROBE_EVERY_MAX);
                demotion.wait = demotion.every;
                return None;
            }
            demotion.good += 1;
            // One good probe is followed by others soon.
            demotion.wait = PROBE_EVERY;
            if demotion.good < PROBES_GOOD {
                return None;
            }
            (self.demotion, self.slow) = (None, Vec::new());
            return Some(WatchEvent::Restored { bucket });
        }
        if !slower {
            self.slow.clear();
            return None;
        }
        self.slow.push(took_ppm);
        if self.slow.len() < SLOW_MAX as usize {
            return None;
        }
        self.slow.sort_unstable();
        let took_ppm = self.slow[self.slow.len() / 2];
        self.demotion =
            Some(Demotion { wait: PROBE_EVERY, every: PROBE_EVERY, good: 0, took_ppm, driver: (0, u64::MAX) });
        Some(WatchEvent::Demoted { bucket })
    }

    /// Counts a copy by the driver, which took so many ppm of what its curve says.
    fn doubt(&mut self, bucket: Bucket, driver_ppm: u64) -> Option<WatchEvent> {
        let demotion = self.demotion.as_mut()?;
        if driver_ppm <= demotion.took_ppm {
            demotion.driver = (0, u64::MAX);
            return None;
        }
        let (slower, least) = demotion.driver;
        demotion.driver = (slower + 1, least.min(driver_ppm));
        if demotion.driver.0 < DRIVER_SLOW {
            return None;
        }
        self.found = Some((demotion.driver.1, DRIVER_TRUSTED));
        (self.demotion, self.slow) = (None, Vec::new());
        Some(WatchEvent::Restored { bucket })
    }

    /// Compares a copy with its curve.
    fn rate(&mut self, bucket: Bucket, observed: Nanos, predicted: Nanos) -> Option<WatchEvent> {
        let ratio = ppm(observed, predicted);
        if self.ratios.len() == WINDOW {
            self.ratios.pop_front();
        }
        self.ratios.push_back(ratio);
        let median_ppm = self.median_ppm();
        let suspect = self.ratios.len() == WINDOW && !TRUSTED_PPM.contains(&median_ppm);
        if suspect == self.suspect {
            return None;
        }
        self.suspect = suspect;
        Some(if suspect { WatchEvent::Suspect { bucket, median_ppm } } else { WatchEvent::Trusted { bucket } })
    }

    /// The lower of the two in the middle.
    fn median_ppm(&self) -> u64 {
        let mut sorted: Vec<u64> = self.ratios.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(PPM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(bytes: u64) -> Bucket {
        let method = Method::Staged;
        Bucket::of(EndpointId(1), Direction::H2d, HostMemory::Touched, method, Bytes(bytes))
    }

    /// One copy that took `observed`, where the driver takes 100.
    fn copy(watch: &mut Watch, observed: u64) -> Option<WatchEvent> {
        watch.handle_observed(bucket(64), Nanos(observed), None, Some(Nanos(100))).pop()
    }

    fn demoted() -> Watch {
        let mut watch = Watch::default();
        let events: Vec<_> = (0..SLOW_MAX).filter_map(|_| copy(&mut watch, 101)).collect();
        assert_eq!(events, [WatchEvent::Demoted { bucket: bucket(64) }]);
        watch
    }

    /// Calls until the next probe, it included.
    fn calls_to_probe(watch: &mut Watch) -> u32 {
        (1..).find(|_| !watch.handle_call(bucket(64))).expect("there is one")
    }

    #[test]
    fn sizes_of_one_power_of_two_share_a_bucket() {
        assert_eq!([0, 1, 2, 3, 64, 127, 128].map(|n| bucket(n).exponent), [0, 0, 1, 1, 6, 6, 7]);
        assert_eq!(bucket(u64::MAX).exponent, 63);
    }

    #[test]
    fn eight_slow_copies_in_a_row_demote_and_seven_do_not() {
        let mut watch = Watch::default();
        for _ in 0..20 {
            assert!((0..SLOW_MAX - 1).all(|_| copy(&mut watch, 101).is_none()));
            assert_eq!(copy(&mut watch, 100), None, "as fast as the driver is not slower");
        }
        assert!(!watch.handle_call(bucket(64)));
        let mut watch = demoted();
        assert!(watch.handle_call(bucket(64)));
        assert!(!watch.handle_call(bucket(128)), "another size goes on");
    }

    #[test]
    fn good_probes_bring_a_method_back_and_bad_ones_become_rare() {
        let mut watch = demoted();
        assert_eq!(calls_to_probe(&mut watch), PROBE_EVERY);
        assert_eq!(copy(&mut watch, 101), None);
        assert_eq!(calls_to_probe(&mut watch), 2 * PROBE_EVERY);
        for _ in 0..20 {
            assert_eq!(copy(&mut watch, 101), None);
        }
        assert_eq!(calls_to_probe(&mut watch), PROBE_EVERY_MAX);
        for _ in 1..PROBES_GOOD {
            assert_eq!(copy(&mut watch, 99), None);
            assert_eq!(calls_to_probe(&mut watch), PROBE_EVERY);
        }
        assert_eq!(copy(&mut watch, 99), Some(WatchEvent::Restored { bucket: bucket(64) }));
        assert!(!watch.handle_call(bucket(64)));
        assert!((0..SLOW_MAX - 1).all(|_| copy(&mut watch, 101).is_none()), "it starts afresh");
    }

    #[test]
    fn a_driver_that_is_slower_than_its_curve_brings_the_method_back_for_a_while() {
        let mut watch = demoted();
        let instead = |watch: &mut Watch, observed| watch.handle_instead(bucket(64), Nanos(observed), Nanos(100));
        // The method took 101 where the curve says 100.
        assert!([130, 131, 101, 150, 130].iter().all(|observed| instead(&mut watch, *observed).is_none()));
        assert_eq!(instead(&mut watch, 140), Some(WatchEvent::Restored { bucket: bucket(64) }));
        assert_eq!(instead(&mut watch, 140), None, "it is not demoted any more");
        assert!((0..DRIVER_TRUSTED).all(|_| copy(&mut watch, 130).is_none()), "the driver takes 130 at least");
        let events: Vec<_> = (0..SLOW_MAX).filter_map(|_| copy(&mut watch, 130)).collect();
        assert_eq!(events, [WatchEvent::Demoted { bucket: bucket(64) }], "then its curve counts again");
        let mut watch = demoted();
        assert_eq!((0..DRIVER_SLOW).filter_map(|_| instead(&mut watch, 102)).count(), 1);
        assert_eq!((0..SLOW_MAX).filter_map(|_| copy(&mut watch, 103)).count(), 1, "slower than the driver really is");
    }

    #[test]
    fn a_curve_off_by_a_quarter_over_32_copies_is_suspect_until_it_agrees() {
        let mut watch = Watch::default();
        let mut copy = |observed| watch.handle_observed(bucket(64), Nanos(observed), Some(Nanos(100)), None).pop();
        assert!((1..WINDOW).all(|_| copy(126).is_none()), "31 are too few");
        assert_eq!(copy(126), Some(WatchEvent::Suspect { bucket: bucket(64), median_ppm: 1_260_000 }));
        assert!((1..WINDOW / 2).all(|_| copy(125).is_none()));
        assert_eq!(copy(125), Some(WatchEvent::Trusted { bucket: bucket(64) }), "half are inside");
        assert!((0..WINDOW / 2).all(|_| copy(80).is_none()));
        let low = (0..WINDOW).find_map(|_| copy(79));
        assert_eq!(low, Some(WatchEvent::Suspect { bucket: bucket(64), median_ppm: 790_000 }));
    }

    #[test]
    fn copies_that_there_is_no_room_for_are_not_judged() {
        let mut watch = Watch::default();
        let of_gpu = |gpu| Bucket { gpu: EndpointId(gpu), ..bucket(64) };
        let mut slow = |gpu| {
            let mut copies =
                (0..SLOW_MAX).flat_map(|_| watch.handle_observed(of_gpu(gpu), Nanos(101), None, Some(Nanos(100))));
            copies.next().is_some()
        };
        assert!((0..BUCKETS_MAX as u32).all(&mut slow));
        assert!(!slow(BUCKETS_MAX as u32));
    }
}
