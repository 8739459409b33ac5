//! The thread that hears the broker: passes answers on, notices its end, and finds the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use headway_core::decisions::sharing::{JobId, TaskId, TokenOutcome};
use headway_core::units::Nanos;
use headway_os::ipc::SocketPacket;

use super::link::{Link, Unanswered};
use super::{Heard, Held, OnLoss, Shared, State};
use crate::error::ClientError;
use crate::layout::{ENGINES, Entry, token_slot};
use crate::message::{BYTES_MAX, FlowTerms, FromBroker, HeldToken, ResumedTask};
use crate::protocol::lease::{self, Revoked};

/// Waits for messages at most this long before it looks whether it shall end; the end of the connection ends it at once.
const SLICE: Duration = Duration::from_secs(1);
/// Between two attempts to reach the next broker.
const RETRY: Duration = Duration::from_millis(5);

pub(super) fn watch(shared: &Shared, tell: &Sender<Heard>, terms: &Sender<FlowTerms>, stop: &AtomicBool) {
    let mut link = Arc::clone(&shared.lock().link);
    while !stop.load(Ordering::Acquire) {
        if hear(shared, &link, tell, terms) {
            continue;
        }
        // In this order: a thread that asks drops earlier answers first, and then checks whether the broker is lost.
        link.lose();
        let _ = tell.send(Heard::End { epoch: link.epoch });
        match relink(shared, &link, stop) {
            Some(next) => link = next,
            None => return,
        }
    }
}

/// Takes what the broker sends; `false` once it is gone.
fn hear(shared: &Shared, link: &Link, tell: &Sender<Heard>, terms: &Sender<FlowTerms>) -> bool {
    if !link.socket.wait(SLICE) {
        return true;
    }
    let mut buffer = vec![0; BYTES_MAX];
    match link.socket.receive(&mut buffer) {
        Ok(SocketPacket::Message(length, _)) => {
            // A message that makes no sense is no answer; the thread that asked gives up by itself.
            match serde_json::from_slice(&buffer[..length]) {
                Ok(FromBroker::Terms(changed)) => {
                    shared.terms_heard.fetch_add(1, Ordering::Release);
                    drop(terms.send(changed));
                }
                Ok(message) => drop(tell.send(Heard::Message(message))),
                Err(_) => {}
            }
            true
        }
        Ok(SocketPacket::Nothing | SocketPacket::Truncated) => true,
        Ok(SocketPacket::End) | Err(_) => false,
    }
}

/// What of a task was in use when the broker was lost.
struct Frozen {
    task: TaskId,
    index: usize,
    held: Held,
    /// Locks with their words on the old page.
    locks: Vec<(usize, u64)>,
}

impl Frozen {
    fn copies_from_elsewhere(&self, old: &Link) -> bool {
        let here = old.gpus.iter().position(|gpu| *gpu == self.held.gpu);
        let is_elsewhere =
            |(lock, word): &(usize, u64)| Some(lock / ENGINES) != here && !lease::is_returned(old.lease(*lock), *word);
        self.locks.iter().any(is_elsewhere)
    }
}

/// The next connection; `None` if there will be none.
fn relink(shared: &Shared, old: &Arc<Link>, stop: &AtomicBool) -> Option<Arc<Link>> {
    let frozen = freeze(shared, old);
    while !stop.load(Ordering::Acquire) && shared.on_loss == OnLoss::Wait {
        // The lock of a peer copy on the GPU that a job leaves cannot be taken over: it ends first, and the broker grants
        // nothing before this client is back.
        if frozen.iter().any(|frozen| frozen.copies_from_elsewhere(old)) {
            std::thread::sleep(RETRY);
            continue;
        }
        let resumed = resumed(&shared.lock(), &frozen);
        match Link::open(&shared.path, &shared.name, resumed) {
            Ok(link) => {
                let link = Arc::new(link);
                let mut state = shared.lock();
                state.link = Arc::clone(&link);
                settle(&state, old, &link, &frozen, shared.patience());
                drop(state);
                shared.relinked.notify_all();
                return Some(link);
            }
            // The broker that has cut this client off is still there, or the next one does not take it.
            Err(ClientError::Refused { .. } | ClientError::Protocol { .. }) => break,
            Err(_) => std::thread::sleep(RETRY),
        }
    }
    shared.lock().failed = true;
    shared.relinked.notify_all();
    None
}

/// Ends all leases of the lost connection, as the broker would, and notes what is in use.
fn freeze(shared: &Shared, old: &Link) -> Vec<Frozen> {
    let state = shared.lock();
    let busy: Vec<(usize, u32, u64)> = (0..old.gpus.len() * ENGINES)
        .filter_map(|lock| match lease::revoke(old.lease(lock)) {
            Revoked::Busy { owner, word } => Some((lock, owner, word)),
            Revoked::Free => None,
        })
        .collect();
    let frozen = state.records.iter().filter_map(|record| {
        let held = record.held?;
        // Taken away with its GPU, which its job may not have seen yet.
        if matches!(old.look(token_slot(record.index), held.generation), Some(Err(Unanswered::Revoked(_)))) {
            return None;
        }
        let locks = busy.iter().filter(|(_, owner, _)| *owner == record.id.0);
        let locks = locks.map(|(lock, _, word)| (*lock, *word)).collect();
        Some(Frozen { task: record.id, index: record.index, held, locks })
    });
    frozen.collect()
}

fn resumed(state: &State, frozen: &[Frozen]) -> Vec<ResumedTask> {
    let resume = |record: &super::Record| {
        let held = frozen.iter().find(|frozen| frozen.task == record.id).map(|frozen| {
            let mut locks = [false; ENGINES];
            let here = state.link.gpus.iter().position(|gpu| *gpu == frozen.held.gpu);
            let on_it = frozen.locks.iter().filter(|(lock, _)| Some(lock / ENGINES) == here);
            on_it.for_each(|(lock, _)| locks[lock % ENGINES] = true);
            let Held { job, release, gpu, token, generation } = frozen.held;
            HeldToken { job, release, gpu, token, slot: token_slot(frozen.index) as u32, generation, locks }
        });
        ResumedTask { id: record.id, shape: record.shape.clone(), held }
    };
    state.records.iter().map(resume).collect()
}

/// Reports to the new broker what was given back since the old one was lost. From here on, a thread that gives something back uses the
/// new connection: the lock on the state decides which of the two cases holds.
fn settle(state: &State, old: &Link, link: &Link, frozen: &[Frozen], patience: Nanos) {
    let mut returned = false;
    for frozen in frozen {
        for (lock, word) in &frozen.locks {
            if lease::is_returned(old.lease(*lock), *word)
                && let Some(mine) = lease::granted(link.lease(*lock), frozen.task.0)
            {
                lease::release(link.lease(*lock), mine);
                returned = true;
            }
        }
        let record = state.records.iter().find(|record| record.id == frozen.task);
        let still = record.and_then(|record| record.held).is_some_and(|held| held.job == frozen.held.job);
        if !still {
            let job = JobId { task: frozen.task, job: frozen.held.job };
            // A broker that is lost again learns it from the next greeting.
            let _ = link.push(Entry::Release { job, outcome: TokenOutcome::Aborted }, patience);
        }
    }
    if returned {
        link.ring();
    }
}
