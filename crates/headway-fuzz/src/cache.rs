//! The file that has what was learnt of copies.

use headway_core::files::copy_cache::{CopyCacheError, KeptCopies, NodeKey, parse, write};
use headway_core::models::transfer::builtin::{Bus, NodeClass};
use headway_core::models::transfer::learning::{CopyTook, Learner, LearnerLimits, LearntKind, Prefer, merge};
use headway_core::models::transfer::{Direction, HostMemory};
use headway_core::units::{Bytes, Nanos};

/// Copies of each size that a program makes with what it read.
const COPIES: u64 = 8;

pub(crate) fn cross(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let key = NodeKey { gpu: "G".into(), uuid: None, driver: "1".into(), cpu: "C".into(), cpus: 9 };
    let kept = match parse(text, &key) {
        Ok(kept) => kept,
        Err(error) => {
            assert!(matches!(error, CopyCacheError::Damaged | CopyCacheError::OtherNode));
            return;
        }
    };
    assert_eq!(kept.day().len(), kept.day().trim().len());
    assert_eq!(parse(&write(&key, &kept), &key), Ok(kept.clone()));
    let node = NodeClass { bus: Bus::Pcie5, wide_stores: true };
    let limits = LearnerLimits { threads_max: 8, prefer: Prefer::Cheapest, learns: true, always: false };
    let mut learner = Learner::new(node, limits);
    learner.recall(&kept.classes);
    let kind = LearntKind { direction: Direction::D2h, memory: HostMemory::Untouched };
    for exponent in 0..40 {
        for _ in 0..COPIES {
            let bytes = Bytes(1 << exponent);
            let advice = learner.handle_copy(kind, bytes);
            assert!(advice.tuning.is_none_or(|tuning| (1..=8).contains(&tuning.threads)), "{advice:?}");
            learner.handle_took(kind, bytes, advice, CopyTook { time: Nanos(1_000), cpu: None });
        }
    }
    // What the next program reads: a hostile file must not grow from program to program.
    let learnt = learner.learnt();
    let classes = merge(&learnt, &kept.classes);
    assert_eq!(merge(&learnt, &classes), classes);
    let next = KeptCopies { saved_unix: kept.saved_unix, classes };
    assert_eq!(parse(&write(&key, &next), &key), Ok(next));
}
