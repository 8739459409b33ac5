//! Small copies: windows, resident copiers idle and under load, and many pieces in one request.

use headway_core::models::transfer::{BackgroundLoad, Direction, HostMemory, Method, WindowMapping};
use headway_core::units::Nanos;
use headway_device::DeviceError;
use headway_device::buffer::Access;
use headway_device::gpu::{Caching, CpuReach, Mover, Piece};
use headway_os::clock;
use headway_runtime::copy::{At, How, ManyBy};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::Bench;
use super::methods::row;
use super::results::{MANY, RESIDENT, WINDOW};
use crate::Error;
use crate::copy_timer::{CopySpec, CopyTimer};
use crate::load::BulkLoad;
use crate::sample::{Effort, SampleFigures};

/// Pieces of the request of many, and their length.
const PIECES: usize = 8192;
const PIECE: usize = 4096;
/// One copy of the bulk beside small ones.
const BULK_CHUNK: usize = 256 << 20;

impl Bench<'_, '_> {
    /// Windows by themselves, and resident copiers idle and while bulk copies run.
    pub(super) fn small(&mut self, timer: &mut CopyTimer, methods: &[Method]) -> Result<(), Error> {
        self.session.phase("small", 3);
        for (mapping, _) in timer.device().windows().into_iter().filter(|(_, usable)| usable.is_ok()) {
            if methods.contains(&Method::Window(Some(mapping))) {
                self.window(timer, mapping)?;
                self.round_trip(timer, mapping)?;
            }
        }
        self.session.advance()?;
        let many = if self.options.quick { 1_000 } else { 10_000 };
        let resident: Vec<Method> =
            methods.iter().copied().filter(|method| matches!(method, Method::Resident(_))).collect();
        for load in [BackgroundLoad::Alone, BackgroundLoad::BulkSame] {
            let chunk = BULK_CHUNK.min(timer.bytes_max());
            for direction in [Direction::D2h, Direction::H2d] {
                let bulk = match load {
                    BackgroundLoad::Alone => None,
                    _ => Some(BulkLoad::start(timer.device(), direction, load, chunk)?),
                };
                for &method in resident.iter().chain(&[Method::Dma]) {
                    // Behind bulk copies the engine takes milliseconds each.
                    let n_max = if method == Method::Dma { many / 100 } else { many };
                    let effort = Effort { warm_up: 20, n_min: 20, n_max, time: Nanos(2_000_000_000) };
                    let spec = CopySpec {
                        how: How::By(method),
                        direction,
                        memory: HostMemory::Pinned,
                        bytes: 4096.min(timer.bytes_max()),
                        window: None,
                    };
                    let figures = self.session.series(RESIDENT, effort, |turn| {
                        let timing = timer.time(&spec, turn)?;
                        // A comparison by the driver would wait behind the bulk each time.
                        if turn % 64 == 0 && (load == BackgroundLoad::Alone || direction == Direction::D2h) {
                            timer.compare()?;
                        }
                        Ok(timing.done)
                    })?;
                    timer.compare()?;
                    self.rows.push(row(RESIDENT, &method.to_string(), &spec, load, None, None).with(figures));
                }
                bulk.map(BulkLoad::stop).transpose()?;
            }
            self.session.advance()?;
        }
        Ok(())
    }

    /// Stores that a running kernel answers, through the window `mapping`.
    fn round_trip(&mut self, timer: &CopyTimer, mapping: WindowMapping) -> Result<(), Error> {
        let rounds = if self.options.quick { 1_000 } else { 10_000 };
        match timer.device().round_trips(mapping, rounds) {
            Ok(times) => {
                let method = Method::Window(Some(mapping));
                let (direction, memory) = (Direction::H2d, HostMemory::Touched);
                let spec = CopySpec { how: How::By(method), direction, memory, bytes: 4, window: Some(mapping) };
                let figures = SampleFigures::of(&times).ok_or(headway::Failure::Interrupted)?;
                let name = format!("round trip {mapping}");
                self.rows.push(row(WINDOW, &name, &spec, BackgroundLoad::Alone, None, None).with(figures));
            }
            Err(error @ DeviceError::Unavailable { .. }) => self.session.warnings.push(error.to_string()),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Stores and loads by the CPU itself, without the copier around them. A store is posted: into a window at rest it takes what
    /// the CPU takes to hand it over, behind others what it waits for them.
    fn window(&mut self, timer: &CopyTimer, mapping: WindowMapping) -> Result<(), Error> {
        let most = 4096;
        let buffer = timer.device().device_buffer(most, CpuReach::Window(mapping))?;
        let mut bytes = vec![0; most];
        Pcg64Mcg::seed_from_u64(1).fill_bytes(&mut bytes);
        let mut span = buffer.claim(0..most, Access::Write)?;
        let effort = Effort { warm_up: 100, n_min: 100, n_max: 10_000, time: Nanos(100_000_000) };
        // A look at the clock takes as long as a short store; what two looks with nothing between them show is taken off.
        let pair = |_| {
            let begun = clock::now();
            Ok(clock::now() - begun)
        };
        let own = self.session.series("clock", effort, pair)?.median;
        for len in [64, 1024, 4096] {
            let spec = |direction| CopySpec {
                how: How::By(Method::Window(Some(mapping))),
                direction,
                memory: HostMemory::Touched,
                bytes: len,
                window: Some(mapping),
            };
            for (name, rests) in [("store", true), ("row of stores", false)] {
                let figures = self.session.series(WINDOW, effort, |turn| {
                    bytes[..4].copy_from_slice(&turn.to_le_bytes());
                    if rests {
                        // What is loaded comes behind the stores before it: none is on its way any more.
                        span.load(0, &mut [0])?;
                    }
                    let begun = clock::now();
                    span.store(0, &bytes[..len])?;
                    Ok((clock::now() - begun).saturating_sub(own))
                })?;
                let name = format!("{name} {mapping}");
                self.rows
                    .push(row(WINDOW, &name, &spec(Direction::H2d), BackgroundLoad::Alone, None, None).with(figures));
            }
            let mut back = vec![0; len];
            let figures = self.session.series(WINDOW, effort, |_| {
                let begun = clock::now();
                span.load(0, &mut back)?;
                Ok((clock::now() - begun).saturating_sub(own))
            })?;
            if let Some(at) = back.iter().zip(&bytes).position(|(a, b)| a != b) {
                return Err(Error::WrongCopy { copy: format!("window {mapping}"), gpu: timer.gpu(), at: at as u64 });
            }
            let name = format!("load {mapping}");
            self.rows.push(row(WINDOW, &name, &spec(Direction::D2h), BackgroundLoad::Alone, None, None).with(figures));
        }
        Ok(())
    }

    /// Many pieces in one request, by every strategy, from ordinary and from pinned memory.
    pub(super) fn many(&mut self, timer: &mut CopyTimer) -> Result<(), Error> {
        let fitting = timer.bytes_max() / (2 * PIECE);
        let count = PIECES.min(fitting.max(1));
        let span = 2 * count * PIECE;
        let strategies: [(&str, Option<ManyBy>); 7] = [
            ("auto", None),
            ("loop", Some(ManyBy::Queue(Mover::Loop))),
            ("batch", Some(ManyBy::Queue(Mover::Batch))),
            ("kernel", Some(ManyBy::Queue(Mover::Kernel { blocks: 16 }))),
            ("gather", Some(ManyBy::Gather)),
            ("window", Some(ManyBy::Window)),
            ("resident", Some(ManyBy::Resident)),
        ];
        // Every second piece of the source, to the same places in the opposite order.
        let pieces: Vec<Piece> =
            (0..count).map(|at| Piece { from: 2 * at * PIECE, to: 2 * (count - 1 - at) * PIECE, len: PIECE }).collect();
        let gpu = std::sync::Arc::clone(timer.device());
        let reach = gpu.windows().into_iter().find(|(_, usable)| usable.is_ok());
        let reach = reach.map_or(CpuReach::Device, |(mapping, _)| CpuReach::Window(mapping));
        let device = gpu.device_buffer(span, reach)?;
        let home = gpu.pinned_buffer(span, Caching::Cached)?;
        let mut random = vec![0; span];
        Pcg64Mcg::seed_from_u64(2).fill_bytes(&mut random);
        home.claim(0..span, Access::Write)?.bytes_mut()?.copy_from_slice(&random);
        let at = At { buffer: &device, offset: 0 };
        let copier = std::sync::Arc::clone(timer.copier());
        let effort = self.options.effort((count * PIECE) as u64);
        self.session.phase("many", strategies.len() * 3);
        for (name, by) in strategies {
            for memory in [HostMemory::Pinned, HostMemory::Touched] {
                let pinned = home.claim(0..span, Access::Read)?;
                let from = if memory == HostMemory::Pinned { pinned.bytes()? } else { &random[..] };
                let figures = self.session.series(MANY, effort, |_| {
                    let begun = clock::now();
                    copier.copy_many_in(at, from, &pieces, by)?;
                    Ok(clock::now() - begun)
                });
                let mut back = vec![0; span];
                gpu.copy_out(&mut back, &device.claim(0..span, Access::Read)?)?;
                self.many_row(name, Direction::H2d, memory, count, figures, || difference(&pieces, &random, &back))?;
                self.session.advance()?;
            }
            gpu.copy_in(&mut device.claim(0..span, Access::Write)?, &random)?;
            let mut landing = vec![0; span];
            let figures = self.session.series(MANY, effort, |_| {
                let begun = clock::now();
                copier.copy_many_out(&mut landing, at, &pieces, by)?;
                Ok(clock::now() - begun)
            });
            self.many_row(name, Direction::D2h, HostMemory::Touched, count, figures, || {
                difference(&pieces, &random, &landing)
            })?;
            // Zeros, so that the next strategy cannot live on what this one brought.
            gpu.copy_in(&mut device.claim(0..span, Access::Write)?, &vec![0; span])?;
            self.session.advance()?;
        }
        Ok(())
    }

    /// Adds a row of many pieces; a strategy that cannot be used is left out.
    fn many_row(
        &mut self,
        name: &str,
        direction: Direction,
        memory: HostMemory,
        count: usize,
        figures: Result<SampleFigures, Error>,
        wrong: impl FnOnce() -> Option<usize>,
    ) -> Result<(), Error> {
        match figures {
            Ok(figures) => {
                if let Some(at) = wrong() {
                    let copy = format!("{count} pieces {direction} by {name}");
                    return Err(Error::WrongCopy { copy, gpu: 0, at: at as u64 });
                }
                let spec = CopySpec { how: How::Auto, direction, memory, bytes: count * PIECE, window: None };
                self.rows.push(row(MANY, name, &spec, BackgroundLoad::Alone, None, None).with(figures));
                Ok(())
            }
            Err(Error::Headway(headway::Failure::Copy(error))) => {
                self.session.warnings.push(format!("{count} pieces {direction} by {name} are left out: {error}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// The first byte of `back` that is not where `pieces` say that it belongs.
fn difference(pieces: &[Piece], from: &[u8], back: &[u8]) -> Option<usize> {
    pieces.iter().find_map(|piece| {
        let (expected, found) = (&from[piece.from..piece.from + piece.len], &back[piece.to..piece.to + piece.len]);
        found.iter().zip(expected).position(|(a, b)| a != b).map(|at| piece.to + at)
    })
}
