//! `processor` and `gpu` of a stream: what may process it.

use super::StreamPlacement;
use crate::files::document::{Field, NAME_EXAMPLE};
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
    let name = field.text(NAME_EXAMPLE)?;
    Ok(if name == "auto" { StreamPlacement::Auto } else { StreamPlacement::Gpu(name.to_owned()) })
}
