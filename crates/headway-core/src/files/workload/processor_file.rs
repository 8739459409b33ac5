//! `processor` and `gpu` of a stream: what may process it.

use super::{Place, Placement, Step};
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
pub(super) fn placement(gpu: Option<&Field<'_>>, processor: Option<&Field<'_>>) -> Result<Placement, FileError> {
    let wanted = processor.map_or(Ok(Processor::Gpu), |field| field.word(PROCESSORS))?;
    let placed = gpu.map_or(Ok(Placement::Auto), on_gpu)?;
    match (wanted, placed) {
        (Processor::Gpu, placed) => Ok(placed),
        (Processor::Cpu, Placement::Auto) => Ok(Placement::Cpu),
        (Processor::Auto, Placement::Auto) => Ok(Placement::Either),
        (..) => {
            let field = gpu.expect("only the key names a GPU");
            let help = "leave `gpu` out, or write `processor = \"gpu\"`".to_owned();
            Err(field.key_error("a stream that the CPU may serve has no GPU of its own", Some(help)))
        }
    }
}

fn on_gpu(field: &Field<'_>) -> Result<Placement, FileError> {
    let name = field.name()?;
    match name.as_str() {
        "auto" => Ok(Placement::Auto),
        "gpu" | "host" => {
            let help = "write \"auto\", or the name of a GPU in the machine file".to_owned();
            Err(field.error(format!("`{}` names no GPU", field.excerpt()), Some(help)))
        }
        _ => Ok(Placement::Gpu(name)),
    }
}

/// Refuses steps that a core cannot take over: kernels only, between one copy to the stream's own GPU and one back, which a
/// stream that never runs on a GPU need not write.
pub(super) fn fits(field: &Field<'_>, placement: &Placement, steps: &[Step]) -> Result<(), FileError> {
    if matches!(placement, Placement::Auto | Placement::Gpu(_)) {
        return Ok(());
    }
    if steps.iter().any(|step| matches!(step, Step::Parts(_))) {
        let help = "leave `processor` out, and write `on = \"cpu\"` where a core computes".to_owned();
        return Err(field.key_error("the steps say themselves what processes each part", Some(help)));
    }
    let into = Step::Copy { from: Place::Host, to: Place::OwnGpu };
    let out = Step::Copy { from: Place::OwnGpu, to: Place::Host };
    let between = match steps {
        [first, between @ .., last] if *first == into && *last == out => between,
        all if *placement == Placement::Cpu => all,
        _ => &[],
    };
    if !between.is_empty() && between.iter().all(|step| matches!(step, Step::Compute { .. })) {
        return Ok(());
    }
    let help =
        "write `steps = [{ copy = \"host -> gpu\" }, { compute = \"KERNEL\" }, { copy = \"gpu -> host\" }]`".to_owned();
    Err(field.key_error("the CPU can only take over kernels between a copy to the GPU and one back", Some(help)))
}
