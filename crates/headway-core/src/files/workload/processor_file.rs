//! `processor` and `gpu` of a stream: what may process it.

use super::{CopyEndpoint, StreamPlacement, StreamStep};
use crate::files::document::Field;
use crate::files::error::FileError;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Processor {
    Gpu,
    Cpu,
    Auto,
}

const PROCESSORS: &[(&str, Processor)] = &[("gpu", Processor::Gpu), ("cpu", Processor::Cpu), ("auto", Processor::Auto)];

/// The placement that both keys together say.
pub(super) fn placement(gpu: Option<&Field<'_>>, processor: Option<&Field<'_>>) -> Result<StreamPlacement, FileError> {
    let wanted = processor.map_or(Ok(Processor::Gpu), |field| field.word(PROCESSORS))?;
    let placed = gpu.map_or(Ok(StreamPlacement::Auto), on_gpu)?;
    match (wanted, placed) {
        (Processor::Gpu, placed) => Ok(placed),
        (Processor::Cpu, StreamPlacement::Auto) => Ok(StreamPlacement::Cpu),
        (Processor::Auto, StreamPlacement::Auto) => Ok(StreamPlacement::Either),
        (..) => {
            let field = gpu.expect("only the key names a GPU");
            let help = "leave `gpu` out, or write `processor = \"gpu\"`".to_owned();
            Err(field.key_error("a stream that the CPU may serve has no GPU of its own", Some(help)))
        }
    }
}

fn on_gpu(field: &Field<'_>) -> Result<StreamPlacement, FileError> {
    let name = field.name()?;
    match name.as_str() {
        "auto" => Ok(StreamPlacement::Auto),
        "gpu" | "host" => {
            let help = "write \"auto\", or the name of a GPU in the machine file".to_owned();
            Err(field.error(format!("`{}` names no GPU", field.excerpt()), Some(help)))
        }
        _ => Ok(StreamPlacement::Gpu(name)),
    }
}

/// Refuses steps that a core cannot take over: kernels only, between one copy to the stream's own GPU and one back, which a
/// stream that never runs on a GPU need not write.
pub(super) fn fits(field: &Field<'_>, placement: &StreamPlacement, steps: &[StreamStep]) -> Result<(), FileError> {
    if matches!(placement, StreamPlacement::Auto | StreamPlacement::Gpu(_)) {
        return Ok(());
    }
    if steps.iter().any(|step| matches!(step, StreamStep::Parts(_))) {
        let help = "leave `processor` out, and write `on = \"cpu\"` where a core computes".to_owned();
        return Err(field.key_error("the steps say themselves what processes each part", Some(help)));
    }
    let into = StreamStep::Copy { from: CopyEndpoint::Host, to: CopyEndpoint::OwnGpu };
    let out = StreamStep::Copy { from: CopyEndpoint::OwnGpu, to: CopyEndpoint::Host };
    let between = match steps {
        [first, between @ .., last] if *first == into && *last == out => between,
        all if *placement == StreamPlacement::Cpu => all,
        _ => &[],
    };
    if !between.is_empty() && between.iter().all(|step| matches!(step, StreamStep::Compute { .. })) {
        return Ok(());
    }
    let help =
        "write `steps = [{ copy = \"host -> gpu\" }, { compute = \"KERNEL\" }, { copy = \"gpu -> host\" }]`".to_owned();
    Err(field.key_error("the CPU can only take over kernels between a copy to the GPU and one back", Some(help)))
}
