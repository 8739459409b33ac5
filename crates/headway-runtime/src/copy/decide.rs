//! The decision on one copy: by which method, with which tuning, over whose links.

use headway_core::models::transfer::builtin::NodeClass;
use headway_core::models::transfer::links::{Borrow, Links};
use headway_core::models::transfer::policy::{self, Bucket};
use headway_core::models::transfer::{BackgroundLoad, HostMemory, Method, Tuning};
use headway_core::units::{Bytes, Nanos};
use headway_os::event;

use super::auto::Pick;
use super::error::{Absence, chain};
use super::learning::Advised;
use super::request::{BULK, Host, Request};
use super::shares::Running;
use super::situation::CopySituation;
use super::{Copier, CopyError, How};

/// GPUs whose links `multipath` uses besides the target's own: with a fourth link memory was the limit on an H200 node.
const RELAYS_MAX: usize = 3;
/// Links of one copy: its own and those.
const LINKS_MAX: u32 = RELAYS_MAX as u32 + 1;

/// How one copy is made.
pub(super) struct Decision<'a> {
    pub(super) method: Method,
    /// Of methods through pinned buffers; `None` = the default.
    pub(super) tuning: Option<Tuning>,
    /// What the profile says.
    pub(super) predicted: Option<Nanos>,
    /// The caller named the method: the copy waits for what the method needs, and no other method replaces it.
    pub(super) named: bool,
    /// Positions of the GPUs whose links `multipath` has borrowed.
    pub(super) relays: Vec<usize>,
    /// Under which name the copy is compared with the driver's own.
    pub(super) judged: Option<Bucket>,
    /// The first method that could not be used, with the reason.
    pub(super) instead_of: Option<(Method, String)>,
    /// Of a copy whose method no profile says: what is to be told when it ends.
    pub(super) advised: Option<Advised<'a>>,
    /// What an unnamed method was chosen by; `None` = memory that only the driver knows how to handle.
    situation: Option<CopySituation>,
    /// Tells other copies of this one, and gives back borrowed links.
    _running: Option<Running<'a>>,
}

impl<'a> Decision<'a> {
    /// `method` because the caller named it.
    pub(super) fn named(method: Method, tuning: Option<Tuning>, relays: Vec<usize>) -> Self {
        Self {
            method,
            tuning,
            predicted: None,
            named: true,
            relays,
            judged: None,
            instead_of: None,
            advised: None,
            situation: None,
            _running: None,
        }
    }

    /// No bytes need no method.
    pub(super) fn of_nothing(how: How) -> Self {
        let method = match how {
            How::Auto => Method::Pageable,
            How::By(method) | How::Tuned(method, _) => method,
        };
        Self { predicted: Some(Nanos::ZERO), ..Self::named(method, None, Vec::new()) }
    }

    fn under_way(mut self, mut running: Option<Running<'a>>) -> Self {
        if let Some(running) = &mut running {
            self.relays = std::mem::take(&mut running.relays);
        }
        Self { _running: running, ..self }
    }
}

impl Copier {
    /// How `request` is carried out.
    pub(super) fn decide(&self, request: &Request<'_>, how: How) -> Decision<'_> {
        match how {
            How::Auto => self.choose(request),
            How::By(method) => self.as_named(request, method, None),
            How::Tuned(method, tuning) => self.as_named(request, method, Some(tuning)),
        }
    }

    /// By the method that the caller named.
    fn as_named(&self, request: &Request<'_>, method: Method, tuning: Option<Tuning>) -> Decision<'_> {
        let gpu = &self.gpus[request.gpu];
        let tuning = match method {
            Method::Staged => tuning.or_else(|| {
                let at = self.situation(request)?;
                Some(self.within(self.auto.tuning(gpu.endpoint, at)?, at.active))
            }),
            Method::Multipath => tuning.or_else(|| self.tuning_of_links(self.situation(request)?)),
            _ => None,
        };
        let multipath = method == Method::Multipath;
        let borrow = if multipath { Borrow::Free(RELAYS_MAX) } else { Borrow::Nothing };
        let shares = multipath || (request.len >= BULK && method.abilities().occupies.engine);
        let running = shares.then(|| self.begin(&mut self.shares.links(request.direction), request, borrow));
        let memory = if matches!(request.host, Host::Held(_)) { HostMemory::Pinned } else { HostMemory::Touched };
        let bytes = Bytes(request.len as u64);
        let predicted = self.auto.predicted(gpu.endpoint, None, method, request.direction, memory, bytes);
        Decision { predicted, ..Decision::named(method, tuning, Vec::new()).under_way(running) }
    }

    /// By the best method as far as known.
    fn choose(&self, request: &Request<'_>) -> Decision<'_> {
        let bytes = Bytes(request.len as u64);
        let (situation, known) = self.situation_of_choice(request);
        // Between the look at who copies and the beginning nobody else begins.
        let mut links = (request.len >= BULK).then(|| self.shares.links(request.direction));
        let situation = situation.map(|at| links.as_ref().map_or(at, |links| self.standing(links, at)));
        let mut pick = situation.map_or(Pick::DRIVER, |at| self.auto.pick(&self.gpus, at, bytes));
        let advised = situation.and_then(|at| self.advise(at, pick, bytes));
        if let Some(advice) = advised.as_ref().map(Advised::advice) {
            pick = Pick { method: advice.method(), tuning: advice.tuning, predicted: None };
        }
        let mut instead_of: Option<(Method, String)> = None;
        let judged =
            situation.filter(|_| advised.is_none()).filter(|_| known).and_then(|at| self.judged(at, pick, bytes));
        if let Some(bucket) = judged
            && self.watcher.decide(|| bucket) == policy::Decision::Driver
        {
            instead_of = Some((pick.method, "it was slower than the driver the last times".to_owned()));
            pick = Pick { method: Method::of_driver(bucket.direction, bucket.memory), ..Pick::DRIVER };
        }
        let borrow = if pick.method == Method::Multipath { Borrow::Spare(RELAYS_MAX) } else { Borrow::Nothing };
        let running = links
            .as_mut()
            .filter(|_| pick.method.abilities().occupies.engine)
            .map(|links| self.begin(links, request, borrow));
        drop(links);
        let undecided =
            Decision { named: false, situation, judged, instead_of, advised, ..Decision::of_nothing(How::Auto) };
        self.picked(undecided.under_way(running), pick)
    }

    /// `decision` for `pick`.
    fn picked<'a>(&self, decision: Decision<'a>, pick: Pick) -> Decision<'a> {
        let tuning = match (pick.method, decision.situation) {
            (Method::Multipath, Some(at)) => self.tuning_of_links(at),
            (_, at) => pick.tuning.map(|tuning| self.within(tuning, at.map_or(1, |at| at.active))),
        };
        Decision { method: pick.method, tuning, predicted: pick.predicted, ..decision }
    }

    /// After `error`: by the next best method if the one that was chosen turned out to be absent.
    pub(super) fn decide_again<'a>(
        &self,
        request: &Request<'_>,
        decision: Decision<'a>,
        error: CopyError,
    ) -> Result<Decision<'a>, CopyError> {
        let tried = decision.method;
        let absence = error.absence().filter(|_| !decision.named && tried != Method::Pageable);
        let Some(absence) = absence else { return Err(error) };
        let gpu = &self.gpus[request.gpu];
        let reason = chain(&error);
        let next = match (absence, decision.situation) {
            (Absence::Lasting, Some(at)) => {
                self.auto.leave_out(request.gpu, tried);
                self.auto.pick(&self.gpus, at, Bytes(request.len as u64))
            }
            // Staging needs no page of the caller's pinned.
            _ if tried == Method::Pinning && decision.instead_of.is_none() => {
                Pick { method: Method::Staged, ..Pick::DRIVER }
            }
            _ => Pick::DRIVER,
        };
        // What has failed in this copy would fail again, for ever.
        let first = decision.instead_of.as_ref().map(|(first, _)| *first);
        let next = if next.method == tried || Some(next.method) == first { Pick::DRIVER } else { next };
        event!(
            WARN,
            "headway::copy",
            "another method is used",
            gpu = request.gpu,
            instead_of = tried,
            method = next.method,
            why = reason
        );
        self.auto.report_absence(request.gpu, &gpu.device.description().name, tried, &reason, next.method);
        let instead_of = decision.instead_of.clone().or(Some((tried, reason)));
        Ok(self.picked(Decision { instead_of, ..decision }, next))
    }

    /// Tells others that `request` is under way, and borrows links for it.
    fn begin<'a>(&'a self, links: &mut Links, request: &Request<'_>, borrow: Borrow) -> Running<'a> {
        let bulk = self.gpus[request.gpu].engine(request.direction).gate.bulk();
        let reaches = |other| self.reaches(other, request.gpu);
        self.shares.begin(links, (request.gpu, request.direction), borrow, reaches, bulk)
    }

    /// How a copy over several links is staged: as copies of as many GPUs at once are, for they share the memory and the caches
    /// as its links do. What goes through another GPU takes two steps, so that as many chunks are on their way as of one copy.
    fn tuning_of_links(&self, at: CopySituation) -> Option<Tuning> {
        let gpu = self.gpus[at.gpu].endpoint;
        let alone = self.auto.tuning(gpu, at)?;
        let links = u32::try_from(self.gpus.len()).unwrap_or(u32::MAX).min(LINKS_MAX);
        let parties = at.active.max(links);
        let shared = self.within(self.auto.tuning(gpu, CopySituation { active: parties, ..at })?, parties);
        Some(Tuning { in_flight: shared.in_flight.max(alone.in_flight), ..shared })
    }

    /// `tuning` with no more threads than one of so many parties finds CPUs for: what was measured with fewer of them may ask for
    /// more.
    pub(super) fn within(&self, tuning: Tuning, parties: u32) -> Tuning {
        let cpus = self.cpus.min(self.options.limits.cpus_max);
        let fair = (cpus.saturating_sub(1) / parties.max(1)).max(1);
        Tuning { threads: tuning.threads.min(fair), ..tuning }
    }

    /// Where no profile says what copies of ordinary memory cost: what copies have taught, and the built-in figures.
    fn advise(&self, at: CopySituation, pick: Pick, bytes: Bytes) -> Option<Advised<'_>> {
        let learning = self.learning[at.gpu].get()?;
        let open = [Method::Pageable, Method::Staged].contains(&pick.method)
            && at.load == BackgroundLoad::Alone
            && at.active == 1;
        let ordinary = at.memory != HostMemory::Pinned;
        (open && ordinary && bytes >= NodeClass::LEAST && !self.options.no_threads)
            .then(|| learning.advise_kind(at.direction, at.memory, bytes))
    }

    /// The bucket in which the watch judges this choice: those against which the driver's curve can be held.
    fn judged(&self, at: CopySituation, pick: Pick, bytes: Bytes) -> Option<Bucket> {
        let comparable = at.load == BackgroundLoad::Alone && at.active == 1 && !self.auto.is_stale();
        let gpu = self.gpus[at.gpu].endpoint;
        (comparable && pick.method != Method::of_driver(at.direction, at.memory))
            .then(|| Bucket::of(gpu, at.direction, at.memory, pick.method, bytes))
    }
}
