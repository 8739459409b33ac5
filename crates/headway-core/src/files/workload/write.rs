//! A [`Workload`] as the text of a workload file.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use super::application::Application;
use super::fault::WorkloadError;
use super::file::{CYCLES, GROUPINGS, ON_MISS, TRANSFORMS};
use super::task_file::{MODES, PEER_LOCKS};
use super::texts::{copy_text, name, size, time};
use super::unplanned_file::OTHERWISE;
use super::{
    CopyEndpoint, Message, ModuleKernel, OnMiss, PacketPart, PartStep, PartWork, SharingTable, Stream, StreamPlacement,
    StreamStep, Unplanned, UnplannedKind, Workload, WorkloadTask,
};
use crate::decisions::sharing::{JobSegment, TaskDirection};
use crate::decisions::token::TokenMode;
use crate::files::document::{self, quoted};
use crate::files::error::{Loaded, SourceText};
use crate::units::{Bytes, Nanos};

/// The workload file of `workload`, whose streams have no keys of applications.
///
/// Of a workload that [`Workload::check`] accepts, reading it gives the same workload but for its hash; of another, it says the
/// same is wrong with it, at a line of this text.
#[must_use]
pub fn write(workload: &Workload) -> String {
    write_with(workload, &[])
}

/// The workload file of `workload`, whose streams may have the keys of `applications`.
///
/// [`write()`] says what reading it gives.
#[must_use]
pub fn write_with(workload: &Workload, applications: &[&dyn Application]) -> String {
    let mut text = Text(String::new());
    text.field("name", quoted(&workload.name));
    if !workload.description.is_empty() {
        text.field("description", quoted(&workload.description));
    }
    text.table("[run]");
    text.field("duration", time(workload.duration));
    text.field("seed", workload.seed);
    text.field("cycle", word(CYCLES, &workload.cycle));
    text.field("grouping", word(GROUPINGS, &workload.grouping));
    text.field("transform", word(TRANSFORMS, &workload.transform));
    workload.streams.iter().for_each(|stream| text.stream(stream, applications));
    workload.messages.iter().for_each(|message| text.message(message));
    for demand in &workload.demands {
        text.table("[[demand]]");
        text.field("id", quoted(&demand.id));
        text.field("server", quoted(&demand.server));
        text.times([
            ("start", demand.start),
            ("cost", demand.cost),
            ("period", demand.period),
            ("deadline", demand.deadline),
        ]);
    }
    workload.unplanned.iter().for_each(|transfer| text.unplanned(transfer));
    if let Some(sharing) = &workload.sharing {
        text.sharing(sharing);
    }
    workload.tasks.iter().for_each(|task| text.task(task));
    text.0
}

/// A workload that code made, with the text of the file that would say it.
///
/// # Errors
/// Those of [`Workload::check_with`].
pub fn checked(workload: &Workload, applications: &[&dyn Application]) -> Result<Loaded<Workload>, WorkloadError> {
    workload.check_with(applications)?;
    let source = SourceText::new(&format!("{}.toml", workload.name), &write_with(workload, applications));
    let value = Workload { hash: document::hash(&source.text), ..workload.clone() };
    Ok(Loaded { value, source, spans: BTreeMap::new() })
}

struct Text(String);

impl Text {
    fn table(&mut self, name: &str) {
        let _ = writeln!(self.0, "\n{name}");
    }

    fn field(&mut self, key: &str, value: impl Display) {
        let _ = writeln!(self.0, "{key} = {value}");
    }

    fn times<const N: usize>(&mut self, fields: [(&str, Nanos); N]) {
        fields.into_iter().for_each(|(key, value)| self.field(key, time(value)));
    }

    fn stream(&mut self, stream: &Stream, applications: &[&dyn Application]) {
        self.table("[[stream]]");
        self.field("id", quoted(&stream.id));
        self.times([("period", stream.period), ("deadline", stream.deadline), ("start", stream.start)]);
        match &stream.gpu {
            StreamPlacement::Auto => {}
            StreamPlacement::Gpu(name) => self.field("gpu", quoted(name)),
            StreamPlacement::Cpu => self.field("processor", quoted("cpu")),
            StreamPlacement::Either => self.field("processor", quoted("auto")),
        }
        if stream.on_miss != OnMiss::default() {
            self.field("on_miss", word(ON_MISS, &stream.on_miss));
        }
        if stream.sharding.is_none() {
            self.field("packet", size(stream.packet));
        }
        if !stream.parts.is_empty() {
            let part = |part: &PacketPart| format!("{{ id = {}, bytes = {} }}", quoted(&part.id), size(part.bytes));
            self.field("parts", list(stream.parts.iter().map(part)));
        }
        self.field("steps", list(stream.steps.iter().map(|it| step(it, &stream.parts))));
        for (key, value) in applications.iter().flat_map(|application| application.write(stream)) {
            self.field(key, value);
        }
    }

    fn message(&mut self, message: &Message) {
        self.table("[[message]]");
        self.field("id", quoted(&message.id));
        self.times([("period", message.period), ("start", message.start)]);
        if let Some(late) = message.late {
            self.field("late", time(late));
        }
        let blocks = message.blocks.iter().map(|block| {
            let ends = [&block.from, &block.to].map(|end| quoted(end));
            format!("{{ from = {}, to = {}, bytes = {} }}", ends[0], ends[1], size(block.bytes))
        });
        self.field("blocks", list(blocks));
    }

    fn unplanned(&mut self, transfer: &Unplanned) {
        self.table(if matches!(transfer.kind, UnplannedKind::Bulk(_)) { "[[bulk]]" } else { "[[urgent]]" });
        self.field("id", quoted(&transfer.id));
        self.field("from", quoted(&transfer.from));
        self.field("to", quoted(&transfer.to));
        self.field("start", time(transfer.start));
        match transfer.kind {
            UnplannedKind::Bulk(None) => {}
            UnplannedKind::Bulk(Some(bytes)) => self.field("bytes", size(bytes)),
            UnplannedKind::Urgent(urgent) => {
                self.field("bytes", size(urgent.bytes));
                self.field("deadline", time(urgent.deadline));
                if let Some(every) = urgent.every {
                    self.field("every", time(every));
                }
                self.field("otherwise", word(OTHERWISE, &urgent.otherwise));
            }
        }
    }

    fn sharing(&mut self, sharing: &SharingTable) {
        self.table("[sharing]");
        self.field("cpus", sharing.cpus);
        if let Some(gpus) = &sharing.gpus {
            self.field("gpus", list(gpus.iter().map(|gpu| quoted(gpu))));
        }
        self.field("tokens_per_gpu", sharing.tokens_per_gpu);
        match sharing.mode {
            None => {}
            Some(TokenMode::Relaxed(queue)) => {
                self.field("mode", quoted("relaxed"));
                self.field("queue", queue);
            }
            Some(mode) => self.field("mode", word(MODES, &mode)),
        }
        self.field("affinity", sharing.affinity);
        self.field("engine_locks", sharing.engine_locks);
        self.field("peer_locks", word(PEER_LOCKS, &sharing.peer_locks));
        self.field("migration", quoted(if sharing.peer_copies { "peer" } else { "system" }));
        self.field("copy_engines", sharing.copy_engines);
        self.field("chunk", sharing.chunk.map_or_else(|| quoted("whole"), size));
    }

    fn task(&mut self, task: &WorkloadTask) {
        self.table("[[task]]");
        self.field("id", quoted(&task.id));
        self.times([("period", task.period), ("deadline", task.deadline), ("start", task.start)]);
        if task.state > Bytes(0) {
            self.field("state", size(task.state));
        }
        let segments = task.segments.iter().enumerate().map(|(number, segment)| match segment {
            JobSegment::Cpu(longest) => format!("{{ cpu = {} }}", time(*longest)),
            JobSegment::Copy { direction, bytes } => {
                let path = if *direction == TaskDirection::ToGpu { "host -> gpu" } else { "gpu -> host" };
                format!("{{ copy = {}, bytes = {} }}", quoted(path), size(*bytes))
            }
            JobSegment::Execute { kernel, time: longest } => {
                let kernel = task.modules.get(&number).map_or_else(|| quoted(kernel), ModuleKernel::text);
                format!("{{ compute = {kernel}, time = {} }}", time(*longest))
            }
        });
        self.field("segments", list(segments));
    }
}

fn step(step: &StreamStep, parts: &[PacketPart]) -> String {
    match step {
        StreamStep::Copy { from, to } => copy(from, to),
        StreamStep::Compute { kernel } => format!("{{ compute = {} }}", quoted(kernel)),
        StreamStep::Module(kernel) => format!("{{ compute = {} }}", kernel.text()),
        StreamStep::Exchange => "{ exchange = \"gpus\" }".to_owned(),
        StreamStep::Parts(steps) if parts.is_empty() => whole(steps),
        StreamStep::Parts(steps) => {
            let part = |step: &PartStep| quoted(parts.get(step.part as usize).map_or("", |part| &part.id));
            let (mut copies, mut kernels) = (Vec::new(), Vec::new());
            for step in steps {
                let part = part(step);
                match &step.work {
                    PartWork::Copy { from, to } => {
                        let [from, to] = [from, to].map(|place| quoted(name(place)));
                        copies.push(format!("{{ part = {part}, from = {from}, to = {to} }}"));
                    }
                    PartWork::Compute { kernel, at, on_cpu } => {
                        let (kernel, on) = (quoted(kernel), quoted(on(at, *on_cpu)));
                        kernels.push(format!("{{ part = {part}, kernel = {kernel}, on = {on} }}"));
                    }
                }
            }
            let sets = [("copy", copies), ("compute", kernels)];
            let sets = sets.into_iter().filter(|(_, set)| !set.is_empty());
            let sets: Vec<String> = sets.map(|(key, set)| format!("{key} = {}", list(set.into_iter()))).collect();
            format!("{{ {} }}", sets.join(", "))
        }
    }
}

/// A step that works on whole packets.
fn whole(steps: &[PartStep]) -> String {
    match steps.first().map(|step| &step.work) {
        Some(PartWork::Copy { from, to }) => copy(from, to),
        Some(PartWork::Compute { kernel, at, on_cpu }) => {
            format!("{{ compute = {}, on = {} }}", quoted(kernel), quoted(on(at, *on_cpu)))
        }
        None => "{}".to_owned(),
    }
}

fn copy(from: &CopyEndpoint, to: &CopyEndpoint) -> String {
    format!("{{ copy = {} }}", copy_text(from, to))
}

fn on(at: &CopyEndpoint, on_cpu: bool) -> &str {
    if on_cpu { "cpu" } else { name(at) }
}

fn list(elements: impl Iterator<Item = String>) -> String {
    format!("[{}]", elements.collect::<Vec<_>>().join(", "))
}

fn word<T: PartialEq>(words: &[(&str, T)], value: &T) -> String {
    quoted(words.iter().find(|(_, known)| known == value).map_or("", |(word, _)| word))
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn again(text: &str) -> (Workload, Workload) {
        let mut first = parse("first", text).unwrap_or_else(|error| panic!("{error}")).value;
        let written = write(&first);
        let second = parse("second", &written).unwrap_or_else(|error| panic!("{error}\n{written}")).value;
        first.hash.clone_from(&second.hash);
        (first, second)
    }

    #[test]
    fn workload_files_are_read_back_as_they_were() {
        for text in [
            include_str!("../../../../../workloads/messages.toml"),
            include_str!("../../../../../workloads/background.toml"),
            include_str!("../../../../../workloads/trackers.toml"),
        ] {
            let (first, second) = again(text);
            assert_eq!(first, second);
        }
    }

    #[test]
    fn what_a_file_leaves_to_its_defaults_is_written_out() {
        let (first, second) = again(
            "name = \"a\"\ndescription = \"c \\\"d\\\"\"\n[run]\nduration = \"1.5 s\"\ncycle = \"arrival\"\n\
             [[stream]]\nid = \"s\"\npacket = \"1001 B\"\nperiod = \"1 ms\"\ndeadline = \"9 ms\"\nprocessor = \"auto\"\n\
             on_miss = \"skip\"\nsteps = [{ copy = \"host -> gpu\" }, { compute = \"spin\" }, { copy = \"gpu -> host\" }]\n\
             [[message]]\nid = \"m\"\nperiod = \"3 ms\"\nlate = \"1 us\"\nblocks = [{ from = \"host\", to = \"gpu0\", bytes = \"7 B\" }]\n\
             [[demand]]\nid = \"f\"\ncost = \"1 us\"\nperiod = \"1 ms\"\n\
             [[bulk]]\nid = \"b\"\nfrom = \"host\"\nto = \"gpu0\"\nbytes = \"1 GB\"\n\
             [[urgent]]\nid = \"u\"\nfrom = \"gpu0\"\nto = \"host\"\nbytes = \"1 kB\"\ndeadline = \"1 ms\"\n\
             every = \"2 ms\"\notherwise = \"best-effort\"\n",
        );
        assert_eq!(first, second);
        let (first, second) = again(
            "name = \"t\"\n[sharing]\ncpus = 3\nmode = \"relaxed\"\nqueue = 5\ngpus = [\"gpu1\"]\nchunk = \"whole\"\n\
             migration = \"system\"\n[[task]]\nid = \"a\"\nperiod = \"50 ms\"\nstate = \"4 MiB\"\n\
             segments = [{ cpu = \"1 ms\" }, { copy = \"host -> gpu\", bytes = \"1 MB\" }, \
             { compute = \"spin\", time = \"2 ms\" }, { copy = \"gpu -> host\", bytes = \"1 kB\" }]\n",
        );
        assert_eq!(first, second);
    }
}
