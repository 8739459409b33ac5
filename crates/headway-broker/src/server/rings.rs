//! What clients write into their pages, and when.

use headway_core::decisions::broker::{Input, Slot};
use headway_core::decisions::engine_lock::{EngineRole, LockId};
use headway_core::decisions::sharing::ClientId;
use headway_core::units::Nanos;

use super::driver::BookDriver;
use super::pages::{Next, Pages};
use super::session::Session;
use crate::layout::{ENGINES, Entry, RING_ENTRIES};

impl BookDriver {
    /// Finds the entries of a client, or of all clients; the caller then reads the time that counts for them. In the other order, an entry
    /// that gives a token back could be written after that time, and a part of the token's use would not count.
    pub(super) fn look(&mut self, client: Option<ClientId>) {
        let of = |session: &mut Session| session.pages.as_mut().map_or((), Pages::look);
        match client {
            Some(client) => self.sessions.get_mut(&client).map_or((), of),
            None => self.sessions.values_mut().for_each(of),
        }
    }

    /// Whether nothing was written to any page since the last turn.
    pub(super) fn is_idle(&self) -> bool {
        (self.book.is_recovering() || !self.sessions.values().any(Session::has_entries)) && !self.has_returns()
    }

    pub(super) fn read_rings(&mut self, now: Nanos, share: usize) -> bool {
        let asking = self.sessions.iter().filter(|(_, session)| session.has_entries());
        let clients: Vec<ClientId> = asking.map(|(client, _)| *client).collect();
        let mut busy = false;
        for client in clients {
            busy |= self.read_ring(now, client, share, true);
        }
        busy
    }

    /// What a client published in memory comes before what it says, or does, at its socket afterwards.
    pub(super) fn catch_up(&mut self, now: Nanos, client: ClientId, asks: bool) {
        if self.book.is_recovering() {
            return;
        }
        let returned = self.collect_returns(now);
        if self.read_ring(now, client, RING_ENTRIES as usize, asks) || returned {
            self.priority.apply();
        }
    }

    /// Handles entries of one client; of one that is going only what gives back (`asks` is false). Whether there were any.
    fn read_ring(&mut self, now: Nanos, client: ClientId, share: usize, asks: bool) -> bool {
        // What a client that is gone has left in its ring no longer counts: all that it holds ends with its drain.
        let session = self.sessions.get_mut(&client).filter(|session| !session.is_shut);
        let Some(pages) = session.and_then(|session| session.pages.as_mut()) else { return false };
        let (mut entries, mut lies, locks) = (Vec::new(), false, self.book.gpus().len() * ENGINES);
        for _ in 0..share {
            match pages.next() {
                Next::Entry(Entry::Used { lock, .. }) if lock as usize >= locks => {
                    lies = true;
                    break;
                }
                Next::Entry(entry) => entries.push(entry),
                Next::Nothing => break,
                Next::Nonsense => {
                    lies = true;
                    break;
                }
            }
        }
        let busy = lies || !entries.is_empty();
        for entry in entries {
            if asks || !matches!(entry, Entry::Request { .. } | Entry::Acquire { .. }) {
                self.read_entry(now, client, entry);
            }
        }
        if lies {
            self.feed(now, &Input::Broke { client });
        }
        busy
    }

    fn read_entry(&mut self, now: Nanos, client: ClientId, entry: Entry) {
        match entry {
            Entry::Release { job, outcome } => self.feed(now, &Input::Release { client, job, outcome }),
            Entry::Abort { job } => self.feed(now, &Input::Abort { client, job }),
            Entry::Used { lock, job, begin, end, missing } => {
                let gpu = self.book.gpus()[lock as usize / ENGINES];
                let engine = [EngineRole::Execute, EngineRole::In, EngineRole::Out][lock as usize % ENGINES];
                let lock = LockId { gpu, engine };
                self.feed(now, &Input::Used { client, job, lock, begin, end, missing })
            }
            Entry::Request { slot, generation, job, release, acquisition } => {
                let slot = Slot { number: slot, generation };
                self.feed(now, &Input::Request { client, slot, job, release, acquisition })
            }
            Entry::Acquire { slot, generation, job, operation } => {
                // The job may have given back its last engine just before it asked for this one.
                self.collect_returns(now);
                let slot = Slot { number: slot, generation };
                self.feed(now, &Input::Acquire { client, slot, job, operation })
            }
        };
    }
}
