//! Whom a broker that is started again waits for: the processes that its predecessor served, noted in a file.

use std::fs;
use std::path::{Path, PathBuf};

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
}

impl Recovery {
    /// `None` if nobody is to be waited for.
    pub(super) fn begin(socket: &Path, until: Nanos) -> Option<Self> {
        let text = fs::read_to_string(beside(socket, ".clients")).unwrap_or_default();
        let pids = text.lines().filter_map(|line| line.trim().parse().ok());
        let missing: Vec<_> = pids.filter_map(|pid| Some((pid, Process::open(pid).ok()?))).collect();
        (!missing.is_empty()).then_some(Self { until, missing })
    }

    /// A process has come back with one of its clients.
    pub(super) fn is_back(&mut self, pid: u32) {
        if let Some(at) = self.missing.iter().position(|(missing, _)| *missing == pid) {
            self.missing.swap_remove(at);
        }
    }

    pub(super) fn missing(&self) -> impl Iterator<Item = u32> {
        self.missing.iter().map(|(pid, _)| *pid)
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
    written: Option<Vec<u32>>,
}

impl Register {
    pub(super) fn new(socket: &Path) -> Self {
        Self { path: beside(socket, ".clients"), written: None }
    }

    /// Replaces the file where it says something else: at once, so that it is never half there.
    pub(super) fn write(&mut self, pids: Vec<u32>) -> Result<(), ServerError> {
        if self.written.as_ref() == Some(&pids) {
            return Ok(());
        }
        let text: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
        let place = |source| ServerError::Place { path: self.path.clone(), source };
        let new = self.path.with_extension("clients.new");
        fs::write(&new, text).map_err(place)?;
        fs::rename(&new, &self.path).map_err(place)?;
        self.written = Some(pids);
        Ok(())
    }
}
