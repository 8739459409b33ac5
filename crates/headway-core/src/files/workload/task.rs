//! Tasks whose jobs ask for any GPU, and how they share them (`elliott-2013`, 3 and 4).

use std::collections::BTreeMap;

use super::ModuleKernel;
use super::module_kernel::module_kernel_id;
use crate::decisions::engine_lock::{EngineParameters, PeerLocks};
use crate::decisions::sharing::{JobSegment, TaskDirection};
use crate::decisions::token::{TokenMode, TokenParameters};
use crate::units::{Bytes, Nanos};

/// Recurrent jobs that ask for any GPU, have input, output and state, and may migrate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadTask {
    pub id: String,
    /// Minimum time between releases.
    pub period: Nanos,
    /// Relative deadline.
    pub deadline: Nanos,
    /// First release.
    pub start: Nanos,
    /// Data that migrates with the task when its GPU changes.
    pub state: Bytes,
    /// CPU time, copies and kernels in the order of the program, at their longest; at least one copy or kernel.
    pub segments: Vec<JobSegment>,
    /// The kernels of segments that come from modules, by segment. Such a segment's kernel is called as
    /// [`module_id`](Self::module_id) says.
    pub modules: BTreeMap<usize, ModuleKernel>,
}

impl WorkloadTask {
    /// A task without state that starts at once and whose deadlines are its periods.
    #[must_use]
    pub fn new(id: &str, period: Nanos, segments: Vec<JobSegment>) -> Self {
        let modules = BTreeMap::new();
        Self { id: id.to_owned(), period, deadline: period, start: Nanos::ZERO, state: Bytes(0), segments, modules }
    }

    /// `TASK:ENTRY`, with the segment behind it where an earlier segment has the same entry.
    #[must_use]
    pub fn module_id(&self, segment: usize, entry: &str) -> String {
        let before = self.modules.range(..segment);
        module_kernel_id(&self.id, segment, entry, before.map(|(_, kernel)| kernel))
    }

    /// Bytes that the kernel of a segment reads: what was copied in since the kernel before it, or what that one read.
    #[must_use]
    pub fn read_by(&self, segment: usize) -> Bytes {
        let (mut filled, mut last) = (0, 0);
        for segment in &self.segments[..segment] {
            match segment {
                JobSegment::Copy { direction: TaskDirection::ToGpu, bytes } => filled += bytes.0,
                JobSegment::Execute { .. } if filled > 0 => last = std::mem::take(&mut filled),
                _ => {}
            }
        }
        Bytes(if filled > 0 { filled } else { last })
    }

    /// What happens while the token is held: from the first copy or kernel to the last.
    #[must_use]
    pub fn held(&self) -> &[JobSegment] {
        let on_gpu = |segment: &JobSegment| !matches!(segment, JobSegment::Cpu(_));
        let first = self.segments.iter().position(on_gpu).unwrap_or(0);
        let end = self.segments.iter().rposition(on_gpu).map_or(0, |last| last + 1);
        &self.segments[first..end.max(first)]
    }

    /// CPU time before the job requests a token.
    #[must_use]
    pub fn before(&self) -> Nanos {
        cpu(self.segments.iter())
    }

    /// CPU time after the token is released.
    #[must_use]
    pub fn after(&self) -> Nanos {
        cpu(self.segments.iter().rev())
    }
}

/// CPU time until the first segment that is on a GPU.
fn cpu<'a>(segments: impl Iterator<Item = &'a JobSegment>) -> Nanos {
    let times = segments.map_while(|segment| match segment {
        JobSegment::Cpu(time) => Some(*time),
        JobSegment::Copy { .. } | JobSegment::Execute { .. } => None,
    });
    times.fold(Nanos::ZERO, Nanos::saturating_add)
}

/// How a workload's tasks share the GPUs: the `[sharing]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingTable {
    /// CPUs `m` that the tasks may use; declared, not found out.
    pub cpus: u32,
    /// GPUs that they share, by name; `None` = all of the machine.
    pub gpus: Option<Vec<String>>,
    /// Tokens `rho` per GPU.
    pub tokens_per_gpu: u32,
    /// Queue discipline of the tokens; `None` = `work-conserving` if there are more tokens than CPUs, else `optimal`.
    pub mode: Option<TokenMode>,
    /// Choose GPUs by predicted completion, migration included.
    pub affinity: bool,
    /// A lock per engine; without, a token is the right to all engines of its GPU.
    pub engine_locks: bool,
    /// How a peer copy takes its two locks.
    pub peer_locks: PeerLocks,
    /// Migrate from GPU to GPU; otherwise through system memory.
    pub peer_copies: bool,
    /// Copy engines of each GPU with a lock: 1 or 2.
    pub copy_engines: u32,
    /// Largest piece of a copy; `None` = copies are whole.
    pub chunk: Option<Bytes>,
}

impl SharingTable {
    /// What a file that says nothing but `cpus` means.
    #[must_use]
    pub const fn new(cpus: u32) -> Self {
        Self {
            cpus,
            gpus: None,
            tokens_per_gpu: 2,
            mode: None,
            affinity: true,
            engine_locks: true,
            peer_locks: PeerLocks::Group,
            peer_copies: true,
            copy_engines: 2,
            chunk: Some(Bytes(2 << 20)),
        }
    }

    /// The mode that holds for `gpus` GPUs.
    #[must_use]
    pub fn mode_for(&self, gpus: u32) -> TokenMode {
        let more = u64::from(self.tokens_per_gpu) * u64::from(gpus) > u64::from(self.cpus);
        self.mode.unwrap_or(if more { TokenMode::WorkConserving } else { TokenMode::Optimal })
    }

    /// How tokens of `gpus` GPUs are given.
    #[must_use]
    pub fn tokens(&self, gpus: u32) -> TokenParameters {
        let (cpus, per_gpu) = (self.cpus, self.tokens_per_gpu);
        TokenParameters { cpus, per_gpu, mode: self.mode_for(gpus), affinity: self.affinity }
    }

    /// The engine locks; `None` = none.
    #[must_use]
    pub fn engines(&self) -> Option<EngineParameters> {
        self.engine_locks.then_some(EngineParameters {
            copy_engines: self.copy_engines,
            peer: self.peer_locks,
            chunk_bytes: self.chunk,
            ..EngineParameters::default()
        })
    }
}
