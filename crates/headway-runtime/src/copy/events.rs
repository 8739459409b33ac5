//! What a user should know of a copier's choices.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    /// What was told once.
    told: BTreeSet<String>,
}

impl Events {
    pub(super) fn new(max: usize) -> Self {
        Self { max, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, EventsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells `what` and why, if it is the first time that it happens, for whatever reason.
    pub(super) fn tell_once(&self, what: String, why: &str) {
        if self.lock().told.insert(what.clone()) {
            self.tell(format!("{what}: {why}"));
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
