//! What no stream may say of its processors, its parts and its steps.

use super::fault::WorkloadError;
use super::texts::{FROM_TO_HELP, ONE_THING, ONE_THING_HELP, STEPS, copy_text, name, place, same};
use super::{CopyEndpoint, PARTS_MAX, PartStep, PartWork, Stream, StreamPlacement, StreamStep};
use crate::files::document::{self, ValueFault, quoted};

/// What a step does with one part of a packet, and what a file calls that.
struct Doing<'a> {
    /// Names of the keys below the stream: of what is moved or computed, and of where.
    what: String,
    place: String,
    step: &'a PartStep,
}

impl Stream {
    /// Refuses GPUs that have no name, and parts that are not those of a packet.
    pub(super) fn check_parts(&self) -> Result<(), WorkloadError> {
        let part = self.part();
        if let StreamPlacement::Gpu(gpu) = &self.gpu {
            part.name("gpu", gpu)?;
            if ["auto", "gpu", "host"].contains(&gpu.as_str()) {
                let fact = "names no GPU".to_owned();
                let help = "write \"auto\", or the name of a GPU in the machine file".to_owned();
                return Err(part.value_error("gpu", &quoted(gpu), ValueFault { fact, help }));
            }
        }
        if self.sharding.is_some() && !self.parts.is_empty() {
            return Err(part.error("parts", "all GPUs share the packets of this stream", "leave `parts` out").at_key());
        }
        let mut total = 0u64;
        for (number, one) in self.parts.iter().enumerate() {
            let path = |key: &str| format!("parts.{number}.{key}");
            part.name(&path("id"), &one.id)?;
            if self.parts[..number].iter().any(|other| other.id == one.id) {
                let fact = format!("stream `{}` has a part `{}` already", self.id, one.id);
                return Err(part.error(&path("id"), fact, "give each part of the packet an id of its own"));
            }
            if number == PARTS_MAX {
                let help = "let fewer parts be larger, or make streams of them";
                return Err(part.error(&path("id"), format!("a packet has at most {PARTS_MAX} parts"), help));
            }
            part.size_above_zero(&path("bytes"), one.bytes, "512 KiB")?;
            total = total.saturating_add(one.bytes.0);
            if total > self.packet.0 {
                let fact = format!("the parts have {total} bytes, more than the packet of {}", self.packet.0);
                return Err(part.error(&path("bytes"), fact, "let the parts add up to the packet"));
            }
        }
        if let (Some(last), true) = (self.parts.len().checked_sub(1), total < self.packet.0) {
            let fact = format!("the parts have {total} bytes, and the packet has {}", self.packet.0);
            let help = format!("make this part {} bytes larger, or add a part", self.packet.0 - total);
            return Err(part.error(&format!("parts.{last}.bytes"), fact, help));
        }
        Ok(())
    }

    /// Follows each part of a packet from step to step.
    pub(super) fn check_steps(&self) -> Result<(), WorkloadError> {
        let part = self.part();
        if self.steps.is_empty() {
            let help = format!("write for example `steps = {STEPS}`");
            return Err(part.error("steps", "the stream has no steps", help));
        }
        let sets = self.steps.iter().filter(|step| matches!(step, StreamStep::Parts(_))).count();
        let exchange = self.steps.iter().position(|step| *step == StreamStep::Exchange);
        let mut at: Vec<Option<CopyEndpoint>> = vec![None; self.parts.len().max(1)];
        for (number, step) in self.steps.iter().enumerate() {
            self.check_step(number, step, &mut at)?;
        }
        if let Some(idle) = self.parts.iter().zip(&at).find(|(_, at)| at.is_none()) {
            let fact = format!("no step does anything with part `{}`", idle.0.id);
            return Err(part.error("steps", fact, "copy it to a GPU, or leave the part out"));
        }
        if let (Some(number), true) = (exchange, sets > 0) {
            let fact = "a stream whose steps name several processors exchanges nothing";
            let help = "write `gpu` for the GPUs, all of which share the packet";
            return Err(part.error(&format!("steps.{number}.exchange"), fact, help));
        }
        // What follows, no file can say.
        if sets > 0 && sets < self.steps.len() {
            return Err(part.error("steps", "some of the steps are sets and some are not", "make all of them sets"));
        }
        if sets == 0 && !self.parts.is_empty() {
            let help = "make sets of the steps, or leave the parts out";
            return Err(part.error("steps", "the packet has parts, and no step says which of them it works on", help));
        }
        if sets > 0 && self.parts.is_empty() && !self.steps.iter().any(|step| self.needs_sets(step)) {
            let help = "write them as plain copies and kernels";
            return Err(part.error("steps", "the steps are sets, and all work on whole packets on one GPU", help));
        }
        Ok(())
    }

    /// Whether a set has a kernel that runs elsewhere than on the stream's own GPU.
    fn needs_sets(&self, step: &StreamStep) -> bool {
        let elsewhere = |step: &PartStep| match &step.work {
            PartWork::Copy { .. } => false,
            PartWork::Compute { at, on_cpu, .. } => *on_cpu || !same(at, &CopyEndpoint::OwnGpu, &self.gpu),
        };
        matches!(step, StreamStep::Parts(set) if set.iter().any(elsewhere))
    }

    fn check_step(
        &self,
        number: usize,
        step: &StreamStep,
        at: &mut [Option<CopyEndpoint>],
    ) -> Result<(), WorkloadError> {
        let whole = |work: PartWork| vec![PartStep { part: 0, work }];
        let plain;
        let set = match step {
            StreamStep::Exchange => return Ok(()),
            StreamStep::Parts(set) => set,
            StreamStep::Copy { from, to } => {
                plain = whole(PartWork::Copy { from: from.clone(), to: to.clone() });
                &plain
            }
            // Its names are checked with the rest of it.
            StreamStep::Module(_) => {
                let kernel = "module".to_owned();
                plain = whole(PartWork::Compute { kernel, at: CopyEndpoint::OwnGpu, on_cpu: false });
                &plain
            }
            StreamStep::Compute { kernel } => {
                let kernel = kernel.clone();
                plain = whole(PartWork::Compute { kernel, at: CopyEndpoint::OwnGpu, on_cpu: false });
                &plain
            }
        };
        let part = self.part();
        if set.is_empty() {
            return Err(part.error(&format!("steps.{number}"), ONE_THING, ONE_THING_HELP));
        }
        let (mut copies, mut kernels) = (0, 0);
        for (index, step) in set.iter().enumerate() {
            let (key, count) = match step.work {
                PartWork::Copy { .. } => ("copy", &mut copies),
                PartWork::Compute { .. } => ("compute", &mut kernels),
            };
            let doing = if self.parts.is_empty() {
                let place = if key == "copy" { key } else { "on" };
                Doing { what: format!("steps.{number}.{key}"), place: format!("steps.{number}.{place}"), step }
            } else {
                let element = |key_of_element| format!("steps.{number}.{key}.{count}.{key_of_element}");
                match step.work {
                    PartWork::Copy { .. } => Doing { what: element("to"), place: element("from"), step },
                    PartWork::Compute { .. } => Doing { what: element("kernel"), place: element("on"), step },
                }
            };
            *count += 1;
            let Some(here) = at.get_mut(step.part as usize) else {
                let fact = format!("the step names part {}, and the packet has {}", step.part, self.parts.len());
                return Err(part.error(&doing.what, fact, "name a position in the list of parts"));
            };
            if set[..index].iter().any(|other| other.part == step.part) {
                let fact = format!("the step does two things with {}", self.called(step.part));
                return Err(part.error(&doing.what, fact, "put the second into a step of its own"));
            }
            *here = Some(match &step.work {
                PartWork::Copy { from, to } => self.check_copy(&doing, from, to, here.as_ref())?,
                PartWork::Compute { kernel, at, on_cpu } => {
                    part.name(&doing.what, kernel)?;
                    self.check_kernel(&doing, at, *on_cpu, here.as_ref())?
                }
            });
        }
        Ok(())
    }

    fn called(&self, part: u32) -> String {
        self.parts.get(part as usize).map_or_else(|| "the data".to_owned(), |part| format!("part `{}`", part.id))
    }

    /// Where the part is after a copy.
    fn check_copy(
        &self,
        doing: &Doing<'_>,
        from: &CopyEndpoint,
        to: &CopyEndpoint,
        here: Option<&CopyEndpoint>,
    ) -> Result<CopyEndpoint, WorkloadError> {
        let part = self.part();
        let one_text = doing.what == doing.place;
        let written = if one_text { copy_text(from, to) } else { quoted(name(to)) };
        for (path, end) in [(&doing.place, from), (&doing.what, to)] {
            let is_end = place(name(end)) == *end && document::is_name(name(end));
            if !is_end && one_text {
                let (fact, help) = ("is not of the form FROM -> TO".to_owned(), FROM_TO_HELP.to_owned());
                return Err(part.value_error(path, &written, ValueFault { fact, help }));
            }
            part.name(path, name(end))?;
        }
        if same(from, to, &self.gpu) {
            let (fact, help) = ("goes nowhere".to_owned(), "name two places".to_owned());
            return Err(part.value_error(&doing.what, &written, ValueFault { fact, help }));
        }
        if let Some(here) = here
            && !same(here, from, &self.gpu)
        {
            let (from, here) = (name(from), name(here));
            let fact = format!("the step copies from `{from}`, but {} is at `{here}`", self.called(doing.step.part));
            let help = format!("start it at `{here}`, or add a copy from there to `{from}`");
            return Err(part.error(&doing.what, fact, help));
        }
        Ok(to.clone())
    }

    /// Where the part is when a kernel has run over it.
    fn check_kernel(
        &self,
        doing: &Doing<'_>,
        at: &CopyEndpoint,
        on_cpu: bool,
        here: Option<&CopyEndpoint>,
    ) -> Result<CopyEndpoint, WorkloadError> {
        let part = self.part();
        let (wanted, called) = (name(at), self.called(doing.step.part));
        let in_host = matches!(here, None | Some(CopyEndpoint::Host));
        // A stream that only the CPU serves has no copies.
        let served_by_cpu = self.parts.is_empty() && self.gpu == StreamPlacement::Cpu;
        if on_cpu && here.is_some_and(|here| same(here, &CopyEndpoint::OwnGpu, &self.gpu)) {
            let fact = format!("the step computes on the CPU, but {called} is on a GPU");
            return Err(part.error(&doing.place, fact, "put a copy to `host` before it"));
        }
        if in_host && !on_cpu && !(served_by_cpu && *at == CopyEndpoint::OwnGpu) {
            if matches!(at, CopyEndpoint::Named(_)) {
                let fact = format!("the step computes on `{wanted}`, but {called} is at `host`");
                let help = "write `on = \"cpu\"` for a core of the CPU, or put a copy to a GPU before it";
                return Err(part.error(&doing.place, fact, help));
            }
            let help = "put `{ copy = \"host -> gpu\" }` before it, or write `on = \"cpu\"`";
            return Err(part.error(&doing.what, "the step computes before the data reached a GPU", help));
        }
        let elsewhere = here.filter(|here| !same(here, at, &self.gpu));
        if let (Some(here), false) = (elsewhere, in_host && !on_cpu) {
            let here = name(here);
            let fact = format!("the step computes on `{wanted}`, but {called} is at `{here}`");
            let help = format!("leave `on` out: a kernel runs where its data is; or copy it from `{here}` before");
            return Err(part.error(&doing.place, fact, help));
        }
        Ok(at.clone())
    }

    /// Refuses steps that a core cannot take over: kernels only, between one copy to the stream's own GPU and one back, which a
    /// stream that never runs on a GPU need not have.
    pub(super) fn check_processors(&self) -> Result<(), WorkloadError> {
        if matches!(self.gpu, StreamPlacement::Auto | StreamPlacement::Gpu(_)) {
            return Ok(());
        }
        let part = self.part();
        if self.has_modules() {
            let help = "leave `processor` out";
            return Err(part.error("processor", "a kernel of a module runs on GPUs only", help).at_key());
        }
        if self.steps.iter().any(|step| matches!(step, StreamStep::Parts(_))) {
            let help = "leave `processor` out, and write `on = \"cpu\"` where a core computes";
            return Err(part.error("processor", "the steps say themselves what processes each part", help).at_key());
        }
        let between = match self.steps.as_slice() {
            [first, between @ .., last] if *first == StreamStep::into_gpu() && *last == StreamStep::out_of_gpu() => {
                between
            }
            all if self.gpu == StreamPlacement::Cpu => all,
            _ => &[],
        };
        if !between.is_empty() && between.iter().all(|step| matches!(step, StreamStep::Compute { .. })) {
            return Ok(());
        }
        let fact = "the CPU can only take over kernels between a copy to the GPU and one back";
        let help = "write `steps = [{ copy = \"host -> gpu\" }, { compute = \"KERNEL\" }, { copy = \"gpu -> host\" }]`";
        Err(part.error("processor", fact, help).at_key())
    }

    /// Refuses a division among all GPUs that no plan can make, and exchanges without one.
    pub(super) fn check_sharding(&self) -> Result<(), WorkloadError> {
        use StreamStep::{Compute, Copy, Exchange};
        let part = self.part();
        let Some(sharding) = &self.sharding else {
            if !self.steps.contains(&Exchange) {
                return Ok(());
            }
            let fact = "only GPUs that share a packet exchange what they made of it";
            return Err(part.error("steps", fact, "divide the packets, or use other steps"));
        };
        match self.steps.as_slice() {
            [
                Copy { to: CopyEndpoint::OwnGpu, .. },
                Compute { .. },
                Exchange,
                Compute { .. },
                Copy { from: CopyEndpoint::OwnGpu, .. },
            ] => match sharding.fault(self.packet) {
                Some(fault) => Err(part.error("", fault.fact, fault.help)),
                None => Ok(()),
            },
            _ => {
                let fact =
                    "a stream that is divided among GPUs copies in, computes, exchanges, computes and copies out";
                Err(part.error("steps", fact, "write these five steps"))
            }
        }
    }
}
