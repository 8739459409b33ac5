//! Locks that go from client to client without the broker between: who is named, and what happens when one of the two goes.
//!
//! Only between clients of one user, who could stop each other in other ways: they share the page in which the heir is told.
//! The arbiter's order is kept, as only the one is named who runs as soon as the holder completes; the broker hears of the
//! release as of any other, and then tells the arbiter. What it names is called off when one of the two goes.

use std::hash::{BuildHasher, RandomState};

use headway_core::sharing::{JobId, TaskId};
use headway_core::units::Nanos;

use super::desk::{Desk, Heir, Promise};
use super::session::Session;
use crate::layout::engine_of;
use crate::protocol::lease;

/// Values by which locks are passed: nobody can guess the next one.
pub(super) struct Values {
    keys: RandomState,
    count: u64,
}

impl Values {
    pub(super) fn new() -> Self {
        Self { keys: RandomState::new(), count: 0 }
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        self.keys.hash_one(self.count).max(1)
    }
}

impl Desk {
    fn served(&self, task: TaskId) -> Option<&Session> {
        let client = self.tasks.get(&task)?.client;
        self.sessions.get(&client).filter(|session| session.gone.is_none())
    }

    /// Names the heirs of all holders that have none, where it is known who is next.
    pub(super) fn name_heirs(&mut self) {
        if !self.direct {
            return;
        }
        let fits = |task: &TaskId| Some((*task, self.heir_of(*task)?));
        let found: Vec<_> = self.leases.running().iter().filter_map(fits).collect();
        found.into_iter().for_each(|(holder, heir)| self.name(holder, heir));
    }

    /// Who may be passed the lock that a task holds.
    fn heir_of(&self, holder: TaskId) -> Option<JobId> {
        let open = self.tasks.get(&holder)?.open.as_ref()?;
        if open.engines.as_ref()?.heir != Heir::Nobody {
            return None;
        }
        let heir = self.arbiter.engine_locks()?.heir(open.key.job)?;
        let (one, other) = (self.served(holder)?, self.served(heir.task)?);
        // Two tasks of one client have one word for the lock between them.
        let apart = self.tasks.get(&holder)?.client != self.tasks.get(&heir.task)?.client;
        (apart && one.peer.uid == other.peer.uid).then_some(heir)
    }

    fn name(&mut self, holder: TaskId, heir: JobId) {
        let (generation, value) = (self.leases.next_generation(), self.values.next());
        let Some(engines) = self.open_mut(heir).and_then(|open| open.engines.as_ref()) else { return };
        let (Some(slot), [lock]) = (engines.slot, &engines.locks[..]) else { return };
        let (lock, Some(place)) = (*lock, engine_of(slot.number as usize)) else { return };
        let Some(held) = self.tasks.get(&holder).and_then(|task| {
            let held = task.open.as_ref()?.engines.as_ref()?.held.as_ref()?;
            held.iter().find(|(known, _)| *known == lock).map(|(_, word)| *word)
        }) else {
            return;
        };
        let pages = |task: TaskId| self.served(task).and_then(|session| session.pages.as_ref());
        let (Some(theirs), Some(next)) = (pages(holder), pages(heir.task)) else { return };
        let word = lease::promise(next.lease(lock), generation, heir.task.0);
        next.expect(place, value);
        theirs.tell_heir(lock, next.cells.first() + place, value);
        let named = lease::name(theirs.lease(lock), held);
        if !named {
            // It has just given the lock back, and the broker sees that at once.
            next.expect(place, 0);
            lease::take_back(next.lease(lock), generation);
        }
        let promise = named.then_some(Promise { holder, lock, word, place });
        if let Some(engines) = self.open_mut(heir).and_then(|open| open.engines.as_mut()) {
            engines.promise = promise;
        }
        let open = self.tasks.get_mut(&holder).and_then(|task| task.open.as_mut());
        if let Some(engines) = open.and_then(|open| open.engines.as_mut()) {
            engines.heir = if named { Heir::Named(heir.task) } else { Heir::Over };
        }
    }

    /// Whoever holds a lock that is promised to a task may no longer pass it on. If it has, the task holds it.
    pub(super) fn call_off_promise(&mut self, now: Nanos, heir: TaskId) {
        let open = self.tasks.get(&heir).and_then(|task| task.open.as_ref());
        let Some(promise) = open.and_then(|open| open.engines.as_ref()?.promise) else { return };
        let holder = self.tasks.get(&promise.holder).and_then(|task| task.open.as_ref());
        let held = holder.and_then(|open| open.engines.as_ref()?.held.as_ref()?.first().copied());
        let pages = self.served(promise.holder).and_then(|session| session.pages.as_ref());
        let called_off = match (held, pages) {
            (Some((lock, word)), Some(pages)) if lock == promise.lock => lease::call_off(pages.lease(lock), word),
            _ => true,
        };
        if !called_off {
            // The lock has been passed, or given back as if nobody were named: the arbiter is told of both.
            self.collect_returns(now);
            return;
        }
        if let Some(engines) = self.tasks.get_mut(&promise.holder).and_then(|task| task.open.as_mut()?.engines.as_mut())
        {
            engines.heir = Heir::Over;
        }
        if let Some(engines) = self.tasks.get_mut(&heir).and_then(|task| task.open.as_mut()?.engines.as_mut()) {
            engines.promise = None;
        }
        self.break_promise(heir, Some(promise));
    }

    /// A task may no longer pass on what it holds. If it has, it holds it no longer.
    pub(super) fn call_off_heir(&mut self, now: Nanos, holder: TaskId) {
        let open = self.tasks.get(&holder).and_then(|task| task.open.as_ref());
        if let Some(Heir::Named(heir)) = open.and_then(|open| Some(open.engines.as_ref()?.heir)) {
            self.call_off_promise(now, heir);
        }
    }

    /// Takes from a task's page what it was promised.
    pub(super) fn break_promise(&mut self, heir: TaskId, promise: Option<Promise>) {
        let Some(promise) = promise else { return };
        self.take_back(heir, promise.lock);
        let session = self.tasks.get(&heir).and_then(|task| self.sessions.get(&task.client));
        if let Some(pages) = session.and_then(|session| session.pages.as_ref()) {
            pages.expect(promise.place, 0);
        }
    }
}
