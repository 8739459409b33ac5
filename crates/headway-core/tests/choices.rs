//! Copies take another method only on purpose: pseudo-random choices, a hash for each group and a few of its choices in full, compared
//! with `golden/choices.txt`. 100,000 are made by one part of the decision each, as many by all parts together.
//!
//! `SNAPSHOTS=overwrite cargo test -p headway-core --test it choices::` writes the file anew; the commit that does so says why.
#![expect(clippy::disallowed_methods, reason = "the committed choices are a file")]

mod whole;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::path::Path;

use headway_core::files::machine::{EndpointId, shipped};
use headway_core::models::transfer::builtin::{Bus, NodeClass};
use headway_core::models::transfer::learning::{CopyTook, Learner, LearnerLimits, LearntKind, Prefer};
use headway_core::models::transfer::policy::{Bucket, Watch, WatchEvent};
use headway_core::models::transfer::{
    Available, BackgroundLoad, Bounds, Direction, HostMemory, Method, MethodChoice, MethodRequest, Profile, Statistic,
    Tuning, choose,
};
use headway_core::units::{Bytes, Nanos};
use sha2::{Digest, Sha256};

const DIRECTIONS: [Direction; 2] = [Direction::H2d, Direction::D2h];
const MEMORIES: [HostMemory; 4] = [HostMemory::Pinned, HostMemory::Touched, HostMemory::Untouched, HostMemory::File];
const LOADS: [BackgroundLoad; 4] =
    [BackgroundLoad::Alone, BackgroundLoad::BulkSame, BackgroundLoad::BulkOpposite, BackgroundLoad::BulkBoth];
/// Choices of each of the three kinds: by a profile, by what was learnt, by what the watch found.
const SITUATIONS: usize = 400;
const SIZES: usize = 100;
const HISTORIES: usize = 60;
const COPIES: usize = 500;
/// Histories of whole decisions.
const WHOLE_HISTORIES: usize = 200;
/// One choice in this many is written in full.
const SAMPLED: usize = 250;

/// SplitMix64 (Steele, Lea, Flood, 2014): the same draws on every machine.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn is_one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// As many of each power of two from 2 to the power of `low` to 2 to the power of `high`; one in eight is a power of two.
    fn bytes(&mut self, low: u64, high: u64) -> Bytes {
        let power = 1u64 << (low + self.below(high - low));
        let odd = if self.is_one_in(8) { 0 } else { self.below(power) };
        Bytes(power + odd)
    }
}

/// The choices of one group, hashed as they come.
#[derive(Default)]
struct Group {
    hash: Sha256,
    choices: usize,
    samples: Vec<String>,
}

#[derive(Default)]
struct Recorded(BTreeMap<String, Group>);

impl Recorded {
    fn push(&mut self, group: String, choice: impl Debug) {
        let group = self.0.entry(group).or_default();
        let text = format!("{choice:?}");
        group.hash.update(text.as_bytes());
        group.hash.update(b"\n");
        if group.choices.is_multiple_of(SAMPLED) {
            group.samples.push(text);
        }
        group.choices += 1;
    }

    fn count(&self) -> usize {
        self.0.values().map(|group| group.choices).sum()
    }

    fn text(self) -> String {
        let group = |(name, group): (String, Group)| {
            let hash: String = group.hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            let samples: String = group.samples.iter().map(|sample| format!("  {sample}\n")).collect();
            format!("{name}: {} choices, {hash}\n{samples}", group.choices)
        };
        self.0.into_iter().map(group).collect()
    }
}

fn available(draws: &mut Draws) -> Available {
    // Nothing here is known to repeat a copy, so that `pinned-once` changes no choice and takes no draw.
    let mut is_there = |method: &Method| *method == Method::PinnedOnce || !draws.is_one_in(4);
    let methods: BTreeSet<Method> = Method::ALL.into_iter().filter(|method| is_there(method)).collect();
    let bounds = Bounds {
        cpus_max: draws.of(&[u32::MAX, u32::MAX, 8, 3, 1]),
        pinned_max: draws.of(&[Bytes(u64::MAX), Bytes(128 << 20), Bytes(4 << 20)]),
        multiprocessors_max: draws.of(&[u32::MAX, u32::MAX, 4, 0]),
        prefer: draws.of(&[Prefer::Cheapest, Prefer::Fastest]),
    };
    Available {
        methods,
        no_sm: draws.is_one_in(4),
        no_threads: draws.is_one_in(4),
        bounds,
        multipath: draws.is_one_in(2),
        realtime: draws.is_one_in(4),
        stale: draws.is_one_in(16).then(|| "driver 1, was 2".to_owned()),
    }
}

/// What the profile says.
fn by_profile(recorded: &mut Recorded) {
    let mut profiles = vec![("built-in", Profile::default(), vec![EndpointId(0)])];
    for name in ["h200-x1", "h200-x4"] {
        let machine = shipped(name).expect("it ships");
        let gpus = machine.gpus().collect();
        profiles.push((name, machine.profile, gpus));
    }
    let mut draws = Draws(37);
    for situation in 0..SITUATIONS {
        let (name, profile, gpus) = &profiles[situation % profiles.len()];
        let base = MethodRequest::new(draws.of(gpus), draws.of(&DIRECTIONS), draws.of(&MEMORIES), Bytes(0));
        let objectives = [Statistic::Median, Statistic::Median, Statistic::P99, Statistic::Max];
        let request = MethodRequest {
            load: draws.of(&LOADS),
            active: 1 + draws.below(gpus.len() as u64 + 1) as u32,
            alignment: draws.of(&[0, 0, 16, 4]),
            objective: draws.of(&objectives),
            ..base
        };
        let available = available(&mut draws);
        for _ in 0..SIZES {
            let bytes = draws.bytes(0, 33);
            let MethodChoice { method, tuning, predicted, .. } =
                choose(profile, &MethodRequest { bytes, ..request.clone() }, &available);
            let group = format!("profile {name} {} {}", request.direction, request.memory);
            recorded.push(group, (bytes, request.load, request.active, method, tuning, predicted));
        }
    }
}

/// What is written of an advice.
#[derive(Debug)]
#[expect(dead_code, reason = "it is only written")]
struct CopyAdvice {
    tuning: Option<Tuning>,
    timed: bool,
    trial: bool,
}

/// Copies that take what was drawn: advice depends on all that came before.
fn by_learning(recorded: &mut Recorded) {
    let mut draws = Draws(370);
    for _ in 0..HISTORIES {
        let node = NodeClass { bus: draws.of(&[Bus::Pcie3, Bus::Pcie4, Bus::Pcie5]), wide_stores: draws.is_one_in(2) };
        let limits = LearnerLimits {
            threads_max: draws.of(&[0, 1, 3, 8, 16]),
            prefer: draws.of(&[Prefer::Cheapest, Prefer::Fastest]),
            learns: !draws.is_one_in(4),
            always: draws.is_one_in(16),
        };
        let mut learner = Learner::new(node, limits);
        let driver_ns_per_kib = 50 + draws.below(100);
        let staged_ns_per_kib = 10 + draws.below(200);
        for _ in 0..COPIES {
            let kind = LearntKind { direction: draws.of(&DIRECTIONS), memory: draws.of(&MEMORIES[1..]) };
            let bytes = draws.bytes(18, 26);
            let advice = learner.handle_copy(kind, bytes);
            let shown = CopyAdvice { tuning: advice.tuning, timed: advice.timed, trial: advice.trial };
            recorded.push(format!("learnt {} {}", kind.direction, kind.memory), (bytes, shown));
            if draws.is_one_in(64) {
                learner.handle_absent(kind, bytes);
            }
            if advice.tuning.is_some() {
                learner.started();
            }
            let ns_per_kib = if advice.tuning.is_some() { staged_ns_per_kib } else { driver_ns_per_kib };
            let time = Nanos(bytes.0 / 1024 * (ns_per_kib + draws.below(10)));
            let cpu = draws.is_one_in(2).then_some(Nanos(time.0 * 4));
            if advice.timed {
                learner.handle_took(kind, bytes, advice, CopyTook { time, cpu });
            }
        }
    }
}

/// What is written of what the watch says.
#[derive(Clone, Copy, Debug)]
enum Decision {
    Use,
    Driver,
    Probe,
}

/// Copies that are now and then slower than the driver's, or on a node that is slower than its curves.
fn by_watch(recorded: &mut Recorded) {
    let mut draws = Draws(3_700);
    for _ in 0..HISTORIES {
        let mut watch = Watch::default();
        let (mut events, mut demoted) = (VecDeque::new(), BTreeSet::new());
        let slow = draws.of(&[80, 97, 101, 130]);
        let node = draws.of(&[90, 100, 140]);
        for _ in 0..COPIES {
            let (direction, memory) = (draws.of(&DIRECTIONS), HostMemory::Touched);
            let bucket = Bucket::of(EndpointId(1), direction, memory, Method::Staged, draws.bytes(20, 21));
            let is_demoted = demoted.contains(&bucket);
            let decision = match (watch.handle_call(bucket), is_demoted) {
                (true, _) => Decision::Driver,
                (false, true) => Decision::Probe,
                (false, false) => Decision::Use,
            };
            let driver = Nanos(100_000);
            let of_driver = |percent: u64| Nanos(driver.0 / 100 * percent);
            let told: Vec<WatchEvent> = if matches!(decision, Decision::Driver) {
                watch.handle_instead(bucket, of_driver(node + draws.below(10)), driver).into_iter().collect()
            } else {
                let observed = of_driver(slow + draws.below(6));
                watch.handle_observed(bucket, observed, Some(of_driver(90)), Some(driver))
            };
            for event in &told {
                match event {
                    WatchEvent::Demoted { .. } => _ = demoted.insert(bucket),
                    WatchEvent::Restored { .. } => _ = demoted.remove(&bucket),
                    WatchEvent::Suspect { .. } | WatchEvent::Trusted { .. } => {}
                }
            }
            events.extend(told);
            recorded.push(format!("watched {direction}"), (decision, events.pop_front()));
        }
    }
}

#[test]
fn every_choice_is_the_one_that_is_committed() {
    let mut recorded = Recorded::default();
    by_profile(&mut recorded);
    by_learning(&mut recorded);
    by_watch(&mut recorded);
    assert_eq!(recorded.count(), 100_000);
    whole::by_all(&mut recorded);
    assert!(recorded.count() >= 200_000, "{}", recorded.count());
    let text = recorded.text();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/choices.txt");
    if std::env::var_os("SNAPSHOTS").is_some_and(|value| value == "overwrite") {
        std::fs::write(&path, &text).expect("it can be written");
    }
    let committed = std::fs::read_to_string(&path).expect("the file is committed");
    let differ = committed.lines().zip(text.lines()).filter(|(old, new)| old != new);
    let differ: Vec<String> = differ.map(|(old, new)| format!("- {old}\n+ {new}")).collect();
    assert!(
        committed == text,
        "choices changed; `SNAPSHOTS=overwrite cargo test -p headway-core --test it choices::` writes them anew:\n{}",
        differ.join("\n")
    );
}
