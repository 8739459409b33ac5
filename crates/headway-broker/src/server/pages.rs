//! The three pages and the bell of one client, as the broker uses them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use headway_os::OsError;
use headway_os::ipc::{self, Bell, Words};

use crate::layout::{
    self, ANSWER_LONGS, BROKER_LONGS, BROKER_WORDS, CLIENT_LONGS, CLIENT_WORDS, Code, ENTRY_LONGS, Entry, HEAD,
    RING_ENTRIES, TAIL,
};
use crate::protocol::handshake;

pub(super) struct Pages {
    client: Words,
    broker: Words,
    pub(super) bell: Bell,
    head: u64,
    /// Entries that were there at the last look.
    seen: u64,
}

/// What is next in a ring.
pub(super) enum Next {
    Nothing,
    Entry(Entry),
    /// The client does not keep to the protocol.
    Nonsense,
}

impl Pages {
    pub(super) fn new() -> Result<Self, OsError> {
        let client = Words::create("headway client", CLIENT_LONGS, CLIENT_WORDS)?;
        let broker = Words::create("headway broker", BROKER_LONGS, BROKER_WORDS)?;
        broker.forbid_other_writers()?;
        Ok(Self { client, broker, bell: Bell::new()?, head: 0, seen: 0 })
    }

    /// What the client gets: its page, the broker's, and the bell.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.client.as_fd(), self.broker.as_fd(), self.bell.as_fd()]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.client.long(TAIL).load(Ordering::Acquire) == self.head
    }

    /// [`next`](Self::next) gives the entries that are there now. A clock that is read afterwards gives a time at which each of them
    /// had been written.
    pub(super) fn look(&mut self) {
        self.seen = self.client.long(TAIL).load(Ordering::Acquire);
    }

    /// Takes the next entry that was there at the last look: copied once, then looked at.
    pub(super) fn next(&mut self) -> Next {
        match self.seen.wrapping_sub(self.head) {
            0 => return Next::Nothing,
            1..=RING_ENTRIES => {}
            _ => return Next::Nonsense,
        }
        let first = layout::entry(self.head);
        let mut longs = [0; ENTRY_LONGS];
        for (at, long) in longs.iter_mut().enumerate() {
            *long = self.client.long(first + at).load(Ordering::Relaxed);
        }
        self.head = self.head.wrapping_add(1);
        self.broker.long(HEAD).store(self.head, Ordering::Release);
        Entry::decode(longs).map_or(Next::Nonsense, Next::Entry)
    }

    /// The lease word of a lock.
    pub(super) fn lease(&self, lock: usize) -> &AtomicU64 {
        self.client.long(layout::lease(lock))
    }

    /// Answers the request in a slot, and wakes the client that sleeps there.
    pub(super) fn answer(&self, slot: u32, generation: u32, code: Code, answer: [u64; ANSWER_LONGS]) {
        let first = layout::answer(slot as usize);
        for (at, long) in answer.into_iter().enumerate() {
            self.broker.long(first + at).store(long, Ordering::Relaxed);
        }
        let word = self.broker.word(slot as usize);
        word.store(layout::state(generation, code), Ordering::Release);
        if handshake::must_wake(|| self.client.word(slot as usize).load(Ordering::Relaxed) != 0) {
            ipc::wake(word, u32::MAX);
        }
    }
}
