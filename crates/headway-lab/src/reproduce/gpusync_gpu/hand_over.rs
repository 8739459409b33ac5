//! From the end of an operation to the beginning of the one that waited for its engine.

use std::collections::BTreeMap;

use headway_core::decisions::engine_lock::EngineWork;

use crate::trackers::Tracked;
use headway::jobs::{DoneJob, Operated};

/// Times in which engines changed hands, ascending: between an operation's end and the beginning of the next one that had
/// asked before that, of another camera, on the same engine. Nanoseconds.
pub(super) fn hand_overs(tracked: &[Tracked], copy_engines: u32) -> Vec<u64> {
    let mut engines: BTreeMap<(u32, u8), Vec<(&Operated, usize)>> = BTreeMap::new();
    for (camera, tracked) in tracked.iter().enumerate() {
        for (frame, operations) in tracked.frames.iter().zip(&tracked.operations) {
            for operation in operations {
                for engine in engines_of(frame, operation.work, copy_engines).into_iter().flatten() {
                    engines.entry(engine).or_default().push((operation, camera));
                }
            }
        }
    }
    let mut times = Vec::new();
    for operations in engines.values_mut() {
        operations.sort_by_key(|(operation, _)| operation.begun);
        for pair in operations.windows(2) {
            let [(before, one), (after, other)] = pair else { continue };
            if one != other && after.asked < before.ended {
                times.push(after.begun.saturating_sub(before.ended).0);
            }
        }
    }
    times.sort_unstable();
    times
}

/// The engines of an operation: GPU, then 0 for kernels, 1 and 2 for copies in and out.
fn engines_of(frame: &DoneJob, work: EngineWork, copy_engines: u32) -> [Option<(u32, u8)>; 2] {
    let out = if copy_engines == 1 { 1 } else { 2 };
    match work {
        EngineWork::Execute => [Some((frame.gpu, 0)), None],
        EngineWork::CopyIn => [Some((frame.gpu, 1)), None],
        EngineWork::CopyOut => [Some((frame.gpu, out)), None],
        EngineWork::Peer => [Some((frame.gpu, 1)), frame.from.map(|from| (from, out))],
    }
}

#[cfg(test)]
mod tests {
    use headway_core::units::Nanos;

    use super::*;

    fn tracked(gpu: u32, operations: &[(EngineWork, u64, u64, u64)]) -> Tracked {
        let frame = DoneJob { gpu, ..DoneJob::default() };
        let operated = |(work, asked, begun, ended): &(EngineWork, u64, u64, u64)| Operated {
            work: *work,
            bytes: 0,
            asked: Nanos(*asked),
            begun: Nanos(*begun),
            ended: Nanos(*ended),
        };
        Tracked { frames: vec![frame], operations: vec![operations.iter().map(operated).collect()], interrupted: false }
    }

    #[test]
    fn only_who_waited_for_another_cameras_operation_tells_how_long_it_took() {
        let one = tracked(
            0,
            &[(EngineWork::Execute, 0, 0, 10), (EngineWork::CopyIn, 10, 10, 20), (EngineWork::Execute, 20, 32, 40)],
        );
        // The first waited for 10, the second came after 40; the copy out is on the other copy engine.
        let two = tracked(
            0,
            &[(EngineWork::Execute, 5, 13, 30), (EngineWork::CopyOut, 12, 22, 24), (EngineWork::Execute, 41, 50, 60)],
        );
        let elsewhere = tracked(1, &[(EngineWork::Execute, 5, 500, 600)]);
        let cameras = [one, two, elsewhere];
        assert_eq!(hand_overs(&cameras, 2), [2, 3]);
        assert_eq!(hand_overs(&cameras, 1), [2, 2, 3]);
    }
}
