//! What the log of the broker before this one says: its arbiter is driven again with the inputs of its last start.
//!
//! The processes that are left tell what they hold, but not what their tasks' jobs cost, on which GPU their state is, what
//! was reconfigured and which GPUs are lost; and a process could say that it holds what is another's. An input is in the log
//! before anybody is told what comes of it, so that the log never knows less than the processes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use headway_core::sharing::{Arbiter, ArbiterParameters, ClusterId, Input, JobId, Memory, TaskId, TokenId};
use headway_core::units::Nanos;
use serde::Deserialize;

use super::beside;
use super::desk::Desk;
use crate::message::HeldToken;

/// Longest line that is read: a start with the memory of many tasks.
const LINE_MAX: usize = 64 << 20;
/// Most that is read of a log since its last start: a few seconds. After a longer run nothing is remembered.
const LOG_MAX: u64 = 256 << 20;
/// How a line begins that a start has written.
const START: &[u8] = b"{\"arbiter\"";

/// Notes where the log of this start begins, in a file beside it that is never half there.
pub(super) fn note_start(log: &Path, at: u64) -> io::Result<()> {
    let (path, new) = (beside(log, ".start"), beside(log, ".start.new"));
    fs::write(&new, format!("{at}\n"))?;
    fs::rename(new, path)
}

/// The state at the end of a log.
pub(super) struct Replayed {
    pub(super) memory: Memory,
    /// Who held each token.
    holders: BTreeMap<(ClusterId, TokenId), JobId>,
}

#[derive(Deserialize)]
struct Start {
    arbiter: ArbiterParameters,
    memory: Option<Memory>,
}

#[derive(Deserialize)]
struct Record {
    now: Nanos,
    input: Input,
}

impl Replayed {
    /// `None` if there is no log, or too long a one, or it is of other GPUs, of another way of sharing them, or of before the system was
    /// started, whose clock began anew.
    pub(super) fn read(path: &Path, parameters: &ArbiterParameters, now: Nanos) -> Option<Self> {
        let mut file = File::open(path).ok()?;
        let start: u64 = fs::read_to_string(beside(path, ".start")).ok()?.trim().parse().ok()?;
        if file.metadata().ok()?.len().checked_sub(start)? > LOG_MAX {
            return None;
        }
        file.seek(SeekFrom::Start(start)).ok()?;
        let mut file = BufReader::new(file);
        let mut arbiter: Option<Arbiter> = None;
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = Read::take(&mut file, LINE_MAX as u64).read_until(b'\n', &mut line).ok()?;
            if read == 0 {
                break;
            }
            if line.starts_with(START) {
                arbiter = begin(serde_json::from_slice(&line).ok()?, parameters);
            } else if let Ok(Record { now: at, input }) = serde_json::from_slice(&line) {
                if at > now {
                    return None;
                }
                if let Some(arbiter) = &mut arbiter {
                    // What was refused then is refused again.
                    let _ = arbiter.handle(at, &input);
                    while arbiter.poll_action().is_some() {}
                    while arbiter.poll_event().is_some() {}
                }
            }
            // Other lines are for people, or half a line of a broker that was killed.
        }
        let arbiter = arbiter?;
        let clusters = parameters.clusters.iter().filter_map(|cluster| Some((cluster.id, arbiter.tokens(cluster.id)?)));
        let holders = clusters.flat_map(|(id, tokens)| tokens.holders().map(move |(token, job)| ((id, token), job)));
        Some(Self { memory: arbiter.memory(), holders: holders.collect() })
    }
}

fn begin(start: Start, parameters: &ArbiterParameters) -> Option<Arbiter> {
    if start.arbiter != *parameters {
        return None;
    }
    let mut arbiter = Arbiter::new(start.arbiter).ok()?;
    arbiter.recall(Nanos::ZERO, &start.memory.unwrap_or_default());
    Some(arbiter)
}

impl Desk {
    /// Whether a task may have held this token: not if the log says that another task did.
    pub(super) fn agrees_with_log(&self, id: TaskId, held: &HeldToken) -> Result<(), String> {
        let cluster = self.tasks.get(&id).map(|task| task.shape.cluster);
        let holder =
            self.before.as_ref().zip(cluster).and_then(|(log, cluster)| log.holders.get(&(cluster, held.token)));
        match holder {
            Some(job) if job.task != id => {
                let (token, other) = (held.token.0, job.task.0);
                Err(format!("task {} does not hold token {token}: by the broker's log task {other} does", id.0))
            }
            // Without an entry the log has ended too early, as when a disk is full; then the client is believed.
            _ => Ok(()),
        }
    }
}
