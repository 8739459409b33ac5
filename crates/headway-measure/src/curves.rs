//! Cost curves: what every method takes for copies of each size, alone and while bulk copies run.

mod many;

use std::collections::BTreeMap;
use std::sync::Arc;

use headway_core::files::machine::EndpointId;
use headway_core::models::transfer::{
    BackgroundLoad, Curve, CurveKey, CurvePoint, Direction, HostMemory, Method, Profile,
};
use headway_core::units::{Bytes, Nanos};
use headway_device::DeviceError;
use headway_device::buffer::Access;
use headway_device::gpu::CpuReach;
use headway_os::clock;
use headway_runtime::copy::{At, Copier, CopyError, How};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use super::copy_timer::{COMPARED_MAX, CopySpec, CopyTimer};
use super::load::BulkLoad;
use super::sample::{Effort, SampleFigures};
use super::session::Session;
use super::timer_threads;
use super::turns::{self, Entrant, Rules};
use crate::Error;

/// Sizes measured while bulk copies run.
const LOADED: std::ops::RangeInclusive<u64> = 64..=64 << 10;
/// One copy of the bulk in the background.
const BULK_CHUNK: usize = 64 << 20;
/// A winner's change is narrowed down to sizes this close: 5 %, and never more than this often.
const BISECT_PERCENT: u64 = 105;
const BISECT_MAX: u32 = 8;
/// A copy that takes more than this many percent of what a longer one takes is measured again.
const DOUBT_PERCENT: u64 = 110;

/// How much is spent on a point, by its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Efforts {
    /// Up to 64 KiB.
    pub small: Effort,
    /// Up to 1 MiB.
    pub middle: Effort,
    /// Above 1 MiB.
    pub large: Effort,
    /// A method whose copies take longer is not measured with larger ones: its last slope goes on.
    pub patience: Nanos,
}

impl Efforts {
    /// The effort for a copy of `bytes` bytes.
    pub const fn of(&self, bytes: u64) -> Effort {
        if bytes <= COMPARED_MAX as u64 {
            self.small
        } else if bytes <= 1 << 20 {
            self.middle
        } else {
            self.large
        }
    }
}

/// Points of one key: until done, and until the call returned for copies that are posted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CurvePoints {
    pub points: BTreeMap<u64, SampleFigures>,
    pub posted: BTreeMap<u64, SampleFigures>,
}

/// Figures of one point as the journal keeps them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Taken {
    done: SampleFigures,
    posted: Option<SampleFigures>,
}

/// Host memory that `method` is measured with.
pub fn memories(method: Method, direction: Direction) -> Vec<HostMemory> {
    let mut memories = method.abilities().measured.to_vec();
    // Only what is written can be fresh.
    if direction == Direction::D2h && memories.contains(&HostMemory::Touched) {
        memories.push(HostMemory::Untouched);
    }
    memories
}

/// Whether `method` is measured with `bytes` bytes.
pub fn measures(method: Method, direction: Direction, bytes: u64) -> bool {
    method.abilities().measures(direction, Bytes(bytes))
}

/// Takes curves on one GPU.
pub struct Taker<'s, 'a> {
    pub session: &'s mut Session<'a>,
    /// The GPU's name in the machine file.
    pub gpu: EndpointId,
    pub sizes: Vec<u64>,
    pub efforts: Efforts,
    pub lines: BTreeMap<CurveKey, CurvePoints>,
    /// Methods that failed, which are left out.
    pub dropped: Vec<(Method, String)>,
}

impl Taker<'_, '_> {
    /// Measures `methods` in both directions with nothing else going on, more closely where the fastest one changes. At each size all
    /// methods take turns.
    pub fn alone(&mut self, timer: &mut CopyTimer, methods: &[Method]) -> Result<(), Error> {
        let directions = [Direction::H2d, Direction::D2h];
        self.session.phase("alone", directions.len() * self.sizes.len());
        for direction in directions {
            let mut last: BTreeMap<(Method, HostMemory), Nanos> = BTreeMap::new();
            for bytes in self.sizes.clone() {
                let patience = self.efforts.patience;
                let kinds = methods
                    .iter()
                    .flat_map(|&method| memories(method, direction).into_iter().map(move |m| (method, m)));
                let kinds = kinds.filter(|kind| measures(kind.0, direction, bytes));
                let kinds = kinds.filter(|kind| last.get(kind).is_none_or(|last| *last <= patience));
                let kinds: Vec<(Method, HostMemory)> = kinds.filter(|kind| !self.is_dropped(kind.0)).collect();
                self.in_turns(timer, direction, &kinds, bytes, "")?;
                for kind in kinds {
                    let key = self.key(kind, direction);
                    let median = self.lines.get(&key).and_then(|line| line.points.get(&bytes)).map(|f| f.median);
                    last.extend(median.map(|median| (kind, median)));
                }
                self.session.advance()?;
            }
            self.again(timer, direction)?;
            for memory in [HostMemory::Pinned, HostMemory::Touched, HostMemory::Untouched] {
                self.bisect(timer, direction, memory)?;
            }
        }
        Ok(())
    }

    /// Measures the sizes again at which a method was slower than with more bytes: most often it is what else the host did for some
    /// milliseconds, and all methods that took turns then were measured too slow.
    fn again(&mut self, timer: &mut CopyTimer, direction: Direction) -> Result<(), Error> {
        for bytes in self.sizes.clone() {
            let lines = || self.lines_alone(direction).filter(|(_, line)| line.points.contains_key(&bytes));
            if lines().any(|(_, line)| is_doubtful(&line.points, bytes)) {
                let kinds: Vec<_> = lines().map(|(key, _)| (key.method, key.memory)).collect();
                self.in_turns(timer, direction, &kinds, bytes, " again")?;
            }
            self.session.go_on()?;
        }
        Ok(())
    }

    fn is_dropped(&self, method: Method) -> bool {
        self.dropped.iter().any(|(dropped, _)| *dropped == method)
    }

    fn key(&self, (method, memory): (Method, HostMemory), direction: Direction) -> CurveKey {
        CurveKey::alone(self.gpu, method, direction, memory)
    }

    /// A point of each of `kinds`, timed in turns; `note` tells them from others of this size in the journal. A method that fails is
    /// dropped with all its curves.
    fn in_turns(
        &mut self,
        timer: &mut CopyTimer,
        direction: Direction,
        kinds: &[(Method, HostMemory)],
        bytes: u64,
        note: &str,
    ) -> Result<(), Error> {
        let name = |(method, memory): &(Method, HostMemory)| {
            format!("gpu{} {method} {direction} {memory} {} {bytes}{note}", timer.gpu(), BackgroundLoad::Alone)
        };
        let names: Vec<String> = kinds.iter().map(name).collect();
        let effort = self.efforts.of(bytes);
        let taken: Vec<Result<Taken, String>> = self.session.step(&names.join(", "), |session| {
            let entrant = |(name, (method, memory)): (&String, &(Method, HostMemory))| {
                let (how, window) = (How::By(*method), method.mapping());
                Entrant::new(name.clone(), CopySpec { how, direction, memory: *memory, bytes: bytes as usize, window })
            };
            let mut entrants: Vec<Entrant> = names.iter().zip(kinds).map(entrant).collect();
            let rules = Rules { effort, parks: true, spares: false, undecided: None };
            turns::take(session, timer, &mut entrants, rules)?;
            let result = |(entrant, (method, _)): (Entrant, &(Method, HostMemory))| {
                let done = entrant.figures();
                match (entrant.failed, done) {
                    (Some(error), _) if is_fatal(&error) => Err(error),
                    (Some(error), _) => Ok(Err(chain(&error))),
                    (None, None) => Err(headway::Failure::Interrupted.into()),
                    (None, Some(done)) => {
                        session.keep(&entrant.name, &entrant.times)?;
                        let posted = method
                            .abilities()
                            .is_posted(direction)
                            .then(|| SampleFigures::of(&entrant.calls))
                            .flatten();
                        Ok(Ok(Taken { done, posted }))
                    }
                }
            };
            entrants.into_iter().zip(kinds).map(result).collect()
        })?;
        for (kind, taken) in kinds.iter().zip(taken) {
            match taken {
                Ok(taken) => self.add(self.key(*kind, direction), bytes, taken),
                Err(why) => self.leave_out(kind.0, &why),
            }
        }
        Ok(())
    }

    fn add(&mut self, key: CurveKey, bytes: u64, Taken { done, posted }: Taken) {
        let line = self.lines.entry(key).or_default();
        let known = |points: &BTreeMap<u64, SampleFigures>, new: SampleFigures| {
            points.get(&bytes).map_or(new, |old| new.or(*old))
        };
        line.points.insert(bytes, known(&line.points, done));
        line.posted.extend(posted.map(|posted| (bytes, known(&line.posted, posted))));
    }

    fn leave_out(&mut self, method: Method, why: &str) {
        if !self.is_dropped(method) {
            let why = format!("{method} is left out: {why}");
            self.session.warnings.push(why.clone());
            self.dropped.push((method, why));
        }
        self.lines.retain(|key, _| key.method != method);
    }

    /// Measures small copies by those of `methods` that are for such, beside each of `loads`.
    pub fn under_load(
        &mut self,
        timer: &mut CopyTimer,
        methods: &[Method],
        loads: &[BackgroundLoad],
    ) -> Result<(), Error> {
        let methods: Vec<Method> = methods.iter().copied().filter(|method| method.abilities().urgent).collect();
        let small = self.sizes.iter().copied().filter(|size| LOADED.contains(size)).collect();
        let all = std::mem::replace(&mut self.sizes, small);
        self.session.phase("beside", 2 * loads.len() * methods.len() * self.sizes.len());
        if self.sizes.is_empty() {
            self.sizes = all;
            return Ok(());
        }
        for &load in loads {
            for direction in [Direction::H2d, Direction::D2h] {
                let bulk = BulkLoad::start(timer.device(), direction, load, BULK_CHUNK.min(timer.bytes_max()))?;
                for &method in &methods {
                    self.line(timer, method, direction, memories(method, direction)[0], load)?;
                }
                bulk.stop()?;
            }
        }
        self.sizes = all;
        Ok(())
    }

    /// One curve; a method that fails is dropped with all its curves.
    fn line(
        &mut self,
        timer: &mut CopyTimer,
        method: Method,
        direction: Direction,
        memory: HostMemory,
        load: BackgroundLoad,
    ) -> Result<(), Error> {
        // A resident copier of the curve before would be a load.
        timer.copier().park()?;
        let mut last = Nanos::ZERO;
        for bytes in self.sizes.clone() {
            if measures(method, direction, bytes) && !self.is_dropped(method) && last <= self.efforts.patience {
                let key = CurveKey { load, ..self.key((method, memory), direction) };
                let taken = self.point(timer, key, bytes)?;
                last = taken.map_or(last, |figures| figures.median);
            }
            self.session.advance()?;
        }
        Ok(())
    }

    /// One point, by copies one after the other; `None` for a method that failed.
    fn point(&mut self, timer: &mut CopyTimer, key: CurveKey, bytes: u64) -> Result<Option<SampleFigures>, Error> {
        let CurveKey { method, direction, memory, load, .. } = key;
        let spec =
            CopySpec { how: How::By(method), direction, memory, bytes: bytes as usize, window: method.mapping() };
        let name = format!("gpu{} {method} {direction} {memory} {load} {bytes}", timer.gpu());
        let effort = self.efforts.of(bytes);
        let taken = self.session.step(&name, |session| {
            let mut calls = Vec::new();
            let done = session.series(&name, effort, |turn| {
                let timing = timer.time(&spec, turn)?;
                if turn == 0 || spec.bytes <= COMPARED_MAX {
                    timer.compare()?;
                }
                calls.push(timing.call);
                Ok(timing.done)
            })?;
            timer.compare()?;
            let counted = &calls[calls.len() - done.n as usize..];
            let posted = method.abilities().is_posted(direction).then(|| SampleFigures::of(counted)).flatten();
            Ok(Taken { done, posted })
        });
        match taken {
            Ok(taken) => {
                self.add(key, bytes, taken);
                Ok(Some(taken.done))
            }
            Err(error) if is_fatal(&error) => Err(error),
            Err(error) => {
                self.leave_out(method, &chain(&error));
                Ok(None)
            }
        }
    }

    /// Where the fastest method changes between two sizes, measures both methods in between, to 5 %.
    fn bisect(&mut self, timer: &mut CopyTimer, direction: Direction, memory: HostMemory) -> Result<(), Error> {
        let sizes = self.sizes.clone();
        for pair in sizes.windows(2) {
            let (mut low, mut high) = (pair[0], pair[1]);
            let (Some(first), Some(second)) =
                (self.winner(direction, memory, low), self.winner(direction, memory, high))
            else {
                continue;
            };
            if first == second || !measures(first, direction, high) || !measures(second, direction, low) {
                continue;
            }
            let kinds = [first, second].map(|method| (method, memory));
            for _ in 0..BISECT_MAX {
                // Beyond small sizes, on a multiple of 64 bytes: the step of the copy loops.
                let grain = if low >= 1024 { 64 } else { 1 };
                let middle = (low + (high - low) / 2) / grain * grain;
                if high * 100 <= low * BISECT_PERCENT || middle <= low || middle >= high {
                    break;
                }
                self.in_turns(timer, direction, &kinds, middle, " between")?;
                if kinds.iter().any(|kind| self.doubts(*kind, direction, middle)) {
                    self.in_turns(timer, direction, &kinds, middle, " between again")?;
                }
                match self.winner(direction, memory, middle) {
                    Some(winner) if winner == first => low = middle,
                    _ => high = middle,
                }
                self.session.go_on()?;
            }
        }
        Ok(())
    }

    /// What was measured of this GPU with nothing else going on, in one piece.
    fn lines_alone(&self, direction: Direction) -> impl Iterator<Item = (&CurveKey, &CurvePoints)> {
        let wanted = (self.gpu, direction, BackgroundLoad::Alone, 1);
        self.lines.iter().filter(move |(key, _)| (key.gpu, key.direction, key.load, key.pieces) == wanted)
    }

    /// Whether what `kind` took for `bytes` bytes is doubtful.
    fn doubts(&self, kind: (Method, HostMemory), direction: Direction, bytes: u64) -> bool {
        self.lines.get(&self.key(kind, direction)).is_some_and(|line| is_doubtful(&line.points, bytes))
    }

    /// The method with the least median at `bytes`, of those measured there.
    fn winner(&self, direction: Direction, memory: HostMemory, bytes: u64) -> Option<Method> {
        let lines = self.lines_alone(direction).filter(|(key, _)| key.memory == memory);
        let at = lines.filter_map(|(key, line)| line.points.get(&bytes).map(|figures| (figures.median, key.method)));
        at.min().map(|(_, method)| method)
    }
}

/// Whether the point at `bytes` lies that much above one of more bytes.
fn is_doubtful(points: &BTreeMap<u64, SampleFigures>, bytes: u64) -> bool {
    let longer = points.range(bytes + 1..).map(|(_, figures)| figures.median).min();
    let limit = longer.map_or(u64::MAX, |longer| longer.0.saturating_mul(DOUBT_PERCENT) / 100);
    points.get(&bytes).is_some_and(|figures| figures.median.0 > limit)
}

/// Whether measuring cannot go on after `error` with other methods.
fn is_fatal(error: &Error) -> bool {
    match error {
        Error::Headway(
            headway::Failure::Copy(CopyError::Failed { source, .. } | CopyError::Unavailable { source, .. })
            | headway::Failure::Device(source),
        ) => matches!(source, DeviceError::DeviceLost),
        Error::Headway(headway::Failure::Copy(_)) | Error::WrongCopy { .. } => false,
        _ => true,
    }
}

/// An error with its causes in one line.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Puts `lines` into `profile`.
pub fn keep(profile: &mut Profile, lines: &BTreeMap<CurveKey, CurvePoints>) {
    let curve = |points: &BTreeMap<u64, SampleFigures>| {
        let points: Vec<CurvePoint> = points.iter().map(|(bytes, figures)| figures.point(Bytes(*bytes))).collect();
        Curve::new(points)
    };
    for (key, line) in lines {
        // CPUs reach pinned memory like any other.
        let pinned = (key.method.abilities().window && key.memory == HostMemory::Touched)
            .then(|| CurveKey { memory: HostMemory::Pinned, ..key.clone() });
        for key in pinned.iter().chain([key]) {
            if let Some(found) = curve(&line.points) {
                profile.curves.insert(key.clone(), found);
            }
            if let Some(found) = curve(&line.posted) {
                profile.posted.insert(key.clone(), found);
            }
        }
    }
}

/// Curves of copies on all GPUs at once. `hows` names the methods, each as it is to be used with so many GPUs.
pub fn concurrent(
    session: &mut Session<'_>,
    gpus: &[EndpointId],
    timers: &mut [CopyTimer],
    hows: &[(Method, Direction, HostMemory, How)],
    (sizes, efforts): (&[u64], Efforts),
) -> Result<BTreeMap<CurveKey, CurvePoints>, Error> {
    let mut lines: BTreeMap<CurveKey, CurvePoints> = BTreeMap::new();
    let active = u32::try_from(timers.len()).unwrap_or(u32::MAX);
    session.phase("together", hows.len() * sizes.len());
    for &(method, direction, memory, how) in hows {
        for &bytes in sizes {
            if measures(method, direction, bytes) {
                let name = format!("all {method} {direction} {memory} {bytes}");
                let spec = CopySpec { how, direction, memory, bytes: bytes as usize, window: None };
                let mut each: Vec<Vec<Nanos>> = vec![Vec::new(); timers.len()];
                let all: Vec<SampleFigures> = session.step(&name, |session| {
                    timer_threads::with(timers, &spec, |threads| {
                        session.series(&name, efforts.of(bytes), |turn| {
                            let timings = threads.time(turn)?;
                            each.iter_mut().zip(&timings).for_each(|(times, timing)| times.push(timing.done));
                            if turn == 0 || spec.bytes <= COMPARED_MAX {
                                threads.compare()?;
                            }
                            Ok(timings.iter().map(|timing| timing.done).max().unwrap_or_default())
                        })?;
                        threads.compare()
                    })?;
                    Ok(each.iter().filter_map(|times| SampleFigures::of(times)).collect())
                })?;
                for (&gpu, figures) in gpus.iter().zip(all) {
                    let key = CurveKey {
                        gpu,
                        peer: None,
                        method,
                        direction,
                        memory,
                        load: BackgroundLoad::Alone,
                        active,
                        pieces: 1,
                    };
                    lines.entry(key).or_default().points.insert(bytes, figures);
                }
            }
            session.advance()?;
        }
    }
    Ok(lines)
}

/// The key of copies from `gpu` to `peer`.
pub fn peer_key(gpu: EndpointId, peer: EndpointId) -> CurveKey {
    CurveKey { peer: Some(peer), ..CurveKey::alone(gpu, Method::Peer, Direction::Peer, HostMemory::Pinned) }
}

/// The curve of copies from GPU `from` to GPU `to`, positions in `gpus`.
pub fn peer(
    session: &mut Session<'_>,
    copier: &Arc<Copier>,
    gpus: &[EndpointId],
    (from, to): (usize, usize),
    (sizes, efforts): (&[u64], Efforts),
) -> Result<(CurveKey, CurvePoints), Error> {
    let key = peer_key(gpus[from], gpus[to]);
    let most = sizes.iter().max().map_or(1, |size| *size as usize);
    let (source, target) = (&copier.gpus()[from], &copier.gpus()[to]);
    let mut random = vec![0; most];
    Pcg64Mcg::seed_from_u64((from * 64 + to) as u64).fill_bytes(&mut random);
    let home = source.device_buffer(most, CpuReach::Device)?;
    source.copy_in(&mut home.claim(0..most, Access::Write)?, &random)?;
    let place = target.device_buffer(most, CpuReach::Device)?;
    let mut landing = vec![0; most];
    let mut line = CurvePoints::default();
    for &bytes in sizes {
        let (name, len) = (format!("gpu{from} gpu{to} {bytes}"), bytes as usize);
        let figures = session.step(&name, |session| {
            // Zeros first, so that what is found afterwards was copied.
            target.copy_in(&mut place.claim(0..len, Access::Write)?, &vec![0; len])?;
            let figures = session.series(&name, efforts.of(bytes), |_| {
                let begun = clock::now();
                copier.copy_peer(At { buffer: &place, offset: 0 }, At { buffer: &home, offset: 0 }, len)?;
                Ok(clock::now() - begun)
            })?;
            target.copy_out(&mut landing[..len], &place.claim(0..len, Access::Read)?)?;
            match landing[..len].iter().zip(&random).position(|(a, b)| a != b) {
                Some(at) => Err(Error::WrongCopy { copy: name.clone(), gpu: to, at: at as u64 }),
                None => Ok(figures),
            }
        })?;
        line.points.insert(bytes, figures);
        session.advance()?;
    }
    Ok((key, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(medians: &[(u64, u64)]) -> BTreeMap<u64, SampleFigures> {
        medians.iter().map(|&(bytes, median)| (bytes, SampleFigures::of(&[Nanos(median)]).unwrap())).collect()
    }

    #[test]
    fn only_a_point_a_tenth_above_a_longer_one_is_doubtful() {
        let line = points(&[(1, 1_100), (64, 1_390), (256, 2_491), (1024, 1_301), (4096, 1_265), (65_536, 9_000)]);
        let doubtful: Vec<u64> = line.keys().copied().filter(|bytes| is_doubtful(&line, *bytes)).collect();
        assert_eq!(doubtful, [256], "1,390 is 109.9 % of the least of longer copies");
        assert!(!is_doubtful(&line, 3), "not measured");
    }
}
