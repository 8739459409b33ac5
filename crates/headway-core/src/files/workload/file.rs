//! The workload file: TOML in, a checked [`Workload`] and the place of each of its parts out.

use std::collections::BTreeMap;
use std::ops::Range;

use super::application::{Application, Keys, Own, Written};
use super::reader::Reader;
use super::{Cycle, Grouping, Message, MessageBlock, OnMiss, Parameters, ServerDemand, Sharding, Stream, Workload};
use crate::files::document::{self, DocumentTable, Field};
use crate::files::error::{FileError, Loaded, SourceText};
use crate::plan::combine::CombineEffort;
use crate::units::{Bytes, NANOS_PER_SECOND, Nanos};

/// How long a run lasts when the file does not say.
pub(super) const DURATION: Nanos = Nanos(NANOS_PER_SECOND);
/// Seed when the file does not say.
pub(super) const SEED: u64 = 1;

const TOP: &[&str] =
    &["name", "description", "run", "stream", "message", "demand", "flow", "bulk", "urgent", "task", "sharing"];
const RUN: &[&str] = &["duration", "seed", "cycle", "grouping", "transform"];
const STREAM: &[&str] =
    &["id", "packet", "period", "deadline", "start", "processor", "gpu", "on_miss", "parts", "steps"];
const MESSAGE: &[&str] = &["id", "period", "start", "late", "blocks"];
const BLOCK: &[&str] = &["from", "to", "bytes"];
const DEMAND: &[&str] = &["id", "server", "start", "cost", "period", "deadline"];
pub(super) const CYCLES: &[(&str, Cycle)] =
    &[("auto", Cycle::Auto), ("paper", Cycle::Paper), ("arrival", Cycle::Arrival)];
pub(super) const GROUPINGS: &[(&str, Grouping)] =
    &[("class", Grouping::Class), ("each", Grouping::Each), ("gpu", Grouping::Gpu)];
pub(super) const TRANSFORMS: &[(&str, CombineEffort)] = &[
    ("fast", CombineEffort::Fast),
    ("greedy", CombineEffort::Greedy),
    ("search", CombineEffort::Search),
    ("optimal", CombineEffort::Optimal),
];
pub(super) const ON_MISS: &[(&str, OnMiss)] =
    &[("finish", OnMiss::Finish), ("skip", OnMiss::Skip), ("stop", OnMiss::Stop)];

/// Reads a workload file whose streams have no keys of applications.
///
/// # Errors
/// Those of [`parse_with`].
pub fn parse(name: &str, text: &str) -> Result<Loaded<Workload>, FileError> {
    parse_with(name, text, &[])
}

/// Reads a workload file whose streams may have the keys of `applications`.
///
/// The places are called `run.KEY`, `stream.ID`, `stream.ID.KEY`, `stream.ID.steps.N`, `stream.ID.steps.N.KEY`, `message.ID`, `message.ID.KEY`,
/// `message.ID.blocks.N`, `demand.ID`, `demand.ID.KEY`, `bulk.ID`, `bulk.ID.KEY`, `urgent.ID`, `urgent.ID.KEY`, `task.ID`,
/// `task.ID.KEY`, `task.ID.segments.N`, `sharing` and `sharing.KEY`, with N counted from 0.
///
/// # Errors
/// At the first thing that is not TOML, not a known key or not a value of its kind, or that no machine can do.
pub fn parse_with(name: &str, text: &str, applications: &[&dyn Application]) -> Result<Loaded<Workload>, FileError> {
    let source = SourceText::new(name, text);
    let (value, spans) = read(&source, applications)?;
    Ok(Loaded { value, source, spans })
}

fn read(
    source: &SourceText,
    applications: &[&dyn Application],
) -> Result<(Workload, BTreeMap<String, Range<usize>>), FileError> {
    let mut top = document::root(source, TOP)?;
    let mut reader = Reader::default();
    let name = workload_name(&top.require("name", "\"my-workload\"")?)?;
    let description =
        top.take("description").map_or_else(|| Ok(String::new()), |f| f.text("\"...\"").map(str::to_owned))?;
    let mut workload = Workload { description, hash: document::hash(&source.text), ..Workload::new(&name) };
    reader.run(&mut top, &mut workload)?;
    let keys: Vec<&str> = STREAM.iter().chain(applications.iter().flat_map(|it| it.keys())).copied().collect();
    for table in top.tables("stream", &keys)? {
        let stream = reader.stream(source, table, applications, workload.seed)?;
        workload.streams.push(stream);
    }
    for table in top.tables("message", MESSAGE)? {
        workload.messages.push(reader.message(table)?);
    }
    for table in top.tables("demand", DEMAND)? {
        workload.demands.push(reader.demand(table)?);
    }
    // What a demand was called before.
    for table in top.tables("flow", DEMAND)? {
        workload.demands.push(reader.demand(table)?);
    }
    reader.unplanned(&mut top, &mut workload)?;
    reader.tasks(&mut top, &mut workload)?;
    alone(source, &workload)?;
    if workload.streams.is_empty()
        && workload.messages.is_empty()
        && workload.demands.is_empty()
        && workload.tasks.is_empty()
    {
        let help = "add at least one `[[stream]]`, `[[message]]`, `[[demand]]` or `[[task]]`";
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

impl Reader {
    /// Reads the transfers without windows, which live on what others leave over.
    fn unplanned(&mut self, top: &mut DocumentTable<'_>, workload: &mut Workload) -> Result<(), FileError> {
        let alone = workload.streams.is_empty() && workload.messages.is_empty() && workload.demands.is_empty();
        let bulk = top.tables("bulk", super::unplanned_file::BULK)?;
        let urgent = top.tables("urgent", super::unplanned_file::URGENT)?;
        if let (true, Some(first)) = (alone, bulk.first().or_else(|| urgent.first())) {
            let help = "add a stream, message or demand; a copy alone is made by `headway copy`";
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
    fn tasks(&mut self, top: &mut DocumentTable<'_>, workload: &mut Workload) -> Result<(), FileError> {
        let sharing = top.take("sharing");
        for table in top.tables("task", super::task_file::TASK)? {
            let others = !(workload.streams.is_empty() && workload.messages.is_empty() && workload.demands.is_empty());
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

    fn run(&mut self, top: &mut DocumentTable<'_>, workload: &mut Workload) -> Result<(), FileError> {
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

    fn stream(
        &mut self,
        source: &SourceText,
        mut table: DocumentTable<'_>,
        applications: &[&dyn Application],
        seed: u64,
    ) -> Result<Stream, FileError> {
        let mut written = Written { source, header: table.span.clone(), marks: table.marks() };
        let (id, part) = self.identify(&mut table, "stream")?;
        let (parameters, sharding) = self.own(&mut table, &id, &written, applications, seed)?;
        let packet = match (sharding, self.take(&mut table, &part, "packet")) {
            (Some(sharding), None) => sharding.packet(),
            (_, Some(field)) => field.size_above_zero("16 KiB")?,
            (None, None) => return Err(table.require("packet", "\"16 KiB\"").err().expect("it is not there")),
        };
        let period = self.require(&mut table, &part, "period", "\"4 ms\"")?.time_above_zero("4 ms")?;
        let deadline_field = self.require(&mut table, &part, "deadline", "\"40 ms\"")?;
        let deadline = deadline_field.time_above_zero("40 ms")?;
        let start = self.take(&mut table, &part, "start").map_or(Ok(Nanos::ZERO), |f| f.time())?;
        let processor = self.take(&mut table, &part, "processor");
        let gpu = self.take(&mut table, &part, "gpu");
        let gpu = super::processor_file::placement(gpu.as_ref(), processor.as_ref())?;
        let on_miss = self.take(&mut table, &part, "on_miss").map_or(Ok(OnMiss::Finish), |f| f.word(ON_MISS))?;
        let steps = self.require(&mut table, &part, "steps", "[{ copy = \"host -> gpu\" }]")?;
        let parts = self.take(&mut table, &part, "parts");
        if let (Some(parts), true) = (&parts, sharding.is_some()) {
            let help = "leave `parts` out".to_owned();
            return Err(parts.key_error("all GPUs share the packets of this stream", Some(help)));
        }
        let parts = self.parts(parts, &id, packet)?;
        let steps = self.steps(steps, &part, &parts, &gpu, &mut written)?;
        let stream = Stream { id, packet, period, deadline, start, gpu, steps, on_miss, parameters, sharding, parts };
        for (number, application) in applications.iter().enumerate() {
            let identity = application.identity(&stream).map(|identity| (number, identity));
            let twin = identity.and_then(|identity| self.identities.insert(identity, stream.id.clone()));
            application.check(&stream, twin.as_deref(), &written)?;
        }
        if let Some(field) = &processor {
            super::processor_file::fits(field, &stream.gpu, &stream.steps)?;
        }
        // The cycle is deadline / (steps + 1): one step more than is written, as packets are gathered first.
        let shortest = stream.steps.len() as u64 + 1;
        if deadline.0 < shortest {
            let message = format!("`{}` is too short for {} steps", deadline_field.excerpt(), stream.steps.len());
            let help =
                format!("write at least `deadline = \"{shortest} ns\"`: a nanosecond for gathering and each step");
            return Err(deadline_field.error(message, Some(help)));
        }
        Ok(stream)
    }

    /// Reads the keys of all applications.
    fn own(
        &mut self,
        table: &mut DocumentTable<'_>,
        stream: &str,
        written: &Written<'_>,
        applications: &[&dyn Application],
        seed: u64,
    ) -> Result<(Parameters, Option<Sharding>), FileError> {
        let (mut parameters, mut divided) = (Parameters::default(), None);
        for application in applications {
            let known = application.keys();
            for (key, mark) in known.iter().filter_map(|key| Some((key, written.marks.get(*key)?))) {
                self.note(format!("stream.{stream}.{key}"), &mark.value);
            }
            let Own { parameters: own, sharding } = application.read(&mut Keys { table, known, stream, seed })?;
            parameters = parameters.and(own);
            divided = divided.or(sharding);
        }
        Ok((parameters, divided))
    }

    fn message(&mut self, mut table: DocumentTable<'_>) -> Result<Message, FileError> {
        let (id, part) = self.identify(&mut table, "message")?;
        let period = self.require(&mut table, &part, "period", "\"30 ms\"")?.time_above_zero("30 ms")?;
        let start = self.take(&mut table, &part, "start").map_or(Ok(Nanos::ZERO), |f| f.time())?;
        let late = self.take(&mut table, &part, "late").map(|f| f.time()).transpose()?;
        let example = "[{ from = \"host\", to = \"gpu0\", bytes = \"1 MB\" }]";
        let list = self.require(&mut table, &part, "blocks", example)?;
        let mut blocks = Vec::new();
        let empty = format!("message `{id}` has no blocks");
        for (i, element) in list.some_elements(example, &empty)?.into_iter().enumerate() {
            self.note(format!("{part}.blocks.{i}"), &element.span);
            let mut table = element.table("a block", BLOCK)?;
            let block = format!("{part}.blocks.{i}");
            let from = self.require(&mut table, &block, "from", "\"host\"")?.name()?;
            let to_field = self.require(&mut table, &block, "to", "\"gpu0\"")?;
            let to = to_field.name()?;
            if from == to {
                let help = "name two endpoints of the machine".to_owned();
                return Err(to_field.error(format!("the block stays at `{to}`"), Some(help)));
            }
            let bytes: Bytes = table.require("bytes", "\"1 MB\"")?.size_above_zero("1 MB")?;
            blocks.push(MessageBlock { from, to, bytes });
        }
        Ok(Message { id, period, start, late, blocks })
    }

    fn demand(&mut self, mut table: DocumentTable<'_>) -> Result<ServerDemand, FileError> {
        let (id, part) = self.identify(&mut table, "demand")?;
        let server = self.take(&mut table, &part, "server").map_or_else(|| Ok("engine".to_owned()), |f| f.name())?;
        let start = self.take(&mut table, &part, "start").map_or(Ok(Nanos::ZERO), |f| f.time())?;
        let cost_field = self.require(&mut table, &part, "cost", "\"1 ms\"")?;
        let cost = cost_field.time_above_zero("1 ms")?;
        let period = self.require(&mut table, &part, "period", "\"2 ms\"")?.time_above_zero("2 ms")?;
        let deadline = self.take(&mut table, &part, "deadline").map_or(Ok(period), |f| f.time_above_zero("2 ms"))?;
        if cost > deadline {
            let message = format!("`{}` is more than the deadline of {deadline}", cost_field.excerpt());
            let help = format!("lower the cost to at most {deadline}, or raise the deadline of demand `{id}`");
            return Err(cost_field.error(message, Some(help)));
        }
        Ok(ServerDemand { id, server, start, cost, period, deadline })
    }
}

/// Refuses what no plan can put beside a stream whose steps take all GPUs.
fn alone(source: &SourceText, workload: &Workload) -> Result<(), FileError> {
    let parts = workload.streams.len() + workload.messages.len() + workload.demands.len() + workload.tasks.len();
    match workload.streams.iter().find(|stream| stream.sharding.is_some()) {
        Some(stream) if parts > 1 => {
            let help = "put it into a workload file of its own".to_owned();
            Err(source.error(0..0, format!("stream `{}` uses all GPUs and stands alone", stream.id), Some(help)))
        }
        _ => Ok(()),
    }
}
