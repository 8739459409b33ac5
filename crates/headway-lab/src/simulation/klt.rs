//! The paper's workload: feature trackers (KLT) on two clusters of six CPUs and four GPUs (`elliott-2013`, 5).
//!
//! Sizes are those of the public tracker's sources; what the paper does not state is an assumption that a caller varies.

use headway_core::decisions::sharing::{Distances, JobSegment, TaskDirection};
use headway_core::units::{Bytes, Nanos, PPM, Rate};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use headway_sim::sharing::{Cluster, ClusterCosts, CopyEngines, SimTask, scaled};

/// State of a tracker: three levels of 2,285,568 B.
pub const STATE: Bytes = Bytes(6_856_704);
/// Copies to the GPU per frame: image, image again, parameters, index map, coordinates.
pub const INPUTS: [Bytes; 5] = [Bytes(307_200), Bytes(307_200), Bytes(36), Bytes(4_096), Bytes(8_192)];
/// Copies to the host per frame: features (32,768 B in two, so that there are the nine copies of the sources), index map,
/// corner response.
pub const OUTPUTS: [Bytes; 4] = [Bytes(16_384), Bytes(16_384), Bytes(4_096), Bytes(307_200)];
/// Periods of a cluster's ten tasks: four at 20 frames/s and six at 10, our reading of 8 and 12 over two clusters.
pub const PERIODS: [Nanos; 10] = {
    let (fast, slow) = (Nanos(50_000_000), Nanos(100_000_000));
    [fast, fast, fast, fast, slow, slow, slow, slow, slow, slow]
};
/// Clusters of the paper's machine.
pub const CLUSTERS: u64 = 2;

/// What the paper leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assumptions {
    /// `S`: CPU and kernel time of a frame while the token is held; the one free parameter.
    pub work: Nanos,
    /// `phi`: share of `S` that is CPU time, parts per million.
    pub cpu_ppm: u32,
    /// Kernel segments per frame.
    pub segments: u32,
    /// Spread of a frame's times about their mean, parts per million.
    pub jitter_ppm: u32,
    /// Rate of every copy, between host and GPU and between GPUs.
    pub rate: Rate,
    /// CPU time to submit one operation.
    pub call: Nanos,
    /// Time of a copy before its first byte.
    pub copy_setup: Nanos,
}

impl Assumptions {
    /// The middle of the ranges that the specification of sharing, 8.3, gives.
    pub const MIDDLE: Self = Self {
        work: Nanos(44_800_000),
        cpu_ppm: 500_000,
        segments: 9,
        jitter_ppm: 100_000,
        rate: Rate(1_000_000_000),
        call: Nanos(10_000),
        copy_setup: Nanos(10_000),
    };

    /// One cluster; phases are drawn from `seed` and the cluster's number.
    #[must_use]
    pub fn cluster(&self, number: u64, seed: u64) -> Cluster {
        let mut random = Pcg64Mcg::seed_from_u64(seed.wrapping_mul(CLUSTERS).wrapping_add(number));
        let segments = self.frame();
        let task = |(index, &period): (usize, &Nanos)| SimTask {
            name: format!("cam{}", number * PERIODS.len() as u64 + index as u64),
            period,
            deadline: period,
            start: Nanos(random.next_u64() % period.0),
            state: STATE,
            before: Nanos::ZERO,
            segments: segments.clone(),
            after: Nanos::ZERO,
            jitter_ppm: self.jitter_ppm,
        };
        Cluster {
            cpus: 6,
            copy_engines: CopyEngines::One,
            distances: Distances::switched(4, 2),
            costs: ClusterCosts {
                to_gpu: self.rate,
                from_gpu: self.rate,
                peer: vec![self.rate],
                copy_setup: self.copy_setup,
                call: self.call,
                grant: Nanos::ZERO,
                handover: Nanos::ZERO,
            },
            tasks: PERIODS.iter().enumerate().map(task).collect(),
        }
    }

    /// Copies in, then CPU and kernels in turns, then copies out.
    fn frame(&self) -> Vec<JobSegment> {
        let count = u64::from(self.segments.max(1));
        let cpu = scaled(self.work, u64::from(self.cpu_ppm));
        let kernels = scaled(self.work, PPM - u64::from(self.cpu_ppm).min(PPM));
        let copy = |direction| move |bytes: &Bytes| JobSegment::Copy { direction, bytes: *bytes };
        let mut segments: Vec<_> = INPUTS.iter().map(copy(TaskDirection::ToGpu)).collect();
        for index in 0..count {
            let share = |time: Nanos| Nanos(time.0 * (index + 1) / count - time.0 * index / count);
            segments.push(JobSegment::Cpu(share(cpu)));
            segments.push(JobSegment::Execute { kernel: "klt".to_owned(), time: share(kernels) });
        }
        segments.extend(OUTPUTS.iter().map(copy(TaskDirection::FromGpu)));
        segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_moves_the_bytes_and_does_the_work_of_the_sources() {
        let frame = Assumptions { segments: 7, ..Assumptions::MIDDLE }.frame();
        let (mut bytes, mut work) = (0, 0);
        for segment in &frame {
            match segment {
                JobSegment::Copy { bytes: moved, .. } => bytes += moved.0,
                JobSegment::Cpu(time) | JobSegment::Execute { time, .. } => work += time.0,
            }
        }
        assert_eq!((bytes, work), (970_788, Assumptions::MIDDLE.work.0));
        assert_eq!(frame.len(), 9 + 2 * 7);
    }

    #[test]
    fn a_cluster_carries_140_frames_per_second_with_phases_of_its_own() {
        let [a, b] = [0, 1].map(|number| Assumptions::MIDDLE.cluster(number, 7));
        let per_second: u64 = a.tasks.iter().map(|task| 1_000_000_000 / task.period.0).sum();
        assert_eq!((per_second, a.tasks.len()), (140, 10));
        assert!(a.tasks.iter().all(|task| task.start < task.period));
        assert_ne!(a.tasks[0].start, b.tasks[0].start);
        assert_eq!(a, Assumptions::MIDDLE.cluster(0, 7));
    }
}
