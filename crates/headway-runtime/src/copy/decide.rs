//! What a copy is made by: the chooser's questions are answered here, and what the choice borrows is taken.

use std::sync::atomic::Ordering;

use headway_core::decisions::chooser::{
    ChoiceReason, CopyAbsence, CopyChoice, CopyQuestion, CopySituation, HostKnown, LINKS_MAX,
};
use headway_core::models::transfer::links::{Borrow, Links};
use headway_core::models::transfer::{BackgroundLoad, Direction, Method, WindowMapping};
use headway_core::units::Bytes;
use headway_device::{DeviceError, HostKind};
use headway_os::event;

use super::chooser::{ChosenCopy, is_realtime, look};
use super::error::chain;
use super::request::{BULK, Host, Request};
use super::shares::Running;
use super::{Copier, CopyError, How};

/// GPUs whose links `multipath` uses besides the target's own.
const RELAYS_MAX: usize = LINKS_MAX as usize - 1;

/// How one copy is made.
pub(super) struct Decision<'a> {
    pub(super) chosen: ChosenCopy<'a>,
    /// No other method replaces it, since the caller named it or chose it before.
    pub(super) is_final: bool,
    /// Positions of the GPUs whose links `multipath` has borrowed.
    pub(super) relays: Vec<usize>,
    /// The first method that could not be used, with the reason.
    pub(super) instead_of: Option<(Method, String)>,
    /// Tells other copies of this one, and gives back borrowed links.
    _running: Option<Running<'a>>,
}

impl<'a> Decision<'a> {
    pub(super) const fn of(chosen: ChosenCopy<'a>, is_final: bool, relays: Vec<usize>) -> Self {
        Self { chosen, is_final, relays, instead_of: None, _running: None }
    }

    pub(super) const fn choice(&self) -> &CopyChoice {
        self.chosen.choice()
    }
}

impl Copier {
    /// How `request` is carried out.
    pub(super) fn decide(&self, request: &Request<'_>, how: How) -> Decision<'_> {
        let chooser = &self.choosers[request.gpu];
        let held = matches!(request.host, Host::Held(_));
        let mut host = if held { HostKnown::Pinned } else { HostKnown::Nothing };
        let (choice, links) = loop {
            // Between the look at who copies and the beginning nobody else begins. What is small does not notice other GPUs.
            let links = (request.len >= BULK).then(|| self.shares.links(request.direction));
            let situation = self.situation(request, host, links.as_deref());
            let answer = chooser.lock().choose(how, &situation);
            match answer {
                Ok(choice) => break (choice, links),
                Err(question) => {
                    drop(links);
                    host = self.answer(request, question, host);
                }
            }
        };
        let is_final = how != How::Auto;
        let mut decision = Decision::of(chooser.chosen(choice), is_final, Vec::new());
        if let ChoiceReason::Slower(slower) = choice.reason {
            decision.instead_of = Some((slower, "it was slower than the driver the last times".to_owned()));
        }
        let multipath = choice.method == Method::Multipath;
        let links = if multipath && is_final && links.is_none() {
            Some(self.shares.links(request.direction))
        } else {
            links.filter(|_| choice.method.abilities().occupies.engine)
        };
        if let Some(mut links) = links {
            let borrow = match (multipath, is_final) {
                (false, _) => Borrow::Nothing,
                (true, true) => Borrow::Free(RELAYS_MAX),
                (true, false) => Borrow::Spare(RELAYS_MAX),
            };
            let mut running = self.begin(&mut links, request, borrow);
            decision.relays = std::mem::take(&mut running.relays);
            decision._running = Some(running);
        }
        decision
    }

    /// All that decides, as far as it is known.
    fn situation(&self, request: &Request<'_>, host: HostKnown, links: Option<&Links>) -> CopySituation {
        let standing = links.map(|links| links.standing(request.gpu, |other| self.reaches(other, request.gpu)));
        CopySituation {
            direction: request.direction,
            bytes: Bytes(request.len as u64),
            host,
            load: self.load(request),
            active: standing.map_or(1, |standing| standing.active),
            granted: standing.is_some_and(|standing| standing.grants),
            window: request.device.buffer.window(),
            realtime: is_realtime(),
            repeats: None,
        }
    }

    /// Answers `question`; what is known of the host end then.
    fn answer(&self, request: &Request<'_>, question: CopyQuestion, host: HostKnown) -> HostKnown {
        let gpu = &self.gpus[request.gpu];
        match question {
            CopyQuestion::IsPinned => {
                match request.kind(|memory| gpu.kinds.of(memory, || gpu.device.host_kind(memory))) {
                    Ok(HostKind::Pinned) => HostKnown::Pinned,
                    Ok(HostKind::Pageable) => HostKnown::Ordinary,
                    Err(_) => HostKnown::DriverOnly,
                }
            }
            CopyQuestion::ArePagesThere => match &request.host {
                Host::Out(to) => look(to),
                Host::In(_) | Host::Held(_) => HostKnown::PagesPresent,
            },
            CopyQuestion::Forms(method) => {
                let forms: Vec<Method> = if let Method::Resident(_) = method {
                    usable(gpu.resident_forms()).map(|shape| Method::Resident(Some(shape))).collect()
                } else {
                    // Of memory without a window, only `gdrdrv` maps parts.
                    let maps_parts = |mapping: &WindowMapping| *mapping == WindowMapping::Gdrdrv;
                    usable(gpu.windows()).filter(maps_parts).map(|mapping| Method::PagedWindow(Some(mapping))).collect()
                };
                self.choosers[request.gpu].lock().set_forms(method, forms);
                host
            }
        }
    }

    /// What bulk the GPU carries besides this request.
    fn load(&self, request: &Request<'_>) -> BackgroundLoad {
        let gpu = &self.gpus[request.gpu];
        let (same, opposite) = match request.direction {
            Direction::D2h => (&gpu.d2h, &gpu.h2d),
            Direction::H2d | Direction::Peer => (&gpu.h2d, &gpu.d2h),
        };
        match [same, opposite].map(|engine| engine.bulk_count().load(Ordering::Relaxed) > 0) {
            [false, false] => BackgroundLoad::Alone,
            [true, false] => BackgroundLoad::BulkSame,
            [false, true] => BackgroundLoad::BulkOpposite,
            [true, true] => BackgroundLoad::BulkBoth,
        }
    }

    /// After `error`: by the method that the chooser says instead, if the one that was chosen turned out to be absent.
    pub(super) fn decide_again<'a>(
        &self,
        request: &Request<'_>,
        mut decision: Decision<'a>,
        error: CopyError,
    ) -> Result<Decision<'a>, CopyError> {
        let tried = decision.choice().method;
        let Some(absence) = error.absence() else { return Err(error) };
        if !decision.chosen.failed(absence) || decision.is_final {
            return Err(error);
        }
        let (reason, method) = (chain(&error), decision.choice().method);
        macro_rules! tell {
            ($level:ident) => {
                event!(
                    $level,
                    "headway::copy",
                    "another method is used",
                    gpu = request.gpu,
                    instead_of = tried,
                    method = method,
                    why = reason
                )
            };
        }
        match absence {
            CopyAbsence::Lasting => tell!(WARN),
            // Nobody needs to do anything: the next copy may find it there.
            CopyAbsence::Passing | CopyAbsence::Starting => tell!(DEBUG),
        }
        let name = &self.gpus[request.gpu].device.description().name;
        self.events.tell_once(format!("`{name}`: `{tried}` cannot be used, `{method}` is used instead"), &reason);
        decision.instead_of.get_or_insert((tried, reason));
        Ok(decision)
    }

    /// Tells others that `request` is under way, and borrows links for it.
    fn begin<'a>(&'a self, links: &mut Links, request: &Request<'_>, borrow: Borrow) -> Running<'a> {
        let bulk = self.gpus[request.gpu].engine(request.direction).bulk();
        let reaches = |other| self.reaches(other, request.gpu);
        self.shares.begin(links, request.gpu, request.direction, borrow, reaches, bulk)
    }
}

/// The forms that can be used.
fn usable<F: Copy>(forms: &[(F, Result<(), DeviceError>)]) -> impl Iterator<Item = F> {
    forms.iter().filter(|(_, usable)| usable.is_ok()).map(|(form, _)| *form)
}
