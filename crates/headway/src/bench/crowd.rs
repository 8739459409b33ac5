//! Several GPUs: all at once, and one over the links of all.

use headway_core::machine::Method;
use headway_core::transfer::{Direction, HostMemory, Load, Way};
use headway_core::units::{Bytes, Nanos};
use headway_runtime::copy::How;

use super::Bench;
use super::results::Row;
use super::targets::{MULTIPATH, TOGETHER, TOGETHER_HUGE};
use super::ways;
use crate::Error;
use crate::measure::curves::{measures, memories, volley};
use crate::measure::rig::{Rig, Shot, Wish};
use crate::measure::sample::Figures;

/// What each GPU copies when all copy at once.
const EACH: usize = 1 << 30;
const EACH_QUICK: usize = 256 << 20;

impl Bench<'_, '_> {
    /// All GPUs at once: the driver's call, pinned memory, and `auto`; without and with huge pages.
    pub(super) fn together(&mut self) -> Result<(), Error> {
        let most = if self.options.quick { EACH_QUICK } else { EACH };
        let bytes_max = most.min(self.bytes_max());
        let gpus = self.copier.ports().len();
        let hows = [
            ("pageable", HostMemory::Warm, How::By(Way::of(Method::Pageable))),
            ("dma", HostMemory::Pinned, How::By(Way::of(Method::Dma))),
            ("auto", HostMemory::Warm, How::Auto),
        ];
        self.session.phase("together", 2 * 2 * hows.len());
        for (part, huge_pages) in [(TOGETHER, false), (TOGETHER_HUGE, true)] {
            let mut rigs = Vec::new();
            for gpu in 0..gpus {
                rigs.push(Rig::new(&self.copier, gpu, Wish { bytes_max, pinned: true, huge_pages })?);
            }
            for direction in [Direction::H2d, Direction::D2h] {
                for (name, memory, how) in hows {
                    let shot = Shot { how, direction, memory, bytes: bytes_max, window: None };
                    let (mut cpu, mut took) = (Vec::new(), None);
                    let figures = self.session.series(part, self.effort(bytes_max as u64), |turn| {
                        let timings = volley(&mut rigs, &shot, turn)?;
                        if turn == 0 {
                            rigs.iter_mut().try_for_each(Rig::compare)?;
                        }
                        // Each thread saw the whole process's CPU time.
                        cpu.extend(timings.iter().filter_map(|timing| timing.cpu).max());
                        took = timings.first().map(|timing| timing.way);
                        Ok(timings.iter().map(|timing| timing.done).max().unwrap_or_default())
                    })?;
                    rigs.iter_mut().try_for_each(Rig::compare)?;
                    let took = took.filter(|_| how == How::Auto).map(|way| way.to_string());
                    let cpu = Figures::of(&cpu).map(|figures| figures.median);
                    let row = ways::row(part, name, &shot, Load::Alone, cpu, took).with(figures);
                    self.rows.push(Row { gpus, bytes: Bytes((bytes_max * gpus) as u64), ..row });
                    self.session.advance()?;
                }
            }
        }
        Ok(())
    }

    /// One GPU over the links of all, beside its own link only.
    pub(super) fn multipath(&mut self, rig: &mut Rig, usable: &[Way]) -> Result<(), Error> {
        let way = Way::of(Method::Multipath);
        let bytes = rig.bytes_max();
        if !usable.contains(&way) || !measures(way, Direction::H2d, bytes as u64) {
            return Ok(());
        }
        let gpus = self.copier.ports().len();
        self.session.phase("multipath", 5 * 2);
        for direction in [Direction::H2d, Direction::D2h] {
            for memory in memories(way, direction) {
                let alone = if memory == HostMemory::Pinned { Method::Dma } else { Method::Staged };
                for (method, gpus) in [(Method::Multipath, gpus), (alone, 1)] {
                    let how = How::By(Way::of(method));
                    let shot = Shot { how, direction, memory, bytes, window: None };
                    let mut cpu = Vec::new();
                    let figures = self.session.series(MULTIPATH, self.effort(bytes as u64), |turn| {
                        let timing = rig.shoot(&shot, turn)?;
                        if turn == 0 {
                            rig.compare()?;
                        }
                        cpu.extend(timing.cpu);
                        Ok::<Nanos, Error>(timing.done)
                    })?;
                    rig.compare()?;
                    let cpu = Figures::of(&cpu).map(|figures| figures.median);
                    let row = ways::row(MULTIPATH, method.word(), &shot, Load::Alone, cpu, None).with(figures);
                    self.rows.push(Row { gpus, ..row });
                    self.session.advance()?;
                }
            }
        }
        Ok(())
    }
}
