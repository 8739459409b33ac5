//! What the CPU costs as a processor of streams: jobs handed to a thread as a run hands them out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headway_core::files::machine::{CpuCores, CpuCost, RATE_MIN};
use headway_core::plan::block;
use headway_core::units::{Bytes, Nanos, PPM, Rate};
use headway_device::buffer::Access;
use headway_device::work::Portion;
use headway_kernels::{self as kernels, Cipher};
use headway_os::affinity::{self, AffinityGuard};
use headway_os::clock;
use headway_runtime::cores::{Core, CoreJob, CoreMemory, CoreStage, Stages, apart, timed};
use serde::{Deserialize, Serialize};

use super::sample::{Effort, rate, series};
use crate::Error;

/// CPUs that never serve streams: the driver's, those of what feeds and empties, and one for the rest of the system.
const OTHERS: usize = 4;
/// The most cores that are offered: the driver hands out the jobs of all of them.
const CORES_MAX: usize = 8;

/// Taken off every rate for what else is on the memory's links in a run: copies of GPUs most of all.
const MARGIN_PPM: u64 = 150_000;
/// Bytes of the blocks that take turns on each core, and how many there are at most.
const COLD: usize = 24 << 20;
const BLOCKS_MAX: usize = 256;
/// Jobs on each core before those that a watch counts.
const WARM_UP: u32 = 100;

/// Jobs that the figures come from: portions and bytes of each. The first is the set-up, the second what portions add, the others what
/// bytes do: one long chain, as many as work in turns, and many short ones.
pub(super) const PROBES: [(usize, u64); 6] =
    [(1, 16), (256, 16), (1, 64 << 10), (8, 8 << 10), (256, 1 << 10), (1024, 1 << 10)];

/// A cost as the journal of a measurement keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cost {
    setup: Nanos,
    portion: Nanos,
    rate: u64,
}

/// Cores that may serve here: half of those that nobody else needs.
fn cores() -> u32 {
    let allowed = affinity::allowed().map_or(1, |cpus| cpus.len());
    (allowed.saturating_sub(OTHERS) / 2).clamp(1, CORES_MAX) as u32
}

/// The CPU with the costs of these kernels.
pub fn measured<'k>(ids: impl Iterator<Item = &'k str>, effort: Effort) -> Result<CpuCores, Error> {
    let watch = Watch { time: Nanos::ZERO, interrupt: &AtomicBool::new(false) };
    Ok(of(costs(ids, effort, &watch)?))
}

/// How long cores are watched for what rarely disturbs them, and what ends that early.
pub(super) struct Watch<'i> {
    pub(super) time: Nanos,
    pub(super) interrupt: &'i AtomicBool,
}

/// The costs of these kernels, with set-up times that cover what disturbed a core while it was watched.
pub(super) fn costs<'k>(
    ids: impl Iterator<Item = &'k str>,
    effort: Effort,
    watch: &Watch<'_>,
) -> Result<Vec<(String, Cost)>, Error> {
    let mut costs = Vec::new();
    for id in ids {
        costs.push((id.to_owned(), cost(id, effort)?));
    }
    if let Some((id, _)) = costs.first().filter(|_| watch.time > Nanos::ZERO) {
        let longest = watch.longest(id)?;
        disturb(&mut costs, longest);
    }
    Ok(costs)
}

/// Adds to every set-up time what the longest job of the first kernel took beyond its own: what disturbs a core has nothing to do
/// with the kernel that it runs.
fn disturb(costs: &mut [(String, Cost)], longest: Nanos) {
    let disturbance = costs.first().map_or(Nanos::ZERO, |(_, first)| longest.saturating_sub(first.setup));
    costs.iter_mut().for_each(|(_, cost)| cost.setup = cost.setup.saturating_add(disturbance));
}

impl Watch<'_> {
    /// The longest of the smallest jobs of kernel `id` on any core, all of them at work all the time.
    fn longest(&self, id: &str) -> Result<Nanos, Error> {
        Cores::start(id)?.slowest(0, |once| {
            for round in 0..WARM_UP {
                once(round)?;
            }
            let (mut longest, until) = (Nanos::ZERO, clock::now().saturating_add(self.time));
            for round in (0..u32::MAX).take_while(|_| clock::now() < until) {
                if self.interrupt.load(Ordering::Relaxed) {
                    return Err(headway::Failure::Interrupted.into());
                }
                longest = longest.max(once(round)?);
            }
            Ok(longest)
        })
    }
}

/// The CPU of these costs.
pub(super) fn of(costs: Vec<(String, Cost)>) -> CpuCores {
    let cost =
        |(id, cost): (String, Cost)| CpuCost { id, setup: cost.setup, portion: cost.portion, rate: Rate(cost.rate) };
    CpuCores { cores: cores(), assumed: false, kernels: costs.into_iter().map(cost).collect() }
}

/// The cost of kernel `id`, with as many cores at work at the same time as may serve: each probe counts with the time that 999 of
/// 1000 of its jobs keep, and the slowest rate of any.
fn cost(id: &str, effort: Effort) -> Result<Cost, Error> {
    let cores = Cores::start(id)?;
    let mut times = Vec::new();
    for number in 0..PROBES.len() {
        times.push(cores.slowest(number, |once| {
            let mut samples = series(effort, clock::now, once)?;
            samples.sort_unstable();
            Ok(samples[(samples.len() * 999).div_ceil(1000) - 1])
        })?);
    }
    let setup = times[0];
    let portion = Nanos(times[1].saturating_sub(setup).0.div_ceil(PROBES[1].0 as u64));
    let rates = PROBES.iter().zip(&times).skip(2).map(|(&(portions, bytes), time)| {
        let fixed = setup + Nanos(portion.0 * portions as u64);
        let total = bytes * portions as u64;
        // Less than a nanosecond for each kibibyte cannot be told from nothing.
        rate(Bytes(total), time.saturating_sub(fixed).max(Nanos(total >> 10)))
    });
    let slowest = rates.min().unwrap_or(RATE_MIN.0);
    let kept = u128::from(slowest) * u128::from(PPM - MARGIN_PPM) / u128::from(PPM);
    Ok(Cost { setup, portion, rate: (kept as u64).max(RATE_MIN.0) })
}

/// The cores that may serve, with the stages of one kernel.
struct Cores {
    all: Vec<Core>,
    /// Who hands out the jobs keeps off the cores, as the driver does.
    _aside: Option<AffinityGuard>,
}

impl Cores {
    fn start(id: &str) -> Result<Self, Error> {
        let count = cores() as usize;
        let own = apart(count);
        let aside = own.as_ref().and_then(|(_, others)| AffinityGuard::on(others));
        let mut all = Vec::new();
        for number in 0..count {
            let cpu = own.as_ref().map(|(own, _)| own[number]);
            all.push(Core::start(number as u32, stages(id)?, cpu, Arc::new(|| {}))?);
        }
        Ok(Self { all, _aside: aside })
    }

    /// What `figure` makes of jobs of probe `number`, on all cores at the same time: the longest counts.
    fn slowest(
        &self,
        number: usize,
        figure: impl Fn(&mut Once<'_>) -> Result<Nanos, Error> + Sync,
    ) -> Result<Nanos, Error> {
        let figure = &figure;
        let found = std::thread::scope(|scope| {
            let start = |core| scope.spawn(move || on_core(core, number, figure));
            let probes: Vec<_> = self.all.iter().map(start).collect();
            probes.into_iter().map(|probe| probe.join().expect("probes do not panic")).collect::<Result<Vec<_>, _>>()
        });
        Ok(found?.into_iter().max().unwrap_or_default())
    }
}

/// Runs one job, and gives the time from handing it out to noticing its end.
type Once<'o> = dyn FnMut(u32) -> Result<Nanos, Error> + 'o;

/// A stage of kernel `id` for every probe.
fn stages(id: &str) -> Result<Stages, Error> {
    let mut stages = Stages::new();
    for (number, (portions, _)) in (0u32..).zip(PROBES) {
        let parameters = Cipher { key: [7; 16], iv: [9; 16] }.parameters();
        let portion = Portion { stream: "probe".into(), parameters, item: 0 };
        let kernel = kernels::find(id).expect("the registry's own id");
        stages.insert((number, 0, 0), CoreStage::new(kernel, &vec![portion; portions])?);
    }
    Ok(stages)
}

/// What `figure` makes of jobs of probe `number` on `core`. Blocks take turns, so that none is in a cache.
fn on_core(core: &Core, number: usize, figure: impl Fn(&mut Once<'_>) -> Result<Nanos, Error>) -> Result<Nanos, Error> {
    let (portions, bytes) = PROBES[number];
    let lens = vec![bytes; portions];
    let size = block::block_bytes(lens.iter().copied()).0 as usize;
    let memory = CoreMemory::default();
    let mut blocks = Vec::new();
    for _ in 0..(COLD / size).clamp(1, BLOCKS_MAX) {
        let (input, output) = (memory.buffer(size)?, memory.buffer(size)?);
        let mut packed = input.claim(0..size, Access::Write)?;
        block::write_header(packed.bytes_mut()?, 0, &lens).expect("the buffer has `block_bytes` for these portions");
        drop(packed);
        blocks.push((input, output));
    }
    figure(&mut |round| {
        let (input, output) = &blocks[round as usize % blocks.len()];
        let (input, output) = (input.claim(0..size, Access::Read)?, output.claim(0..size, Access::Write)?);
        Ok(timed(core, CoreJob { tag: u64::from(round), stage: (number as u32, 0, 0), input, output })?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_a_cost_on_the_cpu_that_covers_its_probes() {
        let effort = Effort { warm_up: 1, n_min: 3, n_max: 3, time: Nanos(1) };
        let cpu = measured(kernels::ids(), effort).unwrap();
        assert!((1..=CORES_MAX as u32).contains(&cpu.cores) && !cpu.assumed);
        for id in kernels::ids() {
            let cost = cpu.kernel(id).unwrap();
            assert!(cost.rate.0 >= RATE_MIN.0 && cost.setup > Nanos::ZERO, "{cost:?}");
            assert!(cost.cost(Bytes(1 << 20), 8) > cost.cost(Bytes(1 << 10), 8));
        }
    }
    #[test]
    fn what_disturbs_one_kernel_is_added_to_all_and_a_short_time_takes_nothing_off() {
        let cost = |setup| Cost { setup: Nanos(setup), portion: Nanos(1), rate: 5 };
        let mut costs = [("a".to_owned(), cost(100)), ("b".to_owned(), cost(700))];
        disturb(&mut costs, Nanos(90));
        assert_eq!(costs[0].1, cost(100));
        disturb(&mut costs, Nanos(450));
        assert_eq!([costs[0].1, costs[1].1], [cost(450), cost(1050)]);
    }

    #[test]
    fn a_watch_ends_when_it_is_interrupted() {
        let effort = Effort { warm_up: 0, n_min: 1, n_max: 1, time: Nanos(1) };
        let watch = Watch { time: Nanos(u64::MAX), interrupt: &AtomicBool::new(true) };
        let ended = costs(kernels::ids().take(1), effort, &watch).map(drop);
        assert!(matches!(ended, Err(Error::Headway(headway::Failure::Interrupted))), "{ended:?}");
    }
}
