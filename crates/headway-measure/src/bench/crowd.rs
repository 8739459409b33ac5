//! Several GPUs: all at once, and one over the links of all.

use std::sync::Arc;

use headway_core::models::transfer::{BackgroundLoad, Direction, HostMemory, Method};
use headway_core::units::{Bytes, Nanos};
use headway_runtime::copy::{Copier, How};

use super::Bench;
use super::methods;
use super::results::BenchRow;
use super::results::{MULTIPATH, TOGETHER, TOGETHER_HUGE};
use crate::Error;
use crate::copy_timer::{CopySpec, CopyTimer, TimerOptions};
use crate::curves::{measures, memories};
use crate::sample::{Effort, SampleFigures};
use crate::timer_threads;

/// What each GPU copies when all copy at once: so long that beginning and end count little.
const EACH: usize = 1 << 30;

impl Bench<'_, '_> {
    /// All GPUs at once: the driver's call, pinned memory, and `auto`; without and with huge pages.
    pub(super) fn concurrent(&mut self) -> Result<(), Error> {
        let bytes_max = EACH.min(self.bytes_max());
        let gpus = self.copier.gpus().len();
        let hows = [
            ("pageable", HostMemory::Touched, How::By(Method::Pageable)),
            ("dma", HostMemory::Pinned, How::By(Method::Dma)),
            ("auto", HostMemory::Touched, How::Auto),
        ];
        if let Err(error) = self.copier.prepare() {
            self.session.warnings.push(format!("copies of all GPUs at once are not staged: {error}"));
        }
        self.session.phase("together", 2 * 2 * hows.len());
        for (part, huge_pages) in [(TOGETHER, false), (TOGETHER_HUGE, true)] {
            let mut timers = timers(&self.copier, TimerOptions { bytes_max, pinned: true, huge_pages })?;
            for direction in [Direction::H2d, Direction::D2h] {
                for (name, memory, how) in hows {
                    let spec = CopySpec { how, direction, memory, bytes: bytes_max, window: None };
                    let (mut cpu, mut took) = (Vec::new(), None);
                    let effort = self.effort_of_many();
                    let figures = timer_threads::with(&mut timers, &spec, |threads| {
                        let figures = self.session.series(part, effort, |turn| {
                            let timings = threads.time(turn)?;
                            if turn == 0 {
                                threads.compare()?;
                            }
                            // Each thread saw the whole process's CPU time.
                            cpu.extend(timings.iter().filter_map(|timing| timing.cpu).max());
                            took = timings.first().map(|timing| timing.method);
                            Ok(timings.iter().map(|timing| timing.done).max().unwrap_or_default())
                        })?;
                        threads.compare()?;
                        Ok(figures)
                    })?;
                    let took = took.filter(|_| how == How::Auto).map(|method| method.to_string());
                    let cpu = SampleFigures::of(&cpu).map(|figures| figures.median);
                    let row = methods::row(part, name, &spec, BackgroundLoad::Alone, cpu, took).with(figures);
                    self.rows.push(BenchRow { gpus, bytes: Bytes((bytes_max * gpus) as u64), ..row });
                    self.session.advance()?;
                }
            }
        }
        Ok(())
    }

    /// How often copies over several links are made. The first are not counted: they find out that the others copy too, and wake
    /// up threads that have slept since the part before.
    const fn effort_of_many(&self) -> Effort {
        let n_min = if self.options.quick { 5 } else { 9 };
        Effort { warm_up: 3, n_min, n_max: 30, time: Nanos(if self.options.quick { 50 } else { 500 } * 1_000_000) }
    }

    /// One GPU over the links of all, beside its own link only.
    pub(super) fn multipath(&mut self, timer: &mut CopyTimer, usable: &[Method]) -> Result<(), Error> {
        let method = Method::Multipath;
        let bytes = timer.bytes_max();
        if !usable.contains(&method) || !measures(method, Direction::H2d, bytes as u64) {
            return Ok(());
        }
        let gpus = self.copier.gpus().len();
        self.session.phase("multipath", 5 * 2);
        for direction in [Direction::H2d, Direction::D2h] {
            for memory in memories(method, direction) {
                let alone = if memory == HostMemory::Pinned { Method::Dma } else { Method::Staged };
                for (method, gpus) in [(Method::Multipath, gpus), (alone, 1)] {
                    let how = How::By(method);
                    let spec = CopySpec { how, direction, memory, bytes, window: None };
                    let mut cpu = Vec::new();
                    let figures = self.session.series(MULTIPATH, self.effort_of_many(), |turn| {
                        let timing = timer.time(&spec, turn)?;
                        if turn == 0 {
                            timer.compare()?;
                        }
                        cpu.extend(timing.cpu);
                        Ok::<Nanos, Error>(timing.done)
                    })?;
                    timer.compare()?;
                    let cpu = SampleFigures::of(&cpu).map(|figures| figures.median);
                    let row =
                        methods::row(MULTIPATH, method.word(), &spec, BackgroundLoad::Alone, cpu, None).with(figures);
                    self.rows.push(BenchRow { gpus, ..row });
                    self.session.advance()?;
                }
            }
        }
        Ok(())
    }
}

/// A timer of copies on each GPU, made at the same time.
fn timers(copier: &Arc<Copier>, options: TimerOptions) -> Result<Vec<CopyTimer>, Error> {
    std::thread::scope(|scope| {
        let make = |gpu| scope.spawn(move || CopyTimer::new(copier, gpu, options));
        let threads: Vec<_> = (0..copier.gpus().len()).map(make).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect::<Result<_, _>>()
    })
}
