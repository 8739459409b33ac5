//! The benchmark in simulation: a node that differs from its description a little, and a little more from time to time, is
//! measured, fitted, and predicts random batches that it runs.

use headway_core::files::machine::{CapacityKind, Machine};
use headway_core::interconnect::fit::{FitError, NodeFacts};
use headway_core::interconnect::{Network, Scratch, Trial, validate};
use headway_core::units::{Nanos, PPM, Rate};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::{InterconnectBenchOptions, Ran, fresh, given};
use headway_measure::Error;
use headway_measure::batches::{BatchDraw, BatchTiming, Routes, TrialBlock};
use headway_measure::fit::Observed;
use headway_measure::links::MeasuredSetup;
use headway_measure::sets::{self, Rates, SetMemory, SetTransfer};

/// How far the node is from its description, in ppm: every capacity and set-up.
const AWAY: u64 = 30_000;
/// How far each repetition is from the node, in ppm: capacities only become less.
const NOISE: u64 = 10_000;
/// Repetitions of each set.
const SET_REPEATS: usize = 4;
/// Batches that the fitted machine is checked with.
const CHECKED: usize = 30;

/// A node in simulation.
struct Simulated {
    truth: Machine,
    random: Pcg64Mcg,
}

impl Simulated {
    fn new(described: &Machine, seed: u64) -> Self {
        let mut node = Self { truth: described.clone(), random: Pcg64Mcg::seed_from_u64(seed) };
        for at in 0..node.truth.capacities.len() {
            let factor = PPM - AWAY + node.below(2 * AWAY);
            scale(&mut node.truth, at, factor);
        }
        for at in 0..node.truth.routes.len() {
            let factor = PPM - 10 * AWAY + node.below(20 * AWAY);
            let route = &mut node.truth.routes[at];
            for time in [&mut route.setup, &mut route.setup_queued, &mut route.submit] {
                *time = Nanos(part(time.0, factor));
            }
            route.setup_queued = route.setup_queued.min(route.setup);
        }
        node
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.next_u64() % end.max(1)
    }

    /// The node as it is in one repetition.
    fn today(&mut self) -> Network {
        let mut machine = self.truth.clone();
        for at in 0..machine.capacities.len() {
            let factor = PPM - self.below(NOISE);
            scale(&mut machine, at, factor);
        }
        Network::new(&machine)
    }

    fn rates(&mut self, members: &[SetTransfer]) -> Result<Vec<u64>, Error> {
        let routes = Routes::of(&self.truth);
        let routes: Vec<_> = members.iter().map(|member| routes.route(*member)).collect::<Result<_, _>>()?;
        let (network, mut scratch) = (self.today(), Scratch::new());
        let shares = network.allocate(&routes, &mut scratch).map_err(FitError::from)?;
        Ok(shares.iter().map(|share| share.rate.0).collect())
    }

    fn run(&mut self, blocks: &[TrialBlock], repeats: usize) -> Result<Vec<BatchTiming>, Error> {
        let order = Routes::of(&self.truth).order(blocks)?;
        let calls = vec![Nanos::ZERO; blocks.len()];
        let once = |_| {
            let ends = self.today().completion(&order).map_err(FitError::from)?.blocks;
            Ok(BatchTiming { ends, calls: calls.clone() })
        };
        (0..repeats).map(once).collect()
    }

    /// What measuring it gives.
    fn observe(&mut self, sets: Vec<sets::Set>) -> Result<Observed, Error> {
        let mut rates = Vec::new();
        for set in &sets {
            let repeats: Result<_, Error> = (0..SET_REPEATS).map(|_| self.rates(&set.members)).collect();
            rates.push(Rates(repeats?));
        }
        let routes = Routes::of(&self.truth);
        let mut setups = Vec::new();
        for set in sets.iter().filter(|set| set.members.len() == 1) {
            let route = &self.truth.routes[routes.route(set.members[0])?.at()];
            let (idle, queued, submit) = (route.setup, route.setup_queued, route.submit);
            setups.push(MeasuredSetup { member: set.members[0], idle, queued, submit });
        }
        Ok(Observed { sets, rates, setups, jitter: Nanos::ZERO })
    }
}

/// `ppm` millionths of `value`.
fn part(value: u64, ppm: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(ppm) / u128::from(PPM)).unwrap_or(u64::MAX)
}

fn scale(machine: &mut Machine, at: usize, ppm: u64) {
    let capacity = &mut machine.capacities[at];
    capacity.rate = Rate(part(capacity.rate.0, ppm));
    capacity.rate_low = capacity.rate_low.min(capacity.rate);
    if let CapacityKind::Link { opposite: Some((_, both)), .. } = &mut capacity.kind {
        *both = Rate(part(both.0, ppm)).min(capacity.rate);
    }
}

/// The node that `options` describe.
pub(super) fn node(options: &InterconnectBenchOptions) -> Result<super::Node, Error> {
    let name = options.model.as_deref().unwrap_or("h200-x4");
    let described = given(name, options.gpus.map_or_else(|| gpus_of(name), Ok)?)?.machine;
    let count = described.gpus().count();
    let mut node = Simulated::new(&described, options.seed);
    let pairs = Routes::of(&described);
    let reaches = |from: usize, to: usize| from != to && pairs.route(SetTransfer::Peer(from, to)).is_ok();
    let room = SetMemory::of(options.largest.0 as usize);
    let known = match &options.machine {
        Some(name) => given(name, count)?,
        None => {
            let observed = node.observe(sets::sets(count, reaches))?;
            let about = NodeFacts {
                name: "interconnect".to_owned(),
                description: format!("{name}, in simulation, up to {} % different", AWAY / 10_000),
                endpoints: described.endpoints.clone(),
                setups: observed.host_setups(&described.gpus().collect::<Vec<_>>()),
                jitter: Nanos::ZERO,
                date: "none".to_owned(),
                driver: "none".to_owned(),
            };
            let mut machine = observed.fitted(&about, reaches)?;
            let mut draw = BatchDraw::new(!options.seed, count, reaches, room);
            let mut trials: Vec<Trial> = Vec::new();
            for _ in 0..CHECKED {
                let blocks = draw.batch();
                let took = node.run(&blocks, options.repeats)?;
                trials.push(Routes::of(&machine).trial(&blocks, &took)?);
            }
            validate(&mut machine, &trials).map_err(FitError::from)?;
            fresh(machine, observed)
        }
    };
    let mut draw = BatchDraw::new(options.seed, count, reaches, room);
    let repeats = options.repeats;
    let next = move || {
        let blocks = draw.batch();
        let took = node.run(&blocks, repeats)?;
        Ok(Ran { blocks, took })
    };
    let gpus = described.gpus().map(|gpu| described.endpoints[gpu.at()].id.clone()).collect();
    Ok(super::Node { source: "sim", gpus, known, next: Box::new(next) })
}

fn gpus_of(name: &str) -> Result<usize, Error> {
    Ok(headway::machine::open(name)?.gpus().count())
}
