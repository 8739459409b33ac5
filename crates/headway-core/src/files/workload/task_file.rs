//! `[[task]]` and `[sharing]` of a workload file.

use super::module_file::module_kernel;
use super::reader::Reader;
use super::task::{SharingTable, WorkloadTask};
use super::texts::{COPY_ENGINES, CPUS, QUEUES, SEGMENTS, TOKENS};
use crate::decisions::engine_lock::PeerLocks;
use crate::decisions::sharing::{JobSegment, TaskDirection};
use crate::decisions::token::TokenMode;
use crate::files::document::{DocumentTable, Field, NAME_EXAMPLE};
use crate::files::error::FileError;
use crate::units::{Bytes, Nanos};

pub(super) const TASK: &[&str] = &["id", "period", "deadline", "start", "state", "segments"];
const SEGMENT: &[&str] = &["cpu", "copy", "bytes", "compute", "time"];
const SHARING: &[&str] = &[
    "cpus",
    "gpus",
    "tokens_per_gpu",
    "mode",
    "queue",
    "affinity",
    "engine_locks",
    "peer_locks",
    "migration",
    "copy_engines",
    "chunk",
];
/// Queue length of `relaxed` where the file does not say.
const QUEUE: u32 = 2;
pub(super) const PEER_LOCKS: &[(&str, PeerLocks)] =
    &[("group", PeerLocks::Group), ("nested", PeerLocks::Nested), ("group-backfill", PeerLocks::GroupBackfill)];

/// Modes as files write them; `relaxed` takes its length from `queue`.
pub(super) const MODES: &[(&str, TokenMode)] = &[
    ("optimal", TokenMode::Optimal),
    ("work-conserving", TokenMode::WorkConserving),
    ("relaxed", TokenMode::Relaxed(QUEUE)),
    ("fifo", TokenMode::Fifo),
    ("priority", TokenMode::Priority),
];

impl Reader {
    pub(super) fn task(&mut self, mut table: DocumentTable<'_>) -> Result<WorkloadTask, FileError> {
        let id = self.identify(&mut table, "task")?;
        let period = table.require("period", "\"50 ms\"")?.any_time()?;
        let deadline = table.take("deadline").map_or(Ok(period), |field| field.any_time())?;
        let start = table.take("start").map_or(Ok(Nanos::ZERO), |field| field.any_time())?;
        let state = table.take("state").map_or(Ok(Bytes(0)), |field| field.any_size("4 MiB"))?;
        let mut task = WorkloadTask { deadline, start, state, ..WorkloadTask::new(&id, period, Vec::new()) };
        for element in table.require("segments", SEGMENTS)?.elements(SEGMENTS)? {
            let next = segment(element.table("a segment", SEGMENT)?, &mut task)?;
            task.segments.push(next);
        }
        Ok(task)
    }

    pub(super) fn sharing(&mut self, field: Field<'_>) -> Result<SharingTable, FileError> {
        field.note("sharing", &mut self.spans);
        let mut table = field.table("[sharing]", SHARING)?;
        let number = |field: &Field<'_>, range| Ok(u32::try_from(field.any_integer(range)?).unwrap_or(u32::MAX));
        let cpus = number(&table.require("cpus", "6")?, &CPUS)?;
        let mut sharing = SharingTable::new(cpus);
        if let Some(field) = table.take("gpus") {
            let names = field.elements("[\"gpu0\"]")?.into_iter();
            let names = names.map(|name| name.text(NAME_EXAMPLE).map(str::to_owned));
            sharing.gpus = Some(names.collect::<Result<_, _>>()?);
        }
        if let Some(field) = table.take("tokens_per_gpu") {
            sharing.tokens_per_gpu = number(&field, &TOKENS)?;
        }
        if let Some(field) = table.take("mode") {
            sharing.mode = Some(field.word(MODES)?);
        }
        if let Some(field) = table.take("queue") {
            let Some(TokenMode::Relaxed(queue)) = &mut sharing.mode else {
                let help = "write `mode = \"relaxed\"` too, or leave `queue` out".to_owned();
                return Err(field.key_error("only `relaxed` FIFOs have a length of their own", Some(help)));
            };
            *queue = number(&field, &QUEUES)?;
        }
        if let Some(field) = table.take("affinity") {
            sharing.affinity = field.boolean()?;
        }
        if let Some(field) = table.take("engine_locks") {
            sharing.engine_locks = field.boolean()?;
        }
        if let Some(field) = table.take("peer_locks") {
            sharing.peer_locks = field.word(PEER_LOCKS)?;
        }
        if let Some(field) = table.take("migration") {
            sharing.peer_copies = field.word(&[("peer", true), ("system", false)])?;
        }
        if let Some(field) = table.take("copy_engines") {
            sharing.copy_engines = number(&field, &COPY_ENGINES)?;
        }
        if let Some(field) = table.take("chunk") {
            let whole = field.text("\"2 MiB\"").is_ok_and(|text| text == "whole");
            sharing.chunk = if whole { None } else { Some(field.any_size("2 MiB")?) };
        }
        Ok(sharing)
    }
}

/// Reads `{ cpu = .. }`, `{ copy = .., bytes = .. }` or `{ compute = .., time = .. }`; a kernel of a module goes to `task`.
fn segment(mut table: DocumentTable<'_>, task: &mut WorkloadTask) -> Result<JobSegment, FileError> {
    match (table.take("cpu"), table.take("copy"), table.take("compute")) {
        (Some(cpu), None, None) => Ok(JobSegment::Cpu(cpu.any_time()?)),
        (None, Some(copy), None) => {
            let direction = direction(&copy)?;
            Ok(JobSegment::Copy { direction, bytes: table.require("bytes", "\"1 MB\"")?.any_size("1 MB")? })
        }
        (None, None, Some(compute)) => {
            let kernel = if compute.is_table() {
                let kernel = module_kernel(compute)?;
                let number = task.segments.len();
                let id = task.module_id(number, &kernel.entry);
                task.modules.insert(number, kernel);
                id
            } else {
                compute.text(NAME_EXAMPLE)?.to_owned()
            };
            Ok(JobSegment::Execute { kernel, time: table.require("time", "\"2 ms\"")?.any_time()? })
        }
        _ => {
            let help = "write `{ cpu = \"1 ms\" }`, `{ copy = \"host -> gpu\", bytes = \"1 MB\" }` or \
                        `{ compute = \"KERNEL\", time = \"2 ms\" }`";
            Err(table.error("a segment is one `cpu`, one `copy` or one `compute`", help))
        }
    }
}

fn direction(field: &Field<'_>) -> Result<TaskDirection, FileError> {
    let text = field.text("\"host -> gpu\"")?;
    match text.split_once("->").map(|(from, to)| (from.trim(), to.trim())) {
        Some(("host", "gpu")) => Ok(TaskDirection::ToGpu),
        Some(("gpu", "host")) => Ok(TaskDirection::FromGpu),
        _ => {
            let help =
                "a task copies `host -> gpu` or `gpu -> host`, on whichever GPU it is given; its state migrates by \
                        itself"
                    .to_owned();
            Err(field.error(format!("`{}` is no copy of a task", field.excerpt()), Some(help)))
        }
    }
}
