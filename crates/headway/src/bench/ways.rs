//! Every way at every size, one after the other and in turns.

use headway_core::transfer::{Direction, HostMemory, Load, Way};
use headway_core::units::{Bytes, Nanos};
use headway_os::clock;
use headway_runtime::copy::How;

use super::Bench;
use super::results::Row;
use super::targets::{AUTO, WAYS};
use crate::Error;
use crate::measure::curves::{COMPARED_MAX, measures, memories, needs_window, window_of};
use crate::measure::rig::{Rig, Shot};
use crate::measure::sample::{Effort, Figures};

/// Fresh pages take long: this size ends their comparison.
const FRESH_MAX: u64 = 1 << 30;

/// One of several kinds of copies that are made in turns, and what they took.
struct Entrant {
    name: String,
    shot: Shot,
    times: Vec<Nanos>,
    cpu: Vec<Nanos>,
    took: Option<Way>,
}

impl Entrant {
    fn row(&self, part: &'static str, load: Load) -> Option<Row> {
        let cpu = Figures::of(&self.cpu).map(|figures| figures.median);
        let took = self.took.filter(|_| self.shot.how == How::Auto).map(|way| way.to_string());
        Figures::of(&self.times).map(|figures| row(part, &self.name, &self.shot, load, cpu, took).with(figures))
    }
}

/// A row of one GPU, its figures still to be filled in.
pub(super) fn row(
    part: &'static str,
    way: &str,
    shot: &Shot,
    load: Load,
    cpu: Option<Nanos>,
    took: Option<String>,
) -> Row {
    Row {
        part,
        gpus: 1,
        way: way.to_owned(),
        direction: shot.direction,
        memory: shot.memory,
        load,
        bytes: Bytes(shot.bytes as u64),
        n: 0,
        median: Nanos::ZERO,
        p99: Nanos::ZERO,
        max: Nanos::ZERO,
        cpu,
        took,
    }
}

impl Bench<'_, '_> {
    /// The table of ways: every way, direction, memory and size.
    pub(super) fn table(&mut self, rig: &mut Rig, ways: &[Way]) -> Result<(), Error> {
        let sizes: Vec<u64> = self.sizes().into_iter().filter(|size| *size as usize <= rig.bytes_max()).collect();
        self.session.phase("ways", 2 * sizes.len());
        for direction in [Direction::H2d, Direction::D2h] {
            for &bytes in &sizes {
                let mut entrants = Vec::new();
                for &way in ways.iter().filter(|way| measures(**way, direction, bytes)) {
                    for memory in memories(way, direction) {
                        entrants.push(entrant(rig, &way.to_string(), How::By(way), (direction, memory), bytes, false));
                    }
                }
                self.turns(rig, entrants, WAYS, Load::Alone, self.effort(bytes))?;
                self.session.advance()?;
            }
        }
        Ok(())
    }

    /// `auto` against every single way, at powers of two.
    pub(super) fn automatic(&mut self, rig: &mut Rig, ways: &[Way]) -> Result<(), Error> {
        let step = if self.options.quick { 2 } else { 1 };
        let sizes: Vec<u64> = match &self.options.sizes {
            Some(_) => self.sizes(),
            None => (0..=32).step_by(step).map(|exponent| 1 << exponent).collect(),
        };
        let sizes: Vec<u64> = sizes.into_iter().filter(|size| *size as usize <= rig.bytes_max()).collect();
        let situations = [
            (Direction::H2d, HostMemory::Warm),
            (Direction::D2h, HostMemory::Warm),
            (Direction::D2h, HostMemory::Fresh),
            (Direction::H2d, HostMemory::Pinned),
            (Direction::D2h, HostMemory::Pinned),
        ];
        self.session.phase("auto", situations.len() * sizes.len());
        for (direction, memory) in situations {
            for &bytes in &sizes {
                self.session.advance()?;
                if memory == HostMemory::Fresh && bytes > FRESH_MAX {
                    continue;
                }
                let here = (direction, memory);
                let mut entrants = vec![entrant(rig, "auto", How::Auto, here, bytes, true)];
                for &way in ways.iter().filter(|way| measures(**way, direction, bytes)) {
                    // `auto` has the device memory that it has: another window's is no choice of it.
                    if needs_window(way) && window_of(way) != rig.window(bytes as usize) {
                        continue;
                    }
                    let kinds = memories(way, direction);
                    // CPUs reach pinned memory like any other.
                    if kinds.contains(&memory) || (memory == HostMemory::Pinned && needs_window(way)) {
                        entrants.push(entrant(rig, &way.to_string(), How::By(way), here, bytes, true));
                    }
                }
                // There are many points, and turns compare well with few copies.
                let effort = self.effort(bytes);
                let effort = Effort { time: Nanos(effort.time.0 / 3), ..effort };
                self.turns(rig, entrants, AUTO, Load::Alone, effort)?;
            }
        }
        Ok(())
    }

    /// Makes the copies in turns, so that what changes with time changes all of them, and adds their rows. A way that fails
    /// is left out with a warning.
    fn turns(
        &mut self,
        rig: &mut Rig,
        mut entrants: Vec<Entrant>,
        part: &'static str,
        load: Load,
        effort: Effort,
    ) -> Result<(), Error> {
        let until = clock::now().saturating_add(Nanos(effort.time.0.saturating_mul(entrants.len() as u64)));
        let mut failed: Vec<usize> = Vec::new();
        for turn in 0..effort.warm_up + effort.n_max {
            if turn >= effort.warm_up.min(1) + effort.n_min && clock::now() >= until {
                break;
            }
            // A slow thing is not warmed up for ever.
            let counts = turn >= effort.warm_up || (turn > 0 && clock::now() >= until);
            // Each begins a turn as often as the others: who comes first, or behind a certain other, may have it harder.
            let count = entrants.len();
            for at in (0..count).map(|place| (place + turn as usize) % count) {
                if failed.contains(&at) {
                    continue;
                }
                let entrant = &mut entrants[at];
                let compares = turn == 0 || entrant.shot.bytes <= COMPARED_MAX;
                let made = rig
                    .shoot(&entrant.shot, turn)
                    .and_then(|timing| if compares { rig.compare().map(|()| timing) } else { Ok(timing) });
                match made {
                    Ok(timing) if counts => {
                        entrant.times.push(timing.done);
                        entrant.cpu.extend(timing.cpu);
                        entrant.took = Some(timing.way);
                    }
                    Ok(_) => {}
                    Err(error @ (Error::Copy(_) | Error::WrongCopy { .. })) => {
                        let size = entrant.shot.bytes;
                        self.session.warnings.push(format!("{} is left out at {size} bytes: {error}", entrant.name));
                        failed.push(at);
                    }
                    Err(error) => return Err(error),
                }
            }
            self.session.go_on()?;
        }
        rig.compare()?;
        let kept = entrants.iter().enumerate().filter(|(at, _)| !failed.contains(at));
        self.rows.extend(kept.filter_map(|(_, entrant)| entrant.row(part, load)));
        Ok(())
    }
}

/// One kind of copy. With `windowed`, device memory has a window wherever there is one for this size, so that every way can
/// be used; else only the ways that need one get it.
fn entrant(
    rig: &Rig,
    name: &str,
    how: How,
    (direction, memory): (Direction, HostMemory),
    bytes: u64,
    windowed: bool,
) -> Entrant {
    let bytes = bytes as usize;
    let window = match how {
        How::By(way) if needs_window(way) => window_of(way),
        _ if windowed => rig.window(bytes),
        _ => None,
    };
    let shot = Shot { how, direction, memory, bytes, window };
    Entrant { name: name.to_owned(), shot, times: Vec::new(), cpu: Vec::new(), took: None }
}
