//! The workload file: TOML in, a checked [`Workload`] and the place of each of its parts out.

use super::CombineEffort;
use super::application::{Application, Keys, Own};
use super::reader::Reader;
use super::texts::{BLOCKS, SEEDS};
use super::{Cycle, Grouping, Message, MessageBlock, OnMiss, PARTS_MAX, ServerDemand, Stream, Workload};
use crate::files::document::{self, DocumentTable, NAME_EXAMPLE};
use crate::files::error::{FileError, Loaded, SourceText};
use crate::units::{NANOS_PER_SECOND, Nanos};

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
    let mut reader = Reader::default();
    let value = reader.read(&source, applications)?;
    let Reader { spans, ids } = reader;
    let loaded = Loaded { value, source, spans };
    match loaded.value.check_with(applications) {
        Ok(()) => Ok(loaded),
        Err(error) => Err(error.in_file(&loaded, &ids)),
    }
}

impl Reader {
    fn read(&mut self, source: &SourceText, applications: &[&dyn Application]) -> Result<Workload, FileError> {
        let mut top = document::root(source, TOP)?;
        let name = top.require("name", "\"my-workload\"")?;
        name.note("name", &mut self.spans);
        let mut workload = Workload { hash: document::hash(&source.text), ..Workload::new(name.text(NAME_EXAMPLE)?) };
        if let Some(field) = top.take("description") {
            field.text("\"...\"")?.clone_into(&mut workload.description);
        }
        self.run(&mut top, &mut workload)?;
        let keys: Vec<&str> = STREAM.iter().chain(applications.iter().flat_map(|it| it.keys())).copied().collect();
        for table in top.tables("stream", &keys)? {
            workload.streams.push(self.stream(table, applications, workload.seed)?);
        }
        for table in top.tables("message", MESSAGE)? {
            workload.messages.push(self.message(table)?);
        }
        // A demand was called a flow before.
        for table in top.tables("demand", DEMAND)?.into_iter().chain(top.tables("flow", DEMAND)?) {
            workload.demands.push(self.demand(table)?);
        }
        for table in top.tables("bulk", super::unplanned_file::BULK)? {
            workload.unplanned.push(self.bulk(table)?);
        }
        for table in top.tables("urgent", super::unplanned_file::URGENT)? {
            workload.unplanned.push(self.urgent(table)?);
        }
        let sharing = top.take("sharing");
        for table in top.tables("task", super::task_file::TASK)? {
            workload.tasks.push(self.task(table)?);
        }
        workload.sharing = sharing.map(|field| self.sharing(field)).transpose()?;
        Ok(workload)
    }

    fn run(&mut self, top: &mut DocumentTable<'_>, workload: &mut Workload) -> Result<(), FileError> {
        let Some(field) = top.take("run") else { return Ok(()) };
        field.note("run", &mut self.spans);
        let mut table = field.table("[run]", RUN)?;
        if let Some(field) = table.take("duration") {
            workload.duration = field.any_time()?;
        }
        if let Some(field) = table.take("seed") {
            workload.seed = field.any_integer(&SEEDS)?;
        }
        if let Some(field) = table.take("cycle") {
            workload.cycle = field.word(CYCLES)?;
        }
        if let Some(field) = table.take("grouping") {
            workload.grouping = field.word(GROUPINGS)?;
        }
        if let Some(field) = table.take("transform") {
            workload.transform = field.word(TRANSFORMS)?;
        }
        Ok(())
    }

    fn stream(
        &mut self,
        mut table: DocumentTable<'_>,
        applications: &[&dyn Application],
        seed: u64,
    ) -> Result<Stream, FileError> {
        let id = self.identify(&mut table, "stream")?;
        let Own { parameters, sharding } = own(&mut table, &id, applications, seed)?;
        let packet = match (sharding, table.take("packet")) {
            (Some(sharding), None) => sharding.packet(),
            (_, Some(field)) => field.any_size("16 KiB")?,
            (None, None) => return Err(table.require("packet", "\"16 KiB\"").err().expect("it is not there")),
        };
        let period = table.require("period", "\"4 ms\"")?.any_time()?;
        let deadline = table.require("deadline", "\"40 ms\"")?.any_time()?;
        let start = table.take("start").map_or(Ok(Nanos::ZERO), |field| field.any_time())?;
        let (processor, gpu) = (table.take("processor"), table.take("gpu"));
        let gpu = super::processor_file::placement(gpu.as_ref(), processor.as_ref())?;
        let on_miss = table.take("on_miss").map_or(Ok(OnMiss::Finish), |field| field.word(ON_MISS))?;
        let steps = table.require("steps", "[{ copy = \"host -> gpu\" }]")?;
        let parts = table.take("parts").map_or_else(|| Ok(Vec::new()), super::parts_file::parts)?;
        // Steps name parts by their ids, so that what is wrong with those is said first.
        let is_new = |at: usize| parts[..at].iter().all(|other| other.id != parts[at].id);
        let steps = if parts.len() <= PARTS_MAX && (0..parts.len()).all(is_new) {
            self.steps(steps, &format!("stream.{id}"), &parts, &gpu)?
        } else {
            Vec::new()
        };
        Ok(Stream { id, packet, period, deadline, start, gpu, steps, on_miss, parameters, sharding, parts })
    }

    fn message(&mut self, mut table: DocumentTable<'_>) -> Result<Message, FileError> {
        let id = self.identify(&mut table, "message")?;
        let period = table.require("period", "\"30 ms\"")?.any_time()?;
        let start = table.take("start").map_or(Ok(Nanos::ZERO), |field| field.any_time())?;
        let late = table.take("late").map(|field| field.any_time()).transpose()?;
        let blocks = table.require("blocks", BLOCKS)?.elements(BLOCKS)?.into_iter().map(|element| {
            let mut table = element.table("a block", BLOCK)?;
            let from = table.require("from", "\"host\"")?.text(NAME_EXAMPLE)?.to_owned();
            let to = table.require("to", "\"gpu0\"")?.text(NAME_EXAMPLE)?.to_owned();
            Ok(MessageBlock { from, to, bytes: table.require("bytes", "\"1 MB\"")?.any_size("1 MB")? })
        });
        let blocks = blocks.collect::<Result<_, _>>()?;
        Ok(Message { id, period, start, late, blocks })
    }

    fn demand(&mut self, mut table: DocumentTable<'_>) -> Result<ServerDemand, FileError> {
        let id = self.identify(&mut table, "demand")?;
        let server = table.take("server");
        let server =
            server.map_or_else(|| Ok("engine".to_owned()), |field| field.text(NAME_EXAMPLE).map(str::to_owned))?;
        let start = table.take("start").map_or(Ok(Nanos::ZERO), |field| field.any_time())?;
        let cost = table.require("cost", "\"1 ms\"")?.any_time()?;
        let period = table.require("period", "\"2 ms\"")?.any_time()?;
        let deadline = table.take("deadline").map_or(Ok(period), |field| field.any_time())?;
        Ok(ServerDemand { id, server, start, cost, period, deadline })
    }
}

/// Reads the keys of all applications.
fn own(
    table: &mut DocumentTable<'_>,
    stream: &str,
    applications: &[&dyn Application],
    seed: u64,
) -> Result<Own, FileError> {
    let mut all = Own::default();
    for application in applications {
        let Own { parameters, sharding } =
            application.read(&mut Keys { table, known: application.keys(), stream, seed })?;
        all = Own { parameters: all.parameters.and(parameters), sharding: all.sharding.or(sharding) };
    }
    Ok(all)
}
