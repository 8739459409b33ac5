//! One copy from the call to its report: chosen or asked for, tried, replaced where a way is absent, observed.

use headway_core::models::transfer::links::{Borrow, Links};
use headway_core::models::transfer::policy::{Bucket, Decision};
use headway_core::models::transfer::{Direction, HostMemory, Load, Method, Tuning};
use headway_core::units::{Bytes, Nanos};
use headway_device::HostKind;
use headway_os::{clock, memory};

use super::auto::{Pick, Situation};
use super::engine::Moved;
use super::error::{Absence, chain};
use super::execute::{LINKS_MAX, RELAYS_MAX};
use super::request::{Host, Transfer};
use super::shares::Running;
use super::{Copier, CopyError, CopyReport, How, Observation};

/// From this size on a copy is bulk: it keeps an engine busy for longer than a small copy takes altogether.
const BULK: usize = 1 << 20;
/// From this size on the driver is asked now and then whether memory is pinned, which takes up to 0.6 us; the driver's own call, which is
/// chosen for smaller copies of ordinary memory, is as fast from pinned memory without being told.
const ASK: usize = 64 << 10;
/// From this size on pages are looked at where the choice hangs on it; below, in one copy of a few.
const LOOK: usize = 128 << 10;
/// From this size on pages that appear may take as long as the lead over the driver's call.
const FAULTS: usize = 8 << 10;
/// From this size on pages are looked at in every copy.
const LOOK_ALWAYS: usize = 2 << 20;

/// What came of a copy, and what was chosen first.
pub(super) struct Outcome {
    pub(super) method: Method,
    predicted: Option<Nanos>,
    pub(super) moved: Moved,
    instead_of: Option<(Method, String)>,
    judged: Option<Bucket>,
}

impl Copier {
    /// Makes `copy` as asked for.
    pub(super) fn copy(&self, mut copy: Transfer<'_>, how: How) -> Result<CopyReport, CopyError> {
        let started = clock::now();
        let result = self.attempt(&mut copy, how).map(|outcome| {
            let report = CopyReport {
                method: outcome.method,
                bytes: Bytes(copy.len as u64),
                chunks: outcome.moved.chunks,
                predicted: outcome.predicted,
                observed: clock::now().saturating_sub(started),
                waited: outcome.moved.waited,
                ahead: outcome.moved.ahead,
                instead_of: outcome.instead_of,
            };
            if let Some(bucket) = outcome.judged {
                self.judge(bucket, &report);
            }
            report
        });
        self.tell_observer(copy.gpu, copy.direction, &result);
        result
    }

    /// Calls the observer.
    pub(super) fn tell_observer(&self, gpu: usize, direction: Direction, result: &Result<CopyReport, CopyError>) {
        if let Some(observer) = self.observer.get() {
            observer(&Observation { gpu, direction, result: result.as_ref() });
        }
    }

    /// The same, without clock and observer.
    pub(super) fn attempt(&self, copy: &mut Transfer<'_>, how: How) -> Result<Outcome, CopyError> {
        let gpu = &self.gpus[copy.gpu];
        if copy.len == 0 {
            let method = match how {
                How::Auto => Method::Pageable,
                How::By(method) | How::Tuned(method, _) => method,
            };
            return Ok(Outcome {
                method,
                predicted: Some(Nanos::ZERO),
                moved: Moved::default(),
                instead_of: None,
                judged: None,
            });
        }
        if gpu.is_lost() {
            return Err(CopyError::DeviceLost);
        }
        copy.within_range()?;
        match how {
            How::Auto => self.chosen(copy),
            How::By(method) => self.named(copy, method, None),
            How::Tuned(method, tuning) => self.named(copy, method, Some(tuning)),
        }
    }

    fn named(&self, copy: &mut Transfer<'_>, method: Method, tuning: Option<Tuning>) -> Result<Outcome, CopyError> {
        let gpu = &self.gpus[copy.gpu];
        let tuning = match method {
            Method::Staged => tuning.or_else(|| {
                let at = self.situation(copy)?;
                Some(self.within(self.auto.tuning(gpu.endpoint, at)?, at.active))
            }),
            Method::Multipath => tuning.or_else(|| self.tuning_of_links(self.situation(copy)?)),
            _ => None,
        };
        let multipath = method == Method::Multipath;
        let borrow = if multipath { Borrow::Free(RELAYS_MAX) } else { Borrow::Nothing };
        let shares = multipath || (copy.len >= BULK && method.abilities().occupies.engine);
        let running = shares.then(|| self.begin(&mut self.shares.links(copy.direction), copy, borrow));
        let relays = running.as_ref().map_or(&[][..], |running| &running.relays);
        let moved = self.by(copy, (method, tuning), true, relays)?;
        let memory = if matches!(copy.host, Host::Held(_)) { HostMemory::Pinned } else { HostMemory::Warm };
        let bytes = Bytes(copy.len as u64);
        let predicted = self.auto.predicted(gpu.endpoint, None, method, copy.direction, memory, bytes);
        Ok(Outcome { method, predicted, moved, instead_of: None, judged: None })
    }

    /// By the best way; by the next best while ways turn out to be absent.
    fn chosen(&self, copy: &mut Transfer<'_>) -> Result<Outcome, CopyError> {
        let gpu = &self.gpus[copy.gpu];
        let pageable = Pick { method: Method::Pageable, tuning: None, predicted: None };
        let bytes = Bytes(copy.len as u64);
        let (situation, known) = self.situation_of_choice(copy);
        // Between the look at who copies and the beginning nobody else begins.
        let mut links = (copy.len >= BULK).then(|| self.shares.links(copy.direction));
        let situation = situation.map(|at| links.as_ref().map_or(at, |links| self.standing(links, at)));
        let mut pick = situation.map_or(pageable, |at| self.auto.pick(&self.gpus, at, bytes));
        copy.pinned = situation.is_some_and(|at| at.memory == HostMemory::Pinned);
        let mut instead_of: Option<(Method, String)> = None;
        let judged = situation.filter(|_| known).and_then(|at| self.judged(at, pick, bytes));
        if let Some(bucket) = judged
            && self.watcher.decide(|| bucket) == Decision::Driver
        {
            instead_of = Some((pick.method, "it was slower than the driver the last times".to_owned()));
            pick = Pick { method: Method::of_driver(bucket.direction, bucket.memory), tuning: None, predicted: None };
        }
        let multipath = pick.method == Method::Multipath;
        let borrow = if multipath { Borrow::Spare(RELAYS_MAX) } else { Borrow::Nothing };
        let running = links
            .as_mut()
            .filter(|_| pick.method.abilities().occupies.engine)
            .map(|links| self.begin(links, copy, borrow));
        drop(links);
        let relays = running.as_ref().map_or(&[][..], |running| &running.relays);
        loop {
            let tuning = match (pick.method, situation) {
                (Method::Multipath, Some(at)) => self.tuning_of_links(at),
                (_, at) => pick.tuning.map(|tuning| self.within(tuning, at.map_or(1, |at| at.active))),
            };
            let error = match self.by(copy, (pick.method, tuning), false, relays) {
                Ok(moved) => {
                    let judged = judged.filter(|bucket| {
                        [bucket.method, Method::of_driver(bucket.direction, bucket.memory)].contains(&pick.method)
                    });
                    return Ok(Outcome { method: pick.method, predicted: pick.predicted, moved, instead_of, judged });
                }
                Err(error) => error,
            };
            let Some(absence) = error.absence().filter(|_| pick.method != pageable.method) else { return Err(error) };
            let reason = chain(&error);
            let next = match (absence, situation) {
                (Absence::Lasting, Some(at)) => {
                    self.auto.leave_out(copy.gpu, pick.method);
                    self.auto.pick(&self.gpus, at, bytes)
                }
                // Staging needs no page of the caller's pinned.
                _ if pick.method == Method::Pinning && instead_of.is_none() => {
                    Pick { method: Method::Staged, ..pageable }
                }
                _ => pageable,
            };
            // What has failed in this copy would fail again, for ever.
            let failed =
                |method| method == pick.method || instead_of.as_ref().is_some_and(|(first, _)| *first == method);
            let next = if failed(next.method) { pageable } else { next };
            self.auto.tell_absence(copy.gpu, &gpu.device.description().name, pick.method, &reason, next.method);
            instead_of.get_or_insert((pick.method, reason));
            pick = next;
        }
    }

    /// `at` as `links` are now.
    fn standing(&self, links: &Links, at: Situation) -> Situation {
        let standing = links.standing(at.gpu, |other| self.reaches(other, at.gpu));
        Situation { active: standing.active, granted: standing.grants, ..at }
    }

    /// Tells others that `copy` is under way, and borrows links for it.
    fn begin<'a>(&'a self, links: &mut Links, copy: &Transfer<'_>, borrow: Borrow) -> Running<'a> {
        let bulk = self.gpus[copy.gpu].engine(copy.direction).gate.bulk();
        let reaches = |other| self.reaches(other, copy.gpu);
        self.shares.begin(links, (copy.gpu, copy.direction), borrow, reaches, bulk)
    }

    /// How a copy over several links is staged: as copies of as many GPUs at once are, for they share the memory and the caches
    /// as its links do. What goes through another GPU takes two steps, so that as many chunks are on their way as of one copy.
    fn tuning_of_links(&self, at: Situation) -> Option<Tuning> {
        let gpu = self.gpus[at.gpu].endpoint;
        let alone = self.auto.tuning(gpu, at)?;
        let links = u32::try_from(self.gpus.len()).unwrap_or(u32::MAX).min(LINKS_MAX);
        let parties = at.active.max(links);
        let shared = self.within(self.auto.tuning(gpu, Situation { active: parties, ..at })?, parties);
        Some(Tuning { in_flight: shared.in_flight.max(alone.in_flight), ..shared })
    }

    /// `tuning` with no more threads than one of so many parties finds CPUs for: what was measured with fewer of them may ask for
    /// more.
    pub(super) fn within(&self, tuning: Tuning, parties: u32) -> Tuning {
        let fair = (self.cpus.saturating_sub(1) / parties.max(1)).max(1);
        Tuning { threads: tuning.threads.min(fair), ..tuning }
    }

    /// The bucket in which the watch judges this choice: those against which the driver's curve can be held.
    fn judged(&self, at: Situation, pick: Pick, bytes: Bytes) -> Option<Bucket> {
        let comparable = at.load == Load::Alone && at.active == 1 && !self.auto.is_stale();
        let gpu = self.gpus[at.gpu].endpoint;
        (comparable && pick.method != Method::of_driver(at.direction, at.memory))
            .then(|| Bucket::of(gpu, at.direction, at.memory, pick.method, bytes))
    }

    /// Tells the watch what a judged copy took, by the bucket's way or by the driver's own call instead.
    fn judge(&self, bucket: Bucket, report: &CopyReport) {
        if !self.watcher.judges(report.observed) {
            return;
        }
        let curve =
            |method| self.auto.predicted(bucket.gpu, None, method, bucket.direction, bucket.memory, report.bytes);
        let Some(driver) = curve(Method::of_driver(bucket.direction, bucket.memory)) else { return };
        let observed = report.observed.saturating_sub(report.waited);
        let events = if report.method == bucket.method {
            self.watcher.observe(bucket, observed, curve(bucket.method), Some(driver))
        } else {
            self.watcher.observe_instead(bucket, observed, driver)
        };
        events.into_iter().for_each(|event| self.auto.tell(event));
    }

    /// The situation as far as it decides, and whether the copy can be judged by it: pages are mostly not looked at where the
    /// choice is the same whether they are there or not, as in copies of 20 us that takes more than the choice may cost; and a
    /// copy whose pages appear meanwhile is no slower than the driver for taking longer than into pages that are there.
    fn situation_of_choice(&self, copy: &Transfer<'_>) -> (Option<Situation>, bool) {
        let (bytes, len, pages) = (Bytes(copy.len as u64), copy.len, &self.gpus[copy.gpu].pages);
        let to: &[u8] = match &copy.host {
            Host::Out(to) if len < LOOK_ALWAYS => to,
            _ => return (self.situation(copy), true),
        };
        if len < LOOK {
            let (absent, known) = pages.of_small(to);
            return (self.situation_with(copy, |_| absent), len < FAULTS || (known && !absent));
        }
        if !pages.are_due()
            && let Some(warm) = self.situation_with(copy, |_| false)
        {
            let pick = |memory| self.auto.pick(&self.gpus, Situation { memory, ..warm }, bytes);
            let (there, absent) = (pick(HostMemory::Warm), pick(HostMemory::Fresh));
            let same = there.method == absent.method && there.tuning == absent.tuning;
            if warm.memory != HostMemory::Warm || same {
                return (Some(warm), warm.memory != HostMemory::Warm);
            }
        }
        (self.situation(copy), true)
    }

    /// What decides beside the size; `None` = memory that only the driver knows how to handle.
    pub(super) fn situation(&self, copy: &Transfer<'_>) -> Option<Situation> {
        self.situation_with(copy, |to| to.len() >= LOOK && memory::mostly_absent(to, samples(to.len())))
    }

    /// The same, with what `is_absent` says of the pages of ordinary memory that is written.
    fn situation_with(&self, copy: &Transfer<'_>, is_absent: impl Fn(&[u8]) -> bool) -> Option<Situation> {
        let gpu = &self.gpus[copy.gpu];
        let kind = |memory: &[u8]| gpu.kinds.of(memory, || gpu.device.host_kind(memory)).ok();
        let written = |to: &[u8]| if is_absent(to) { HostMemory::Fresh } else { HostMemory::Warm };
        let memory = match &copy.host {
            Host::Held(_) => HostMemory::Pinned,
            Host::In(_) if copy.len < ASK => HostMemory::Warm,
            Host::Out(to) if copy.len < ASK => written(to),
            Host::In(from) => match kind(from)? {
                HostKind::Pinned => HostMemory::Pinned,
                HostKind::Pageable if self.options.mapped_files => HostMemory::File,
                HostKind::Pageable => HostMemory::Warm,
            },
            Host::Out(to) => match kind(to)? {
                HostKind::Pinned => HostMemory::Pinned,
                HostKind::Pageable => written(to),
            },
        };
        let at = Situation {
            gpu: copy.gpu,
            direction: copy.direction,
            memory,
            load: self.load(copy),
            active: 1,
            granted: false,
            window: copy.device.buffer.window(),
        };
        // What is small does not notice other GPUs.
        Some(if copy.len < BULK { at } else { self.standing(&self.shares.links(copy.direction), at) })
    }

    /// What bulk the GPU carries besides this copy.
    fn load(&self, copy: &Transfer<'_>) -> Load {
        let gpu = &self.gpus[copy.gpu];
        let (same, opposite) = match copy.direction {
            Direction::D2h => (&gpu.d2h, &gpu.h2d),
            Direction::H2d | Direction::Peer => (&gpu.h2d, &gpu.d2h),
        };
        match (same.gate.bulk_copies() > 0, opposite.gate.bulk_copies() > 0) {
            (false, false) => Load::Alone,
            (true, false) => Load::BulkSame,
            (false, true) => Load::BulkOpposite,
            (true, true) => Load::BulkBoth,
        }
    }
}

/// Pages to look at in a copy of `bytes` bytes: each takes up to 0.9 us, which is to be little of the copy.
const fn samples(bytes: usize) -> usize {
    match bytes {
        ..0x20_0000 => 1,
        0x20_0000..0x100_0000 => 3,
        _ => 8,
    }
}
