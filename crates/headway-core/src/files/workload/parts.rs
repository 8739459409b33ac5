//! Packets whose parts take ways of their own through several processors.

use super::{CopyEndpoint, Stream, StreamStep};
use crate::units::Bytes;

/// The most parts of a packet: an engine of a GPU takes so many operations at a time.
pub const PARTS_MAX: usize = 64;

/// A range of every packet of a stream. The parts of a packet follow each other without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketPart {
    /// Name, unique in its stream.
    pub id: String,
    /// Bytes of each packet.
    pub bytes: Bytes,
}

/// What a step does with one part: an element of the sets of `verner-2014`, III-B.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartStep {
    /// Position in [`Stream::parts`].
    pub part: u32,
    pub work: PartWork,
}

/// What is done with a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartWork {
    /// Moves it.
    Copy { from: CopyEndpoint, to: CopyEndpoint },
    /// Runs a kernel over it.
    Compute {
        kernel: String,
        /// Where it lies: the GPU that computes, or a memory.
        at: CopyEndpoint,
        /// Whether a core of the CPU computes, in host memory.
        on_cpu: bool,
    },
}

impl PartStep {
    /// The kernel, if it computes.
    #[must_use]
    pub fn kernel(&self) -> Option<&str> {
        match &self.work {
            PartWork::Compute { kernel, .. } => Some(kernel),
            PartWork::Copy { .. } => None,
        }
    }
}

impl Stream {
    /// Its parts and, for each step, what the step does with them. A stream without parts has one, the whole packet.
    ///
    /// `None` if a step is an exchange: then GPUs share the packet in another manner ([`Stream::sharding`]); or a kernel of a module, which
    /// works on whole packets.
    #[must_use]
    pub fn in_parts(&self) -> Option<(Vec<PacketPart>, Vec<Vec<PartStep>>)> {
        let mut at = CopyEndpoint::Host;
        let steps = self.steps.iter().map(|step| {
            let work = match step {
                StreamStep::Parts(steps) => return Some(steps.clone()),
                StreamStep::Exchange | StreamStep::Module(_) => return None,
                StreamStep::Copy { from, to } => {
                    at = to.clone();
                    PartWork::Copy { from: from.clone(), to: to.clone() }
                }
                StreamStep::Compute { kernel } => {
                    PartWork::Compute { kernel: kernel.clone(), at: at.clone(), on_cpu: false }
                }
            };
            Some(vec![PartStep { part: 0, work }])
        });
        let steps = steps.collect::<Option<_>>()?;
        let whole = || vec![PacketPart { id: self.id.clone(), bytes: self.packet }];
        Some((if self.parts.is_empty() { whole() } else { self.parts.clone() }, steps))
    }
}
