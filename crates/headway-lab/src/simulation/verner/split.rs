//! The division of streams between the CPU and the GPUs.
//!
//! The CPU takes the streams inside a rectangle: deadline below `d*`, rate at most `r*`, since short deadlines force short
//! cycles on the GPUs. The rest goes to the GPUs, largest rate first onto the least loaded one. The rule of the authors'
//! rectangle method is in no text we have; this is ours.

use super::load::BlockLoad;
use super::site::{Site, classes_max, cycles};
use headway_core::interconnect::Starved;
use headway_core::plan::Strategy;
use headway_core::plan::stream::{Fluid, Rectangle};
use headway_core::units::{Nanos, PPM};

/// Quantiles of the rates that are tried as `r*`. Of the grid's rectangles with one `r*` only the largest that the CPU can
/// carry is looked at, its `d*` exact.
const QUANTILES: usize = 32;
/// Values of `r*` tried between the neighbours of the best one.
const REFINED: usize = 8;

/// Rectangles, those with the longest cycles, that are tried again with more than one class.
const RETRIED: usize = 2;

/// A sequence of streams with the orders in which divisions look at it.
#[derive(Clone, Debug)]
pub struct StreamPool {
    streams: Vec<Fluid>,
    /// Positions by (deadline, position).
    by_deadline: Vec<u32>,
    /// Positions by falling rate, then position.
    by_rate: Vec<u32>,
    /// Sums of the rates of all prefixes.
    rates: Vec<u64>,
}

impl StreamPool {
    /// A pool of these streams.
    #[must_use]
    pub fn new(streams: Vec<Fluid>) -> Self {
        let mut by_deadline: Vec<u32> = (0..streams.len() as u32).collect();
        let mut by_rate = by_deadline.clone();
        by_deadline.sort_by_key(|&at| (streams[at as usize].deadline, at));
        by_rate.sort_by_key(|&at| (std::cmp::Reverse(streams[at as usize].bits_per_second), at));
        let mut rates = vec![0];
        for stream in &streams {
            rates.push(rates[rates.len() - 1] + stream.bits_per_second);
        }
        Self { streams, by_deadline, by_rate, rates }
    }

    #[must_use]
    pub fn streams(&self) -> &[Fluid] {
        &self.streams
    }

    /// The sum of the rates of the first `count` streams, bits per second.
    ///
    /// # Panics
    /// If the pool has fewer.
    #[must_use]
    pub fn bits_per_second(&self, count: usize) -> u64 {
        self.rates[count]
    }
}

/// A division that a site accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// `d*`: on the CPU are streams with a deadline below it, or equal to it and a position before [`Split::position`].
    pub deadline: Nanos,
    /// Where streams with a deadline of exactly `d*` are divided.
    pub position: usize,
    /// `r*`: on the CPU are streams with at most this rate, bits per second.
    pub bits_per_second: u64,
    /// Streams on the CPU.
    pub on_cpu: usize,
    /// Their rates together, bits per second.
    pub cpu_bits_per_second: u64,
    /// What the GPUs carry.
    pub load: BlockLoad,
    /// The GPU of every stream, in order; `None` = CPU.
    pub gpus: Vec<Option<u32>>,
    /// The largest factor on all costs with which the GPUs' windows hold, parts per million.
    pub margin_ppm: u64,
}

/// The CPU's part.
#[derive(Clone, Copy, Debug)]
struct CpuDivision {
    inside: Rectangle,
    on_cpu: usize,
    cpu_bits_per_second: u64,
    /// The shortest deadline outside.
    shortest: Nanos,
}

/// A prefix of a pool in the two orders.
struct Prefix<'a> {
    streams: &'a [Fluid],
    by_deadline: Vec<(Fluid, u32)>,
    by_rate: Vec<(Fluid, u32)>,
    total: u64,
}

impl<'a> Prefix<'a> {
    fn new(pool: &'a StreamPool, count: usize) -> Self {
        let of = |order: &[u32]| {
            let inside = order.iter().filter(|at| (**at as usize) < count);
            inside.map(|&at| (pool.streams[at as usize], at)).collect()
        };
        let (by_deadline, by_rate) = (of(&pool.by_deadline), of(&pool.by_rate));
        Self { streams: &pool.streams[..count], by_deadline, by_rate, total: pool.rates[count] }
    }

    /// `r*` at `quantile` of `of`: the rates in ascending order, cut into equal counts.
    fn rate_at(&self, quantile: usize, of: usize) -> u64 {
        let count = self.streams.len();
        let rank = (count * quantile).div_ceil(of).clamp(1, count);
        self.by_rate[count - rank].0.bits_per_second
    }

    /// The rectangle with this `r*` that the CPU can just carry. Of all with the same `r*` it leaves the GPUs the fewest
    /// streams and the longest cycles.
    fn rectangle(&self, site: &Site, bits_per_second: u64) -> CpuDivision {
        let capacity = site.cpu().0.saturating_mul(8);
        let (mut on_cpu, mut sum, mut shortest) = (0, 0, None);
        for &(stream, position) in &self.by_deadline {
            if stream.bits_per_second > bits_per_second {
                shortest.get_or_insert(stream.deadline);
                continue;
            }
            if sum + stream.bits_per_second > capacity {
                let shortest = shortest.unwrap_or(stream.deadline);
                let inside = Rectangle { deadline: stream.deadline, position: position as usize, bits_per_second };
                return CpuDivision { inside, on_cpu, cpu_bits_per_second: sum, shortest };
            }
            sum += stream.bits_per_second;
            on_cpu += 1;
        }
        let inside = Rectangle { deadline: Nanos::MAX, position: u32::MAX as usize, bits_per_second };
        let shortest = shortest.unwrap_or(Nanos::MAX);
        CpuDivision { inside, on_cpu, cpu_bits_per_second: sum, shortest }
    }

    /// What a rectangle leaves to the GPUs, calling `placed` for every stream; `None` if a deadline is too short.
    fn place(
        &self,
        site: &Site,
        policy: Strategy,
        part: &CpuDivision,
        classes: u32,
        mut placed: impl FnMut(u32, usize),
    ) -> Option<BlockLoad> {
        let least = Nanos(part.shortest.0 / cycles(policy));
        if least == Nanos::ZERO {
            return None;
        }
        let mut load = BlockLoad::new(least, site.gpus(), classes);
        let mut rates = vec![0u64; site.gpus()];
        for &(stream, position) in &self.by_rate {
            if part.inside.has(position as usize, stream) {
                continue;
            }
            let gpu = (0..rates.len()).min_by_key(|&gpu| (rates[gpu], gpu)).expect("a site has a GPU");
            rates[gpu] += stream.bits_per_second;
            load.add(gpu, stream, Nanos(stream.deadline.0 / cycles(policy)));
            placed(position, gpu);
        }
        Some(load)
    }

    /// The values of `r*` that are tried, falling: the grid, then a finer one below its largest value, which leaves the
    /// longest cycles. Equal ones once.
    fn rates(&self) -> Vec<u64> {
        let fine = QUANTILES * REFINED;
        let grid = (1..=QUANTILES).rev().map(|quantile| self.rate_at(quantile, QUANTILES));
        let finer = (fine - REFINED..fine).rev().map(|quantile| self.rate_at(quantile, fine));
        let mut rates: Vec<u64> = grid.collect();
        for rate in finer {
            if !rates.contains(&rate) {
                rates.push(rate);
            }
        }
        rates.dedup();
        rates
    }

    /// The rectangles worth trying. With falling `r*` cycles get shorter; a rectangle that leaves the GPUs shorter cycles
    /// than another, no fewer bytes and no fewer streams (each fills up its last granule) cannot do better, but for how
    /// evenly it loads the GPUs.
    fn rectangles<'s>(&'s self, site: &'s Site) -> impl Iterator<Item = CpuDivision> + 's {
        let mut kept: Vec<CpuDivision> = Vec::new();
        self.rates().into_iter().filter_map(move |rate| {
            let new = self.rectangle(site, rate);
            let covers = |old: &CpuDivision| {
                old.shortest >= new.shortest
                    && old.cpu_bits_per_second >= new.cpu_bits_per_second
                    && old.on_cpu >= new.on_cpu
            };
            if kept.iter().any(covers) {
                return None;
            }
            kept.push(new);
            Some(new)
        })
    }

    /// The first rectangle and number of classes that pass.
    fn accepted(&self, site: &Site, policy: Strategy) -> Result<Option<(CpuDivision, u32)>, Starved> {
        // Placing by largest rate first leaves GPUs apart by one stream at most.
        let apart = self.rate_at(1, 1).saturating_mul(site.gpus() as u64);
        let could = |on_cpu: u64| site.could_carry(policy, self.total.saturating_sub(on_cpu).saturating_sub(apart));
        if !could(site.cpu().0.saturating_mul(8))? {
            return Ok(None);
        }
        let mut refused = Vec::new();
        for part in self.rectangles(site) {
            if part.on_cpu == self.streams.len() {
                return Ok(Some((part, 1)));
            }
            if could(part.cpu_bits_per_second)? {
                if self.holds(site, policy, &part, 1)? {
                    return Ok(Some((part, 1)));
                }
                refused.push(part);
            }
        }
        for classes in 2..=classes_max(policy) {
            for part in refused.iter().take(RETRIED) {
                if self.holds(site, policy, part, classes)? {
                    return Ok(Some((*part, classes)));
                }
            }
        }
        Ok(None)
    }

    fn holds(&self, site: &Site, policy: Strategy, part: &CpuDivision, classes: u32) -> Result<bool, Starved> {
        let load = self.place(site, policy, part, classes, |_, _| {});
        load.map_or(Ok(false), |load| site.accepts(policy, &load))
    }
}

fn passes(site: &Site, policy: Strategy, pool: &StreamPool, count: usize) -> Result<bool, Starved> {
    Ok(count == 0 || Prefix::new(pool, count).accepted(site, policy)?.is_some())
}

/// Where acceptance ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Border {
    /// Streams of the longest prefix accepted.
    pub streams: usize,
    /// Whether it is the whole pool: a longer one might be accepted too.
    pub whole_pool: bool,
}

/// The longest prefix of `pool` that can be divided: that prefix is accepted, and the one with `step` more streams is not.
///
/// Acceptance is nearly, not strictly, monotone; the border is the one that bisection finds, coming from above.
///
/// # Errors
/// [`Starved`] when a copy would get no rate.
pub fn longest_prefix(site: &Site, policy: Strategy, pool: &StreamPool, step: usize) -> Result<Border, Starved> {
    let (all, step) = (pool.streams.len(), step.max(1));
    let (mut low, mut high) = (0, all + 1);
    // First without set-ups and whole granules, which takes no look at streams.
    let fluid = |count: usize| {
        let largest = pool.by_rate.iter().find(|at| (**at as usize) < count);
        let apart = largest.map_or(0, |&at| pool.streams[at as usize].bits_per_second) * site.gpus() as u64;
        let rest = pool.rates[count].saturating_sub(site.cpu().0.saturating_mul(8)).saturating_sub(apart);
        site.could_carry(policy, rest)
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fluid(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    // Down from there in growing steps, until the border lies between `low`, accepted, and `high`, refused.
    let mut reach = step.max(high / 128);
    low = high - 1;
    while !passes(site, policy, pool, low)? {
        high = low;
        low = low.saturating_sub(reach);
        reach *= 2;
    }
    while high - low > step {
        let middle = low + (high - low) / 2;
        if passes(site, policy, pool, middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(Border { streams: low, whole_pool: low == all })
}

/// The division of the first `count` streams with the greatest margin; `None` if no rectangle passes.
///
/// # Errors
/// [`Starved`] when a copy would get no rate.
///
/// # Panics
/// If the pool has fewer streams.
pub fn best_split(site: &Site, policy: Strategy, pool: &StreamPool, count: usize) -> Result<Option<Split>, Starved> {
    if count == 0 {
        return Ok(None);
    }
    let prefix = Prefix::new(pool, count);
    let mut best: Option<(u64, CpuDivision, u32)> = None;
    for part in prefix.rectangles(site) {
        for classes in 1..=classes_max(policy) {
            let Some(load) = prefix.place(site, policy, &part, classes, |_, _| {}) else { continue };
            let margin = site.margin_ppm(policy, &load)?;
            if margin >= PPM && best.is_none_or(|(most, ..)| margin > most) {
                best = Some((margin, part, classes));
            }
        }
    }
    let Some((margin_ppm, part, classes)) = best else { return Ok(None) };
    let mut gpus = vec![None; count];
    let load = prefix.place(site, policy, &part, classes, |at, gpu| gpus[at as usize] = Some(gpu as u32));
    let load = load.expect("it was formed above");
    Ok(Some(Split {
        deadline: part.inside.deadline,
        position: part.inside.position,
        bits_per_second: part.inside.bits_per_second,
        on_cpu: part.on_cpu,
        cpu_bits_per_second: part.cpu_bits_per_second,
        load,
        gpus,
        margin_ppm,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_core::files::machine::shipped;
    use headway_core::units::Rate;

    fn site(cpu: u64) -> Site {
        let mut machine = shipped("verner-r2").unwrap();
        for capacity in &mut machine.capacities {
            capacity.rate = Rate(capacity.rate.0 / 200);
            capacity.rate_low = capacity.rate;
        }
        machine.kernels[0].rate = Rate(37_500_000);
        Site::new(&machine, "aes128-cbc", Rate(cpu)).unwrap()
    }

    /// Streams of the paper's ranges, from a small generator.
    fn pool(count: usize, mut state: u64) -> StreamPool {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % 1000
        };
        let stream = |(rate, deadline): (u64, u64)| Fluid {
            bits_per_second: 200_000 + rate * 5_800,
            deadline: Nanos(500_000 + deadline * deadline * 199),
        };
        StreamPool::new((0..count).map(|_| stream((next(), next()))).collect())
    }

    #[test]
    fn the_cpu_takes_short_deadlines_until_it_is_full() {
        let (site, pool) = (site(1_250_000), pool(60, 1));
        let split = best_split(&site, Strategy::Combined, &pool, 60).unwrap().expect("it is accepted");
        assert!(split.cpu_bits_per_second <= 10_000_000, "{}", split.cpu_bits_per_second);
        assert!(split.margin_ppm >= PPM);
        let on_cpu: Vec<usize> = (0..60).filter(|&at| split.gpus[at].is_none()).collect();
        assert_eq!(on_cpu.len(), split.on_cpu);
        for at in 0..60 {
            let stream = pool.streams()[at];
            let inside = stream.bits_per_second <= split.bits_per_second
                && (stream.deadline, at) < (split.deadline, split.position);
            assert_eq!(inside, on_cpu.contains(&at), "{stream:?} {split:?}");
        }
        let shortest = (0..60).filter(|at| !on_cpu.contains(at)).map(|at| pool.streams()[at].deadline.0 / 4).min();
        assert_eq!(shortest, Some(split.load.window.0));
    }

    #[test]
    fn equal_streams_are_divided_by_position() {
        let stream = Fluid { bits_per_second: 3_000_000, deadline: Nanos(100_000_000) };
        let pool = StreamPool::new(vec![stream; 50]);
        let split = best_split(&site(1_250_000), Strategy::Combined, &pool, 50).unwrap().unwrap();
        assert_eq!(split.on_cpu, 3);
        assert!(split.gpus[..3].iter().all(Option::is_none) && split.gpus[3..].iter().all(Option::is_some));
    }

    #[test]
    fn the_border_is_accepted_and_the_next_prefix_is_not() {
        for policy in crate::simulation::verner::STRATEGIES {
            let (site, pool) = (site(1_250_000), pool(400, 7));
            let border = longest_prefix(&site, policy, &pool, 1).unwrap();
            assert!(!border.whole_pool && border.streams > 20, "{policy:?} {border:?}");
            assert!(best_split(&site, policy, &pool, border.streams).unwrap().is_some(), "{policy:?}");
            assert!(best_split(&site, policy, &pool, border.streams + 1).unwrap().is_none(), "{policy:?}");
        }
        let few = pool(10, 7);
        let border = longest_prefix(&site(1_250_000), Strategy::Serial, &few, 1).unwrap();
        assert_eq!(border, Border { streams: 10, whole_pool: true });
    }

    /// Second opinion: every rectangle of a full 32 x 32 grid of quantiles, whatever it leaves on the CPU.
    #[test]
    fn no_rectangle_of_the_whole_grid_accepts_more_streams() {
        for seed in 0..6 {
            let (site, pool) = (site(1_250_000), pool(400, seed));
            let border = longest_prefix(&site, Strategy::Combined, &pool, 1).unwrap().streams;
            let prefix = Prefix::new(&pool, border + 2);
            for d in 1..=QUANTILES {
                for r in 1..=QUANTILES {
                    let (deadline, position) =
                        (prefix.by_deadline[(prefix.by_deadline.len() * d / QUANTILES) - 1].0.deadline, 0);
                    let bits_per_second = prefix.rate_at(r, QUANTILES);
                    let inside = Rectangle { deadline, position, bits_per_second };
                    let mut part = CpuDivision { inside, on_cpu: 0, cpu_bits_per_second: 0, shortest: Nanos::MAX };
                    for &(stream, at) in &prefix.by_deadline {
                        if inside.has(at as usize, stream) {
                            part.on_cpu += 1;
                            part.cpu_bits_per_second += stream.bits_per_second;
                        } else {
                            part.shortest = part.shortest.min(stream.deadline);
                        }
                    }
                    if part.cpu_bits_per_second <= site.cpu().0 * 8 {
                        assert!(!prefix.holds(&site, Strategy::Combined, &part, 1).unwrap(), "seed {seed}: {part:?}");
                    }
                }
            }
        }
    }
}
