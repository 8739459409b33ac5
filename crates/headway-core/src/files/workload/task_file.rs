//! `[[task]]` and `[sharing]` of a workload file.

use super::reader::Reader;
use super::task::{SharingTable, WorkloadTask};
use crate::decisions::engine_lock::PeerLocks;
use crate::decisions::sharing::{JobSegment, TaskDirection};
use crate::decisions::token::{TokenMode, TokenParameters};
use crate::files::document::{DocumentTable, Field};
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
const SEGMENTS: &str = "[{ copy = \"host -> gpu\", bytes = \"1 MB\" }, { compute = \"spin\", time = \"2 ms\" }]";
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
        let (id, part) = self.identify(&mut table, "task")?;
        let period = self.require(&mut table, &part, "period", "\"50 ms\"")?.time_above_zero("50 ms")?;
        let deadline =
            self.take(&mut table, &part, "deadline").map_or(Ok(period), |field| field.time_above_zero("50 ms"))?;
        let start = self.take(&mut table, &part, "start").map_or(Ok(Nanos::ZERO), |field| field.time())?;
        let state = self.take(&mut table, &part, "state").map_or(Ok(Bytes(0)), |field| field.size("4 MiB"))?;
        let list = self.require(&mut table, &part, "segments", SEGMENTS)?;
        let help = format!("write for example `segments = {SEGMENTS}`");
        let none = list.error(format!("task `{id}` uses no GPU"), Some(help));
        let mut segments = Vec::new();
        for (number, element) in list.elements(SEGMENTS)?.into_iter().enumerate() {
            self.note(format!("{part}.segments.{number}"), &element.span);
            segments.push(segment(element.table("a segment", SEGMENT)?)?);
        }
        let on_gpu = segments.iter().any(|segment| !matches!(segment, JobSegment::Cpu(_)));
        if on_gpu { Ok(WorkloadTask { id, period, deadline, start, state, segments }) } else { Err(none) }
    }

    pub(super) fn sharing(&mut self, field: Field<'_>) -> Result<SharingTable, FileError> {
        self.note("sharing".to_owned(), &field.span);
        let mut table = field.table("[sharing]", SHARING)?;
        let part = "sharing";
        let number = |field: &Field<'_>, most| Ok(u32::try_from(field.integer(1, most)?).unwrap_or(u32::MAX));
        let cpus = number(&self.require(&mut table, part, "cpus", "6")?, u64::from(TokenParameters::CPUS_MAX))?;
        let mut sharing = SharingTable::new(cpus);
        if let Some(field) = self.take(&mut table, part, "gpus") {
            let names = field.elements("[\"gpu0\"]")?.iter().map(Field::name).collect::<Result<Vec<_>, _>>()?;
            sharing.gpus = Some(names);
        }
        if let Some(field) = self.take(&mut table, part, "tokens_per_gpu") {
            sharing.tokens_per_gpu = number(&field, u64::from(TokenParameters::TOKENS_MAX))?;
        }
        if let Some(field) = self.take(&mut table, part, "mode") {
            sharing.mode = Some(field.word(MODES)?);
        }
        if let Some(field) = self.take(&mut table, part, "queue") {
            let Some(TokenMode::Relaxed(queue)) = &mut sharing.mode else {
                let help = "write `mode = \"relaxed\"` too, or leave `queue` out".to_owned();
                return Err(field.key_error("only `relaxed` FIFOs have a length of their own", Some(help)));
            };
            *queue = number(&field, u64::from(TokenParameters::CPUS_MAX))?;
        }
        if let Some(field) = self.take(&mut table, part, "affinity") {
            sharing.affinity = field.boolean()?;
        }
        if let Some(field) = self.take(&mut table, part, "engine_locks") {
            sharing.engine_locks = field.boolean()?;
        }
        if let Some(field) = self.take(&mut table, part, "peer_locks") {
            sharing.peer_locks = field.word(PEER_LOCKS)?;
        }
        if let Some(field) = self.take(&mut table, part, "migration") {
            sharing.peer_copies = field.word(&[("peer", true), ("system", false)])?;
        }
        if let Some(field) = self.take(&mut table, part, "copy_engines") {
            sharing.copy_engines = number(&field, 2)?;
        }
        if let Some(field) = self.take(&mut table, part, "chunk") {
            let whole = field.text("\"2 MiB\"").is_ok_and(|text| text == "whole");
            sharing.chunk = if whole { None } else { Some(field.size_above_zero("2 MiB")?) };
        }
        Ok(sharing)
    }
}

/// Reads `{ cpu = .. }`, `{ copy = .., bytes = .. }` or `{ compute = .., time = .. }`.
fn segment(mut table: DocumentTable<'_>) -> Result<JobSegment, FileError> {
    match (table.take("cpu"), table.take("copy"), table.take("compute")) {
        (Some(cpu), None, None) => Ok(JobSegment::Cpu(cpu.time_above_zero("1 ms")?)),
        (None, Some(copy), None) => {
            let direction = direction(&copy)?;
            Ok(JobSegment::Copy { direction, bytes: table.require("bytes", "\"1 MB\"")?.size_above_zero("1 MB")? })
        }
        (None, None, Some(compute)) => {
            let kernel = compute.name()?;
            Ok(JobSegment::Execute { kernel, time: table.require("time", "\"2 ms\"")?.time_above_zero("2 ms")? })
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
