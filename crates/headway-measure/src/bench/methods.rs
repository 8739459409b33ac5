//! Every method at every size, and `auto` among them.

use headway_core::models::transfer::{BackgroundLoad, Direction, HostMemory, Method};
use headway_core::units::{Bytes, Nanos};
use headway_runtime::copy::How;

use super::Bench;
use super::results::BenchRow;
use super::results::{AUTO, METHODS};
use crate::Error;
use crate::copy_timer::{CopySpec, CopyTimer};
use crate::curves::{measures, memories};
use crate::sample::Effort;
use crate::turns::Entrant;

/// Untouched pages take long: this size ends their comparison.
const FRESH_MAX: u64 = 1 << 30;

/// A row of one GPU, its figures still to be filled in.
pub(super) fn row(
    part: &'static str,
    method: &str,
    spec: &CopySpec,
    load: BackgroundLoad,
    cpu: Option<Nanos>,
    took: Option<String>,
) -> BenchRow {
    BenchRow {
        part,
        gpus: 1,
        method: method.to_owned(),
        direction: spec.direction,
        memory: spec.memory,
        load,
        bytes: Bytes(spec.bytes as u64),
        n: 0,
        min: Nanos::ZERO,
        p25: Nanos::ZERO,
        median: Nanos::ZERO,
        p75: Nanos::ZERO,
        p99: None,
        max: Nanos::ZERO,
        cpu,
        took,
    }
}

impl Bench<'_, '_> {
    /// The table of methods: every method, direction, memory and size.
    pub(super) fn table(&mut self, timer: &mut CopyTimer, methods: &[Method]) -> Result<(), Error> {
        let sizes: Vec<u64> =
            self.options.sizes().into_iter().filter(|size| *size as usize <= timer.bytes_max()).collect();
        self.session.phase("methods", 2 * sizes.len());
        for direction in [Direction::H2d, Direction::D2h] {
            for &bytes in &sizes {
                let mut entrants = Vec::new();
                for &method in methods.iter().filter(|method| measures(**method, direction, bytes)) {
                    for memory in memories(method, direction) {
                        entrants.push(entrant(
                            timer,
                            &method.to_string(),
                            How::By(method),
                            (direction, memory),
                            bytes,
                            false,
                        ));
                    }
                }
                self.turns(timer, entrants, METHODS, BackgroundLoad::Alone, self.options.effort(bytes))?;
                self.session.advance()?;
            }
        }
        Ok(())
    }

    /// `auto` against every single method, at powers of two.
    pub(super) fn automatic(&mut self, timer: &mut CopyTimer, methods: &[Method]) -> Result<(), Error> {
        let step = if self.options.quick { 2 } else { 1 };
        let sizes: Vec<u64> = match &self.options.sizes {
            Some(_) => self.options.sizes(),
            None => (0..=32).step_by(step).map(|exponent| 1 << exponent).collect(),
        };
        let sizes: Vec<u64> = sizes.into_iter().filter(|size| *size as usize <= timer.bytes_max()).collect();
        let situations = [
            (Direction::H2d, HostMemory::Touched),
            (Direction::D2h, HostMemory::Touched),
            (Direction::D2h, HostMemory::Untouched),
            (Direction::H2d, HostMemory::Pinned),
            (Direction::D2h, HostMemory::Pinned),
        ];
        self.session.phase("auto", situations.len() * sizes.len());
        for (direction, memory) in situations {
            for &bytes in &sizes {
                self.session.advance()?;
                if memory == HostMemory::Untouched && bytes > FRESH_MAX {
                    continue;
                }
                let here = (direction, memory);
                let mut entrants = vec![entrant(timer, "auto", How::Auto, here, bytes, true)];
                for &method in methods.iter().filter(|method| measures(**method, direction, bytes)) {
                    // `auto` has the device memory that it has: another window's is no choice of it.
                    if method.abilities().window && method.mapping() != timer.window(bytes as usize) {
                        continue;
                    }
                    let kinds = memories(method, direction);
                    // CPUs reach pinned memory like any other.
                    if kinds.contains(&memory) || (memory == HostMemory::Pinned && method.abilities().window) {
                        entrants.push(entrant(timer, &method.to_string(), How::By(method), here, bytes, true));
                    }
                }
                // There are many points, and turns compare well with few copies.
                let effort = self.options.effort(bytes);
                let effort = Effort { time: Nanos(effort.time.0 / 3), ..effort };
                self.turns(timer, entrants, AUTO, BackgroundLoad::Alone, effort)?;
            }
        }
        Ok(())
    }
}

/// One kind of copy. With `windowed`, device memory has a window wherever there is one for this size, so that every method can
/// be used; else only the methods that need one get it.
fn entrant(
    timer: &CopyTimer,
    name: &str,
    how: How,
    (direction, memory): (Direction, HostMemory),
    bytes: u64,
    windowed: bool,
) -> Entrant {
    let bytes = bytes as usize;
    let window = match how {
        How::By(method) if method.abilities().window => method.mapping(),
        _ if windowed => timer.window(bytes),
        _ => None,
    };
    let spec = CopySpec { how, direction, memory, bytes, window };
    Entrant::new(name.to_owned(), spec)
}
