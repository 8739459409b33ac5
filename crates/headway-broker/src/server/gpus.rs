//! Whether GPUs are still there.
//!
//! A GPU is lost when the broker's probe says so, or the broker's owner. What a client meets is a hint: the probe looks at
//! once. So no client can take a GPU from the others, and without a probe the owner decides. A lost GPU stays lost until a
//! broker is started that no client of this one outlives.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use headway_core::decisions::sharing::log::BrokerLogLine;
use headway_core::decisions::sharing::{ArbiterInput, ClientId, GpuId};
use headway_core::units::Nanos;
use headway_os::ipc::Bell;
use headway_os::{Errno, OsError, event, threads};

use super::state::BrokerState;

/// What is known of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    There,
    /// It does not, and will not until it is reset.
    Lost,
    /// Nothing: the question itself failed.
    Unknown,
}

/// A question that the broker asks of GPUs, on a thread of its own: it may take its time.
#[derive(Clone)]
pub struct GpuProbe(Arc<dyn Fn(GpuId) -> Health + Send + Sync>);

impl GpuProbe {
    /// Asks by `ask`.
    pub fn new(ask: impl Fn(GpuId) -> Health + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }
}

impl fmt::Debug for GpuProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probe")
    }
}

/// Between two looks at every GPU.
const PERIOD: Duration = Duration::from_secs(1);
/// Hints that wait; more say nothing new.
const HINTS_MAX: usize = 64;

/// The probing thread, seen from the broker's.
pub(super) struct Watch {
    /// `None` without a probe.
    hints: Option<SyncSender<GpuId>>,
    lost: Receiver<GpuId>,
    pub(super) bell: Arc<Bell>,
}

impl Watch {
    /// Looks at `gpus` from now on, if there is a probe.
    pub(super) fn begin(probe: Option<GpuProbe>, gpus: Vec<GpuId>) -> Result<Self, OsError> {
        let bell = Arc::new(Bell::new()?);
        let (tell, lost) = channel();
        let Some(probe) = probe else { return Ok(Self { hints: None, lost, bell }) };
        let (hints, hinted) = sync_channel(HINTS_MAX);
        let ring = Arc::clone(&bell);
        let work = move || look(&probe, &gpus, &hinted, &tell, &ring);
        // It ends by itself when the broker has gone; a probe that hangs is not waited for.
        let started = threads::spawn("headway-gpus", work);
        started.map_err(|error| OsError { call: "pthread_create", errno: Errno(error.raw_os_error().unwrap_or(0)) })?;
        Ok(Self { hints: Some(hints), lost, bell })
    }

    /// A client has met an error of this GPU.
    pub(super) fn hint(&self, gpu: GpuId) {
        if let Some(hints) = &self.hints {
            let _ = hints.try_send(gpu);
        }
    }

    /// GPUs found lost since the last call.
    pub(super) fn take_lost(&self) -> Vec<GpuId> {
        self.lost.try_iter().collect()
    }
}

fn look(probe: &GpuProbe, gpus: &[GpuId], hinted: &Receiver<GpuId>, tell: &Sender<GpuId>, bell: &Bell) {
    let mut there: BTreeSet<GpuId> = gpus.iter().copied().collect();
    loop {
        let asked: Vec<GpuId> = match hinted.recv_timeout(PERIOD) {
            Ok(gpu) => there.iter().copied().filter(|known| *known == gpu).collect(),
            Err(RecvTimeoutError::Timeout) => there.iter().copied().collect(),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        for gpu in asked {
            if (probe.0)(gpu) == Health::Lost {
                there.remove(&gpu);
                if tell.send(gpu).is_err() {
                    return;
                }
                bell.ring();
            }
        }
    }
}

impl BrokerState {
    /// A client has met an error of a GPU: a hint, to be looked at.
    pub(super) fn fault(&mut self, now: Nanos, client: ClientId, gpu: GpuId) {
        if !self.gpus.contains(&gpu) || self.lost.contains(&gpu) {
            return;
        }
        *self.faults.entry(gpu).or_insert(0) += 1;
        // One of each at a time, and those that are asked for are answered soon.
        if !self.hints.contains(&gpu) {
            self.hints.push(gpu);
        }
        let pid = self.sessions.get(&client).map_or(0, |session| session.peer.pid);
        self.journal.note(now, &BrokerLogLine::Fault { now, gpu, client, pid });
    }

    /// GPUs to look at.
    pub(super) fn take_hints(&mut self) -> Vec<GpuId> {
        std::mem::take(&mut self.hints)
    }

    /// A GPU is lost. The broker notifies its holders, and the others share the remaining GPUs. `false` if the GPU is unknown or lost already.
    pub(super) fn lose(&mut self, now: Nanos, gpu: GpuId) -> bool {
        let is_new = self.feed(now, ArbiterInput::GpuLost { gpu }).is_ok();
        if is_new {
            event!(ERROR, "headway::broker", "GPU lost", gpu = gpu.0);
            self.lost.insert(gpu);
            self.take_all_turns(now);
            self.settle_leases(now);
            self.priority.apply();
        }
        is_new
    }
}
