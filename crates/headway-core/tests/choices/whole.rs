//! Whole decisions: what is asked about the host memory, by which method the copy is made, and by which one after a failure.

use super::*;

use headway_core::models::transfer::WindowMapping;

use headway_core::decisions::chooser::{
    ChoiceReason, Chooser, ChooserOptions, CopyAbsence, CopyChoice, CopyQuestion, CopySituation, CopyTook, HostKnown,
    MethodWanted,
};
use headway_core::models::transfer::{CurveKey, ResidentShape};
use std::sync::Arc;

/// A copy with what is true of it, which costs time to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Truth {
    pub(super) direction: Direction,
    pub(super) bytes: Bytes,
    /// A buffer that is known to be pinned.
    pub(super) held: bool,
    pub(super) pinned: bool,
    pub(super) absent: bool,
    pub(super) load: BackgroundLoad,
    pub(super) active: u32,
    pub(super) granted: bool,
    pub(super) window: Option<WindowMapping>,
}

/// What a copier was opened with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) gpus: u32,
    pub(super) cpus: u32,
    pub(super) no_sm: bool,
    pub(super) no_threads: bool,
    pub(super) multipath: bool,
    pub(super) mapped_files: bool,
    pub(super) resident: bool,
    pub(super) bounds: Bounds,
}

/// A chooser with a caller that answers its questions.
struct Whole {
    chooser: Chooser,
    profile: Profile,
    gpu: EndpointId,
}

impl Whole {
    fn new(profile: Profile, gpu: EndpointId, opened: Opened, stale: Option<String>, learner: Option<Learner>) -> Self {
        let Opened { gpus, cpus, no_sm, no_threads, multipath, mapped_files, resident, bounds } = opened;
        let available = Available { no_sm, no_threads, bounds, multipath, stale, ..Available::default() };
        let options = ChooserOptions { gpus, cpus, mapped_files, resident, available };
        let mut chooser = Chooser::new(gpu, Arc::new(profile.clone()), options);
        if let Some(learner) = learner {
            assert!(chooser.learn(learner), "it is the first one");
        }
        Self { chooser, profile, gpu }
    }

    /// What was asked about the host memory, and the choice.
    fn choose(&mut self, copy: &Truth) -> (Vec<&'static str>, CopyChoice) {
        let bulk = copy.bytes.0 >= 1 << 20;
        let mut asked = Vec::new();
        let mut host = if copy.held { HostKnown::Pinned } else { HostKnown::Nothing };
        loop {
            let situation = CopySituation {
                direction: copy.direction,
                bytes: copy.bytes,
                host,
                load: copy.load,
                active: if bulk { copy.active } else { 1 },
                granted: bulk && copy.granted,
                window: copy.window,
                realtime: false,
                repeats: None,
            };
            match self.chooser.choose(MethodWanted::Auto, &situation) {
                Ok(choice) => return (asked, choice),
                Err(CopyQuestion::IsPinned) => {
                    asked.push("pinned");
                    host = if copy.pinned { HostKnown::Pinned } else { HostKnown::Ordinary };
                }
                Err(CopyQuestion::ArePagesThere) => {
                    asked.push("pages");
                    host = if copy.absent { HostKnown::PagesAbsent } else { HostKnown::PagesPresent };
                }
                Err(CopyQuestion::Forms(method)) => {
                    let form = match method {
                        Method::Resident(_) => Method::Resident(Some(ResidentShape::Hub)),
                        _ => Method::PagedWindow(Some(WindowMapping::Gdrdrv)),
                    };
                    self.chooser.set_forms(method, [form]);
                }
            }
            assert!(asked.len() < 3, "{asked:?}");
        }
    }

    fn failed(&mut self, choice: &CopyChoice, why: Fails) -> Option<CopyChoice> {
        let why = match why {
            Fails::Lasting if choice.method == Method::Pinning => CopyAbsence::Passing,
            Fails::Lasting => CopyAbsence::Lasting,
            Fails::Passing => CopyAbsence::Passing,
            Fails::Starting => CopyAbsence::Starting,
            Fails::Whole => return None,
        };
        self.chooser.failed(choice, why)
    }

    fn ended(&mut self, choice: &CopyChoice, took: Option<(Nanos, Option<Nanos>)>) {
        self.chooser.ended(choice, took.map(|(time, cpu)| CopyTook { time, cpu }));
    }

    /// What the driver's call is said to take: by the profile, else a round figure.
    fn driver_takes(&self, copy: &Truth) -> Nanos {
        let memory = if copy.pinned { HostMemory::Pinned } else { HostMemory::Touched };
        let key = CurveKey {
            gpu: self.gpu,
            peer: None,
            method: Method::of_driver(copy.direction, memory),
            direction: copy.direction,
            memory,
            load: BackgroundLoad::Alone,
            active: 1,
            pieces: 1,
        };
        let measured = self.profile.curves.get(&key).map(|curve| curve.at(copy.bytes, Statistic::Median));
        measured.unwrap_or(Nanos(6_000 + copy.bytes.0 / 10))
    }
}

fn shown(choice: &CopyChoice) -> (Method, Option<Tuning>, Option<Nanos>, ChoiceReason) {
    (choice.method, choice.tuning, choice.predicted, choice.reason)
}

/// Why a copy was not made as chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fails {
    Lasting,
    Passing,
    Starting,
    /// With an error that no other method mends.
    Whole,
}

fn opened(draws: &mut Draws, gpus: u32) -> Opened {
    Opened {
        gpus,
        cpus: draws.of(&[2, 8, 16, 64]),
        no_sm: draws.is_one_in(4),
        no_threads: draws.is_one_in(8),
        multipath: draws.is_one_in(2),
        mapped_files: draws.is_one_in(8),
        resident: draws.is_one_in(4),
        bounds: Bounds {
            cpus_max: draws.of(&[u32::MAX, u32::MAX, 8]),
            prefer: draws.of(&[Prefer::Cheapest, Prefer::Fastest]),
            ..Bounds::default()
        },
    }
}

fn truth(draws: &mut Draws, opened: Opened, window: Option<WindowMapping>) -> Truth {
    let pinned = draws.is_one_in(3);
    let alone = draws.below(4) > 0;
    Truth {
        direction: draws.of(&DIRECTIONS),
        bytes: if draws.is_one_in(3) { draws.bytes(10, 18) } else { draws.bytes(17, 29) },
        held: pinned && draws.is_one_in(3),
        pinned,
        absent: draws.is_one_in(4),
        load: if alone { BackgroundLoad::Alone } else { draws.of(&LOADS) },
        active: if alone { 1 } else { 1 + draws.below(u64::from(opened.gpus)) as u32 },
        granted: draws.is_one_in(2),
        window,
    }
}

/// Copies of all kinds, one after another or two at once, on a node that is as fast as its figures say or not, where methods turn out to be
/// absent now and then.
pub(super) fn by_all(recorded: &mut Recorded) {
    let mut profiles = vec![("none", Profile::default(), EndpointId(0), 1)];
    for name in ["h200-x1", "h200-x4"] {
        let machine = shipped(name).expect("it ships");
        let gpu = machine.gpus().next().expect("it has one");
        let gpus = machine.gpus().count() as u32;
        profiles.push((name, machine.profile, gpu, gpus));
    }
    let mut draws = Draws(37_000);
    for history in 0..WHOLE_HISTORIES {
        let (name, profile, gpu, gpus) = &profiles[history % profiles.len()];
        let opened = opened(&mut draws, *gpus);
        let learns = *name == "none" && !draws.is_one_in(3);
        let learner = learns.then(|| {
            let limits = LearnerLimits {
                threads_max: draws.of(&[1, 8, 16]),
                prefer: opened.bounds.prefer,
                learns: !draws.is_one_in(8),
                always: draws.is_one_in(16),
            };
            Learner::new(NodeClass { bus: draws.of(&[Bus::Pcie4, Bus::Pcie5]), wide_stores: true }, limits)
        });
        let window = draws.of(&[None, None, Some(WindowMapping::Gdrdrv), Some(WindowMapping::Vulkan)]);
        let stale = draws.is_one_in(16).then(|| "driver 1, now 2".to_owned());
        let mut whole = Whole::new(profile.clone(), *gpu, opened, stale, learner);
        let slow = draws.of(&[80, 97, 102, 130]);
        let node = draws.of(&[90, 100, 140]);
        let fails = draws.of(&[20, 200, 100_000]);
        for _ in 0..COPIES {
            let copy = truth(&mut draws, opened, window);
            let (asked, mut choice) = whole.choose(&copy);
            let group = format!("whole {name} {}", if learns { "learning" } else { "not learning" });
            recorded.push(group.clone(), (copy.bytes, copy.direction, asked, shown(&choice)));
            let mut tries = 0;
            let done = loop {
                if !draws.is_one_in(fails) {
                    break true;
                }
                let fails = draws.of(&[Fails::Lasting, Fails::Passing, Fails::Starting, Fails::Whole]);
                let Some(next) = whole.failed(&choice, fails) else { break false };
                choice = next;
                recorded.push(format!("{group} failed"), (copy.bytes, copy.direction, fails, shown(&choice)));
                tries += 1;
                assert!(tries < 30, "a copy that fails for ever: {copy:?}");
            };
            let of_driver = [Method::Pageable, Method::Dma].contains(&choice.method);
            let percent = if of_driver { node } else { slow };
            let time = Nanos(whole.driver_takes(&copy).0 / 100 * (percent + draws.below(6)));
            let cpu = draws.is_one_in(2).then_some(Nanos(time.0 * 4));
            let beside = draws.is_one_in(32).then(|| truth(&mut draws, opened, window));
            let beside = beside.map(|copy| whole.choose(&copy).1);
            whole.ended(&choice, done.then_some((time, cpu)));
            if let Some(beside) = beside {
                whole.ended(&beside, None);
            }
        }
    }
}
