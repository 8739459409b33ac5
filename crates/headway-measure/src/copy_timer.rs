//! Memory of every kind at both ends of one GPU, filled with random bytes, and copies between them: timed, then compared.

use std::sync::Arc;

use headway_core::models::transfer::{self, Direction, HostMemory, Method};
use headway_core::units::Nanos;
use headway_device::buffer::Access;
use headway_device::gpu::{Caching, CpuReach, Gpu};
use headway_device::{Buffer, DeviceError};
use headway_os::clock;
use headway_os::memory::Mapping;
use headway_runtime::copy::{At, Copier, How};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::Error;

/// Copies up to this size are compared every time, larger ones at the beginning and the end of a series.
pub const COMPARED_MAX: usize = 64 << 10;

/// Copies of one series begin at this many different offsets, a page apart: each brings other bytes than the one before.
const OFFSETS: usize = 16;
const PAGE: usize = 4096;
/// What the offsets add to every buffer.
const SLACK: usize = OFFSETS * PAGE;
/// Largest copy to or from device memory that has a window.
pub const WINDOWED_MAX: usize = 16 << 20;
/// From this size on, a copy's CPU time is taken: below, asking for it would cost as much as the copy.
const CPU_TIME_MIN: usize = 1 << 20;
/// Seed of the random bytes.
const SEED: u64 = 0x4845_4144_5741_5921;

/// One copy to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopySpec {
    pub how: How,
    pub direction: Direction,
    /// What the host end is.
    pub memory: HostMemory,
    pub bytes: usize,
    /// The window that the device memory has.
    pub window: Option<transfer::WindowMapping>,
}

/// What one copy took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Until the call returned.
    pub call: Nanos,
    /// Until the bytes were in place: later than `call` for posted stores.
    pub done: Nanos,
    /// CPU time of all threads of the process meanwhile, of copies from 1 MiB on.
    pub cpu: Option<Nanos>,
    /// How it was made.
    pub method: Method,
}

/// Memory at both ends of one GPU.
pub struct CopyTimer {
    copier: Arc<Copier>,
    gpu: usize,
    bytes_max: usize,
    /// Random bytes; what every copy brings is a part of them.
    source: Mapping,
    /// Ordinary memory to copy to, all of its pages there.
    landing: Mapping,
    /// The same random bytes pinned, and pinned memory to copy to.
    pinned: Option<(Buffer, Buffer)>,
    plain: Ends,
    windowed: Vec<(transfer::WindowMapping, Ends)>,
    last: Option<Last>,
}

/// Device memory: the random bytes, and where copies go.
struct Ends {
    home: Buffer,
    target: Buffer,
}

/// The last copy, until it has been compared.
struct Last {
    spec: CopySpec,
    offset: usize,
    fresh: Option<Mapping>,
}

/// What a [`CopyTimer`] is made for.
#[derive(Clone, Copy, Debug)]
pub struct TimerOptions {
    /// Largest copy.
    pub bytes_max: usize,
    /// Whether it is to have pinned memory.
    pub pinned: bool,
    /// Advise huge pages for ordinary memory, as some array libraries do.
    pub huge_pages: bool,
}

impl CopyTimer {
    /// A timer of copies on GPU number `gpu` of `copier`.
    pub fn new(copier: &Arc<Copier>, gpu: usize, options: TimerOptions) -> Result<Self, Error> {
        let device = &copier.gpus()[gpu];
        let bytes = options.bytes_max + SLACK;
        let mut source = ordinary(bytes, options.huge_pages)?;
        Pcg64Mcg::seed_from_u64(SEED + gpu as u64).fill_bytes(&mut source);
        let mut landing = ordinary(bytes, options.huge_pages)?;
        landing.fill(0x5a);
        let plain = Ends::new(device.as_ref(), &source, bytes, CpuReach::Device)?;
        let mut windowed = Vec::new();
        for (mapping, _) in device.windows().into_iter().filter(|(_, usable)| usable.is_ok()) {
            // A window that was there for the probe and is not now is found out by the copies that need it.
            let ends = Ends::new(device.as_ref(), &source, bytes.min(WINDOWED_MAX + SLACK), CpuReach::Window(mapping));
            windowed.extend(ends.ok().map(|ends| (mapping, ends)));
        }
        let pinned = match options.pinned {
            true => {
                let home = device.pinned_buffer(bytes, Caching::Cached)?;
                home.claim(0..bytes, Access::Write)?.bytes_mut()?.copy_from_slice(&source);
                Some((home, device.pinned_buffer(bytes, Caching::Cached)?))
            }
            false => None,
        };
        let bytes_max = options.bytes_max;
        Ok(Self { copier: Arc::clone(copier), gpu, bytes_max, source, landing, pinned, plain, windowed, last: None })
    }

    /// The copier it uses.
    pub fn copier(&self) -> &Arc<Copier> {
        &self.copier
    }

    /// The device of that number.
    pub fn device(&self) -> &Arc<dyn Gpu> {
        &self.copier.gpus()[self.gpu]
    }

    /// Position of its GPU.
    pub const fn gpu(&self) -> usize {
        self.gpu
    }

    /// The preferred window of which it has device memory for `bytes` bytes.
    pub fn window(&self, bytes: usize) -> Option<transfer::WindowMapping> {
        self.windowed.first().map(|(mapping, _)| *mapping).filter(|_| bytes <= WINDOWED_MAX)
    }

    /// Largest copy.
    pub const fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Makes one copy; `turn` picks which bytes. The copy before it must have been compared, or is not any more.
    pub fn time(&mut self, spec: &CopySpec, turn: u32) -> Result<Timing, Error> {
        let offset = turn as usize % OFFSETS * PAGE;
        self.last = None;
        let mut fresh = match (spec.memory, spec.direction) {
            (HostMemory::Untouched, Direction::D2h) => Some(Mapping::anonymous(spec.bytes.max(1))?),
            _ => None,
        };
        let found = self.windowed.iter().find(|(mapping, _)| Some(*mapping) == spec.window);
        let ends = found.map_or(&self.plain, |(_, ends)| ends);
        let cpu_before = (spec.bytes >= CPU_TIME_MIN).then(clock::cpu_time);
        let begun = clock::now();
        let report = match (spec.memory, spec.direction) {
            (HostMemory::Pinned, direction) => {
                let (home, target) = self.pinned.as_ref().ok_or_else(no_pinned)?;
                let (device, host) = match direction {
                    Direction::H2d => (At { buffer: &ends.target, offset: 0 }, At { buffer: home, offset }),
                    _ => (At { buffer: &ends.home, offset }, At { buffer: target, offset: 0 }),
                };
                self.copier.copy_pinned(direction, device, host, spec.bytes, spec.how)?
            }
            (_, Direction::H2d) => {
                let to = At { buffer: &ends.target, offset: 0 };
                self.copier.copy_in(to, &self.source[offset..offset + spec.bytes], spec.how)?
            }
            _ => {
                let to = fresh.as_mut().unwrap_or(&mut self.landing);
                self.copier.copy_out(&mut to[..spec.bytes], At { buffer: &ends.home, offset }, spec.how)?
            }
        };
        let call = clock::now() - begun;
        let done = if report.method.abilities().is_posted(spec.direction) {
            flush(&ends.target, spec.bytes, begun)?
        } else {
            call
        };
        let cpu = cpu_before.map(|before| clock::cpu_time().saturating_sub(before));
        self.last = Some(Last { spec: *spec, offset, fresh });
        Ok(Timing { call, done, cpu, method: report.method })
    }

    /// Compares what the last copy brought, through the driver's own copy where it went to the device.
    pub fn compare(&mut self) -> Result<(), Error> {
        let Some(Last { spec, offset, fresh }) = self.last.take() else { return Ok(()) };
        let expected = &self.source[offset..offset + spec.bytes];
        let differs = match (spec.direction, spec.memory) {
            (Direction::H2d, _) => {
                let found = self.windowed.iter().find(|(mapping, _)| Some(*mapping) == spec.window);
                let from = found.map_or(&self.plain, |(_, ends)| ends).target.claim(0..spec.bytes, Access::Read)?;
                let landing = &mut self.landing[..spec.bytes];
                self.copier.gpus()[self.gpu].copy_out(landing, &from)?;
                difference(landing, expected)
            }
            (_, HostMemory::Pinned) => {
                let (_, target) = self.pinned.as_ref().ok_or_else(no_pinned)?;
                difference(target.claim(0..spec.bytes, Access::Read)?.bytes()?, expected)
            }
            _ => difference(&fresh.as_ref().unwrap_or(&self.landing)[..spec.bytes], expected),
        };
        match differs {
            None => Ok(()),
            Some(at) => Err(Error::WrongCopy { copy: describe(&spec), gpu: self.gpu, at: at as u64 }),
        }
    }
}

impl Ends {
    fn new(gpu: &dyn Gpu, random: &[u8], bytes: usize, reach: CpuReach) -> Result<Self, DeviceError> {
        let home = gpu.device_buffer(bytes, reach)?;
        gpu.copy_in(&mut home.claim(0..bytes, Access::Write)?, &random[..bytes])?;
        Ok(Self { home, target: gpu.device_buffer(bytes, reach)? })
    }
}

/// Waits until stores into `buffer` are in place, and returns the time since `begun`: a load through the window cannot
/// overtake them, so when its bytes are here, theirs are there.
pub(super) fn flush(buffer: &Buffer, bytes: usize, begun: Nanos) -> Result<Nanos, Error> {
    if bytes > 0 {
        let mut last = [0];
        buffer.claim(bytes - 1..bytes, Access::Read)?.load(0, &mut last)?;
        std::hint::black_box(last);
    }
    Ok(clock::now() - begun)
}

/// Ordinary memory; huge pages are a hint that the system may refuse.
fn ordinary(bytes: usize, huge_pages: bool) -> Result<Mapping, Error> {
    let mapping = Mapping::anonymous(bytes)?;
    if huge_pages {
        let _ = mapping.advise_huge();
    }
    Ok(mapping)
}

/// The first byte that differs.
fn difference(found: &[u8], expected: &[u8]) -> Option<usize> {
    if found == expected {
        return None;
    }
    Some(found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or_else(|| found.len().min(expected.len())))
}

fn no_pinned() -> DeviceError {
    DeviceError::Invalid { what: "measurement", reason: "this timer was made without pinned memory".into() }
}

fn describe(spec: &CopySpec) -> String {
    format!("{} bytes {} by {:?}, {} memory", spec.bytes, spec.direction, spec.how, spec.memory)
}
