//! The links and limits of a node from rates measured while copies of pinned memory ran together (specification of messages,
//! 1.5).
//!
//! The model has, for each GPU and direction, a link with its rate alone and the rate while the other direction runs; what
//! all GPUs share on the way to host memory, `io`, of which a byte out takes a fitted share; what writes to host memory share,
//! `write`; and the weights by which directions divide a full limit. Where sets still fall short, limits of one direction or of
//! some GPUs (a switch, a socket) are tried and kept if they explain it; what stays shows as residuals, and the margin grows
//! with it.

mod search;

use std::collections::{BTreeMap, BTreeSet};

use self::search::{Shared, search};
use crate::files::machine::{
    Calibration, Capacity, CapacityId, CapacityKind, Endpoint, EndpointId, EndpointKind, Engine, EngineClass, EngineId,
    Machine, MeasuredSet, RATE_MIN, Route, RouteId,
};
use crate::interconnect::{BatchBlock, Network, Scratch, Starved};
use crate::models::transfer::{Direction, Method};
use crate::units::{Bytes, NANOS_PER_SECOND, Nanos, PPM, Rate};

/// Margin below which none goes: statistics of few sets.
const MARGIN_MIN_PPM: u64 = 10_000;
/// Weight of the direction that gets more of a full limit.
const WEIGHT: u32 = 1_000;

/// One repetition of one set of copies that ran at the same time, all of them all the while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The copies; each GPU and direction at most once.
    pub transfers: Vec<(EndpointId, Direction)>,
    /// The rate of each.
    pub rates: Vec<Rate>,
}

/// Engine time of a copy with no byte moving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySetup {
    /// On an idle engine.
    pub idle: Nanos,
    /// Behind another copy.
    pub queued: Nanos,
    /// Time of the thread that submits it.
    pub submit: Nanos,
}

/// What is known of the node beside the samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Name of the machine.
    pub name: String,
    /// One line on what it is.
    pub description: String,
    /// Memories, then GPUs.
    pub endpoints: Vec<Endpoint>,
    /// Set-up of copies of each GPU in each direction.
    pub setups: BTreeMap<(EndpointId, Direction), CopySetup>,
    /// Submission to start plus completion to noticed, at most.
    pub jitter: Nanos,
    /// When the samples were taken.
    pub date: String,
    /// Version of the driver.
    pub driver: String,
}

/// Samples from which no machine can be fitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// There is no memory among the endpoints.
    #[error("the node has no memory; list its memories before its GPUs")]
    NoMemory,
    /// A copy has no rate of its own, or a rate no copy.
    #[error("sample {sample} has {transfers} copies and {rates} rates; give one rate for each copy")]
    Shape {
        /// Position of the sample.
        sample: usize,
        transfers: usize,
        rates: usize,
    },
    /// A copy is not between host memory and a GPU, or is there twice.
    #[error("sample {sample} has `{endpoint}` {direction} twice, or it is no copy between a host and a GPU")]
    Copy {
        /// Position of the sample.
        sample: usize,
        /// The endpoint's name, or its number if there is none.
        endpoint: String,
        direction: Direction,
    },
    /// A rate is too low for the model.
    #[error("sample {sample} has a rate of {rate}, below {RATE_MIN}; measure larger copies")]
    Slow {
        /// Position of the sample.
        sample: usize,
        rate: Rate,
    },
    /// No sample has the copy alone.
    #[error("`{gpu}` {direction} was never measured alone; add a sample with this copy only")]
    NotAlone { gpu: String, direction: Direction },
    /// No set-up was given.
    #[error("`{gpu}` {direction} has no set-up time; measure small copies")]
    NoSetup { gpu: String, direction: Direction },
    /// The fitted model leaves a copy without a share.
    #[error(transparent)]
    Starved(#[from] Starved),
}

/// One set with all its repetitions, copies in order.
#[derive(Clone, Debug)]
struct Set {
    transfers: Vec<(EndpointId, Direction)>,
    /// For each copy its rates, ascending.
    rates: Vec<Vec<Rate>>,
    /// For each repetition the rates of all copies.
    repeats: Vec<Vec<Rate>>,
}

impl Set {
    fn median(&self, at: usize) -> Rate {
        self.rates[at][(self.rates[at].len() - 1) / 2]
    }

    /// Sum of the medians of one direction.
    fn total(&self, direction: Direction) -> u64 {
        let of = |at: usize| if self.transfers[at].1 == direction { self.median(at).0 } else { 0 };
        (0..self.transfers.len()).map(of).fold(0, u64::saturating_add)
    }
}

/// Rates of one GPU in one direction by itself.
#[derive(Clone, Copy, Debug)]
struct Own {
    rate: Rate,
    low: Rate,
    both: Rate,
}

type Links = BTreeMap<(EndpointId, Direction), Own>;

/// Fits a machine with the endpoints of `node`, links, engines and routes between host memory and each GPU, and a
/// calibration. Its hash is empty; copies between GPUs, kernels and the profile are left to the caller.
///
/// Several samples of the same copies are repetitions. A limit is kept only if the squared error falls by a twentieth with it.
/// `margin_ppm` is 1.25 times the largest excess of the model's rate over a measured one, at least 1 %.
///
/// # Errors
/// [`FitError`] names the sample or the GPU.
pub fn fit(node: &NodeFacts, samples: &[Sample]) -> Result<Machine, FitError> {
    let sets = sets(node, samples)?;
    let links = links(node, &sets)?;
    let shared = search(&sets, |shared| {
        let machine = build(node, &links, shared)?;
        predict(&machine, &sets)
    })?;
    let mut machine = build(node, &links, &shared)?;
    lower_limits(&mut machine, &sets)?;
    machine.calibration = Some(calibrate(node, &machine, &sets)?);
    machine.sets = sets.iter().filter(|set| set.transfers.len() > 1).map(|set| measured(&machine, set)).collect();
    Ok(machine)
}

/// The samples checked and grouped by their copies.
fn sets(node: &NodeFacts, samples: &[Sample]) -> Result<Vec<Set>, FitError> {
    let mut groups: BTreeMap<Vec<(EndpointId, Direction)>, Vec<Vec<Rate>>> = BTreeMap::new();
    for (sample, Sample { transfers, rates }) in samples.iter().enumerate() {
        if transfers.len() != rates.len() {
            return Err(FitError::Shape { sample, transfers: transfers.len(), rates: rates.len() });
        }
        let mut seen = BTreeSet::new();
        for &(gpu, direction) in transfers {
            let known = node.endpoints.get(gpu.at());
            let fits = known.is_some_and(|e| e.kind == EndpointKind::Gpu) && direction != Direction::Peer;
            if !fits || !seen.insert((gpu, direction)) {
                let endpoint = known.map_or_else(|| gpu.0.to_string(), |e| e.id.clone());
                return Err(FitError::Copy { sample, endpoint, direction });
            }
        }
        if let Some(&rate) = rates.iter().find(|rate| **rate < RATE_MIN) {
            return Err(FitError::Slow { sample, rate });
        }
        let mut order: Vec<usize> = (0..transfers.len()).collect();
        order.sort_by_key(|at| transfers[*at]);
        let key = order.iter().map(|at| transfers[*at]).collect();
        groups.entry(key).or_default().push(order.iter().map(|at| rates[*at]).collect());
    }
    groups.remove(&Vec::new());
    let set = |(transfers, repeats): (Vec<_>, Vec<Vec<Rate>>)| {
        let of = |at: usize| {
            let mut rates: Vec<Rate> = repeats.iter().map(|rates| rates[at]).collect();
            rates.sort_unstable();
            rates
        };
        Set { rates: (0..transfers.len()).map(of).collect(), transfers, repeats }
    };
    Ok(groups.into_iter().map(set).collect())
}

/// What each GPU does by itself: alone, and with both directions at once.
fn links(node: &NodeFacts, sets: &[Set]) -> Result<Links, FitError> {
    let find = |copies: &[(EndpointId, Direction)]| sets.iter().find(|set| set.transfers == copies);
    let mut links = Links::new();
    for (gpu, endpoint) in (0..).map(EndpointId).zip(&node.endpoints).filter(|(_, e)| e.kind == EndpointKind::Gpu) {
        let directions = [Direction::H2d, Direction::D2h];
        let both = find(&directions.map(|direction| (gpu, direction)));
        for (at, direction) in directions.into_iter().enumerate() {
            let missing = || FitError::NotAlone { gpu: endpoint.id.clone(), direction };
            let alone = find(&[(gpu, direction)]).ok_or_else(missing)?;
            let rate = alone.median(0);
            let both = both.map_or(rate, |set| set.median(at).min(rate));
            links.insert((gpu, direction), Own { rate, low: alone.rates[0][0], both });
        }
    }
    Ok(links)
}

/// The machine with these links and shared limits.
fn build(node: &NodeFacts, links: &Links, shared: &Shared) -> Result<Machine, FitError> {
    let mut machine = Machine {
        name: node.name.clone(),
        description: node.description.clone(),
        endpoints: node.endpoints.clone(),
        hash: String::new(),
        ..Machine::none()
    };
    for (at, (&(gpu, direction), own)) in (0..).zip(links) {
        let host = memory_of(node, gpu).ok_or(FitError::NoMemory)?;
        let id = |end: EndpointId| node.endpoints[end.at()].id.as_str();
        let (from, to) = if direction == Direction::H2d { (host, gpu) } else { (gpu, host) };
        // Links are in pairs: in, out.
        let opposite = Some((CapacityId(at ^ 1), own.both));
        machine.capacities.push(Capacity {
            id: format!("{}.{}", id(gpu), if direction == Direction::H2d { "in" } else { "out" }),
            rate: own.rate,
            rate_low: own.low,
            kind: CapacityKind::Link { from: id(from).to_owned(), to: id(to).to_owned(), opposite },
        });
        let missing = || FitError::NoSetup { gpu: id(gpu).to_owned(), direction };
        let setup = node.setups.get(&(gpu, direction)).ok_or_else(missing)?;
        machine.routes.push(Route {
            from,
            to,
            method: Method::Dma,
            engines: vec![EngineId(machine.engines.len() as u32)],
            uses: vec![(CapacityId(at), PPM as u32)],
            weight: shared.weight(direction),
            setup: setup.idle,
            setup_queued: setup.queued,
            submit: setup.submit,
        });
        let classes = match direction {
            Direction::H2d => &[EngineClass::H2d][..],
            Direction::D2h | Direction::Peer => &[EngineClass::D2h, EngineClass::Ee],
        };
        machine.engines.extend(classes.iter().map(|class| engine(id(gpu), gpu, *class)));
    }
    for shared in shared.limits() {
        let (name, gpus, rate) = (shared.name, shared.gpus, shared.rate);
        let limit = CapacityId(machine.capacities.len() as u32);
        let all = node.endpoints.iter().filter(|end| end.kind == EndpointKind::Gpu).count();
        let some = gpus.filter(|gpus| gpus.len() < all).into_iter().flatten();
        let names: Vec<&str> = some.map(|gpu| node.endpoints[gpu.at()].id.as_str()).collect();
        let id = if names.is_empty() { name.to_owned() } else { format!("{name}.{}", names.join("-")) };
        machine.capacities.push(Capacity { id, rate, rate_low: rate, kind: CapacityKind::Limit });
        for (route, (gpu, direction)) in machine.routes.iter_mut().zip(links.keys()) {
            let use_ppm = shared.uses(*gpu, *direction);
            route.uses.extend((use_ppm > 0).then_some((limit, use_ppm)));
        }
    }
    Ok(machine)
}

fn engine(gpu_id: &str, gpu: EndpointId, class: EngineClass) -> Engine {
    let word = match class {
        EngineClass::H2d => "h2d",
        EngineClass::D2h => "d2h",
        EngineClass::Peer => "peer",
        EngineClass::Ee => "ee",
    };
    Engine { id: format!("{gpu_id}.{word}"), gpu, serves: vec![class], parallel: 1 }
}

/// The memory on the GPU's NUMA node, else the first.
fn memory_of(node: &NodeFacts, gpu: EndpointId) -> Option<EndpointId> {
    let memories = || (0..).zip(&node.endpoints).filter(|(_, e)| e.kind == EndpointKind::Memory);
    let numa = node.endpoints[gpu.at()].numa;
    let near = memories().find(|(_, e)| numa.is_some() && e.numa == numa);
    near.or_else(|| memories().next()).map(|(at, _)| EndpointId(at))
}

fn routes_of(machine: &Machine, set: &Set) -> Vec<RouteId> {
    let route = |&(gpu, direction): &(EndpointId, Direction)| {
        let ends = |r: &Route| if direction == Direction::H2d { r.to == gpu } else { r.from == gpu };
        let at = machine.routes.iter().position(ends).expect("every copy of a set has a link, hence a route");
        RouteId(at as u32)
    };
    set.transfers.iter().map(route).collect()
}

/// `set` as the machine keeps it.
fn measured(machine: &Machine, set: &Set) -> MeasuredSet {
    let medians = (0..set.transfers.len()).map(|at| set.median(at));
    let mut copies: Vec<(RouteId, Rate)> = routes_of(machine, set).into_iter().zip(medians).collect();
    copies.sort_unstable();
    let (routes, rates) = copies.into_iter().unzip();
    MeasuredSet { routes, rates }
}

/// For each set the rates that the model gives its copies.
fn predict(machine: &Machine, sets: &[Set]) -> Result<Vec<Vec<Rate>>, FitError> {
    let (network, mut scratch) = (Network::new(machine), Scratch::new());
    let rates = |set| {
        let mut rates = Vec::new();
        network.rates(&routes_of(machine, set), &mut scratch, &mut rates)?;
        Ok(rates)
    };
    sets.iter().map(rates).collect()
}

/// Lowers `rate_low` of each limit to the least that the sets it limits ever got of it.
fn lower_limits(machine: &mut Machine, sets: &[Set]) -> Result<(), FitError> {
    let (network, mut scratch) = (Network::new(machine), Scratch::new());
    for set in sets {
        let routes = routes_of(machine, set);
        let by: BTreeSet<CapacityId> =
            network.allocate(&routes, &mut scratch)?.iter().map(|share| share.limited_by).collect();
        for limit in by {
            if machine.capacities[limit.at()].kind != CapacityKind::Limit {
                continue;
            }
            let used = |(route, rate): (&RouteId, &Rate)| {
                let uses = &machine.routes[route.at()].uses;
                let ppm = uses.iter().find(|(id, _)| *id == limit).map_or(0, |(_, ppm)| *ppm);
                u128::from(rate.0) * u128::from(ppm) / u128::from(PPM)
            };
            let sums = set.repeats.iter().map(|rates| routes.iter().zip(rates).map(used).sum::<u128>());
            let least = sums.min().and_then(|sum| u64::try_from(sum).ok()).map(Rate);
            let capacity = &mut machine.capacities[limit.at()];
            capacity.rate_low = least.unwrap_or(capacity.rate).clamp(RATE_MIN, capacity.rate_low);
        }
    }
    Ok(())
}

/// `|a - b| / b` in ppm.
fn off_ppm(a: Rate, b: Rate) -> u64 {
    let off = u128::from(a.0.abs_diff(b.0)) * u128::from(PPM) / u128::from(b.0.max(1));
    u64::try_from(off).unwrap_or(u64::MAX)
}

fn calibrate(node: &NodeFacts, machine: &Machine, sets: &[Set]) -> Result<Calibration, FitError> {
    const LARGEST_PPM: u64 = 100 * PPM;
    let (mut off, mut sigma_ppm) = (Vec::new(), PPM);
    for (set, model) in sets.iter().zip(predict(machine, sets)?) {
        off.push(model.iter().enumerate().map(|(at, model)| off_ppm(set.median(at), *model)).max().unwrap_or(0));
        for rates in &set.rates {
            let (slowest, fastest) = (rates[0], rates[rates.len() - 1]);
            sigma_ppm = sigma_ppm.max(off_ppm(fastest, slowest).saturating_add(PPM));
        }
    }
    off.sort_unstable();
    let quantile =
        |percent: usize| off.get((off.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0);
    let repeats = sets.iter().map(|set| set.repeats.len()).min().unwrap_or(0);
    let mut calibration = Calibration {
        sets: u32::try_from(sets.len()).unwrap_or(u32::MAX),
        repeats: u32::try_from(repeats).unwrap_or(u32::MAX),
        batches: 0,
        sigma_ppm: sigma_ppm.min(LARGEST_PPM),
        margin_ppm: 0,
        jitter: Nanos::ZERO,
        median_ppm: quantile(50).min(LARGEST_PPM),
        p95_ppm: quantile(95).min(LARGEST_PPM),
        max_ppm: quantile(100).min(LARGEST_PPM),
        date: node.date.clone(),
        driver: node.driver.clone(),
        driver_watch: None,
        chunk_watch: BTreeMap::new(),
    };
    let excess = excess_ppm(machine, sets, &calibration)?;
    calibration.margin_ppm = excess.saturating_add(excess.div_ceil(4)).clamp(MARGIN_MIN_PPM, LARGEST_PPM);
    calibration.jitter = node.jitter;
    Ok(calibration)
}

/// By how much any repetition of any set took longer than the bound, in ppm: as a batch, of what each transfer moved in it.
fn excess_ppm(machine: &Machine, sets: &[Set], bare: &Calibration) -> Result<u64, FitError> {
    const TOOK: Nanos = Nanos(NANOS_PER_SECOND / 10);
    let (network, mut excess) = (Network::new(machine), 0);
    for set in sets {
        let routes = routes_of(machine, set);
        for rates in &set.repeats {
            let blocks = routes.iter().zip(rates).map(|(&route, rate)| BatchBlock { route, bytes: Bytes(rate.0 / 10) });
            let bound = network.wcet(&blocks.collect::<Vec<_>>(), Some(bare))?.value;
            let longer = u128::from(TOOK.0.saturating_sub(bound.0)) * u128::from(PPM) / u128::from(bound.0.max(1));
            excess = excess.max(u64::try_from(longer).unwrap_or(u64::MAX));
        }
    }
    Ok(excess)
}

#[cfg(test)]
mod tests;
