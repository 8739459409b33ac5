//! The workload file: TOML in, a checked [`Workload`] and the place of each of its parts out.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Block, Cipher, Cycle, Flow, Grouping, Message, OnMiss, Place, Placement, Step, Stream, Workload};
use crate::files::document::{self, Field, Table};
use crate::files::error::{FileError, Loaded, Source};
use crate::plan::combine::Mode;
use crate::units::{Bytes, NANOS_PER_SECOND, Nanos};

/// How long a run lasts when the file does not say.
pub(super) const DURATION: Nanos = Nanos(NANOS_PER_SECOND);
/// Seed when the file does not say.
pub(super) const SEED: u64 = 1;
/// The kernel that needs a key, and the size of the blocks it works on.
const CIPHER: &str = "aes128-cbc";
const CIPHER_BLOCK: u64 = 16;

const TOP: &[&str] = &["name", "description", "run", "stream", "message", "flow", "bulk", "urgent", "task", "sharing"];
const RUN: &[&str] = &["duration", "seed", "cycle", "grouping", "transform"];
const STREAM: &[&str] =
    &["id", "packet", "period", "deadline", "start", "processor", "gpu", "on_miss", "steps", "key", "iv", "wafer"];
const STEP: &[&str] = &["copy", "compute", "exchange"];
const MESSAGE: &[&str] = &["id", "period", "start", "late", "blocks"];
const BLOCK: &[&str] = &["from", "to", "bytes"];
const FLOW: &[&str] = &["id", "server", "start", "cost", "period", "deadline"];
pub(super) const CYCLES: &[(&str, Cycle)] =
    &[("auto", Cycle::Auto), ("paper", Cycle::Paper), ("arrival", Cycle::Arrival)];
pub(super) const GROUPINGS: &[(&str, Grouping)] =
    &[("class", Grouping::Class), ("each", Grouping::Each), ("gpu", Grouping::Gpu)];
pub(super) const TRANSFORMS: &[(&str, Mode)] =
    &[("fast", Mode::Fast), ("greedy", Mode::Greedy), ("search", Mode::Search), ("optimal", Mode::Optimal)];
pub(super) const ON_MISS: &[(&str, OnMiss)] =
    &[("finish", OnMiss::Finish), ("skip", OnMiss::Skip), ("stop", OnMiss::Stop)];

/// Reads a workload file.
///
/// The places are called `run.KEY`, `stream.ID`, `stream.ID.KEY`, `stream.ID.steps.N`, `message.ID`, `message.ID.KEY`,
/// `message.ID.blocks.N`, `flow.ID`, `flow.ID.KEY`, `bulk.ID`, `bulk.ID.KEY`, `urgent.ID`, `urgent.ID.KEY`, `task.ID`,
/// `task.ID.KEY`, `task.ID.segments.N`, `sharing` and `sharing.KEY`, with N counted from 0.
///
/// # Errors
/// At the first thing that is not TOML, not a known key or not a value of its kind, or that no machine can do.
pub fn parse(name: &str, text: &str) -> Result<Loaded<Workload>, FileError> {
    let source = Source::new(name, text);
    let (value, spans) = read(&source)?;
    Ok(Loaded { value, source, spans })
}

fn read(source: &Source) -> Result<(Workload, BTreeMap<String, Range<usize>>), FileError> {
    let mut top = document::root(source, TOP)?;
    let mut reader = Reader::default();
    let name = workload_name(&top.require("name", "\"my-workload\"")?)?;
    let description =
        top.take("description").map_or_else(|| Ok(String::new()), |f| f.text("\"...\"").map(str::to_owned))?;
    let mut workload = Workload { description, hash: document::hash(&source.text), ..Workload::new(&name) };
    reader.run(&mut top, &mut workload)?;
    for table in top.tables("stream", STREAM)? {
        let stream = reader.stream(table, workload.seed)?;
        workload.streams.push(stream);
    }
    for table in top.tables("message", MESSAGE)? {
        workload.messages.push(reader.message(table)?);
    }
    for table in top.tables("flow", FLOW)? {
        workload.flows.push(reader.flow(table)?);
    }
    reader.unplanned(&mut top, &mut workload)?;
    reader.tasks(&mut top, &mut workload)?;
    super::wafer_file::alone(source, &workload)?;
    if workload.streams.is_empty()
        && workload.messages.is_empty()
        && workload.flows.is_empty()
        && workload.tasks.is_empty()
    {
        let help = "add at least one `[[stream]]`, `[[message]]`, `[[flow]]` or `[[task]]`";
        return Err(source.error(0..0, "the workload is empty", Some(help.to_owned())));
    }
    Ok((workload, reader.spans))
}

/// The workload's name, which also names the folder of its results.
fn workload_name(field: &Field<'_>) -> Result<String, FileError> {
    let name = field.name()?;
    if name.contains('/') || name.starts_with('.') {
        let message = format!("`{}` cannot name the folder of the results, `out/NAME-SOURCE`", field.excerpt());
        let help = "leave out `/`, and do not begin with `.`; `--out` puts results into any folder".to_owned();
        return Err(field.error(message, Some(help)));
    }
    Ok(name)
}

#[derive(Default)]
pub(super) struct Reader {
    spans: BTreeMap<String, Range<usize>>,
    /// What each id stands for.
    ids: BTreeMap<String, &'static str>,
    /// Streams by their ids in lower case.
    streams: BTreeMap<String, String>,
    /// Which stream has which key and initialisation vector.
    ciphers: BTreeMap<([u8; 16], [u8; 16]), String>,
}

impl Reader {
    pub(super) fn note(&mut self, part: String, span: &Range<usize>) {
        self.spans.entry(part).or_insert_with(|| span.clone());
    }

    /// The field called `key`, if it is written; its place is kept as `PART.KEY`.
    pub(super) fn take<'a>(&mut self, table: &mut Table<'a>, part: &str, key: &str) -> Option<Field<'a>> {
        let field = table.take(key)?;
        self.note(format!("{part}.{key}"), &field.span);
        Some(field)
    }

    pub(super) fn require<'a>(
        &mut self,
        table: &mut Table<'a>,
        part: &str,
        key: &str,
        example: &str,
    ) -> Result<Field<'a>, FileError> {
        let field = table.require(key, example)?;
        self.note(format!("{part}.{key}"), &field.span);
        Ok(field)
    }

    /// Reads the id of a table and returns it with the name of the part.
    pub(super) fn identify(
        &mut self,
        table: &mut Table<'_>,
        kind: &'static str,
    ) -> Result<(String, String), FileError> {
        let field = table.require("id", "\"a\"")?;
        let id = field.name()?;
        if let Some(other) = self.ids.insert(id.clone(), kind) {
            let help = "give each stream, message, flow and task its own id".to_owned();
            return Err(field.error(format!("a {other} is already called `{id}`"), Some(help)));
        }
        if kind == "stream" {
            self.tell_apart(&id, &field)?;
        }
        let part = format!("{kind}.{id}");
        self.note(part.clone(), &field.span);
        Ok((id, part))
    }

    /// Refuses a stream whose id differs from another's in upper and lower case only: on file systems that do not tell them
    /// apart, the results of both would be one file.
    fn tell_apart(&mut self, id: &str, at: &Field<'_>) -> Result<(), FileError> {
        let Some(other) = self.streams.insert(id.to_lowercase(), id.to_owned()) else { return Ok(()) };
        let message = format!("stream `{id}` differs from stream `{other}` in upper and lower case only");
        let help = "give one of them another id: each names the file of its stream's results, and not every file system \
                    tells these two apart";
        Err(at.error(message, Some(help.to_owned())))
    }

    /// Reads the transfers without windows, which live on what others leave over.
    fn unplanned(&mut self, top: &mut Table<'_>, workload: &mut Workload) -> Result<(), FileError> {
        let alone = workload.streams.is_empty() && workload.messages.is_empty() && workload.flows.is_empty();
        let bulk = top.tables("bulk", super::unplanned_file::BULK)?;
        let urgent = top.tables("urgent", super::unplanned_file::URGENT)?;
        if let (true, Some(first)) = (alone, bulk.first().or_else(|| urgent.first())) {
            let help = "add a stream, message or flow; a copy alone is made by `headway copy`";
            return Err(first.error("a run ends with its last window, and this workload has none", help));
        }
        for table in bulk {
            workload.unplanned.push(self.bulk(table)?);
        }
        for table in urgent {
            workload.unplanned.push(self.urgent(table)?);
        }
        Ok(())
    }

    /// Reads the tasks and how they share GPUs. A file has tasks or other parts: a task is given a GPU when it runs, so no
    /// plan made before can leave room for the others.
    fn tasks(&mut self, top: &mut Table<'_>, workload: &mut Workload) -> Result<(), FileError> {
        let sharing = top.take("sharing");
        for table in top.tables("task", super::task_file::TASK)? {
            let others = !(workload.streams.is_empty() && workload.messages.is_empty() && workload.flows.is_empty());
            if others {
                let help = "put the tasks into a workload file of their own";
                return Err(table.error("tasks and other parts are planned in different ways", help));
            }
            if sharing.is_none() {
                let help = "add a table `[sharing]` with `cpus`, the number of CPUs that the tasks may use";
                return Err(table.error("nothing says how the tasks share the GPUs", help));
            }
            workload.tasks.push(self.task(table)?);
        }
        let Some(field) = sharing else { return Ok(()) };
        if workload.tasks.is_empty() {
            let help = "add a `[[task]]`, or leave `[sharing]` out".to_owned();
            return Err(field.key_error("there is no task that shares GPUs", Some(help)));
        }
        workload.sharing = Some(self.sharing(field)?);
        Ok(())
    }

    fn run(&mut self, top: &mut Table<'_>, workload: &mut Workload) -> Result<(), FileError> {
        let Some(field) = top.take("run") else { return Ok(()) };
        self.note("run".to_owned(), &field.span);
        let mut table = field.table("[run]", RUN)?;
        if let Some(field) = self.take(&mut table, "run", "duration") {
            workload.duration = field.time_above_zero("2 s")?;
        }
        if let Some(field) = self.take(&mut table, "run", "seed") {
            workload.seed = field.integer(0, i64::MAX.unsigned_abs())?;
        }
        if let Some(field) = self.take(&mut table, "run", "cycle") {
            workload.cycle = field.word(CYCLES)?;
        }
        if let Some(field) = self.take(&mut table, "run", "grouping") {
            workload.grouping = field.word(GROUPINGS)?;
        }
        if let Some(field) = self.take(&mut table, "run", "transform") {
            workload.transform = field.word(TRANSFORMS)?;
        }
        Ok(())
    }

    fn stream(&mut self, mut table: Table<'_>, seed: u64) -> Result<Stream, FileError> {
        let (id, part) = self.identify(&mut table, "stream")?;
        let wafer = self.take(&mut table, &part, "wafer").map(|field| Self::wafer(field, seed)).transpose()?;
        let packet_field = match wafer {
            Some(_) => self.take(&mut table, &part, "packet"),
            None => Some(self.require(&mut table, &part, "packet", "\"16 KiB\"")?),
        };
        let packet = match (&wafer, &packet_field) {
            (None, Some(field)) => field.size_above_zero("16 KiB")?,
            (Some(wafer), field) => Self::generation(field.as_ref(), wafer)?,
            (None, None) => unreachable!("a packet was required"),
        };
        let period = self.require(&mut table, &part, "period", "\"4 ms\"")?.time_above_zero("4 ms")?;
        let deadline_field = self.require(&mut table, &part, "deadline", "\"40 ms\"")?;
        let deadline = deadline_field.time_above_zero("40 ms")?;
        let start = self.take(&mut table, &part, "start").map_or(Ok(Nanos::ZERO), |f| f.time())?;
        let processor = self.take(&mut table, &part, "processor");
        let gpu = match self.take(&mut table, &part, "gpu") {
            Some(field) if wafer.is_some() => {
                let help = "leave `gpu` out".to_owned();
                return Err(field.key_error("the images of a wafer are dealt to all GPUs", Some(help)));
            }
            field => super::processor_file::placement(field.as_ref(), processor.as_ref(), wafer.is_some())?,
        };
        let on_miss_field = self.take(&mut table, &part, "on_miss");
        let on_miss = on_miss_field.as_ref().map_or(Ok(OnMiss::Finish), |f| f.word(ON_MISS))?;
        let steps_field = self.require(&mut table, &part, "steps", "[{ copy = \"host -> gpu\" }]")?;
        let misplaced = Self::misplaced(&steps_field);
        let (steps, encrypts) = self.steps(steps_field, &part, &gpu)?;
        Self::inspection(&steps, wafer.is_some(), misplaced)?;
        if let Some(field) = &processor {
            super::processor_file::fits(field, &gpu, &steps)?;
        }
        if let (Some(field), OnMiss::Skip, Some(_)) = (&on_miss_field, on_miss, &encrypts) {
            let message = format!("stream `{id}` encrypts in a chain, in which no packet can be left out");
            return Err(field.error(message, Some("write `on_miss = \"finish\"` or `on_miss = \"stop\"`".to_owned())));
        }
        if let (Some(field), OnMiss::Skip, Some(_)) = (&on_miss_field, on_miss, &wafer) {
            let message = "no image of a wafer is left out";
            return Err(field.error(message, Some("write `on_miss = \"finish\"` or `on_miss = \"stop\"`".to_owned())));
        }
        // The cycle is deadline / (steps + 1): one step more than is written, as packets are gathered first.
        let shortest = steps.len() as u64 + 1;
        if deadline.0 < shortest {
            let message = format!("`{}` is too short for {} steps", deadline_field.excerpt(), steps.len());
            let help =
                format!("write at least `deadline = \"{shortest} ns\"`: a nanosecond for gathering and each step");
            return Err(deadline_field.error(message, Some(help)));
        }
        if let Some(packet_field) = &packet_field
            && encrypts.is_some()
            && !packet.0.is_multiple_of(CIPHER_BLOCK)
        {
            let message =
                format!("`{}` is not a multiple of {CIPHER_BLOCK} bytes as `{CIPHER}` needs", packet_field.excerpt());
            let help = format!("write for example `packet = \"{} B\"`", packet.0.next_multiple_of(CIPHER_BLOCK));
            return Err(packet_field.error(message, Some(help)));
        }
        let cipher = self.cipher(&mut table, &id, &part)?;
        if let (Some(step), None) = (encrypts, &cipher) {
            let help = "add `key` and `iv`, 32 hexadecimal digits each, to the stream".to_owned();
            return Err(step.error(format!("stream `{id}` encrypts but has no key"), Some(help)));
        }
        Ok(Stream { id, packet, period, deadline, start, gpu, steps, on_miss, cipher, wafer })
    }

    /// Reads the steps; returns also the first one that encrypts.
    fn steps<'a>(
        &mut self,
        list: Field<'a>,
        part: &str,
        gpu: &Placement,
    ) -> Result<(Vec<Step>, Option<Field<'a>>), FileError> {
        let none = list
            .error("the stream has no steps", Some("write for example `steps = [{ copy = \"host -> gpu\" }]`".into()));
        let (mut steps, mut encrypts, mut at) = (Vec::new(), None, None);
        for (i, element) in list.elements("[{ copy = \"host -> gpu\" }]")?.into_iter().enumerate() {
            self.note(format!("{part}.steps.{i}"), &element.span);
            let mut table = element.table("a step", STEP)?;
            match (table.take("copy"), table.take("compute"), table.take("exchange")) {
                (Some(copy), None, None) => steps.push(copy_step(&copy, &mut at, gpu)?),
                (None, None, Some(exchange)) => {
                    exchange.word(&[("gpus", ())])?;
                    steps.push(Step::Exchange);
                }
                (None, Some(compute), None) => {
                    let kernel = compute.name()?;
                    on_own_gpu(&compute, at.as_ref(), gpu)?;
                    let cipher = kernel == CIPHER;
                    steps.push(Step::Compute { kernel });
                    if cipher && encrypts.is_none() {
                        encrypts = Some(compute);
                    }
                }
                _ => {
                    let help = "write `{ copy = \"host -> gpu\" }` or `{ compute = \"KERNEL\" }`";
                    return Err(table.error("a step is one `copy` or one `compute`", help));
                }
            }
        }
        if steps.is_empty() { Err(none) } else { Ok((steps, encrypts)) }
    }

    fn cipher(&mut self, table: &mut Table<'_>, id: &str, part: &str) -> Result<Option<Cipher>, FileError> {
        let (key_field, iv) = match (self.take(table, part, "key"), self.take(table, part, "iv")) {
            (None, None) => return Ok(None),
            (Some(key), Some(iv)) => (key, iv),
            (Some(one), None) | (None, Some(one)) => {
                let missing = if one.key == "key" { "iv" } else { "key" };
                let help = format!("add `{missing}`, 32 hexadecimal digits");
                return Err(one.key_error(format!("stream `{id}` has `{}` but no `{missing}`", one.key), Some(help)));
            }
        };
        let (key, iv) = (hex(&key_field)?, hex(&iv)?);
        if let Some(other) = self.ciphers.insert((key, iv), id.to_owned()) {
            let help = "draw a new random `iv`, and a `key` of its own, for each stream: with the same pair, packets that begin \
                        alike encrypt alike, and whoever sees the ciphertexts can tell";
            let message = format!("stream `{id}` has the same key and iv as stream `{other}`");
            return Err(key_field.error(message, Some(help.to_owned())));
        }
        Ok(Some(Cipher { key, iv }))
    }

    fn message(&mut self, mut table: Table<'_>) -> Result<Message, FileError> {
        let (id, part) = self.identify(&mut table, "message")?;
        let period = self.require(&mut table, &part, "period", "\"30 ms\"")?.time_above_zero("30 ms")?;
        let start = self.take(&mut table, &part, "start").map_or(Ok(Nanos::ZERO), |f| f.time())?;
        let late = self.take(&mut table, &part, "late").map(|f| f.time()).transpose()?;
        let example = "[{ from = \"host\", to = \"gpu0\", bytes = \"1 MB\" }]";
        let list = self.require(&mut table, &part, "blocks", example)?;
        let none = list
            .error(format!("message `{id}` has no blocks"), Some(format!("write for example `blocks = {example}`")));
        let mut blocks = Vec::new();
        for (i, element) in list.elements(example)?.into_iter().enumerate() {
            self.note(format!("{part}.blocks.{i}"), &element.span);
            let mut table = element.table("a block", BLOCK)?;
            let from = table.require("from", "\"host\"")?.name()?;
            let to_field = table.require("to", "\"gpu0\"")?;
            let to = to_field.name()?;
            if from == to {
                let help = "name two endpoints of the machine".to_owned();
                return Err(to_field.error(format!("the block stays at `{to}`"), Some(help)));
            }
            let bytes: Bytes = table.require("bytes", "\"1 MB\"")?.size_above_zero("1 MB")?;
            blocks.push(Block { from, to, bytes });
        }
        if blocks.is_empty() { Err(none) } else { Ok(Message { id, period, start, late, blocks }) }
    }

    fn flow(&mut self, mut table: Table<'_>) -> Result<Flow, FileError> {
        let (id, part) = self.identify(&mut table, "flow")?;
        let server = self.take(&mut table, &part, "server").map_or_else(|| Ok("engine".to_owned()), |f| f.name())?;
        let start = self.take(&mut table, &part, "start").map_or(Ok(Nanos::ZERO), |f| f.time())?;
        let cost_field = self.require(&mut table, &part, "cost", "\"1 ms\"")?;
        let cost = cost_field.time_above_zero("1 ms")?;
        let period = self.require(&mut table, &part, "period", "\"2 ms\"")?.time_above_zero("2 ms")?;
        let deadline = self.take(&mut table, &part, "deadline").map_or(Ok(period), |f| f.time_above_zero("2 ms"))?;
        if cost > deadline {
            let message = format!("`{}` is more than the deadline of {deadline}", cost_field.excerpt());
            let help = format!("lower the cost to at most {deadline}, or raise the deadline of flow `{id}`");
            return Err(cost_field.error(message, Some(help)));
        }
        Ok(Flow { id, server, start, cost, period, deadline })
    }
}

/// Reads `"FROM -> TO"` and moves `at`, where the data is, along.
fn copy_step(field: &Field<'_>, at: &mut Option<Place>, gpu: &Placement) -> Result<Step, FileError> {
    let text = field.text("\"host -> gpu\"")?;
    let ends = text.split_once("->").and_then(|(from, to)| Some((place(from)?, place(to)?)));
    let Some((from, to)) = ends else {
        let help = "write for example `copy = \"host -> gpu\"`, or names of the machine file".to_owned();
        return Err(field.error(format!("`{}` is not of the form FROM -> TO", field.excerpt()), Some(help)));
    };
    if same(&from, &to, gpu) {
        return Err(field.error(format!("`{}` goes nowhere", field.excerpt()), Some("name two places".to_owned())));
    }
    if let Some(here) = at
        && !same(here, &from, gpu)
    {
        let message = format!("the step copies from `{}`, but the data is at `{}`", called(&from), called(here));
        let help = format!("start it at `{}`, or add a copy from there to `{}`", called(here), called(&from));
        return Err(field.error(message, Some(help)));
    }
    *at = Some(to.clone());
    Ok(Step::Copy { from, to })
}

/// Refuses a compute step unless the data `at` hand is on the stream's own GPU.
fn on_own_gpu(step: &Field<'_>, at: Option<&Place>, gpu: &Placement) -> Result<(), FileError> {
    match at {
        Some(place) if same(place, &Place::OwnGpu, gpu) => Ok(()),
        None if *gpu == Placement::Cpu => Ok(()),
        None | Some(Place::Host) => {
            let help = "put `{ copy = \"host -> gpu\" }` before it".to_owned();
            Err(step.error("the step computes before the data reached a GPU", Some(help)))
        }
        Some(place) => {
            let name = called(place);
            let message = format!("the step computes on the stream's own GPU, but the data is at `{name}`");
            Err(step.error(message, Some(format!("copy it to `gpu`, or write `gpu = \"{name}\"` if that is a GPU"))))
        }
    }
}

fn place(text: &str) -> Option<Place> {
    match text.trim() {
        "host" => Some(Place::Host),
        "gpu" => Some(Place::OwnGpu),
        name => document::is_name(name).then(|| Place::Named(name.to_owned())),
    }
}

fn called(place: &Place) -> &str {
    match place {
        Place::Host => "host",
        Place::OwnGpu => "gpu",
        Place::Named(name) => name,
    }
}

/// Whether two places are one for a stream on `gpu`, whose name may stand for `gpu`.
fn same(a: &Place, b: &Place, gpu: &Placement) -> bool {
    let own = |place: &Place| match (place, gpu) {
        (Place::OwnGpu, _) => true,
        (Place::Named(name), Placement::Gpu(gpu)) => name == gpu,
        _ => false,
    };
    a == b || (own(a) && own(b))
}

fn hex(field: &Field<'_>) -> Result<[u8; 16], FileError> {
    let text = field.text("\"000102030405060708090a0b0c0d0e0f\"")?;
    let digits: Vec<u8> = text.chars().map_while(|c| c.to_digit(16)).filter_map(|d| u8::try_from(d).ok()).collect();
    if digits.len() != 32 || text.len() != 32 {
        let help = "write 16 bytes as hexadecimal digits, for example from `openssl rand -hex 16`".to_owned();
        return Err(field.error(format!("`{}` is not 32 hexadecimal digits", field.key), Some(help)));
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Ok(bytes)
}
