//! What is run: configurations with and without Headway, and the load that makes GPUs of today as busy as the paper's were.

use headway_core::analysis::sharing::Analysis;
use headway_core::decisions::engine_lock::{EngineParameters, LockOrder, PeerLocks};
use headway_core::decisions::sharing::{ArbiterParameters, ClusterParameters};
use headway_core::decisions::token::{TokenMode, TokenParameters};
use headway_core::units::{Bytes, Nanos};
use headway_sim::sharing::{ArbitrationScheme, Migration, Scenario, Taking};

use crate::trackers::FrameLoad;
use headway::jobs::{DoneJob, ObservedMaxima, observed};

/// Periods of five cameras, two at 20 frames/s and three at 10: the paper's mix of 8 and 12.
const PERIODS: [u64; 5] = [50_000_000, 50_000_000, 100_000_000, 100_000_000, 100_000_000];
/// Times of a frame in the calibrated simulation, middle assumptions (`gpusync-sim`): kernels and CPU each, then the frame's
/// copies and the state's copy at 1 GB/s.
const SIMULATED_KERNELS_NS: f64 = 21_600_000.0;
const SIMULATED_COPIES_NS: f64 = 970_788.0;
const SIMULATED_STATE_NS: f64 = 6_856_704.0;
/// The share of a GPU's time that kernels take there: 140 frames/s on four GPUs.
pub(super) const SIMULATED_BUSY_PPM: u64 = 756_000;
/// Beyond the paper: the most urgent first on every engine, with so many tokens of each GPU, with or without affinity. Found
/// by simulation: tokens that are scarce make urgent frames wait for others' CPU time, and with a token for every camera a GPU
/// with few users is better than one's own.
const BY_URGENCY: [(u32, bool); 2] = [(4, true), (5, false)];
/// Their chunks: 16 MiB take 0.3 ms, less than a kernel segment; smaller ones cost more hand-overs than they save waits.
const URGENT_CHUNK: Bytes = Bytes(16 << 20);

/// The chunks of the paper.
const LESS: Bytes = Bytes(2 << 20);
const MORE: Bytes = Bytes(4 << 20);

/// One way of running the cameras.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Configuration {
    pub(super) kind: Kind,
    /// Longest copy under one lock, or at a time.
    pub(super) chunk: Option<Bytes>,
    pub(super) peer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A scenario of the paper, with so many copy-engine locks and tokens of each GPU, served in this order.
    Headway { scenario: Scenario, copy_engines: u32, tokens: u32, order: LockOrder },
    /// No arbitration; the GPU with the fewest users.
    Fewest,
    /// No arbitration; a GPU for each camera.
    Fixed,
}

impl Configuration {
    fn scenario(code: &str) -> Option<Self> {
        let scenario: Scenario = code.parse().ok()?;
        let tokens = scenario.tokens_per_gpu()?;
        let kind = Kind::Headway { scenario, copy_engines: 1, tokens, order: LockOrder::Arrival };
        Some(Self { kind, chunk: scenario.chunk, peer: scenario.migration == Migration::Peer })
    }

    /// The scenario from which those beyond the paper are made.
    fn best() -> Option<Scenario> {
        "AEDG,2MB".parse().ok()
    }

    /// As tables call it.
    pub(super) fn name(&self) -> String {
        match self.kind {
            Kind::Headway { scenario, tokens, order: LockOrder::Urgency, .. } => {
                format!("edf{tokens} {scenario} with 2 copy locks")
            }
            Kind::Headway { scenario, copy_engines: 1, .. } => scenario.to_string(),
            Kind::Headway { scenario, tokens, .. } => format!("rho{tokens} {scenario} with 2 copy locks"),
            Kind::Fewest => {
                let (saved, state) = if self.peer { ("", "") } else { ("g", ", state saved") };
                match self.chunk {
                    None => format!("B0{saved} fewest users{state}"),
                    Some(LESS) => format!("B1{saved} fewest users{state}, chunked"),
                    Some(chunk) => format!("B1{saved}-{}MB fewest users{state}, chunked", chunk.0 >> 20),
                }
            }
            Kind::Fixed => "B2 fixed GPU".to_owned(),
        }
    }

    /// The scenario of the paper that this is; `None` for what the paper does not have.
    pub(super) fn of_paper(&self) -> Option<Scenario> {
        match self.kind {
            Kind::Headway { scenario, copy_engines: 1, order: LockOrder::Arrival, .. } => Some(scenario),
            Kind::Fewest => {
                let migration = if self.peer { Migration::Peer } else { Migration::System };
                let is_this = |one: &Scenario| {
                    (one.arbitration, one.migration, one.chunk) == (ArbitrationScheme::Driver, migration, self.chunk)
                };
                Scenario::distinct().into_iter().find(is_this)
            }
            Kind::Headway { .. } | Kind::Fixed => None,
        }
    }

    /// Whether a user means this one by `word`: its name, or the name's first word.
    pub(super) fn is_called(&self, word: &str) -> bool {
        let name = self.name();
        name == word || name.split(' ').next() == Some(word)
    }

    pub(super) fn is_managed(&self) -> bool {
        matches!(self.kind, Kind::Headway { .. })
    }

    /// Copy-engine locks of a GPU; one where there is none.
    pub(super) fn copy_engines(&self) -> u32 {
        if let Kind::Headway { copy_engines, .. } = self.kind { copy_engines } else { 1 }
    }

    /// What the arbiter is made from; `None` without one.
    pub(super) fn arbiter(&self, gpus: u32, cpus: u32) -> Option<ArbiterParameters> {
        let Kind::Headway { scenario, .. } = self.kind else { return None };
        let tokens = self.tokens(gpus, cpus)?;
        let locked = scenario.arbitration == ArbitrationScheme::EngineLocks;
        Some(ArbiterParameters::new(
            vec![ClusterParameters::equal(gpus, tokens)],
            if locked { self.engines() } else { None },
        ))
    }

    fn tokens(&self, gpus: u32, cpus: u32) -> Option<TokenParameters> {
        let Kind::Headway { scenario, tokens, order, .. } = self.kind else { return None };
        let mode = match order {
            LockOrder::Urgency => TokenMode::Priority,
            LockOrder::Arrival if tokens * gpus > cpus => TokenMode::WorkConserving,
            LockOrder::Arrival => TokenMode::Optimal,
        };
        Some(TokenParameters { cpus, per_gpu: tokens, mode, affinity: scenario.affinity })
    }

    fn engines(&self) -> Option<EngineParameters> {
        let Kind::Headway { scenario, copy_engines, order, .. } = self.kind else { return None };
        let peer = if scenario.taking == Taking::Group { PeerLocks::Group } else { PeerLocks::Nested };
        let _none = Bytes(0);
        Some(EngineParameters { copy_engines, peer, order, chunk_bytes: self.chunk, watchdog: Nanos::ZERO })
    }

    /// The bounds that follow from the longest operations seen, hand-over included; `None` without arbitration. `on_time`:
    /// nobody was late.
    pub(super) fn bounds(
        &self,
        gpus: u32,
        cpus: u32,
        cameras: &[(Nanos, ObservedMaxima)],
        on_time: bool,
    ) -> Option<Analysis> {
        let arbiter = self.arbiter(gpus, cpus)?;
        Some(observed(gpus, self.tokens(gpus, cpus)?, arbiter.engines, self.peer, cameras, on_time))
    }
}

/// The configurations for `gpus` GPUs: those that tell something by default, or every distinct scenario of the paper and two
/// copy-engine locks beside them; always those without Headway.
pub(super) fn configurations(gpus: usize, all: bool, quick: bool) -> Vec<Configuration> {
    const SOME: [&str; 7] = ["AEDG,2MB", "AEdG,2MB", "AEDG,X", "aEDG,2MB", "AEdg,2MB", "AedG,2MB", "aedg,X"];
    // Affinity and the way of migrating say nothing where nothing migrates, but `g` still saves the state after every job.
    const ONE_GPU: [&str; 6] = ["AEdG,2MB", "AEdG,4MB", "AEdG,X", "AEdg,2MB", "AedG,2MB", "AedG,X"];
    let mut codes: Vec<String> = match (all, quick) {
        (true, _) => Scenario::distinct().iter().map(ToString::to_string).collect(),
        (_, true) => ["AEDG,2MB", "aedg,X"].map(str::to_owned).to_vec(),
        _ if gpus == 1 => ONE_GPU.map(str::to_owned).to_vec(),
        _ => SOME.map(str::to_owned).to_vec(),
    };
    if all && gpus == 1 {
        codes.retain(|code| code.starts_with('A') && !code.contains('D'));
    }
    let mut configurations: Vec<_> = codes.iter().filter_map(|code| Configuration::scenario(code)).collect();
    // The paper's open question: more engines and more tokens.
    let open: &[u32] = match (all, quick) {
        (true, _) => &[2, 3],
        (false, false) => &[3],
        (false, true) => &[],
    };
    configurations.extend(open.iter().filter_map(|tokens| {
        let scenario = Configuration::best()?;
        let order = LockOrder::Arrival;
        let kind = Kind::Headway { scenario, copy_engines: 2, tokens: *tokens, order };
        Some(Configuration { kind, chunk: scenario.chunk, peer: true })
    }));
    configurations.extend(BY_URGENCY.iter().filter_map(|(tokens, affinity)| {
        let scenario = Scenario { affinity: *affinity, chunk: Some(URGENT_CHUNK), ..Configuration::best()? };
        let kind = Kind::Headway { scenario, copy_engines: 2, tokens: *tokens, order: LockOrder::Urgency };
        Some(Configuration { kind, chunk: scenario.chunk, peer: true })
    }));
    let fewest = |chunk, peer| Configuration { kind: Kind::Fewest, chunk, peer };
    configurations.extend([fewest(None, true), fewest(Some(LESS), true), fewest(None, false)]);
    if all {
        // The others of the driver's.
        configurations.extend([fewest(Some(MORE), true), fewest(Some(LESS), false), fewest(Some(MORE), false)]);
    }
    configurations.push(Configuration { kind: Kind::Fixed, chunk: None, peer: true });
    configurations
}

/// Periods of `cameras` cameras, the paper's divided by `speedup`.
pub(super) fn periods(cameras: usize, speedup: u32) -> Vec<Nanos> {
    (0..cameras).map(|camera| Nanos(PERIODS[camera % PERIODS.len()] / u64::from(speedup.max(1)))).collect()
}

/// What a frame takes with nothing else on the GPU: medians of two short runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Alone {
    /// Kernels of the tracker.
    pub(super) tracker: Nanos,
    /// One pass over the additional state, without the start of a segment.
    pub(super) pass: Nanos,
    /// Rate of the additional copies, bytes per second.
    pub(super) bytes_per_s: u64,
}

/// The load of a frame for which every GPU's kernels take `busy_ppm` of the time, copies and CPU in the simulation's ratio.
pub(super) fn load(
    periods: &[Nanos],
    gpus: usize,
    busy_ppm: u64,
    segments: u32,
    alone: &Alone,
    state: u64,
) -> FrameLoad {
    let kernels = frame_kernels(periods, gpus, busy_ppm).0;
    let rest = kernels.saturating_sub(alone.tracker.0);
    let each = rest / u64::from(segments.max(1));
    let passes = u32::try_from(each.checked_div(alone.pass.0).unwrap_or(1)).unwrap_or(u32::MAX).max(1);
    let copies = scaled_bytes(kernels, SIMULATED_COPIES_NS, alone.bytes_per_s);
    FrameLoad { segments, cpu_ns: kernels, passes, input: copies * 2 / 3, output: copies / 3, state }
}

/// Kernel time of a frame for that share of every GPU.
pub(super) fn frame_kernels(periods: &[Nanos], gpus: usize, busy_ppm: u64) -> Nanos {
    let per_s: f64 = periods.iter().map(|period| 1e9 / period.0.max(1) as f64).sum();
    Nanos((busy_ppm as f64 / 1e6 * gpus as f64 / per_s.max(1e-9) * 1e9) as u64)
}

/// Bytes of additional state whose copy from the host takes the simulation's share of a frame.
pub(super) fn state_bytes(kernels: Nanos, bytes_per_s: u64) -> u64 {
    scaled_bytes(kernels.0, SIMULATED_STATE_NS, bytes_per_s).div_ceil(FrameLoad::UNIT) * FrameLoad::UNIT
}

fn scaled_bytes(kernels: u64, simulated: f64, bytes_per_s: u64) -> u64 {
    let time = kernels as f64 * simulated / SIMULATED_KERNELS_NS;
    (time * bytes_per_s as f64 / 1e9) as u64
}

/// Medians of runs with one and with `more` passes per segment; `None` if these took less than an eighth longer: so much can come
/// from anything, and a pass that seems to take no time would be made millions of times in each frame.
pub(super) fn alone(one: &[DoneJob], many: &[DoneJob], more: u32, load: &FrameLoad) -> Option<Alone> {
    let median = |frames: &[DoneJob], of: &dyn Fn(&DoneJob) -> u64| {
        let mut values: Vec<u64> = frames.iter().skip(2).map(of).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or(0)
    };
    let kernels = |frames| median(frames, &|frame: &DoneJob| frame.account.execute);
    let (few, lot) = (kernels(one), kernels(many));
    let longer = lot.checked_sub(few).filter(|longer| *longer > few / 8)?;
    let segments = u64::from(load.segments.max(1));
    let pass = Nanos((longer / (u64::from(more.max(2)) - 1) / segments).max(1));
    let copies = median(one, &|frame: &DoneJob| frame.account.copy).max(1);
    let bytes = u128::from(load.input + load.output) * 1_000_000_000 / u128::from(copies);
    let tracker = Nanos(few.saturating_sub(pass.0 * segments));
    Some(Alone { tracker, pass, bytes_per_s: u64::try_from(bytes).unwrap_or(u64::MAX).max(1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames with so much kernel time.
    fn frames(execute: [u64; 5]) -> Vec<DoneJob> {
        let frame = |execute| {
            let (gpu, from, account, digest) = (0, None, Default::default(), 0);
            let mut frame =
                DoneJob { job: 0, release: 0, start: 0, granted: 0, released: 0, done: 0, gpu, from, account, digest };
            (frame.account.copy, frame.account.execute) = (1_000, execute);
            frame
        };
        execute.into_iter().map(frame).collect()
    }

    #[test]
    fn a_pass_is_known_once_passes_take_an_eighth_longer() {
        let load = FrameLoad { segments: 3, cpu_ns: 0, passes: 1, input: 600, output: 400, state: FrameLoad::UNIT };
        let of =
            |many, more| alone(&frames([0, 0, 8_000, 8_200, 8_100]), &frames([0, 0, many, many, many]), more, &load);
        let known = Alone { tracker: Nanos(8_100 - 3 * 90), pass: Nanos(90), bytes_per_s: 1_000_000_000 };
        assert_eq!(of(8_100 + 8 * 3 * 90, 9), Some(known));
        assert_eq!(of(8_100 + 8_100 / 8, 9), None);
        assert_eq!(of(4_000, 9), None, "the shorter run was the disturbed one");
    }

    #[test]
    fn scenarios_and_baselines_have_names_of_their_own() {
        for (gpus, all, count, without) in [(4, false, 14, 4), (1, false, 13, 4), (4, true, 41, 7), (2, true, 41, 7)] {
            let configurations = configurations(gpus, all, false);
            let mut names: Vec<_> = configurations.iter().map(Configuration::name).collect();
            names.sort();
            names.dedup();
            assert_eq!((names.len(), configurations.len()), (count, count), "{names:?}");
            assert_eq!(configurations.iter().filter(|one| !one.is_managed()).count(), without);
            assert_eq!(configurations.iter().filter(|one| one.is_called("B0")).count(), 1);
            assert_eq!(configurations.iter().filter(|one| one.is_called("rho3")).count(), 1);
            for one in configurations {
                let arbiter = one.arbiter(gpus as u32, 16);
                assert_eq!(arbiter.is_some(), one.is_managed());
                if let Some(arbiter) = arbiter {
                    assert!(headway_core::decisions::sharing::Arbiter::new(arbiter).is_ok(), "{}", one.name());
                }
            }
        }
    }

    #[test]
    fn all_means_every_distinct_scenario_of_the_paper_once() {
        let code = |scenario: Scenario| scenario.to_string();
        let mut all: Vec<String> =
            configurations(2, true, false).iter().filter_map(Configuration::of_paper).map(code).collect();
        let mut paper: Vec<String> = Scenario::distinct().into_iter().map(code).collect();
        all.sort();
        paper.sort();
        assert_eq!((all.len(), all), (36, paper));
    }

    #[test]
    fn gpus_are_as_busy_by_default_as_in_the_simulation() {
        let busy = SIMULATED_KERNELS_NS * 140.0 / 4.0 / 1e9 * 1e6;
        assert!((busy - SIMULATED_BUSY_PPM as f64).abs() < 1_000.0, "{busy}");
    }

    #[test]
    fn the_load_keeps_the_ratios_of_the_simulation() {
        let periods = periods(5, 1);
        // 70 frames/s on one GPU at 70 %: 10 ms of kernels a frame.
        assert_eq!(frame_kernels(&periods, 1, 700_000), Nanos(10_000_000));
        let alone = Alone { tracker: Nanos(1_000_000), pass: Nanos(100_000), bytes_per_s: 50_000_000_000 };
        let load = load(&periods, 1, 700_000, 9, &alone, 1 << 20);
        assert_eq!((load.passes, load.cpu_ns), (10, 10_000_000));
        // 10 ms * 0.970788 / 21.6 = 449 us at 50 GB/s.
        assert!((22_000_000..22_900_000).contains(&(load.input + load.output)), "{load:?}");
        assert_eq!(state_bytes(Nanos(21_600_000), 1_000_000_000), 6_856_704);
    }
}
