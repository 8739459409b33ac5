//! What no workload may say, whether a file or code made it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::application::Application;
use super::fault::{Part, WorkloadError, WrongId};
use super::module_kernel::check_module;
use super::texts::{BLOCKS, COPY_ENGINES, CPUS, QUEUES, SEEDS, SEGMENTS, TOKENS, time};
use super::{Message, ModuleKernel, ServerDemand, Stream, Unplanned, UnplannedKind, Workload, WorkloadTask};
use crate::decisions::sharing::JobSegment;
use crate::decisions::token::TokenMode;
use crate::files::document::{ValueFault, quoted};
use crate::units::Bytes;

impl Workload {
    /// Says what is wrong with a workload that no application adds anything to.
    ///
    /// # Errors
    /// For the first thing that no machine can do or no file can say.
    pub fn check(&self) -> Result<(), WorkloadError> {
        self.check_with(&[])
    }

    /// Says what is wrong with a workload whose streams may be those of `applications`.
    ///
    /// # Errors
    /// For the first thing that no machine can do, that no file can say, or that an application refuses.
    pub fn check_with(&self, applications: &[&dyn Application]) -> Result<(), WorkloadError> {
        self.check_run()?;
        self.check_ids()?;
        let mut identities = BTreeMap::new();
        for stream in &self.streams {
            stream.check_numbers()?;
            stream.check_parts()?;
            stream.check_steps()?;
            stream.check_modules()?;
            for (number, application) in applications.iter().enumerate() {
                let identity = application.identity(stream).map(|identity| (number, identity));
                let twin = identity.and_then(|identity| identities.insert(identity, stream.id.as_str()));
                application.check(stream, twin)?;
            }
            stream.check_processors()?;
            stream.check_deadline()?;
            stream.check_sharding()?;
        }
        self.messages.iter().try_for_each(Message::check)?;
        self.demands.iter().try_for_each(ServerDemand::check)?;
        let planned = !(self.streams.is_empty() && self.messages.is_empty() && self.demands.is_empty());
        if let (false, Some(first)) = (planned, self.unplanned.first()) {
            let fact = "a run ends with its last window, and this workload has none";
            let help = "add a stream, message or demand; a copy alone is made by `headway copy`";
            return Err(first.part().error("", fact, help).at_key());
        }
        self.unplanned.iter().try_for_each(Unplanned::check)?;
        self.check_tasks(planned)?;
        self.check_alone()?;
        if !planned && self.tasks.is_empty() {
            let help = "add at least one `[[stream]]`, `[[message]]`, `[[demand]]` or `[[task]]`";
            return Err(WorkloadError::new("", "the workload is empty", Some(help.to_owned())));
        }
        Ok(())
    }

    fn check_run(&self) -> Result<(), WorkloadError> {
        // The name also names the folder of the results.
        let top = Part { table: "", id: "" };
        top.name("name", &self.name)?;
        if self.name.contains('/') || self.name.starts_with('.') {
            let fact = "cannot name the folder of the results, `out/NAME-SOURCE`".to_owned();
            let help = "leave out `/`, and do not begin with `.`; `--out` puts results into any folder".to_owned();
            return Err(top.value_error("name", &quoted(&self.name), ValueFault { fact, help }));
        }
        let run = Part { table: "run", id: "" };
        run.time_above_zero("duration", self.duration, "2 s")?;
        run.integer("seed", self.seed, &SEEDS)
    }

    /// The parts that have an id, in the order of a file.
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let streams = self.streams.iter().map(Stream::part);
        let messages = self.messages.iter().map(Message::part);
        let demands = self.demands.iter().map(ServerDemand::part);
        let unplanned = |bulk| {
            let is_bulk = |transfer: &Unplanned| matches!(transfer.kind, UnplannedKind::Bulk(_));
            self.unplanned.iter().filter(move |transfer| is_bulk(transfer) == bulk).map(Unplanned::part)
        };
        let tasks = self.tasks.iter().map(WorkloadTask::part);
        streams.chain(messages).chain(demands).chain(unplanned(true)).chain(unplanned(false)).chain(tasks)
    }

    fn check_ids(&self) -> Result<(), WorkloadError> {
        let mut ids: BTreeMap<&str, (u32, &str)> = BTreeMap::new();
        for (second, part) in (0..).zip(self.parts()) {
            part.name("id", part.id).map_err(|error| error.of_id(WrongId::NoName(second)))?;
            if let Some((first, other)) = ids.insert(part.id, (second, part.table)) {
                let fact = format!("a {other} is already called `{}`", part.id);
                let help = "give each stream, message, demand and task its own id";
                return Err(part.error("", fact, help).of_id(WrongId::Same { first, second }));
            }
        }
        // On file systems that do not tell them apart, the results of both would be one file.
        let mut files = BTreeMap::new();
        for stream in &self.streams {
            if let Some(other) = files.insert(stream.id.to_lowercase(), &stream.id) {
                let fact = format!("stream `{}` differs from stream `{other}` in upper and lower case only", stream.id);
                let help = "give one of them another id: each names the file of its stream's results, and not every \
                            file system tells these two apart";
                return Err(stream.part().error("", fact, help));
            }
        }
        Ok(())
    }

    /// A task is given a GPU when it runs, so no plan made before can leave room for others.
    fn check_tasks(&self, planned: bool) -> Result<(), WorkloadError> {
        if let Some(first) = self.tasks.first() {
            if planned {
                let help = "put the tasks into a workload file of their own";
                return Err(first
                    .part()
                    .error("", "tasks and other parts are planned in different ways", help)
                    .at_key());
            }
            if self.sharing.is_none() {
                let help = "add a table `[sharing]` with `cpus`, the number of CPUs that the tasks may use";
                return Err(first.part().error("", "nothing says how the tasks share the GPUs", help).at_key());
            }
        }
        self.tasks.iter().try_for_each(WorkloadTask::check)?;
        let Some(sharing) = &self.sharing else { return Ok(()) };
        let part = Part { table: "sharing", id: "" };
        if self.tasks.is_empty() {
            let help = "add a `[[task]]`, or leave `[sharing]` out";
            return Err(part.error("", "there is no task that shares GPUs", help).at_key());
        }
        part.integer("cpus", sharing.cpus.into(), &CPUS)?;
        for (number, gpu) in sharing.gpus.iter().flatten().enumerate() {
            part.name(&format!("gpus.{number}"), gpu)?;
        }
        part.integer("tokens_per_gpu", sharing.tokens_per_gpu.into(), &TOKENS)?;
        if let Some(TokenMode::Relaxed(queue)) = sharing.mode {
            part.integer("queue", queue.into(), &QUEUES)?;
        }
        part.integer("copy_engines", sharing.copy_engines.into(), &COPY_ENGINES)?;
        sharing.chunk.map_or(Ok(()), |chunk| part.size_above_zero("chunk", chunk, "2 MiB"))
    }

    /// Refuses what no plan can put beside a stream whose steps take all GPUs.
    fn check_alone(&self) -> Result<(), WorkloadError> {
        let parts = self.streams.len() + self.messages.len() + self.demands.len() + self.tasks.len();
        match self.streams.iter().find(|stream| stream.sharding.is_some()) {
            Some(stream) if parts > 1 => {
                let help = Some("put it into a workload file of its own".to_owned());
                Err(WorkloadError::new("", format!("stream `{}` uses all GPUs and stands alone", stream.id), help))
            }
            _ => Ok(()),
        }
    }
}

impl Stream {
    pub(super) fn part(&self) -> Part<'_> {
        Part { table: "stream", id: &self.id }
    }

    /// An error at `key` of the stream, for example `steps.2.compute` with steps counted from 0.
    #[must_use]
    pub fn error(&self, key: &str, fact: impl Into<String>, help: impl Into<String>) -> WorkloadError {
        self.part().error(key, fact, help)
    }

    /// An error of the value of `key`, which a file writes as `value`; `fact` continues the sentence that `KEY = VALUE` begins.
    #[must_use]
    pub fn value_error(&self, key: &str, value: &str, fact: String, help: String) -> WorkloadError {
        self.part().value_error(key, value, ValueFault { fact, help })
    }

    /// Refuses a number outside `range`.
    ///
    /// # Errors
    /// At `key` of the stream.
    pub fn check_integer(&self, key: &str, value: u64, range: &RangeInclusive<u64>) -> Result<(), WorkloadError> {
        self.part().integer(key, value, range)
    }

    fn check_numbers(&self) -> Result<(), WorkloadError> {
        let part = self.part();
        part.size_above_zero("packet", self.packet, "16 KiB")?;
        part.time_above_zero("period", self.period, "4 ms")?;
        part.time_above_zero("deadline", self.deadline, "40 ms")?;
        part.time("start", self.start)
    }

    fn check_deadline(&self) -> Result<(), WorkloadError> {
        // The cycle is deadline / (steps + 1): one step more than is written, as packets are gathered first.
        let shortest = self.steps.len() as u64 + 1;
        if self.deadline.0 < shortest {
            let fact = format!("is too short for {} steps", self.steps.len());
            let help =
                format!("write at least `deadline = \"{shortest} ns\"`: a nanosecond for gathering and each step");
            return Err(self.part().value_error("deadline", &time(self.deadline), ValueFault { fact, help }));
        }
        Ok(())
    }
}

impl Message {
    fn part(&self) -> Part<'_> {
        Part { table: "message", id: &self.id }
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let part = self.part();
        part.time_above_zero("period", self.period, "30 ms")?;
        part.time("start", self.start)?;
        self.late.map_or(Ok(()), |late| part.time("late", late))?;
        if self.blocks.is_empty() {
            let help = format!("write for example `blocks = {}`", BLOCKS);
            return Err(part.error("blocks", format!("message `{}` has no blocks", self.id), help));
        }
        for (number, block) in self.blocks.iter().enumerate() {
            let path = |key: &str| format!("blocks.{number}.{key}");
            part.name(&path("from"), &block.from)?;
            part.name(&path("to"), &block.to)?;
            if block.from == block.to {
                let help = "name two endpoints of the machine";
                return Err(part.error(&path("to"), format!("the block stays at `{}`", block.to), help));
            }
            part.size_above_zero(&path("bytes"), block.bytes, "1 MB")?;
        }
        Ok(())
    }
}

impl ServerDemand {
    fn part(&self) -> Part<'_> {
        Part { table: "demand", id: &self.id }
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let part = self.part();
        part.name("server", &self.server)?;
        part.time("start", self.start)?;
        part.time_above_zero("cost", self.cost, "1 ms")?;
        part.time_above_zero("period", self.period, "2 ms")?;
        part.time_above_zero("deadline", self.deadline, "2 ms")?;
        let Self { id, cost, deadline, .. } = self;
        if cost > deadline {
            let fact = format!("is more than the deadline of {deadline}");
            let help = format!("lower the cost to at most {deadline}, or raise the deadline of demand `{id}`");
            return Err(part.value_error("cost", &time(*cost), ValueFault { fact, help }));
        }
        Ok(())
    }
}

impl Unplanned {
    fn part(&self) -> Part<'_> {
        let table = if matches!(self.kind, UnplannedKind::Bulk(_)) { "bulk" } else { "urgent" };
        Part { table, id: &self.id }
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let part = self.part();
        part.name("from", &self.from)?;
        part.name("to", &self.to)?;
        if self.from == self.to {
            let help = "name two endpoints of the machine";
            return Err(part.error("to", format!("`{}` stays at `{}`", self.id, self.to), help));
        }
        part.time("start", self.start)?;
        match self.kind {
            UnplannedKind::Bulk(bytes) => bytes.map_or(Ok(()), |bytes| part.size_above_zero("bytes", bytes, "20 GB")),
            UnplannedKind::Urgent(urgent) => {
                part.size_above_zero("bytes", urgent.bytes, "64 KiB")?;
                part.time_above_zero("deadline", urgent.deadline, "2 ms")?;
                urgent.every.map_or(Ok(()), |every| part.time_above_zero("every", every, "10 ms"))
            }
        }
    }
}

impl WorkloadTask {
    fn part(&self) -> Part<'_> {
        Part { table: "task", id: &self.id }
    }

    /// Says what is wrong with the module of the segment, whose kernel is called `name`.
    fn check_module(&self, segment: usize, name: &str, module: &ModuleKernel) -> Result<(), WorkloadError> {
        let (part, place) = (self.part(), format!("segments.{segment}.compute"));
        let id = self.module_id(segment, &module.entry);
        check_module(part, &place, &id, module)?;
        let (fact, help) = if name != id {
            (format!("a kernel of a module is called `{id}`, and the segment says `{name}`"), "give it that name")
        } else if module.cost.is_some() {
            ("a segment of a task says `time`, and a module need not say `cost`".to_owned(), "leave `cost` out")
        } else if self.read_by(segment) == Bytes(0) {
            ("nothing was copied in for the kernel to read".to_owned(), "write a `copy = \"host -> gpu\"` before it")
        } else {
            return Ok(());
        };
        Err(part.error(&place, fact, help))
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let part = self.part();
        part.time_above_zero("period", self.period, "50 ms")?;
        part.time_above_zero("deadline", self.deadline, "50 ms")?;
        part.time("start", self.start)?;
        part.size("state", self.state)?;
        for (number, segment) in self.segments.iter().enumerate() {
            let path = |key: &str| format!("segments.{number}.{key}");
            match segment {
                JobSegment::Cpu(longest) => part.time_above_zero(&path("cpu"), *longest, "1 ms")?,
                JobSegment::Copy { bytes, .. } => part.size_above_zero(&path("bytes"), *bytes, "1 MB")?,
                JobSegment::Execute { kernel, time } => {
                    match self.modules.get(&number) {
                        Some(module) => self.check_module(number, kernel, module)?,
                        None => part.name(&path("compute"), kernel)?,
                    }
                    part.time_above_zero(&path("time"), *time, "2 ms")?;
                }
            }
        }
        let is_kernel = |at: usize| matches!(self.segments.get(at), Some(JobSegment::Execute { .. }));
        if let Some(other) = self.modules.keys().find(|at| !is_kernel(**at)) {
            let fact = format!("segment {other} of task `{}` has a module and is no kernel", self.id);
            return Err(part.error("segments", fact, "name the segment that the module is for"));
        }
        if self.held().is_empty() {
            let help = format!("write for example `segments = {}`", SEGMENTS);
            return Err(part.error("segments", format!("task `{}` uses no GPU", self.id), help));
        }
        Ok(())
    }
}
