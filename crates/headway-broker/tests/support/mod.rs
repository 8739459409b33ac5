//! A broker on a thread, and what its tests share.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headway_broker::{BrokerServer, ServerOptions, TaskShape};
use headway_core::decisions::engine_lock::{EngineParameters, EngineWork, LockedOperation};
use headway_core::decisions::sharing::{ArbiterParameters, ClusterId, ClusterParameters};
use headway_core::decisions::token::{TokenMode, TokenParameters};
use headway_core::units::{Bytes, Nanos};

/// Nothing takes that long, however slow the machine is and whatever else it does.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn parameters(gpus: u32, per_gpu: u32, watchdog: Nanos) -> ArbiterParameters {
    let tokens = TokenParameters { cpus: 64, per_gpu, mode: TokenMode::WorkConserving, affinity: true };
    let engines = EngineParameters { chunk_bytes: Some(Bytes(2 << 20)), watchdog, ..EngineParameters::default() };
    ArbiterParameters::new(vec![ClusterParameters::equal(gpus, tokens)], Some(engines))
}

pub(crate) fn shape(name: &str) -> TaskShape {
    TaskShape {
        name: name.to_owned(),
        cluster: ClusterId(0),
        period: Nanos(1_000),
        deadline: Nanos(50_000_000),
        state: Bytes(0),
        segments: Vec::new(),
        thread: None,
    }
}

pub(crate) fn operation(work: EngineWork) -> LockedOperation {
    let bytes = if work == EngineWork::Execute { Bytes(0) } else { Bytes(1 << 20) };
    LockedOperation { work, bytes, predicted: Nanos(0), budget: Nanos(0) }
}

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "never: {what}");
        std::thread::yield_now();
    }
}

/// A broker on a thread of its own; stopped when dropped.
pub(crate) struct Broker {
    pub(crate) socket: PathBuf,
    folder: Option<tempfile::TempDir>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    pub(crate) fn start(change: impl FnOnce(&mut ServerOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut broker = Self::at(&folder.path().join("broker"), change);
        broker.folder = Some(folder);
        broker
    }

    pub(crate) fn at(socket: &Path, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let mut options = ServerOptions::new(socket.to_owned(), parameters(2, 2, Nanos(0)));
        options.boost = false;
        options.urgent = false;
        options.drain = Nanos(1_000_000);
        options.watchdog = Nanos(600_000_000_000);
        change(&mut options);
        let mut server = BrokerServer::bind(options).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || server.run(&stop).unwrap())
        };
        Self { socket: socket.to_owned(), folder: None, stop, thread: Some(thread) }
    }

    pub(crate) fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
    }
}
