//! The pages and the bell of one client, as the broker uses them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headway_os::OsError;
use headway_os::ipc::{self, Bell, Words};

use crate::layout::{
    self, ANSWER_LONGS, BROKER_LONGS, BROKER_WORDS, CLIENT_LONGS, CLIENT_WORDS, Code, ENTRY_LONGS, Entry, HEAD,
    RING_ENTRIES, TAIL, TASKS_MAX,
};
use crate::protocol::handshake;

pub(super) struct Pages {
    client: Words,
    broker: Words,
    pub(super) bell: Bell,
    pub(super) cells: Cells,
    head: u64,
}

/// The page of one user's clients, in which locks are passed on.
pub(super) struct UserCells {
    words: Arc<Words>,
    /// Which clients' places are in use.
    taken: Vec<bool>,
}

/// One client's part of it.
pub(super) struct Cells {
    words: Arc<Words>,
    /// Its place among the clients of its user.
    place: usize,
    pub(super) count: usize,
}

impl UserCells {
    /// A page for so many clients.
    pub(super) fn new(clients: usize) -> Result<Self, OsError> {
        let (longs, words) = layout::cell_page(clients * TASKS_MAX);
        Ok(Self { words: Arc::new(Words::create("headway cells", longs, words)?), taken: vec![false; clients] })
    }

    /// A place for another client; `None` if all are in use.
    pub(super) fn take(&mut self) -> Option<Cells> {
        let place = self.taken.iter().position(|taken| !taken)?;
        self.taken[place] = true;
        Some(Cells { words: Arc::clone(&self.words), place, count: self.taken.len() * TASKS_MAX })
    }

    /// A client has gone; whether it was the last.
    pub(super) fn free(&mut self, place: usize) -> bool {
        self.taken[place] = false;
        self.taken.iter().all(|taken| !taken)
    }
}

impl Cells {
    pub(super) fn place(&self) -> usize {
        self.place
    }

    /// Its first cell.
    pub(super) fn first(&self) -> usize {
        self.place * TASKS_MAX
    }
}

/// What is next in a ring.
pub(super) enum Next {
    Nothing,
    Entry(Entry),
    /// The client does not keep to the protocol.
    Nonsense,
}

impl Pages {
    pub(super) fn new(cells: Cells) -> Result<Self, OsError> {
        let client = Words::create("headway client", CLIENT_LONGS, CLIENT_WORDS)?;
        let broker = Words::create("headway broker", BROKER_LONGS, BROKER_WORDS)?;
        broker.forbid_other_writers()?;
        Ok(Self { client, broker, bell: Bell::new()?, cells, head: 0 })
    }

    /// What the client gets: its page, the broker's, the bell, and the page of its user's clients.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        [self.client.as_fd(), self.broker.as_fd(), self.bell.as_fd(), self.cells.words.as_fd()]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.client.long(TAIL).load(Ordering::Acquire) == self.head
    }

    /// Takes the next entry: copied once, then looked at.
    pub(super) fn next(&mut self) -> Next {
        let tail = self.client.long(TAIL).load(Ordering::Acquire);
        match tail.wrapping_sub(self.head) {
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

    /// Answers what was asked in a slot, and wakes who sleeps there.
    pub(super) fn answer(&self, slot: u32, generation: u32, code: Code, answer: [u64; ANSWER_LONGS]) {
        let first = layout::answer(slot as usize);
        for (at, long) in answer.into_iter().enumerate() {
            self.broker.long(first + at).store(long, Ordering::Relaxed);
        }
        let word = self.broker.word(slot as usize);
        word.store(layout::state(generation, code), Ordering::Release);
        if let Some(task) = layout::engine_of(slot as usize) {
            let sleep = self.cells.words.word(layout::cell_sleep(self.cells.first() + task));
            if handshake::must_wake(|| sleep.swap(0, Ordering::Relaxed) != 0) {
                ipc::wake(sleep, u32::MAX);
            }
            return;
        }
        if handshake::must_wake(|| self.client.word(slot as usize).load(Ordering::Relaxed) != 0) {
            ipc::wake(word, u32::MAX);
        }
    }

    /// Tells the client who may be passed a lock: the heir's cell, and by which value.
    pub(super) fn tell_heir(&self, lock: usize, cell: usize, value: u64) {
        let first = layout::heir(lock);
        self.broker.long(first).store(cell as u64, Ordering::Relaxed);
        self.broker.long(first + 1).store(value, Ordering::Relaxed);
    }

    /// Tells the client by which value an engine is passed to the task at this place; 0 = not any more.
    pub(super) fn expect(&self, task: usize, value: u64) {
        self.broker.long(layout::expected(task)).store(value, Ordering::Release);
    }
}
