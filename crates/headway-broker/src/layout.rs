//! Where what stands in the shared pages.
//!
//! | page | written by | words |
//! |---|---|---|
//! | client page | client; lease words by both | tail of the ring, lease words, ring of entries; one "sleeping" word a slot |
//! | broker page | broker; sealed against other writers | head of the ring, what was answered in each slot; one state word a slot |
//! | notice page | broker; sealed, the same for all | when the broker last went round; "broker asleep" |

use headway_core::decisions::engine_lock::{EngineWork, LockedOperation};
use headway_core::decisions::sharing::{JobId, TaskId, TokenOutcome};
use headway_core::units::{Bytes, Nanos};

/// GPUs that a broker arbitrates at most.
pub const GPUS_MAX: usize = 32;
/// Tasks of one client at most.
pub const TASKS_MAX: usize = 64;

/// Engines of a GPU with a lock.
pub(crate) const ENGINES: usize = 3;
/// One slot for a task's token request, one for its engine request.
pub(crate) const SLOTS: usize = 2 * TASKS_MAX;

/// Client page: entries ever written.
pub(crate) const TAIL: usize = 0;
const LEASES: usize = 8;
/// A cache line for each lease word.
const LEASE_LONGS: usize = 8;
const RING: usize = LEASES + GPUS_MAX * ENGINES * LEASE_LONGS;
/// Entries that the ring holds.
pub(crate) const RING_ENTRIES: u64 = 8 * TASKS_MAX as u64;
/// A client reports uses of leased engines only while fewer entries than this are in the ring. The other half of the ring is for
/// requests: each slot has at most one open entry and one release, so they always fit.
pub(crate) const REPORTS: u64 = RING_ENTRIES / 2;
/// Words of an entry.
pub(crate) const ENTRY_LONGS: usize = 8;
pub(crate) const CLIENT_LONGS: usize = RING + RING_ENTRIES as usize * ENTRY_LONGS;
pub(crate) const CLIENT_WORDS: usize = SLOTS;

/// Broker page: entries ever read.
pub(crate) const HEAD: usize = 0;
const ANSWERS: usize = 8;
/// Words of an answer.
pub(crate) const ANSWER_LONGS: usize = 4;
pub(crate) const BROKER_LONGS: usize = ANSWERS + SLOTS * ANSWER_LONGS;
pub(crate) const BROKER_WORDS: usize = SLOTS;

/// Notice page: when the broker last went round, by its clock; 0 = it does not tell.
pub(crate) const BEAT: usize = 0;
/// Whether the broker sleeps.
pub(crate) const ASLEEP: usize = 0;
pub(crate) const NOTICE_LONGS: usize = 1;
pub(crate) const NOTICE_WORDS: usize = 1;

/// Generations of a slot: the part of a state word next to the code.
pub(crate) const GENERATIONS: u32 = (1 << 30) - 1;

/// Lease word of an engine (0 to 2) of the GPU at a position.
pub(crate) const fn lease(lock: usize) -> usize {
    LEASES + lock * LEASE_LONGS
}

/// First word of the entry with this number.
pub(crate) const fn entry(number: u64) -> usize {
    RING + (number % RING_ENTRIES) as usize * ENTRY_LONGS
}

/// First word of the answer in a slot.
pub(crate) const fn answer(slot: usize) -> usize {
    ANSWERS + slot * ANSWER_LONGS
}

/// Slot of a task's token request, by its place among the client's tasks.
pub(crate) const fn token_slot(task: usize) -> usize {
    2 * task
}

/// Slot of a task's engine request.
pub(crate) const fn engine_slot(task: usize) -> usize {
    2 * task + 1
}

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Nothing was answered to this generation.
    Open,
    /// What was asked for is held.
    Granted,
    /// It was refused: the first word of the answer says why.
    Refused,
    /// It was granted and has been taken away.
    Revoked,
}

pub(crate) const fn state(generation: u32, code: Code) -> u32 {
    generation << 2 | code as u32
}

/// What the state word says about a generation.
pub(crate) const fn code(word: u32, generation: u32) -> Code {
    if word >> 2 != generation {
        return Code::Open;
    }
    match word & 3 {
        0 => Code::Open,
        1 => Code::Granted,
        2 => Code::Refused,
        _ => Code::Revoked,
    }
}

/// What a client asks for or says through its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A job wants a token.
    Request { slot: u32, generation: u32, job: JobId, release: Nanos, acquisition: u32 },
    /// A job gives its token back.
    Release { job: JobId, outcome: TokenOutcome },
    /// A job no longer wants the token.
    Abort { job: JobId },
    /// A token holder wants engines.
    Acquire { slot: u32, generation: u32, job: JobId, operation: LockedOperation },
    /// A token holder has used an engine that is leased to it; `missing` earlier uses were not reported, for lack of room.
    Used { lock: u32, job: JobId, begin: Nanos, end: Nanos, missing: u64 },
}

impl Entry {
    pub(crate) fn encode(self) -> [u64; ENTRY_LONGS] {
        let head = |kind: u64, slot: u32, generation: u32| kind | u64::from(slot) << 8 | u64::from(generation) << 32;
        match self {
            Self::Request { slot, generation, job, release, acquisition } => {
                let acquisition = u64::from(acquisition);
                [head(1, slot, generation), u64::from(job.task.0), job.job, release.0, acquisition, 0, 0, 0]
            }
            Self::Release { job, outcome } => {
                let (complete, used) = match outcome {
                    TokenOutcome::Complete(used) => (1, used.0),
                    TokenOutcome::Aborted => (0, 0),
                };
                [head(2, 0, 0), u64::from(job.task.0), job.job, complete, used, 0, 0, 0]
            }
            Self::Abort { job } => [head(3, 0, 0), u64::from(job.task.0), job.job, 0, 0, 0, 0, 0],
            Self::Acquire { slot, generation, job, operation: LockedOperation { work, bytes, predicted, budget } } => {
                let work = match work {
                    EngineWork::Execute => 0,
                    EngineWork::CopyIn => 1,
                    EngineWork::CopyOut => 2,
                    EngineWork::Peer => 3,
                };
                let head = head(4, slot, generation);
                [head, u64::from(job.task.0), job.job, work, bytes.0, predicted.0, budget.0, 0]
            }
            Self::Used { lock, job, begin, end, missing } => {
                [head(5, lock, 0), u64::from(job.task.0), job.job, begin.0, end.0, missing, 0, 0]
            }
        }
    }

    /// `None` if this is no entry: the client does not keep to the protocol.
    pub(crate) fn decode(longs: [u64; ENTRY_LONGS]) -> Option<Self> {
        let [head, task, job, a, b, c, d, _] = longs;
        let slot = (head >> 8) as u32 & 0xff_ffff;
        let generation = (head >> 32) as u32;
        let job = JobId { task: TaskId(u32::try_from(task).ok()?), job };
        // Even slots are for tokens, odd ones for engines.
        let has_slot = |rest| (slot as usize) < SLOTS && slot % 2 == rest && (1..=GENERATIONS).contains(&generation);
        match head & 0xff {
            1 if has_slot(0) => {
                let acquisition = u32::try_from(b).ok()?;
                Some(Self::Request { slot, generation, job, release: Nanos(a), acquisition })
            }
            2 => {
                let outcome = if a == 1 { TokenOutcome::Complete(Nanos(b)) } else { TokenOutcome::Aborted };
                Some(Self::Release { job, outcome })
            }
            3 => Some(Self::Abort { job }),
            4 if has_slot(1) => {
                let work = match a {
                    0 => EngineWork::Execute,
                    1 => EngineWork::CopyIn,
                    2 => EngineWork::CopyOut,
                    3 => EngineWork::Peer,
                    _ => return None,
                };
                let operation = LockedOperation { work, bytes: Bytes(b), predicted: Nanos(c), budget: Nanos(d) };
                Some(Self::Acquire { slot, generation, job, operation })
            }
            5 if (slot as usize) < GPUS_MAX * ENGINES && a <= b => {
                Some(Self::Used { lock: slot, job, begin: Nanos(a), end: Nanos(b), missing: c })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_read_back_as_they_were_written() {
        let job = JobId { task: TaskId(u32::MAX), job: 1 << 40 };
        let entries = [
            Entry::Request { slot: 126, generation: GENERATIONS, job, release: Nanos(u64::MAX), acquisition: 3 },
            Entry::Release { job, outcome: TokenOutcome::Complete(Nanos(5)) },
            Entry::Release { job, outcome: TokenOutcome::Aborted },
            Entry::Abort { job },
            Entry::Used { lock: 95, job, begin: Nanos(3), end: Nanos(4), missing: 5 },
        ];
        let acquire = [EngineWork::Execute, EngineWork::CopyIn, EngineWork::CopyOut, EngineWork::Peer].map(|work| {
            let operation = LockedOperation { work, bytes: Bytes(9), predicted: Nanos(8), budget: Nanos(7) };
            Entry::Acquire { slot: 1, generation: 2, job, operation }
        });
        for entry in entries.into_iter().chain(acquire) {
            assert_eq!(Entry::decode(entry.encode()), Some(entry));
        }
    }

    #[test]
    fn what_is_no_entry_is_not_read_as_one() {
        let good = Entry::Abort { job: JobId { task: TaskId(1), job: 1 } }.encode();
        let bad = |at: usize, value: u64| {
            let mut longs = good;
            longs[at] = value;
            Entry::decode(longs)
        };
        for kind in [0, 6, 255] {
            assert_eq!(bad(0, kind), None);
        }
        assert_eq!(bad(0, 1 | (SLOTS as u64) << 8), None, "a slot that is not there");
        assert_eq!(bad(0, 1 | 1 << 62), None, "a generation that is too large");
        let head = |kind: u64, slot: u64, generation: u64| bad(0, kind | slot << 8 | generation << 32);
        assert!(head(1, 2, 1).is_some() && head(4, 3, 1).is_some());
        assert_eq!(head(1, 3, 1), None, "an engine's slot");
        assert_eq!(head(4, 2, 1), None, "a token's slot");
        assert_eq!((head(1, 2, 0), head(4, 3, 0)), (None, None), "no generation");
        assert_eq!(bad(1, 1 << 32), None, "a task that is not there");
        assert_eq!(bad(0, 5 | ((GPUS_MAX * ENGINES) as u64) << 8), None, "an engine that is not there");
        let job = JobId { task: TaskId(1), job: 1 };
        let used = Entry::Used { lock: 0, job, begin: Nanos(4), end: Nanos(3), missing: 0 };
        assert_eq!(Entry::decode(used.encode()), None, "a use that ends before it begins");
    }

    #[test]
    fn the_state_of_another_generation_is_no_answer() {
        for answered in [Code::Granted, Code::Refused, Code::Revoked] {
            assert_eq!(code(state(7, answered), 7), answered);
            assert_eq!(code(state(7, answered), 8), Code::Open);
        }
        assert_eq!(code(0, 1), Code::Open);
    }
}
