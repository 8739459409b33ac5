//! The CPU from which copies are made while they are timed.
//!
//! A virtual machine shows one NUMA node where its CPUs are on several: a small copy takes a microsecond or two longer from some
//! of them, and a thread that moves in the middle of a measurement changes every figure behind it.

use std::fmt;

use headway_core::models::transfer::{Direction, HostMemory, Method};
use headway_core::units::Nanos;
use headway_device::DeviceSource;
use headway_os::affinity::{self, AffinityGuard};
use headway_runtime::copy::How;

use super::copy_timer::{CopySpec, CopyTimer};
use super::sample::SampleFigures;
use crate::Error;

/// CPUs that are tried at most, evenly spread.
const TRIED_MAX: usize = 64;
/// Copies from each, of which the first are not counted.
const COPIES: u32 = 40;
const WARM_UP: u32 = 8;
/// What is copied: the driver's call both ways.
const BYTES: usize = 64;

/// The calling thread stays on one CPU while this lives. Threads that it starts meanwhile stay there too.
pub struct CpuPin {
    _aside: AffinityGuard,
    found: CpuRanking,
}

/// What small copies take from each CPU that was tried, the best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuRanking(Vec<(Nanos, u32)>);

impl CpuPin {
    /// Has the calling thread stay on the CPU from which small copies by the driver take least; `None` where copies are
    /// emulated, or there is no choice.
    pub fn settle(timer: &mut CopyTimer) -> Result<Option<Self>, Error> {
        let Ok(all) = affinity::allowed() else { return Ok(None) };
        if timer.device().description().source != DeviceSource::Cuda || all.len() < 2 {
            return Ok(None);
        }
        // Threads that stage start now, for all GPUs, so that they may run wherever this thread may; where there can be none, the
        // copies that need them will say so.
        let _ = timer.copier().prepare();
        timer.copier().park()?;
        let Some(aside) = AffinityGuard::on(&all) else { return Ok(None) };
        let mut found = Vec::new();
        for cpu in all.iter().copied().step_by(all.len().div_ceil(TRIED_MAX)) {
            if affinity::restrict(&[cpu]).is_ok() {
                found.push((cost(timer)?, cpu));
            }
        }
        found.sort_unstable();
        let place = Self { _aside: aside, found: CpuRanking(found) };
        let Some((_, best)) = place.found.0.first() else { return Ok(None) };
        Ok(affinity::restrict(&[*best]).is_ok().then_some(place))
    }

    /// What was found.
    pub const fn found(&self) -> &CpuRanking {
        &self.found
    }
}

/// What a copy in and one out take together.
fn cost(timer: &mut CopyTimer) -> Result<Nanos, Error> {
    let mut sum = Nanos::ZERO;
    for direction in [Direction::H2d, Direction::D2h] {
        let spec = spec(Method::Pageable, direction, BYTES.min(timer.bytes_max()));
        let mut times = Vec::new();
        for turn in 0..COPIES {
            let timing = timer.time(&spec, turn)?;
            times.extend((turn >= WARM_UP).then_some(timing.done));
        }
        sum = sum.saturating_add(SampleFigures::of(&times).map_or(Nanos::ZERO, |figures| figures.median));
    }
    Ok(sum)
}

fn spec(method: Method, direction: Direction, bytes: usize) -> CopySpec {
    CopySpec { how: How::By(method), direction, memory: HostMemory::Touched, bytes, window: None }
}

impl fmt::Display for CpuRanking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some((least, best)), Some((most, worst))) = (self.0.first(), self.0.last()) else { return Ok(()) };
        write!(
            f,
            "Copies are asked for from CPU {best}, from where the driver takes {least} for {BYTES} B in and {BYTES} B out; from \
             CPU {worst} it takes {most} (all, in order:"
        )?;
        self.0.iter().try_for_each(|(time, cpu)| write!(f, " {cpu}: {time};"))?;
        f.write_str(").")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_and_the_worst_place_are_told() {
        let found = CpuRanking(vec![(Nanos(14_000), 3), (Nanos(15_000), 0), (Nanos(16_500), 7)]);
        let expected = "Copies are asked for from CPU 3, from where the driver takes 14 us for 64 B in and 64 B out; from CPU 7 \
                        it takes 16.5 us (all, in order: 3: 14 us; 0: 15 us; 7: 16.5 us;).";
        assert_eq!(found.to_string(), expected);
    }
}
