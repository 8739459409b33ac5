//! `parts` and `steps` of a stream: what is done with each part of a packet, and where.

use super::application::Written;
use super::reader::Reader;
use super::{CopyEndpoint, PARTS_MAX, PacketPart, PartStep, PartWork, StreamPlacement, StreamStep};
use crate::files::document::{self, Field};
use crate::files::error::FileError;
use crate::units::Bytes;

const PART: &[&str] = &["id", "bytes"];
const STEP: &[&str] = &["copy", "compute", "on", "exchange"];
const COPY: &[&str] = &["part", "from", "to"];
const COMPUTE: &[&str] = &["part", "kernel", "on"];
/// What `on` says for a core of the CPU.
const CPU: &str = "cpu";
const PARTS: &str = "[{ id = \"left\", bytes = \"512 KiB\" }, { id = \"right\", bytes = \"512 KiB\" }]";
const COPIES: &str = "[{ part = \"left\", from = \"host\", to = \"gpu0\" }]";
const STEPS: &str = "[{ copy = \"host -> gpu\" }]";
const EMPTY: &str = "the list is empty";
const KERNELS: &str = "[{ part = \"left\", kernel = \"spin\" }]";

/// The steps of a stream while they are read: where each part is.
struct Ways<'a> {
    parts: &'a [PacketPart],
    gpu: &'a StreamPlacement,
    /// Where each part is; `None` before its first step.
    at: Vec<Option<CopyEndpoint>>,
    /// Whether some step needs [`StreamStep::Parts`].
    spread: bool,
}

impl Reader {
    /// Reads the parts of a packet of `packet` bytes; none where the key is not written.
    pub(super) fn parts(
        &mut self,
        list: Option<Field<'_>>,
        stream: &str,
        packet: Bytes,
    ) -> Result<Vec<PacketPart>, FileError> {
        let Some(list) = list else { return Ok(Vec::new()) };
        let total = |parts: &[PacketPart]| parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.bytes.0));
        let mut parts: Vec<PacketPart> = Vec::new();
        let mut last = None;
        for element in list.some_elements(PARTS, "the packet has no parts")? {
            let mut table = element.table("a part", PART)?;
            let id_field = table.require("id", "\"left\"")?;
            let id = id_field.name()?;
            if parts.iter().any(|part| part.id == id) {
                let help = "give each part of the packet an id of its own".to_owned();
                return Err(id_field.error(format!("stream `{stream}` has a part `{id}` already"), Some(help)));
            }
            if parts.len() == PARTS_MAX {
                let help = "let fewer parts be larger, or make streams of them".to_owned();
                return Err(id_field.error(format!("a packet has at most {PARTS_MAX} parts"), Some(help)));
            }
            let size = table.require("bytes", "\"512 KiB\"")?;
            parts.push(PacketPart { id, bytes: size.size_above_zero("512 KiB")? });
            if total(&parts) > packet.0 {
                let message = format!("the parts have {} bytes, more than the packet of {}", total(&parts), packet.0);
                return Err(size.error(message, Some("let the parts add up to the packet".to_owned())));
            }
            last = Some(size);
        }
        match last {
            Some(last) if total(&parts) < packet.0 => {
                let (sum, missing) = (total(&parts), packet.0 - total(&parts));
                let message = format!("the parts have {sum} bytes, and the packet has {}", packet.0);
                Err(last.error(message, Some(format!("make this part {missing} bytes larger, or add a part"))))
            }
            _ => Ok(parts),
        }
    }

    /// Reads the steps of stream `part`; notes where the kernels are named.
    pub(super) fn steps(
        &mut self,
        list: Field<'_>,
        part: &str,
        parts: &[PacketPart],
        gpu: &StreamPlacement,
        written: &mut Written<'_>,
    ) -> Result<Vec<StreamStep>, FileError> {
        let count = parts.len().max(1);
        let mut ways = Ways { parts, gpu, at: vec![None; count], spread: !parts.is_empty() };
        let (mut steps, mut exchanged) = (Vec::new(), None);
        let whole = list.span.clone();
        for (i, element) in list.some_elements(STEPS, "the stream has no steps")?.into_iter().enumerate() {
            let step = format!("{part}.steps.{i}");
            self.note(step.clone(), &element.span);
            let mut table = element.table("a step", STEP)?;
            let copy = self.take(&mut table, &step, "copy");
            let compute = self.take(&mut table, &step, "compute");
            let (on, exchange) = (table.take("on"), table.take("exchange"));
            let both = copy.as_ref().is_some_and(Field::is_list) && compute.as_ref().is_some_and(Field::is_list);
            let one = usize::from(copy.is_some()) + usize::from(compute.is_some()) + usize::from(exchange.is_some());
            if (one != 1 && !(both && exchange.is_none())) || (on.is_some() && compute.is_none()) {
                let help = "write `{ copy = \"host -> gpu\" }` or `{ compute = \"KERNEL\" }`; lists of both, each \
                            element for one part, go together";
                return Err(table.error("a step is one `copy` or one `compute`", help));
            }
            if let Some(exchange) = exchange {
                exchange.word(&[("gpus", ())])?;
                exchanged = Some(exchange);
                steps.push(None);
                continue;
            }
            let mut set = Vec::new();
            if let Some(copy) = copy {
                ways.copies(copy, &mut set)?;
            }
            if let Some(compute) = compute {
                written.marks.insert(format!("steps.{i}"), compute.mark());
                ways.kernels(compute, on.as_ref(), &mut set)?;
            }
            steps.push(Some(set));
        }
        if let Some(idle) = ways.at.iter().position(Option::is_none).filter(|_| !parts.is_empty()) {
            let message = format!("no step does anything with part `{}`", parts[idle].id);
            let help = Some("copy it to a GPU, or leave the part out".to_owned());
            return Err(written.source.error(whole, message, help));
        }
        if let Some(exchange) = exchanged.filter(|_| ways.spread) {
            let help = "write `gpu` for the GPUs, all of which share the packet".to_owned();
            return Err(exchange.error("a stream whose steps name several processors exchanges nothing", Some(help)));
        }
        let step = |set: Option<Vec<PartStep>>| match set {
            None => StreamStep::Exchange,
            Some(set) if ways.spread => StreamStep::Parts(set),
            Some(set) => match set.into_iter().next().expect("a step of a whole packet does one thing").work {
                PartWork::Copy { from, to } => StreamStep::Copy { from, to },
                PartWork::Compute { kernel, .. } => StreamStep::Compute { kernel },
            },
        };
        Ok(steps.into_iter().map(step).collect())
    }
}

impl Ways<'_> {
    /// Reads `"FROM -> TO"` for all parts, or a list with one element for each part that is copied.
    fn copies(&mut self, field: Field<'_>, set: &mut Vec<PartStep>) -> Result<(), FileError> {
        if !field.is_list() {
            let text = field.text("\"host -> gpu\"")?;
            let ends = text.split_once("->").and_then(|(from, to)| Some((place(from)?, place(to)?)));
            let Some((from, to)) = ends else {
                let help = "write for example `copy = \"host -> gpu\"`, or names of the machine file".to_owned();
                return Err(field.error(format!("`{}` is not of the form FROM -> TO", field.excerpt()), Some(help)));
            };
            return (0..self.at.len()).try_for_each(|part| self.copy(&field, set, part, &from, &to));
        }
        for element in field.some_elements(COPIES, EMPTY)? {
            if let Ok(text) = element.text("") {
                let help = format!("write for example `copy = {COPIES}`");
                return Err(element.error(format!("`{text}` does not say which part is copied"), Some(help)));
            }
            let mut table = element.table("a copy of a part", COPY)?;
            let part = self.part(&table.require("part", "\"left\"")?)?;
            let from = end(&table.require("from", "\"host\"")?)?;
            let to_field = table.require("to", "\"gpu0\"")?;
            let to = end(&to_field)?;
            self.copy(&to_field, set, part, &from, &to)?;
        }
        Ok(())
    }

    /// Reads the kernel of all parts, or a list with one element for each part that is computed on.
    fn kernels(&mut self, field: Field<'_>, on: Option<&Field<'_>>, set: &mut Vec<PartStep>) -> Result<(), FileError> {
        if !field.is_list() {
            let kernel = field.name()?;
            return (0..self.at.len()).try_for_each(|part| self.compute(&field, set, part, &kernel, on));
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
            let id = kernel.name()?;
            self.compute(&kernel, set, part, &id, on.as_ref())?;
        }
        Ok(())
    }

    /// The part that an element names.
    fn part(&mut self, field: &Field<'_>) -> Result<usize, FileError> {
        let id = field.text("\"left\"")?.to_owned();
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

    /// Refuses a second thing for one part in one step.
    fn free(&self, field: &Field<'_>, set: &[PartStep], part: usize) -> Result<(), FileError> {
        if set.iter().all(|done| done.part as usize != part) {
            return Ok(());
        }
        let message = format!("the step does two things with {}", self.called(part));
        Err(field.error(message, Some("put the second into a step of its own".to_owned())))
    }

    fn called(&self, part: usize) -> String {
        self.parts.get(part).map_or_else(|| "the data".to_owned(), |part| format!("part `{}`", part.id))
    }

    /// Moves `part`, and where it is, along.
    fn copy(
        &mut self,
        field: &Field<'_>,
        set: &mut Vec<PartStep>,
        part: usize,
        from: &CopyEndpoint,
        to: &CopyEndpoint,
    ) -> Result<(), FileError> {
        self.free(field, set, part)?;
        if same(from, to, self.gpu) {
            return Err(field.error(format!("`{}` goes nowhere", field.excerpt()), Some("name two places".to_owned())));
        }
        if let Some(here) = &self.at[part]
            && !same(here, from, self.gpu)
        {
            let (from, here) = (name(from), name(here));
            let message = format!("the step copies from `{from}`, but {} is at `{here}`", self.called(part));
            let help = format!("start it at `{here}`, or add a copy from there to `{from}`");
            return Err(field.error(message, Some(help)));
        }
        self.at[part] = Some(to.clone());
        set.push(PartStep { part: part as u32, work: PartWork::Copy { from: from.clone(), to: to.clone() } });
        Ok(())
    }

    /// Lets `kernel` work on `part` where it is; `on` says what must be there.
    fn compute(
        &mut self,
        field: &Field<'_>,
        set: &mut Vec<PartStep>,
        part: usize,
        kernel: &str,
        on: Option<&Field<'_>>,
    ) -> Result<(), FileError> {
        self.free(field, set, part)?;
        let on = on.map(|on| Ok((on, on.text("\"cpu\"")?.to_owned()))).transpose()?;
        let here = self.at[part].clone();
        let at = match (&here, &on) {
            (here, Some((field, wanted))) if wanted == CPU => match here {
                None => CopyEndpoint::Host,
                Some(here) if !same(here, &CopyEndpoint::OwnGpu, self.gpu) => here.clone(),
                Some(_) => {
                    let message = format!("the step computes on the CPU, but {} is on a GPU", self.called(part));
                    return Err(field.error(message, Some("put a copy to `host` before it".to_owned())));
                }
            },
            (None | Some(CopyEndpoint::Host), Some((field, wanted))) => {
                let message = format!("the step computes on `{wanted}`, but {} is at `host`", self.called(part));
                let help = "write `on = \"cpu\"` for a core of the CPU, or put a copy to a GPU before it".to_owned();
                return Err(field.error(message, Some(help)));
            }
            (None | Some(CopyEndpoint::Host), None) => {
                // A stream that only the CPU serves has no copies.
                if self.parts.is_empty() && *self.gpu == StreamPlacement::Cpu {
                    let at = CopyEndpoint::OwnGpu;
                    let work = PartWork::Compute { kernel: kernel.to_owned(), at, on_cpu: false };
                    set.push(PartStep { part: part as u32, work });
                    return Ok(());
                }
                let help = "put `{ copy = \"host -> gpu\" }` before it, or write `on = \"cpu\"`".to_owned();
                return Err(field.error("the step computes before the data reached a GPU", Some(help)));
            }
            (Some(here), Some((field, wanted))) => {
                let there = place(wanted).filter(|place| same(here, place, self.gpu));
                there.ok_or_else(|| {
                    let message =
                        format!("the step computes on `{wanted}`, but {} is at `{}`", self.called(part), name(here));
                    let help = format!(
                        "leave `on` out: a kernel runs where its data is; or copy it from `{}` before",
                        name(here)
                    );
                    field.error(message, Some(help))
                })?
            }
            (Some(here), None) => here.clone(),
        };
        let on_cpu = on.as_ref().is_some_and(|(_, wanted)| wanted == CPU);
        self.spread |= on_cpu || !same(&at, &CopyEndpoint::OwnGpu, self.gpu);
        self.at[part] = Some(at.clone());
        set.push(PartStep { part: part as u32, work: PartWork::Compute { kernel: kernel.to_owned(), at, on_cpu } });
        Ok(())
    }
}

/// An end of a copy by itself.
fn end(field: &Field<'_>) -> Result<CopyEndpoint, FileError> {
    let name = field.name()?;
    Ok(place(&name).expect("a name is a place"))
}

fn place(text: &str) -> Option<CopyEndpoint> {
    match text.trim() {
        "host" => Some(CopyEndpoint::Host),
        "gpu" => Some(CopyEndpoint::OwnGpu),
        name => document::is_name(name).then(|| CopyEndpoint::Named(name.to_owned())),
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
fn same(a: &CopyEndpoint, b: &CopyEndpoint, gpu: &StreamPlacement) -> bool {
    let own = |place: &CopyEndpoint| match (place, gpu) {
        (CopyEndpoint::OwnGpu, _) => true,
        (CopyEndpoint::Named(name), StreamPlacement::Gpu(gpu)) => name == gpu,
        _ => false,
    };
    a == b || (own(a) && own(b))
}
