//! Whom a broker that is started again waits for: the processes that its predecessor served, noted in a file with their tasks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use headway_core::sharing::TaskId;
use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::ipc::Process;

use super::beside;
use crate::error::ServerError;

/// Between two looks at who has ended meanwhile.
const LOOK: Nanos = Nanos(5_000_000);

/// The time in which clients come back.
pub(super) struct Recovery {
    until: Nanos,
    /// Processes that live and have not come back.
    missing: Vec<(u32, Process)>,
    /// Whose each task was.
    owners: BTreeMap<TaskId, u32>,
}

impl Recovery {
    /// `None` if nobody is to be waited for.
    pub(super) fn begin(socket: &Path, until: Nanos) -> Option<Self> {
        let text = fs::read_to_string(beside(socket, ".clients")).unwrap_or_default();
        let (mut missing, mut owners) = (Vec::new(), BTreeMap::new());
        for line in text.lines() {
            let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
            let Some(pid) = numbers.next() else { continue };
            let Ok(process) = Process::open(pid) else { continue };
            missing.push((pid, process));
            owners.extend(numbers.map(|id| (TaskId(id), pid)));
        }
        (!missing.is_empty()).then_some(Self { until, missing, owners })
    }

    /// Whether a process may come back with a task: not if it was another's. One that is not known was registered just
    /// before the predecessor ended.
    pub(super) fn may_have(&self, pid: u32, task: TaskId) -> bool {
        self.owners.get(&task).is_none_or(|owner| *owner == pid)
    }

    /// A process has come back with one of its clients.
    pub(super) fn is_back(&mut self, pid: u32) {
        if let Some(at) = self.missing.iter().position(|(missing, _)| *missing == pid) {
            self.missing.swap_remove(at);
        }
    }

    /// Processes that are still waited for, with their tasks.
    pub(super) fn missing(&self) -> impl Iterator<Item = (u32, Vec<TaskId>)> {
        let tasks = |pid: u32| self.owners.iter().filter(move |(_, owner)| **owner == pid).map(|(task, _)| *task);
        self.missing.iter().map(move |(pid, _)| (*pid, tasks(*pid).collect()))
    }

    pub(super) fn is_over(&self, now: Nanos) -> bool {
        self.until <= now || self.missing.iter().all(|(_, process)| process.has_ended())
    }

    /// When to ask again.
    pub(super) fn next_look(&self, started: Nanos) -> Nanos {
        self.until.min(clock::now().max(started).saturating_add(LOOK))
    }
}

/// The file of processes that are served.
pub(super) struct Register {
    path: PathBuf,
    written: Option<String>,
}

impl Register {
    pub(super) fn new(socket: &Path) -> Self {
        Self { path: beside(socket, ".clients"), written: None }
    }

    /// Replaces the file where it says something else: at once, so that it is never half there.
    pub(super) fn write(&mut self, served: impl Iterator<Item = (u32, Vec<TaskId>)>) -> Result<(), ServerError> {
        let line = |(pid, tasks): (u32, Vec<TaskId>)| {
            let tasks: String = tasks.iter().map(|task| format!(" {}", task.0)).collect();
            format!("{pid}{tasks}\n")
        };
        let text: String = served.map(line).collect();
        if self.written.as_ref() == Some(&text) {
            return Ok(());
        }
        let place = |source| ServerError::Place { path: self.path.clone(), source };
        let new = self.path.with_extension("clients.new");
        fs::write(&new, &text).map_err(place)?;
        fs::rename(&new, &self.path).map_err(place)?;
        self.written = Some(text);
        Ok(())
    }
}
