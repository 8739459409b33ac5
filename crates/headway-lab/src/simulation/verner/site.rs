//! Whether a node carries a load of streams under a policy.

use super::load::{BlockLoad, GRANULE};
use headway_core::analysis::schedulability::{MARGIN_PPM_MAX, RecurrentTask, jeffay, margin_ppm};
use headway_core::files::machine::{Calibration, EndpointId, KernelCost, Machine, RouteId};
use headway_core::interconnect::{BatchBlock, Network, Starved};
use headway_core::plan::Strategy;
use headway_core::plan::combine::{CombineEffort, CombineError, CombineOptions, Counting, Priced, Pricer, transform};
use headway_core::plan::message::{Elementary, MessageSet};
use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos, Rate};

/// The strategies of `verner-2014` in the order of its figures.
pub const STRATEGIES: [Strategy; 5] =
    [Strategy::Generation, Strategy::Serial, Strategy::Lockstep, Strategy::Partitioned, Strategy::Combined];

/// Cycles of `strategy` from the arrival of a byte to the end of its last step, at most: gather, in, compute and out, or gather
/// and everything else.
pub(super) const fn cycles(strategy: Strategy) -> u64 {
    if matches!(strategy, Strategy::Generation) { 2 } else { 4 }
}

/// The most classes of cycles that `strategy` can use.
pub(super) const fn classes_max(strategy: Strategy) -> u32 {
    if matches!(strategy, Strategy::Generation | Strategy::Lockstep) { 1 } else { 4 }
}

/// A machine on which streams cannot be processed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SiteError {
    /// It has none.
    #[error("machine `{machine}` has no GPU; use one that has")]
    NoGpu { machine: String },
    /// No memory is connected both ways.
    #[error("machine `{machine}` has no routes from a memory to `{gpu}` and back")]
    NoRoute { machine: String, gpu: String },
    /// The kernel's cost is not known.
    #[error("machine `{machine}` has no cost of kernel `{kernel}` on `{gpu}`; add a `[[kernel]]` table")]
    NoKernel { machine: String, gpu: String, kernel: String },
    /// The machine gives a route no rate.
    #[error("a route has no rate")]
    Network(#[from] Starved),
}

struct Gpu {
    into: RouteId,
    out: RouteId,
    kernel: KernelCost,
}

/// Tasks by server; all servers must hold.
type Servers = Vec<Vec<RecurrentTask>>;

/// A node with its CPU, as the framework sees it.
pub struct Site {
    network: Network,
    calibration: Option<Calibration>,
    gpus: Vec<Gpu>,
    /// Engine sets of the copies: a server each, if engines work by themselves. By GPU: the server in, the server out.
    servers: Vec<(usize, usize)>,
    server_count: usize,
    /// Planned order of one block each way per GPU: (GPU, inwards).
    order: Vec<(usize, bool)>,
    /// Guaranteed rates with all copies under way, in and out by GPU.
    kept: Vec<(Rate, Rate)>,
    cpu: Rate,
    /// This site without set-up times: cheaper than anything that can run.
    lean: Option<Box<Self>>,
}

impl Site {
    /// A machine whose CPU processes `cpu` bytes per second and whose GPUs run `kernel`.
    ///
    /// # Errors
    /// [`SiteError`].
    pub fn new(machine: &Machine, kernel: &str, cpu: Rate) -> Result<Self, SiteError> {
        let mut lean = machine.clone();
        for route in &mut lean.routes {
            (route.setup, route.setup_queued) = (Nanos::ZERO, Nanos::ZERO);
        }
        lean.kernels.iter_mut().for_each(|kernel| kernel.setup = Nanos::ZERO);
        if let Some(calibration) = &mut lean.calibration {
            calibration.jitter = Nanos::ZERO;
        }
        let lean = Self::single(&lean, kernel, cpu)?;
        Ok(Self { lean: Some(Box::new(lean)), ..Self::single(machine, kernel, cpu)? })
    }

    fn single(machine: &Machine, kernel: &str, cpu: Rate) -> Result<Self, SiteError> {
        let network = Network::new(machine);
        let gpus = machine.gpus().map(|gpu| gpu_of(machine, gpu, kernel)).collect::<Result<Vec<_>, _>>()?;
        if gpus.is_empty() {
            return Err(SiteError::NoGpu { machine: machine.name.clone() });
        }
        let mut sets: Vec<&[headway_core::files::machine::EngineId]> = Vec::new();
        let mut server = |route: RouteId| {
            let engines = machine.routes[route.at()].engines.as_slice();
            sets.iter().position(|set| *set == engines).unwrap_or_else(|| {
                sets.push(engines);
                sets.len() - 1
            })
        };
        let servers = gpus.iter().map(|gpu| (server(gpu.into), server(gpu.out))).collect();
        let used: Vec<RouteId> = gpus.iter().flat_map(|gpu| [gpu.into, gpu.out]).collect();
        let kept = |route| network.guaranteed_rate(route, &used);
        let kept = gpus.iter().map(|gpu| Ok((kept(gpu.into)?, kept(gpu.out)?))).collect::<Result<_, Starved>>()?;
        let template: Vec<BatchBlock> = used.iter().map(|&route| BatchBlock { route, bytes: Bytes(1 << 24) }).collect();
        let order = network.best_order(&template)?.into_iter().map(|at| (at / 2, at % 2 == 0)).collect();
        let server_count = sets.len();
        let calibration = machine.calibration.clone();
        Ok(Self { network, calibration, gpus, servers, server_count, order, kept, cpu, lean: None })
    }

    /// The number of GPUs.
    #[must_use]
    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    /// Bytes per second that the CPU processes.
    #[must_use]
    pub const fn cpu(&self) -> Rate {
        self.cpu
    }

    /// The order in which blocks of one batch are submitted: the GPU, and whether the block goes to it.
    #[must_use]
    pub fn order(&self) -> &[(usize, bool)] {
        &self.order
    }

    /// Whether every window holds.
    ///
    /// # Errors
    /// [`Starved`] when a copy would get no rate.
    pub fn accepts(&self, policy: Strategy, load: &BlockLoad) -> Result<bool, Starved> {
        let holds = |servers: &Servers| servers.iter().all(|tasks| jeffay(tasks).is_schedulable());
        if !holds(&self.kernels(policy, load)) {
            return Ok(false);
        }
        Ok(self.transfers(policy, load)?.iter().any(holds))
    }

    /// The largest factor on all costs with which every window holds, parts per million.
    ///
    /// # Errors
    /// [`Starved`] when a copy would get no rate.
    pub fn margin_ppm(&self, policy: Strategy, load: &BlockLoad) -> Result<u64, Starved> {
        let margin = |servers: &Servers| servers.iter().map(|tasks| margin_ppm(tasks)).min().unwrap_or(MARGIN_PPM_MAX);
        let transfers = self.transfers(policy, load)?.iter().map(margin).max().unwrap_or(0);
        Ok(transfers.min(margin(&self.kernels(policy, load))))
    }

    /// Whether streams of `bits_per_second` in all could be carried if blocks were as large as their bytes, set-ups free
    /// and GPUs balanced: necessary for every division into GPUs and classes, where all GPUs are alike.
    pub(super) fn could_carry(&self, policy: Strategy, bits_per_second: u64) -> Result<bool, Starved> {
        let lean = self.lean.as_deref().unwrap_or(self);
        let each = Bytes(bits_per_second / 8 / lean.gpus.len() as u64);
        let mut load = BlockLoad::new(Nanos(NANOS_PER_SECOND), lean.gpus.len(), 1);
        load.blocks.iter_mut().for_each(|classes| classes[0] = each);
        lean.accepts(policy, &load)
    }

    /// Execution engines as servers; none where kernels are part of the generation.
    fn kernels(&self, policy: Strategy, load: &BlockLoad) -> Servers {
        if policy == Strategy::Generation {
            return Vec::new();
        }
        let of_gpu = |(gpu, own): (usize, &Gpu)| {
            let classes = (0..).zip(load.blocks[gpu].iter().zip(&load.chains[gpu]));
            let tasks = classes.filter(|(_, (block, _))| block.0 > 0);
            tasks.map(|(class, (&block, &chain))| whole(own.kernel.cost(block, chain), load.cycle(class))).collect()
        };
        self.gpus.iter().enumerate().map(of_gpu).collect()
    }

    /// The ways in which the policy can make the copies of a load, each as tasks by server.
    fn transfers(&self, policy: Strategy, load: &BlockLoad) -> Result<Vec<Servers>, Starved> {
        let classes = load.blocks.first().map_or(0, Vec::len);
        let all = |class| self.blocks(load, class, &|_, _| true);
        match policy {
            Strategy::Generation => {
                let moved = self.lockstep(load)?;
                let kernels = (0..self.gpus.len())
                    .map(|gpu| self.gpus[gpu].kernel.cost(load.blocks[gpu][0], load.chains[gpu][0]));
                let cost = moved.saturating_add(kernels.max().unwrap_or_default());
                Ok(vec![vec![vec![whole(cost, load.window)]]])
            }
            Strategy::Lockstep => Ok(vec![vec![vec![whole(self.lockstep(load)?, load.window)]]]),
            Strategy::Serial => {
                let mut tasks = Vec::new();
                for class in 0..classes {
                    for block in all(class) {
                        tasks.push(whole(self.batch(&[block])?, load.cycle(class)));
                    }
                }
                Ok(vec![vec![tasks]])
            }
            Strategy::Partitioned => Ok(vec![self.partitioned(load)]),
            Strategy::PerGpu => Ok(vec![self.per_gpu(load)]),
            Strategy::Combined => {
                let whole = self.combined(load, false)?;
                // Blocks that come less often may be split over the shortest cycles before they are combined (IV-B); Algorithm 1, which
                // looks at the sum of utilisations only, does not do so where it saves nothing.
                if classes > 1 {
                    Ok(vec![vec![whole], vec![self.combined(load, true)?]])
                } else {
                    Ok(vec![vec![whole]])
                }
            }
            // No way of the others is known here, so that nothing is accepted.
            _ => Ok(Vec::new()),
        }
    }

    /// The batches that Algorithm 1 (`verner-2014`, IV-C) makes of a message for each block, or for each part of a block that the
    /// shortest cycle takes: of all sets that it passes through the one with the least sum that passes the test, or the last one.
    fn combined(&self, load: &BlockLoad, in_parts: bool) -> Result<Vec<RecurrentTask>, Starved> {
        let mut elementary = Vec::new();
        for class in 0..load.blocks.first().map_or(0, Vec::len) {
            let halvings = if in_parts { class } else { 0 };
            for BatchBlock { route, bytes } in self.blocks(load, class, &|_, _| true) {
                let bytes = Bytes(bytes.0.div_ceil(GRANULE.0 << halvings) * GRANULE.0);
                let message = Elementary::periodic("block", route, bytes, load.cycle(class - halvings), Nanos::ZERO);
                elementary.push(Elementary { granule: GRANULE, ..message });
            }
        }
        let Ok(set) = MessageSet::new(elementary) else {
            // Cycles of hours, in which nobody waits for a stream.
            return Ok(vec![whole(Nanos::MAX, load.window)]);
        };
        let mut pricer = Pricer::new(&self.network, self.calibration.as_ref());
        let options = CombineOptions { mode: CombineEffort::Greedy, counting: Counting::Paper };
        match transform(&set, &mut pricer, options, &mut |tasks| jeffay(tasks).is_schedulable()) {
            Ok(found) => Ok(found.batches.iter().map(Priced::task).collect()),
            Err(CombineError::Price(starved)) => Err(starved),
            // A block that takes hours.
            Err(_) => Ok(vec![whole(Nanos::MAX, load.window)]),
        }
    }

    fn partitioned(&self, load: &BlockLoad) -> Servers {
        let mut servers = vec![Vec::new(); self.server_count];
        for (gpu, classes) in load.blocks.iter().enumerate() {
            let ((into, out), (rate_in, rate_out)) = (self.servers[gpu], self.kept[gpu]);
            let routes = [(into, rate_in, self.gpus[gpu].into), (out, rate_out, self.gpus[gpu].out)];
            for (class, &block) in classes.iter().enumerate().filter(|(_, block)| block.0 > 0) {
                for (server, rate, route) in routes {
                    let alone = self.network.setup(route).saturating_add(rate.time_for(block));
                    servers[server].push(whole(self.with_margin(alone), load.cycle(class)));
                }
            }
        }
        servers
    }

    /// The tasks of `partitioned`, with one server for each GPU.
    fn per_gpu(&self, load: &BlockLoad) -> Servers {
        let of_gpu = |gpu: usize| {
            let mut own = load.clone();
            own.blocks.iter_mut().enumerate().filter(|(other, _)| *other != gpu).for_each(|(_, classes)| {
                classes.fill(Bytes(0));
            });
            self.partitioned(&own).into_iter().flatten().collect()
        };
        (0..self.gpus.len()).map(of_gpu).collect()
    }

    /// One batch in and one batch out.
    fn lockstep(&self, load: &BlockLoad) -> Result<Nanos, Starved> {
        let batch = |inwards| self.batch(&self.blocks(load, 0, &|_, way| way == inwards));
        Ok(batch(true)?.saturating_add(batch(false)?))
    }

    /// The blocks of one class in the planned order, in whole granules.
    fn blocks(&self, load: &BlockLoad, class: usize, ways: &dyn Fn(usize, bool) -> bool) -> Vec<BatchBlock> {
        let order = self.order.iter().filter(|(gpu, inwards)| ways(*gpu, *inwards) && load.blocks[*gpu][class].0 > 0);
        let block = |&(gpu, inwards): &(usize, bool)| BatchBlock {
            route: if inwards { self.gpus[gpu].into } else { self.gpus[gpu].out },
            bytes: Bytes(load.blocks[gpu][class].0.next_multiple_of(GRANULE.0)),
        };
        order.map(block).collect()
    }

    fn batch(&self, blocks: &[BatchBlock]) -> Result<Nanos, Starved> {
        if blocks.is_empty() {
            return Ok(Nanos::ZERO);
        }
        Ok(self.network.wcet(blocks, self.calibration.as_ref())?.value)
    }

    fn with_margin(&self, cost: Nanos) -> Nanos {
        self.calibration.as_ref().map_or(cost, |calibration| calibration.with_margin(cost))
    }
}

fn whole(cost: Nanos, period: Nanos) -> RecurrentTask {
    RecurrentTask::whole(cost, period, period)
}

fn gpu_of(machine: &Machine, gpu: EndpointId, kernel: &str) -> Result<Gpu, SiteError> {
    let name = &machine.endpoints[gpu.at()].id;
    let ways = |memory| Some((machine.route(memory, gpu)?, machine.route(gpu, memory)?));
    let (into, out) = machine
        .memories()
        .find_map(ways)
        .ok_or_else(|| SiteError::NoRoute { machine: machine.name.clone(), gpu: name.clone() })?;
    let kernel = machine.kernel(kernel, gpu).ok_or_else(|| SiteError::NoKernel {
        machine: machine.name.clone(),
        gpu: name.clone(),
        kernel: kernel.to_owned(),
    })?;
    Ok(Gpu { into, out, kernel: kernel.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_core::files::machine::shipped;
    use headway_core::units::PPM;

    fn site(machine: &str) -> Site {
        Site::new(&shipped(machine).unwrap(), "aes128-cbc", Rate(250_000_000)).unwrap()
    }

    fn load(window: u64, blocks: [&[u64]; 2]) -> BlockLoad {
        let mut load = BlockLoad::new(Nanos(window), 2, blocks[0].len() as u32);
        load.blocks = blocks.iter().map(|classes| classes.iter().map(|&b| Bytes(b)).collect()).collect();
        load
    }

    /// The largest block on both GPUs in cycles of 10 ms, in bytes.
    fn largest(site: &Site, policy: Strategy) -> u64 {
        let (mut low, mut high) = (0, 1 << 30);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if site.accepts(policy, &load(10_000_000, [&[middle], &[middle]])).unwrap() {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    #[test]
    fn in_one_class_every_policy_carries_what_its_copies_leave_time_for() {
        // Four blocks of 8 GB/s one by one; two by two; all within 9.6 GB/s; in, kernel of 7.5 GB/s, out, one by one.
        for (machine, policy, seconds_per_byte) in [
            ("verner-r1", Strategy::Serial, 4.0 / 8e9),
            ("verner-r1", Strategy::Lockstep, 2.0 / 8e9),
            ("verner-r1", Strategy::Partitioned, 2.0 / 8e9),
            ("verner-r1", Strategy::Combined, 2.0 / 8e9),
            ("verner-r1", Strategy::Generation, 2.0 / 8e9 + 1.0 / 7.5e9),
            ("verner-r2", Strategy::Serial, 4.0 / 8e9),
            ("verner-r2", Strategy::Lockstep, 4.0 / 9.6e9),
            ("verner-r2", Strategy::Partitioned, 4.0 / 9.6e9),
            ("verner-r2", Strategy::Combined, 4.0 / 9.6e9),
            ("verner-r2", Strategy::Generation, 4.0 / 9.6e9 + 1.0 / 7.5e9),
        ] {
            let (found, expected) = (largest(&site(machine), policy) as f64, 0.01 / seconds_per_byte);
            assert!(
                found <= expected + 16.0 && found > expected * 0.9999 - 64.0,
                "{machine} {policy:?} {found} {expected}"
            );
        }
    }

    /// "Overlapping transfers in opposite directions for different GPUs gives the highest bandwidth" (`verner-2014`, V-B).
    #[test]
    fn where_a_limit_is_shared_by_direction_opposite_directions_of_different_gpus_move_together() {
        // Opposite directions 16 of 8 + 8 GB/s, or 14.3 in all; equal directions 9.6.
        for (machine, together) in [("verner-two-way", 16.0), ("verner-two-way-14", 14.3)] {
            let site = site(machine);
            let first = |gpu| site.order().iter().find(|(own, _)| *own == gpu).unwrap().1;
            assert_ne!(first(0), first(1), "{:?}", site.order());
            let lockstep = largest(&site, Strategy::Lockstep) as f64;
            let combined = largest(&site, Strategy::Combined) as f64;
            assert!((combined / lockstep - together / 9.6).abs() < 0.01, "{machine}: {combined} {lockstep}");
        }
    }

    /// Two batches, each of what goes into one GPU and what comes out of the other.
    #[test]
    fn algorithm_1_pairs_opposite_directions_of_different_gpus() {
        let site = site("verner-two-way");
        let load = load(10_000_000, [&[8_000_000], &[8_000_000]]);
        let tasks = site.combined(&load, false).unwrap();
        assert_eq!(tasks.iter().map(|task| task.cost).collect::<Vec<_>>(), [Nanos(1_000_000); 2]);
        // Two classes: what comes every 20 ms goes in halves with what comes every 10 ms, or by itself.
        let load = self::load(10_000_000, [&[8_000_000, 8_000_000], &[8_000_000, 8_000_000]]);
        let tasks = site.combined(&load, false).unwrap();
        let used: f64 = tasks.iter().map(|task| task.cost.0 as f64 / task.period.0 as f64).sum();
        assert!((used - 0.3).abs() < 1e-6, "{tasks:?}");
    }

    #[test]
    fn a_long_block_goes_in_parts_only_where_copies_are_combined() {
        // Class 3 has 6 ms of copies per GPU in its 8 ms, which would block the windows of 1 ms.
        let long = load(1_000_000, [&[16_000, 0, 0, 24_000_000], &[16_000, 0, 0, 24_000_000]]);
        let mut machine = shipped("verner-r1").unwrap();
        machine.kernels[0].rate = Rate(1_000_000_000_000);
        let site = Site::new(&machine, "aes128-cbc", Rate(1)).unwrap();
        assert!(site.accepts(Strategy::Combined, &long).unwrap());
        assert!(!site.accepts(Strategy::Partitioned, &long).unwrap());
        assert!(!site.accepts(Strategy::Serial, &long).unwrap());
    }

    #[test]
    fn a_kernel_that_blocks_short_windows_is_refused() {
        let long = load(1_000_000, [&[16_000, 0, 0, 24_000_000], &[16_000, 0, 0, 24_000_000]]);
        assert!(!site("verner-r1").accepts(Strategy::Combined, &long).unwrap());
    }

    #[test]
    fn the_margin_is_the_factor_by_which_costs_may_grow() {
        let half = load(10_000_000, [&[20_000_000], &[20_000_000]]);
        let margin = site("verner-r1").margin_ppm(Strategy::Combined, &half).unwrap();
        assert!(margin.abs_diff(2 * PPM) < PPM / 1000, "{margin}");
        assert!(site("verner-r1").margin_ppm(Strategy::Serial, &half).unwrap() <= PPM);
    }

    #[test]
    fn machines_without_gpu_route_or_kernel_are_refused_by_name() {
        let refused = |machine: &Machine, kernel| Site::new(machine, kernel, Rate(1)).err().unwrap().to_string();
        let machine = shipped("verner-r1").unwrap();
        assert!(refused(&machine, "klt").contains("no cost of kernel `klt` on `gpu0`"));
        let mut unconnected = machine.clone();
        unconnected.routes.clear();
        assert!(refused(&unconnected, "aes128-cbc").contains("no routes"));
        let mut empty = machine;
        empty.endpoints.truncate(1);
        assert!(refused(&empty, "aes128-cbc").contains("no GPU"));
    }
}
