//! Which packets of a delivered block are after their deadlines.
//!
//! A block can carry a hundred thousand packets. To look at each of them when the block is late takes longer than a cycle,
//! and never catches up: so late ones are found by bisection, the first are named and the others counted.

use super::DispatchEvent;
use crate::files::workload::OnMiss;
use crate::plan::{Pipeline, PipelineSource, Plan, PlannedStream};
use crate::units::Nanos;

/// Packets of one block that are named when they are late; of fewer streams all.
pub const NAMED_MAX: usize = 64;

/// The deadlines of one pipeline's streams.
#[derive(Debug, Default)]
pub(super) struct PacketDeadlines {
    /// The shortest one; zero, which decides nothing, where packets arrive by a clock of their own.
    shortest: Nanos,
    /// Where every cycle carries the packet of its own number of each of many streams: when that is due, counted from the
    /// cycle's start, with the stream, ascending.
    even: Vec<(Nanos, u32)>,
    /// The first cycle of a run for which that no longer holds, because a stream has come to its end.
    until: u64,
}

impl PacketDeadlines {
    pub(super) fn of(plan: &Plan, pipeline: &Pipeline) -> Self {
        let PipelineSource::Streams(streams) = &pipeline.source else { return Self::default() };
        let planned = |stream: &u32| &plan.streams[*stream as usize];
        let shortest = match pipeline.gather {
            Nanos::ZERO => Nanos::ZERO,
            _ => streams.iter().map(|stream| planned(stream).deadline).min().unwrap_or_default(),
        };
        let is_even = |stream: &PlannedStream| {
            let first = pipeline.start..pipeline.start + pipeline.period;
            // Who stops the run at a miss is named.
            stream.period == pipeline.period && first.contains(&stream.start) && stream.on_miss != OnMiss::Stop
        };
        let mut even = Vec::new();
        if streams.len() > NAMED_MAX && streams.iter().map(planned).all(is_even) {
            let due = |stream: &u32| planned(stream).start - pipeline.start + planned(stream).deadline;
            even.extend(streams.iter().map(|stream| (due(stream), *stream)));
            even.sort_unstable();
        }
        Self { shortest, even, until: 0 }
    }

    /// A run begins with so many `packets` of stream n.
    pub(super) fn begin(&mut self, packets: &[u64]) {
        self.until = self.even.iter().map(|(_, stream)| packets[*stream as usize]).min().unwrap_or(0);
    }

    /// What is to be told of `cycle` of the pipeline `index`, in a run that began at `epoch`, when it is delivered at `now`; of
    /// stream n there are `packets[n]`.
    pub(super) fn missed(
        &self,
        plan: &Plan,
        (index, cycle): (u32, u64),
        (epoch, now): (Nanos, Nanos),
        packets: &[u64],
        mut tell: impl FnMut(DispatchEvent),
    ) {
        let pipeline = &plan.pipelines[index as usize];
        let start = epoch + pipeline.start + pipeline.period * cycle;
        // No packet of a cycle arrives before the cycle starts.
        if now <= start.saturating_add(self.shortest) {
            return;
        }
        if cycle >= self.until {
            for &stream in pipeline.source.streams() {
                let planned = &plan.streams[stream as usize];
                let carried = planned.packets_in(pipeline, cycle);
                for packet in carried.start..carried.end.min(packets[stream as usize]) {
                    let due = epoch + planned.arrival(packet) + planned.deadline;
                    if now <= due {
                        break; // later packets are due later
                    }
                    tell(DispatchEvent::Missed { stream, packet, by: now - due });
                }
            }
            return;
        }
        let late = self.even.partition_point(|(due, _)| start.saturating_add(*due) < now);
        let named = &self.even[..late.min(NAMED_MAX)];
        for &(due, stream) in named {
            tell(DispatchEvent::Missed { stream, packet: cycle, by: now - start.saturating_add(due) });
        }
        if late > NAMED_MAX {
            tell(DispatchEvent::MissedMore { pipeline: index, cycle, packets: (late - NAMED_MAX) as u64 });
        }
    }
}
