//! Curves of many pieces in one request, from which the mover of such requests is chosen (specification of transfers, 1.7).

use headway_core::models::transfer::{CurveKey, Direction, HostMemory, Method, WindowMapping};
use headway_core::units::Nanos;
use headway_device::Buffer;
use headway_device::buffer::Access;
use headway_device::gpu::{Caching, CpuReach, Gpu, Mover, Piece};
use headway_os::clock;
use headway_runtime::copy::{At, Copier, ManyBy};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::{Taken, Taker, chain, is_fatal};
use crate::Error;
use crate::copy_timer::{CopyTimer, flush};
use crate::sample::SampleFigures;

/// Pieces of one request.
const COUNTS: [usize; 3] = [16, 256, 8192];
/// Lengths of the pieces.
const SIZES: [usize; 2] = [64, 4096];

/// One point: a mover, the method under which it is known, where its pieces are, and their number and length.
#[derive(Clone, Copy)]
struct Case {
    by: ManyBy,
    method: Method,
    direction: Direction,
    memory: HostMemory,
    count: usize,
    len: usize,
}

/// The movers that `methods` allow, each with its method and the host memory that it is chosen for.
fn movers(
    methods: &[Method],
    window: Option<WindowMapping>,
    direction: Direction,
) -> Vec<(ManyBy, Method, HostMemory)> {
    let (pinned, warm) = (HostMemory::Pinned, HostMemory::Touched);
    let mut movers = vec![
        (ManyBy::Queue(Mover::Loop), Method::Dma, pinned),
        (ManyBy::Queue(Mover::Batch), Method::Pageable, pinned),
        // What gathering is compared with.
        (ManyBy::Queue(Mover::Batch), Method::Pageable, warm),
        (ManyBy::kernel(direction), Method::Kernel, pinned),
        (ManyBy::Gather, Method::Staged, warm),
    ];
    // CPUs reach pinned memory like any other: one curve is kept for both.
    movers.extend(window.map(|mapping| (ManyBy::Window, Method::Window(Some(mapping)), warm)));
    // Pieces go to the first copier that can be used.
    let resident = methods.iter().find(|method| matches!(method, Method::Resident(_)));
    movers.extend(resident.iter().flat_map(|method| [pinned, warm].map(|memory| (ManyBy::Resident, **method, memory))));
    movers.retain(|(_, method, _)| methods.contains(method));
    movers
}

/// Memory at both ends, filled with the same random bytes.
struct Memory {
    random: Vec<u8>,
    landing: Vec<u8>,
    /// Pinned: the random bytes, and where pieces go.
    pinned: [Buffer; 2],
    plain: Buffer,
    windowed: Option<Buffer>,
}

impl Memory {
    fn new(gpu: &dyn Gpu, window: Option<WindowMapping>, room: usize) -> Result<Self, Error> {
        let mut random = vec![0; room];
        Pcg64Mcg::seed_from_u64(3).fill_bytes(&mut random);
        let pinned = [gpu.pinned_buffer(room, Caching::Cached)?, gpu.pinned_buffer(room, Caching::Cached)?];
        pinned[0].claim(0..room, Access::Write)?.bytes_mut()?.copy_from_slice(&random);
        // Without a window for so much memory, windows are not measured.
        let windowed = window.and_then(|mapping| gpu.device_buffer(room, CpuReach::Window(mapping)).ok());
        let plain = gpu.device_buffer(room, CpuReach::Device)?;
        Ok(Self { random, landing: vec![0; room], pinned, plain, windowed })
    }

    fn device(&self, by: ManyBy) -> &Buffer {
        self.windowed.as_ref().filter(|_| by == ManyBy::Window).unwrap_or(&self.plain)
    }

    /// Puts the random bytes where the copy begins, and other bytes where it ends.
    fn prepare(&mut self, gpu: &dyn Gpu, case: Case) -> Result<(), Error> {
        let room = self.random.len();
        let clear = vec![0; room];
        let device = if case.direction == Direction::H2d { &clear } else { &self.random };
        gpu.copy_in(&mut self.device(case.by).claim(0..room, Access::Write)?, device)?;
        self.landing.fill(0);
        self.pinned[1].claim(0..room, Access::Write)?.bytes_mut()?.fill(0);
        Ok(())
    }

    /// Makes one request: the times until the call returned, and until the bytes were in place.
    fn time(&mut self, copier: &Copier, case: Case, pieces: &[Piece]) -> Result<(Nanos, Nanos), Error> {
        let Case { by, direction, memory, .. } = case;
        let pinned = memory == HostMemory::Pinned;
        let device = self.windowed.as_ref().filter(|_| by == ManyBy::Window).unwrap_or(&self.plain);
        let at = At { buffer: device, offset: 0 };
        let room = self.random.len();
        let begun = clock::now();
        match (direction, pinned) {
            (Direction::H2d, true) => {
                let from = self.pinned[0].claim(0..room, Access::Read)?;
                copier.copy_many_in(at, from.bytes()?, pieces, Some(by))?
            }
            (Direction::H2d, false) => copier.copy_many_in(at, &self.random, pieces, Some(by))?,
            (_, true) => {
                let mut to = self.pinned[1].claim(0..room, Access::Write)?;
                copier.copy_many_out(to.bytes_mut()?, at, pieces, Some(by))?
            }
            (_, false) => copier.copy_many_out(&mut self.landing, at, pieces, Some(by))?,
        };
        let call = clock::now() - begun;
        let posted = case.method.abilities().is_posted(direction);
        Ok((call, if posted { flush(device, room, begun)? } else { call }))
    }

    /// Compares every piece.
    fn compare(&mut self, gpu: &dyn Gpu, case: Case, pieces: &[Piece]) -> Result<(), Error> {
        let room = self.random.len();
        if case.direction == Direction::H2d {
            let from = self.device(case.by).claim(0..room, Access::Read)?;
            gpu.copy_out(&mut self.landing, &from)?;
        } else if case.memory == HostMemory::Pinned {
            self.landing.copy_from_slice(self.pinned[1].claim(0..room, Access::Read)?.bytes()?);
        }
        let wrong = pieces.iter().find_map(|&Piece { from, to, len }| {
            let pairs = self.landing[to..to + len].iter().zip(&self.random[from..from + len]);
            pairs.enumerate().find(|(_, (found, expected))| found != expected).map(|(at, _)| to + at)
        });
        match wrong {
            None => Ok(()),
            Some(at) => {
                let copy = format!("{} pieces {} by {}", pieces.len(), case.direction, case.method);
                Err(Error::WrongCopy { copy, gpu: 0, at: at as u64 })
            }
        }
    }
}

/// `count` pieces of `len` bytes, a piece apart on both sides, in opposite order.
fn pieces(count: usize, len: usize) -> Vec<Piece> {
    (0..count).map(|at| Piece { from: 2 * len * at, to: 2 * len * (count - 1 - at), len }).collect()
}

impl Taker<'_, '_> {
    /// Measures requests of many pieces by every mover that `methods` allow, with nothing else going on; of those requests that
    /// are no larger than the largest copy.
    pub fn many(&mut self, timer: &CopyTimer, methods: &[Method]) -> Result<(), Error> {
        let most = self.sizes.last().map_or(0, |bytes| *bytes as usize);
        let shapes = COUNTS.iter().flat_map(|&count| SIZES.map(|len| (count, len)));
        let shapes: Vec<(usize, usize)> = shapes.filter(|(count, len)| count * len <= most).collect();
        let Some(room) = shapes.iter().map(|(count, len)| 2 * count * len).max() else { return Ok(()) };
        let mut memory = Memory::new(timer.device().as_ref(), timer.window(0), room)?;
        let window = memory.windowed.as_ref().and_then(Buffer::window);
        let mut cases = Vec::new();
        for direction in [Direction::H2d, Direction::D2h] {
            for (by, method, memory) in movers(methods, window, direction) {
                let case = |&(count, len)| Case { by, method, direction, memory, count, len };
                cases.extend(shapes.iter().map(case));
            }
        }
        self.session.phase("many pieces", cases.len());
        let mut left_out = Vec::new();
        for case in cases {
            if !left_out.contains(&case.by) {
                match self.request(timer, &mut memory, case) {
                    Err(error) if !is_fatal(&error) => {
                        let Case { method, direction, count, .. } = case;
                        let why = chain(&error);
                        self.session
                            .warnings
                            .push(format!("{method} is left out for {count} pieces {direction}: {why}"));
                        self.lines.retain(|key, _| key.method != method || key.pieces == 1);
                        left_out.push(case.by);
                    }
                    made => made?,
                }
            }
            self.session.advance()?;
        }
        Ok(())
    }

    fn request(&mut self, timer: &CopyTimer, memory: &mut Memory, case: Case) -> Result<(), Error> {
        let Case { method, direction, memory: host, count, len, .. } = case;
        let bytes = (count * len) as u64;
        let name = format!("gpu{} {count} pieces {method} {direction} {host} {len}", timer.gpu());
        let effort = self.efforts.of(bytes);
        let (gpu, copier, pieces) = (timer.device(), timer.copier(), pieces(count, len));
        let Taken { done, posted } = self.session.step(&name, |session| {
            memory.prepare(gpu.as_ref(), case)?;
            let mut calls = Vec::new();
            let done = session.series(&name, effort, |_| {
                let (call, done) = memory.time(copier, case, &pieces)?;
                calls.push(call);
                Ok(done)
            })?;
            memory.compare(gpu.as_ref(), case, &pieces)?;
            let counted = &calls[calls.len() - done.n as usize..];
            Ok(Taken {
                done,
                posted: method.abilities().is_posted(direction).then(|| SampleFigures::of(counted)).flatten(),
            })
        })?;
        let pieces = u32::try_from(count).unwrap_or(u32::MAX);
        let key = CurveKey { pieces, ..CurveKey::alone(self.gpu, method, direction, host) };
        let line = self.lines.entry(key).or_default();
        line.points.insert(bytes, done);
        line.posted.extend(posted.map(|posted| (bytes, posted)));
        Ok(())
    }
}
