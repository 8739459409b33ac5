//! `parts` and `steps` of a stream: what is done with each part of a packet, and where.

use super::module_file::module_kernel;
use super::reader::Reader;
use super::texts::{FROM_TO_HELP, ONE_THING, ONE_THING_HELP, STEPS, place, same};
use super::{CopyEndpoint, ModuleKernel, PacketPart, PartStep, PartWork, StreamPlacement, StreamStep};
use crate::files::document::{Field, NAME_EXAMPLE};
use crate::files::error::FileError;

const PART: &[&str] = &["id", "bytes"];
const STEP: &[&str] = &["copy", "compute", "on", "exchange"];
const COPY: &[&str] = &["part", "from", "to"];
const COMPUTE: &[&str] = &["part", "kernel", "on"];
/// What `on` says for a core of the CPU.
const CPU: &str = "cpu";
const PARTS: &str = "[{ id = \"left\", bytes = \"512 KiB\" }, { id = \"right\", bytes = \"512 KiB\" }]";
const COPIES: &str = "[{ part = \"left\", from = \"host\", to = \"gpu0\" }]";
const EMPTY: &str = "the list is empty";
const KERNELS: &str = "[{ part = \"left\", kernel = \"spin\" }]";

/// The steps of a stream while they are read.
struct Steps<'a> {
    parts: &'a [PacketPart],
    gpu: &'a StreamPlacement,
    /// Where each part is; `None` before its first step.
    at: Vec<Option<CopyEndpoint>>,
    /// Whether some step needs [`StreamStep::Parts`].
    spread: bool,
}

/// A step as it was read.
enum Read {
    Exchange,
    Module(ModuleKernel),
    Set(Vec<PartStep>),
}

/// Reads the parts of a packet.
pub(super) fn parts(list: Field<'_>) -> Result<Vec<PacketPart>, FileError> {
    let parts = list.some_elements(PARTS, "the packet has no parts")?.into_iter().map(|element| {
        let mut table = element.table("a part", PART)?;
        let id = table.require("id", "\"left\"")?.text(NAME_EXAMPLE)?.to_owned();
        Ok(PacketPart { id, bytes: table.require("bytes", "\"512 KiB\"")?.any_size("512 KiB")? })
    });
    parts.collect()
}

impl Reader {
    /// Reads the steps of stream `stream`.
    pub(super) fn steps(
        &mut self,
        list: Field<'_>,
        stream: &str,
        parts: &[PacketPart],
        gpu: &StreamPlacement,
    ) -> Result<Vec<StreamStep>, FileError> {
        let mut read = Steps { parts, gpu, at: vec![None; parts.len().max(1)], spread: !parts.is_empty() };
        let mut steps = Vec::new();
        for (i, element) in list.elements(STEPS)?.into_iter().enumerate() {
            let mut table = element.table("a step", STEP)?;
            let (copy, compute) = (table.take("copy"), table.take("compute"));
            let (on, exchange) = (table.take("on"), table.take("exchange"));
            let both = copy.as_ref().is_some_and(Field::is_list) && compute.as_ref().is_some_and(Field::is_list);
            let things = usize::from(copy.is_some()) + usize::from(compute.is_some()) + usize::from(exchange.is_some());
            if (things > 1 && !(both && exchange.is_none())) || (on.is_some() && compute.is_none()) {
                return Err(table.error(ONE_THING, ONE_THING_HELP));
            }
            if let Some(exchange) = exchange {
                exchange.word(&[("gpus", ())])?;
                steps.push(Read::Exchange);
                continue;
            }
            let compute = match compute {
                Some(field) if field.is_table() => {
                    if let Some(on) = on {
                        let help = "leave `on` out: a kernel of a module runs on the stream's GPU".to_owned();
                        return Err(on.key_error("a module holds code for GPUs", Some(help)));
                    }
                    read.at.fill(Some(CopyEndpoint::OwnGpu));
                    steps.push(Read::Module(module_kernel(field)?));
                    continue;
                }
                other => other,
            };
            let mut set = Vec::new();
            if let Some(copy) = copy {
                self.note_for_each(&copy, &format!("{stream}.steps.{i}.copy"), &["from", "to"], parts);
                read.copies(copy, &mut set)?;
            }
            if let Some(compute) = compute {
                let place = format!("{stream}.steps.{i}.compute");
                self.note_for_each(&compute, &place, &["kernel"], parts);
                if let Some(on) = &on {
                    self.note_for_each(on, &place, &["on"], parts);
                }
                read.kernels(compute, on.as_ref(), &mut set)?;
            }
            steps.push(Read::Set(set));
        }
        let step = |step: Read| match step {
            Read::Exchange => StreamStep::Exchange,
            Read::Module(kernel) => StreamStep::Module(Box::new(kernel)),
            Read::Set(mut set) if !read.spread && set.len() == 1 => match set.remove(0).work {
                PartWork::Copy { from, to } => StreamStep::Copy { from, to },
                PartWork::Compute { kernel, .. } => StreamStep::Compute { kernel },
            },
            Read::Set(set) => StreamStep::Parts(set),
        };
        Ok(steps.into_iter().map(step).collect())
    }

    /// Notes a text that holds for all parts as if a list said it of each.
    fn note_for_each(&mut self, field: &Field<'_>, place: &str, keys: &[&str], parts: &[PacketPart]) {
        for number in (0..parts.len()).filter(|_| !field.is_list()) {
            keys.iter().for_each(|key| field.note(&format!("{place}.{number}.{key}"), &mut self.spans));
        }
    }
}

impl Steps<'_> {
    /// Reads `"FROM -> TO"` for all parts, or a list with one element for each part that is copied.
    fn copies(&mut self, field: Field<'_>, set: &mut Vec<PartStep>) -> Result<(), FileError> {
        if !field.is_list() {
            let Some((from, to)) = field.text("\"host -> gpu\"")?.split_once("->") else {
                let help = FROM_TO_HELP.to_owned();
                return Err(field.error(format!("`{}` is not of the form FROM -> TO", field.excerpt()), Some(help)));
            };
            (0..self.at.len()).for_each(|part| self.copy(set, part, place(from), place(to)));
            return Ok(());
        }
        for element in field.some_elements(COPIES, EMPTY)? {
            if let Ok(text) = element.text("") {
                let help = format!("write for example `copy = {COPIES}`");
                return Err(element.error(format!("`{text}` does not say which part is copied"), Some(help)));
            }
            let mut table = element.table("a copy of a part", COPY)?;
            let part = self.part(&table.require("part", "\"left\"")?)?;
            let from = table.require("from", "\"host\"")?;
            let to = table.require("to", "\"gpu0\"")?;
            self.copy(set, part, place(from.text(NAME_EXAMPLE)?), place(to.text(NAME_EXAMPLE)?));
        }
        Ok(())
    }

    /// Reads the kernel of all parts, or a list with one element for each part that is computed on.
    fn kernels(&mut self, field: Field<'_>, on: Option<&Field<'_>>, set: &mut Vec<PartStep>) -> Result<(), FileError> {
        if !field.is_list() {
            let kernel = field.text(NAME_EXAMPLE)?;
            return (0..self.at.len()).try_for_each(|part| self.compute(set, part, kernel, on));
        }
        if let Some(on) = on {
            let help = "write `on` into the elements of the list".to_owned();
            return Err(on.key_error("the list says what computes", Some(help)));
        }
        for element in field.some_elements(KERNELS, EMPTY)? {
            if let Ok(text) = element.text("") {
                let help = format!("write for example `compute = {KERNELS}`");
                return Err(element.error(format!("`{text}` does not say over which part"), Some(help)));
            }
            let mut table = element.table("a kernel over a part", COMPUTE)?;
            let part = self.part(&table.require("part", "\"left\"")?)?;
            let kernel = table.require("kernel", "\"spin\"")?;
            let on = table.take("on");
            self.compute(set, part, kernel.text(NAME_EXAMPLE)?, on.as_ref())?;
        }
        Ok(())
    }

    /// The part that an element names.
    fn part(&self, field: &Field<'_>) -> Result<usize, FileError> {
        let id = field.text("\"left\"")?;
        if self.parts.is_empty() {
            let help = format!("name the parts of the packet, for example `parts = {PARTS}`");
            return Err(field.error("the stream has no parts", Some(help)));
        }
        let found = self.parts.iter().position(|part| part.id == id);
        found.ok_or_else(|| {
            let known: Vec<&str> = self.parts.iter().map(|part| part.id.as_str()).collect();
            field.error(format!("the packet has no part `{id}`"), Some(format!("its parts are {}", known.join(", "))))
        })
    }

    fn copy(&mut self, set: &mut Vec<PartStep>, part: usize, from: CopyEndpoint, to: CopyEndpoint) {
        self.at[part] = Some(to.clone());
        set.push(PartStep { part: part as u32, work: PartWork::Copy { from, to } });
    }

    /// Lets `kernel` work on `part`, where it is if `on` does not say.
    fn compute(
        &mut self,
        set: &mut Vec<PartStep>,
        part: usize,
        kernel: &str,
        on: Option<&Field<'_>>,
    ) -> Result<(), FileError> {
        let on = on.map(|on| on.text("\"cpu\"")).transpose()?;
        let here = self.at[part].clone().unwrap_or(CopyEndpoint::Host);
        let on_cpu = on == Some(CPU);
        let at = match on {
            Some(elsewhere) if !on_cpu => place(elsewhere),
            // A stream that only the CPU serves has no copies.
            None if here == CopyEndpoint::Host && self.parts.is_empty() && *self.gpu == StreamPlacement::Cpu => {
                CopyEndpoint::OwnGpu
            }
            _ => here,
        };
        self.spread |= on_cpu || !same(&at, &CopyEndpoint::OwnGpu, self.gpu);
        self.at[part] = Some(at.clone());
        set.push(PartStep { part: part as u32, work: PartWork::Compute { kernel: kernel.to_owned(), at, on_cpu } });
        Ok(())
    }
}
