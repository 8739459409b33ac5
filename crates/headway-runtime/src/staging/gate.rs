//! The right to use one engine for one chunk, first come, first served.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::workers::Signal;

/// One engine of one GPU. Each party names how many chunks, of all parties, may be on the engine for its own to follow.
#[derive(Default)]
pub(super) struct Gate {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    held: u32,
    next: u64,
    queue: VecDeque<Waiting>,
}

struct Waiting {
    ticket: u64,
    limit: u32,
    signal: Arc<Signal>,
}

impl Inner {
    /// Tells the first in the queue if it can go on.
    fn notify(&self) {
        if let Some(first) = self.queue.front()
            && self.held < first.limit
        {
            first.signal.raise();
        }
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One party's place at a gate; gives everything back when dropped.
pub(super) struct Place {
    gate: Arc<Gate>,
    limit: u32,
    signal: Arc<Signal>,
    ticket: Option<u64>,
    held: u32,
}

impl Place {
    pub(super) fn new(gate: &Arc<Gate>, limit: u32, signal: &Arc<Signal>) -> Self {
        Self { gate: Arc::clone(gate), limit: limit.max(1), signal: Arc::clone(signal), ticket: None, held: 0 }
    }

    /// Takes the engine for one more chunk, or queues for it: the signal is raised when it is time to ask again.
    pub(super) fn take(&mut self) -> bool {
        let mut inner = self.gate.lock();
        let first = match self.ticket {
            Some(ticket) => inner.queue.front().is_some_and(|first| first.ticket == ticket),
            None => inner.queue.is_empty(),
        };
        if first && inner.held < self.limit {
            if self.ticket.take().is_some() {
                inner.queue.pop_front();
            }
            inner.held += 1;
            self.held += 1;
            inner.notify();
            return true;
        }
        if self.ticket.is_none() {
            let ticket = inner.next;
            inner.next += 1;
            inner.queue.push_back(Waiting { ticket, limit: self.limit, signal: Arc::clone(&self.signal) });
            self.ticket = Some(ticket);
        }
        false
    }

    /// A chunk has ended.
    pub(super) fn release(&mut self) {
        let mut inner = self.gate.lock();
        inner.held -= 1;
        self.held -= 1;
        inner.notify();
    }

    /// Leaves the queue, if it stands in it.
    pub(super) fn leave(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let mut inner = self.gate.lock();
            inner.queue.retain(|waiting| waiting.ticket != ticket);
            inner.notify();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
        while self.held > 0 {
            self.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(gate: &Arc<Gate>, limit: u32) -> (Place, Arc<Signal>) {
        let signal = Signal::here();
        (Place::new(gate, limit, &signal), signal)
    }

    #[test]
    fn parties_take_turns_chunk_by_chunk() {
        let gate = Arc::new(Gate::default());
        let ((mut a, _), (mut b, signal), (mut c, _)) = (place(&gate, 2), place(&gate, 2), place(&gate, 2));
        assert!(a.take() && a.take() && !a.take());
        assert!(!b.take() && !c.take());
        a.release();
        assert!(!signal.take(), "a is first: it asked before b");
        assert!(!b.take());
        assert!(a.take());
        a.release();
        assert!(signal.take());
        assert!(!a.take() && !c.take(), "b comes before both");
        assert!(b.take());
    }

    #[test]
    fn a_party_with_a_smaller_limit_waits_for_it_and_nobody_passes() {
        let gate = Arc::new(Gate::default());
        let ((mut wide, _), (mut narrow, signal)) = (place(&gate, 4), place(&gate, 1));
        assert!(wide.take() && wide.take() && !narrow.take() && !wide.take());
        wide.release();
        assert!(!signal.take() && !narrow.take());
        wide.release();
        assert!(signal.take() && narrow.take());
        narrow.release();
        assert!(wide.take());
    }

    #[test]
    fn who_goes_leaves_the_queue_and_the_engine() {
        let gate = Arc::new(Gate::default());
        let ((mut a, _), (mut b, _), (mut c, signal)) = (place(&gate, 1), place(&gate, 1), place(&gate, 1));
        assert!(a.take() && !b.take() && !c.take());
        drop(a);
        assert!(!c.take());
        drop(b);
        assert!(signal.take() && c.take());
    }
}
