//! What a user should know of a copier's choices.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use headway_core::files::machine::EndpointId;
use headway_core::models::transfer::Method;
use headway_os::clock;

use super::CopierEvent;

/// Events until they are taken.
pub(super) struct Events {
    max: usize,
    state: Mutex<EventsState>,
}

#[derive(Default)]
struct EventsState {
    kept: VecDeque<CopierEvent>,
    dropped: u64,
    /// Methods whose absence was told, by GPU.
    absences: BTreeSet<(usize, Method)>,
    /// Pairs of GPUs of which it was told that they do not reach each other.
    denied: BTreeSet<(EndpointId, EndpointId)>,
}

impl Events {
    pub(super) fn new(max: usize) -> Self {
        Self { max, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, EventsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells, once for each method of each GPU, that another is used.
    pub(super) fn absence(&self, gpu: usize, name: &str, method: Method, reason: &str, instead: Method) {
        if self.lock().absences.insert((gpu, method)) {
            self.tell(format!("`{name}`: `{method}` cannot be used, `{instead}` is used instead: {reason}"));
        }
    }

    /// Tells, once for each pair, that a copy between two GPUs goes through the host.
    pub(super) fn denied(&self, from: EndpointId, to: EndpointId, what: &str) {
        if self.lock().denied.insert((from, to)) {
            self.tell(what.to_owned());
        }
    }

    /// Tells the user.
    pub(super) fn tell(&self, what: String) {
        let mut state = self.lock();
        if state.kept.len() >= self.max {
            state.kept.pop_front();
            state.dropped += 1;
        }
        if self.max > 0 {
            state.kept.push_back(CopierEvent { at: clock::now(), what });
        }
    }

    /// What was told since the last call.
    pub(super) fn take(&self) -> Vec<CopierEvent> {
        let mut state = self.lock();
        let dropped = std::mem::take(&mut state.dropped);
        let mut taken = Vec::with_capacity(state.kept.len() + 1);
        if dropped > 0 {
            taken.push(CopierEvent { at: clock::now(), what: format!("{dropped} earlier events were dropped") });
        }
        taken.extend(state.kept.drain(..));
        taken
    }
}
