//! The broker's log, read by the test: the state that it tells of is checked after every input.

use std::fs;
use std::path::{Path, PathBuf};

use headway_core::decisions::sharing::log::{BrokerLogLine, Fed, StartReason};
use headway_core::decisions::sharing::{Arbiter, ArbiterParameters};
use headway_core::units::Nanos;

/// Inputs of one start that are checked at most: the others take too long.
const INPUTS_MAX: u64 = 20_000;

/// A client that a broker cut off.
#[derive(Clone, Copy)]
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
    /// Files that were full.
    pub(crate) rotations: u64,
    arbiter: Option<(Arbiter, ArbiterParameters)>,
    checked: u64,
    /// What was left for the next broker.
    kept: Vec<u8>,
}

impl Book {
    pub(crate) fn of(log: PathBuf) -> Self {
        Self { log, cuts: Vec::new(), inputs: 0, starts: 0, rotations: 0, arbiter: None, checked: 0, kept: Vec::new() }
    }

    /// Reads what the broker that has just ended wrote, checks the state after every input, and leaves nothing but the last
    /// snapshot and what follows it for the next broker.
    pub(crate) fn close(&mut self) {
        let older = |number: u32| sibling(&self.log, &format!(".{number}"));
        let count = (1..).find(|number| !older(*number).exists()).unwrap();
        let mut files: Vec<PathBuf> = (1..count).rev().map(older).collect();
        // Neither is there if the broker was killed before its start, the second one while it renamed them.
        files.extend([self.log.clone(), sibling(&self.log, ".new")].into_iter().filter(|file| file.exists()));
        let mut known = std::mem::take(&mut self.kept);
        for file in files {
            let bytes = fs::read(&file).unwrap();
            // The oldest file begins with what was left in it.
            let new = bytes.strip_prefix(known.as_slice()).unwrap_or(&bytes);
            self.kept.append(&mut known);
            for line in new.split_inclusive(|byte| *byte == b'\n') {
                if self.check(line) {
                    self.kept.clear();
                }
                self.kept.extend(line);
            }
            fs::remove_file(&file).unwrap();
        }
        fs::write(&self.log, &self.kept).unwrap();
        self.inputs += self.checked;
        self.checked = 0;
    }

    /// Whether the line is a snapshot.
    fn check(&mut self, line: &[u8]) -> bool {
        match serde_json::from_slice(line) {
            Ok(BrokerLogLine::Broker(start)) => {
                let same = |arbiter: &Arbiter| serde_json::to_string(arbiter).unwrap() == start.state;
                match start.why {
                    StartReason::Started => self.starts += 1,
                    StartReason::Rotated => self.rotations += 1,
                    StartReason::Gap => panic!("lines are missing: {}", start.missing),
                }
                if start.why == StartReason::Rotated && self.checked < INPUTS_MAX {
                    let known = self.arbiter.as_ref().is_none_or(|(arbiter, _)| same(arbiter));
                    assert!(known, "the snapshot is not what the lines before it lead to");
                }
                self.arbiter = Some((start.begin().unwrap(), start.arbiter));
                return true;
            }
            Ok(BrokerLogLine::Cut { now, pid, hung, .. }) => self.cuts.push(Cut { now, pid, hung }),
            Ok(BrokerLogLine::Fed(fed)) if self.checked < INPUTS_MAX => {
                if let Some((arbiter, parameters)) = &mut self.arbiter {
                    self.checked += 1;
                    feed(arbiter, parameters, &fed);
                }
            }
            // Other lines are for people, or half a line of a broker that was killed.
            _ => {}
        }
        false
    }
}

fn feed(arbiter: &mut Arbiter, parameters: &ArbiterParameters, fed: &Fed) {
    let Fed { now, input, actions, refused } = fed;
    assert_eq!(arbiter.handle(*now, input).err(), *refused, "{input:?} at {now}");
    let did: Vec<_> = std::iter::from_fn(|| arbiter.poll_action()).collect();
    assert_eq!(did, *actions, "{input:?} at {now}");
    while arbiter.poll_event().is_some() {}
    for cluster in &parameters.clusters {
        let tokens = arbiter.tokens(cluster.id).unwrap();
        tokens.check().unwrap_or_else(|violation| panic!("after {input:?} at {now}: {violation:?}"));
    }
    let engines = arbiter.engine_locks().unwrap();
    engines.check().unwrap_or_else(|violation| panic!("after {input:?} at {now}: {violation:?}"));
}

fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    PathBuf::from(path)
}
