//! The broker's log, read by the test: the state that it tells of is checked after every input.

use std::fs;
use std::path::{Path, PathBuf};

use headway_core::sharing::{Arbiter, ArbiterParameters, Input, Memory};
use headway_core::units::Nanos;
use serde::Deserialize;

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

/// Inputs of one start that are checked at most: the others take too long.
const INPUTS_MAX: u64 = 20_000;

/// A client that a broker cut off.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Cut {
    pub(crate) now: Nanos,
    /// The kernel gives numbers of processes again: only with the time it says who that was.
    pub(crate) pid: u32,
    /// Whether it had held something for too long.
    pub(crate) hung: bool,
}

/// What was read of a log so far.
pub(crate) struct Book {
    log: PathBuf,
    pub(crate) cuts: Vec<Cut>,
    /// Inputs checked.
    pub(crate) inputs: u64,
    /// Starts of brokers.
    pub(crate) starts: u64,
}

impl Book {
    pub(crate) fn of(log: PathBuf) -> Self {
        Self { log, cuts: Vec::new(), inputs: 0, starts: 0 }
    }

    /// Reads the part that the broker that has just ended wrote, checks the state after every input, and leaves nothing
    /// but that part for the next broker.
    pub(crate) fn close(&mut self) {
        let start_file = beside(&self.log, ".start");
        let bytes = fs::read(&self.log).unwrap();
        let start: usize = fs::read_to_string(&start_file).unwrap().trim().parse().unwrap();
        let part = &bytes[start..];
        self.check(part);
        fs::write(&self.log, part).unwrap();
        fs::write(&start_file, "0\n").unwrap();
    }

    fn check(&mut self, part: &[u8]) {
        let (mut arbiter, mut checked): (Option<(Arbiter, ArbiterParameters)>, u64) = (None, 0);
        for line in part.split(|byte| *byte == b'\n') {
            if line.starts_with(b"{\"arbiter\"") {
                let Ok(Start { arbiter: parameters, memory }) = serde_json::from_slice(line) else { continue };
                let mut begun = Arbiter::new(parameters.clone()).unwrap();
                begun.recall(Nanos::ZERO, &memory.unwrap_or_default());
                arbiter = Some((begun, parameters));
                self.starts += 1;
            } else if line.starts_with(b"{\"cut\"") {
                self.cuts.extend(serde_json::from_slice::<Cut>(line));
            } else if checked < INPUTS_MAX
                && let Some((arbiter, parameters)) = &mut arbiter
                && let Ok(Record { now, input }) = serde_json::from_slice(line)
            {
                checked += 1;
                feed(arbiter, parameters, now, &input);
            }
            // Other lines are for people, or half a line of a broker that was killed.
        }
        self.inputs += checked;
    }
}

fn feed(arbiter: &mut Arbiter, parameters: &ArbiterParameters, now: Nanos, input: &Input) {
    let _ = arbiter.handle(now, input);
    while arbiter.poll_action().is_some() {}
    while arbiter.poll_event().is_some() {}
    for cluster in &parameters.clusters {
        let tokens = arbiter.tokens(cluster.id).unwrap();
        tokens.check().unwrap_or_else(|violation| panic!("after {input:?} at {now}: {violation:?}"));
    }
    let engines = arbiter.engine_locks().unwrap();
    engines.check().unwrap_or_else(|violation| panic!("after {input:?} at {now}: {violation:?}"));
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    PathBuf::from(path)
}
