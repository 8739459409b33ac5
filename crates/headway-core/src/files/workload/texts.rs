//! How workload files write things, the ranges of their numbers, and what errors of files and of code both say.

use std::ops::RangeInclusive;

use super::{CopyEndpoint, StreamPlacement};
use crate::decisions::token::TokenParameters;
use crate::files::document::quoted;
use crate::units::{Bytes, Nanos};

/// The fact and the remedy of a step that does nothing, or two things.
pub(super) const ONE_THING: &str = "a step is one `copy` or one `compute`";
pub(super) const ONE_THING_HELP: &str = "write `{ copy = \"host -> gpu\" }` or `{ compute = \"KERNEL\" }`; lists of both, each element for one part, go together";
/// The remedy of a copy whose ends cannot be told.
pub(super) const FROM_TO_HELP: &str = "write for example `copy = \"host -> gpu\"`, or names of the machine file";

pub(super) const SEEDS: RangeInclusive<u64> = 0..=i64::MAX.unsigned_abs();
pub(super) const CPUS: RangeInclusive<u64> = 1..=TokenParameters::CPUS_MAX as u64;
pub(super) const TOKENS: RangeInclusive<u64> = 1..=TokenParameters::TOKENS_MAX as u64;
pub(super) const QUEUES: RangeInclusive<u64> = CPUS;
pub(super) const COPY_ENGINES: RangeInclusive<u64> = 1..=2;

pub(super) const SEGMENTS: &str =
    "[{ copy = \"host -> gpu\", bytes = \"1 MB\" }, { compute = \"spin\", time = \"2 ms\" }]";

pub(super) const BLOCKS: &str = "[{ from = \"host\", to = \"gpu0\", bytes = \"1 MB\" }]";

pub(super) const STEPS: &str = "[{ copy = \"host -> gpu\" }]";

pub(super) fn copy_text(from: &CopyEndpoint, to: &CopyEndpoint) -> String {
    quoted(&format!("{} -> {}", name(from), name(to)))
}

/// Exact, where shorter forms round.
pub(super) fn time(time: Nanos) -> String {
    quoted(&format!("{} ns", time.0))
}

/// Exact, where shorter forms round.
pub(super) fn size(bytes: Bytes) -> String {
    quoted(&format!("{} B", bytes.0))
}

/// The place that a file calls `text`.
pub(super) fn place(text: &str) -> CopyEndpoint {
    match text.trim() {
        "host" => CopyEndpoint::Host,
        "gpu" => CopyEndpoint::OwnGpu,
        name => CopyEndpoint::Named(name.to_owned()),
    }
}

/// As files write it.
pub(super) fn name(place: &CopyEndpoint) -> &str {
    match place {
        CopyEndpoint::Host => "host",
        CopyEndpoint::OwnGpu => "gpu",
        CopyEndpoint::Named(name) => name,
    }
}

/// Whether two places are one for a stream on `gpu`, whose name may stand for `gpu`.
pub(super) fn same(a: &CopyEndpoint, b: &CopyEndpoint, gpu: &StreamPlacement) -> bool {
    let own = |place: &CopyEndpoint| match (place, gpu) {
        (CopyEndpoint::OwnGpu, _) => true,
        (CopyEndpoint::Named(name), StreamPlacement::Gpu(gpu)) => name == gpu,
        _ => false,
    };
    a == b || (own(a) && own(b))
}
