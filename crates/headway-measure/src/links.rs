//! Rates and set-up times of a node, from measured sets, small batches and curves, put into its machine.

use headway_core::files::machine::{Machine, RATE_MIN};
use headway_core::models::transfer::{BackgroundLoad, CurveKey, Direction, HostMemory, Method, Profile};
use headway_core::units::{Bytes, Nanos, Rate};

use super::batches::{Bed, Lazy, TrialBlock};
use super::node::part;
use super::sample::rate;
use super::session::Session;
use super::sets::{PAGE, Rates, Set, SetMemory, SetTransfer};
use crate::Error;

/// Sizes of the copies whose times give the set-up.
const SIZES: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Copies that are submitted together, of which all but the first wait behind another.
const BURST: usize = 6;

/// Set-up times of one transfer: on an idle engine and behind another operation, and of the thread that submits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredSetup {
    pub member: SetTransfer,
    pub idle: Nanos,
    pub queued: Nanos,
    pub submit: Nanos,
}

/// Measures, for every transfer, what one copy and what several in a row take beyond their bytes at the transfer's rate
/// alone: the median over several sizes, each the median of `repeats` times.
pub fn setups(
    session: &mut Session<'_>,
    bed: &mut Lazy<'_>,
    (sets, rates): (&[Set], &[Rates]),
    repeats: usize,
) -> Result<Vec<MeasuredSetup>, Error> {
    let alone: Vec<(SetTransfer, Rate)> = sets.iter().zip(rates).filter_map(alone).collect();
    session.phase("set-up", alone.len());
    let SetMemory { largest, arena } = bed.room();
    let fits = |bytes: &usize| *bytes <= largest && bytes * BURST <= arena;
    let mut sizes: Vec<usize> = SIZES.into_iter().filter(fits).collect();
    if sizes.is_empty() {
        sizes.push(largest.min(PAGE));
    }
    let calls = session.step("submissions", |_| bed.get().and_then(|bed| submissions(bed, sizes[0], repeats)))?;
    let mut found = Vec::new();
    for (member, rate) in alone {
        let mut all = [Vec::new(), Vec::new(), Vec::new()];
        for &bytes in &sizes {
            let key = format!("set-up {member:?} {bytes}");
            let [one, burst, call] =
                session.step(&key, |_| bed.get().and_then(|bed| times(bed, TrialBlock { member, bytes }, repeats)))?;
            let moving = rate.time_for(Bytes(bytes as u64));
            let each = Nanos(burst.saturating_sub(one).0 / (BURST as u64 - 1));
            all[0].push(one.saturating_sub(moving));
            all[1].push(each.saturating_sub(moving));
            all[2].push(call);
        }
        // To an engine of its own a copy takes longer to submit than behind one that was just submitted.
        all[2].extend(calls.iter().filter(|(other, _)| *other == member).map(|(_, call)| *call));
        let [idle, queued] = [median(all[0].clone()), median(all[1].clone())];
        let submit = all[2].iter().copied().max().unwrap_or_default();
        found.push(MeasuredSetup { member, idle, queued: queued.min(idle), submit: submit.min(idle) });
        session.advance()?;
    }
    Ok(found)
}

/// The transfer of a set that has only one, with its median rate.
fn alone((set, rates): (&Set, &Rates)) -> Option<(SetTransfer, Rate)> {
    let [member] = set.members[..] else { return None };
    let mut found: Vec<u64> = rates.0.iter().filter_map(|rates| rates.first().copied()).collect();
    found.sort_unstable();
    Some((member, Rate(found.get(found.len().saturating_sub(1) / 2).copied()?).max(RATE_MIN)))
}

/// Medians: one copy, several in a row, one call that submits behind another copy.
fn times(bed: &mut Bed, block: TrialBlock, repeats: usize) -> Result<[Nanos; 3], Error> {
    let ends = |took: &super::batches::BatchTiming| took.ends.iter().copied().max().unwrap_or_default();
    let one = bed.repeat(&[block], repeats)?;
    let burst = bed.repeat(&[block; BURST], repeats)?;
    let calls = burst.iter().flat_map(|took| took.calls[1..].iter().copied()).collect();
    Ok([median(one.iter().map(ends).collect()), median(burst.iter().map(ends).collect()), median(calls)])
}

/// The median time to submit each transfer when every engine is given one copy, the first call not counted.
fn submissions(bed: &mut Bed, bytes: usize, repeats: usize) -> Result<Vec<(SetTransfer, Nanos)>, Error> {
    let host = (0..bed.gpus.len()).flat_map(|gpu| [SetTransfer::H2d(gpu), SetTransfer::D2h(gpu)]);
    let mut order: Vec<TrialBlock> = host.map(|member| TrialBlock { member, bytes }).collect();
    let mut calls = vec![Vec::new(); order.len()];
    for turn in 0..2 {
        for took in bed.repeat(&order, repeats)? {
            for (at, call) in took.calls.into_iter().enumerate().skip(1) {
                calls[if turn == 0 { at } else { order.len() - 1 - at }].push(call);
            }
        }
        order.reverse();
    }
    Ok(order.iter().map(|block| block.member).zip(calls.into_iter().map(median)).collect())
}

/// The lower median; zero of nothing.
pub(super) fn median<T: Ord + Copy + Default>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// Puts what the curves say of the driver's copies of ordinary memory into links and routes.
pub fn put_curves(machine: &mut Machine, profile: &Profile) {
    let gpus: Vec<_> = machine.gpus().collect();
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let mut total_in = 0u64;
    for (gpu, &id) in gpus.iter().enumerate() {
        for direction in [Direction::H2d, Direction::D2h] {
            let key = |active| CurveKey {
                gpu: id,
                peer: None,
                method: Method::Pageable,
                direction,
                memory: HostMemory::Touched,
                load: BackgroundLoad::Alone,
                active,
                pieces: 1,
            };
            let Some(curve) = profile.curves.get(&key(1)) else { continue };
            let of =
                |point: &headway_core::models::transfer::CurvePoint| rate(point.bytes, point.median).max(RATE_MIN.0);
            // Below this size it is set-up that counts.
            let long: Vec<_> = curve.points().iter().filter(|point| point.bytes.0 >= 4 << 20).collect();
            let Some(last) = curve.points().last() else { continue };
            let fast = long.iter().map(|point| of(point)).max().unwrap_or_else(|| of(last));
            let slow = long.iter().map(|point| of(point)).min().unwrap_or(fast);
            let name = part(gpu, if direction == Direction::H2d { "driver-in" } else { "driver-out" });
            put_rate(machine, &name, fast, slow);
            let small = curve.points().iter().filter(|point| (4 << 10..=16 << 20).contains(&point.bytes.0));
            let setup = small.map(|point| point.median.saturating_sub(Rate(slow).time_for(point.bytes))).max();
            let engine = part(gpu, direction.word());
            for route in machine.routes.iter_mut().filter(|route| route.method == Method::Pageable) {
                if route.engines.iter().any(|engine_id| machine.engines[engine_id.at()].id == engine) {
                    (route.setup, route.setup_queued) = (setup.unwrap_or_default(), setup.unwrap_or_default());
                }
            }
            if direction == Direction::H2d {
                let many = profile.curves.get(&key(count)).and_then(|curve| curve.points().last());
                total_in = total_in.saturating_add(many.map_or(fast, of));
            }
        }
    }
    if total_in > 0 {
        put_rate(machine, "driver.in", total_in, total_in);
    }
}

fn put_rate(machine: &mut Machine, link: &str, rate: u64, rate_low: u64) {
    if let Some(capacity) = machine.capacities.iter_mut().find(|capacity| capacity.id == link) {
        (capacity.rate, capacity.rate_low) = (Rate(rate), Rate(rate_low.min(rate)));
    }
}
