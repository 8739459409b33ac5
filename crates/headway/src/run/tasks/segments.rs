//! A task on devices: its segments in the order of the program, with the kernels that a library has.
//!
//! What is copied in is random bytes, drawn once: for Headway's kernels a packed block of one portion ([`headway_core::plan::block`]), for those of
//! modules as it is. A kernel reads what
//! was copied in since the kernel before it, or what that one read; it writes an output, from whose beginning copies out are taken,
//! and works on its part of the task's state, which follows the task from GPU to GPU.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headway_core::decisions::engine_line::FlowClass;
use headway_core::decisions::engine_lock::EngineWork;
use headway_core::decisions::sharing::{JobSegment, TaskDirection};
use headway_core::files::error::Loaded;
use headway_core::files::workload::{Workload, WorkloadTask};
use headway_core::plan::block::{ALIGN, LAUNCH_ALIGN, header_bytes, write_header};
use headway_core::units::{Bytes, Nanos};
use headway_device::gpu::{Caching, CpuReach, Gpu, Queue};
use headway_device::step::step;
use headway_device::work::{Library, Portion, StepMemory, Work};
use headway_device::{Access, Buffer, DeviceError};
use headway_os::board::EngineActivity;
use headway_os::clock;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::error::error_at;
use crate::jobs::{
    DoneJob, Moving, Operated, Operations, Rights, Unmanaged, burn, complete, copy_range, no_gpu, sleep_until, with_gpu,
};
use crate::{Error, Failure};

/// What a task does while it holds a GPU, segment by segment.
enum TaskStep {
    Cpu(Nanos),
    CopyIn(Incoming),
    CopyOut {
        bytes: usize,
        /// How many of them a kernel has written.
        written: usize,
    },
    Execute {
        work: Arc<dyn Work>,
        input: usize,
        state: Range<usize>,
    },
}

/// A copy into the input of the next kernel.
#[derive(Clone)]
struct Incoming {
    to: Range<usize>,
    /// What of the block's header lies in it, from its beginning on.
    header: Vec<u8>,
}

impl Incoming {
    /// Writes what the copy of a job takes: the data with the header, and the job's number at the end.
    fn fill(&self, data: &[u8], job: u64, bytes: &mut [u8]) {
        bytes.copy_from_slice(&data[self.to.clone()]);
        bytes[..self.header.len()].copy_from_slice(&self.header);
        if let Some(rest) = bytes.len().checked_sub(8).filter(|rest| *rest >= self.header.len()) {
            bytes[rest..].copy_from_slice(&job.to_le_bytes());
        }
    }
}

/// What a task does while it holds a GPU, and how much memory that takes.
struct Program {
    steps: Vec<TaskStep>,
    input: usize,
    output: usize,
    state: usize,
}

/// Memory of the task on one GPU, and its queue there.
struct OnGpu {
    queue: Box<dyn Queue>,
    input: Buffer,
    output: Buffer,
    state: Buffer,
    /// What the user's other programs see, into the GPU and out of it.
    activity: [EngineActivity; 2],
}

/// A task with its memory on every GPU that it may use.
pub(super) struct DeviceTask {
    name: String,
    /// CPU time before the GPU is asked for, and after it is given back.
    before: Nanos,
    after: Nanos,
    program: Program,
    gpus: Vec<OnGpu>,
    /// Pinned ends of copies.
    sent: Buffer,
    received: Buffer,
    /// The state in system memory, pinned.
    saved: Buffer,
    /// The state of a new run, and what is copied in.
    fresh: Vec<u8>,
    data: Vec<u8>,
}

/// When jobs are released, and how they move data.
#[derive(Clone, Copy)]
pub(super) struct Course {
    pub(super) begin: Nanos,
    pub(super) period: Nanos,
    pub(super) jobs: u64,
    pub(super) moving: Moving,
}

/// What a task did.
#[derive(Default)]
pub(super) struct Done {
    pub(super) jobs: Vec<DoneJob>,
    /// Operations of each job.
    pub(super) operations: Vec<Vec<Operated>>,
    /// Whether somebody asked for the end before the last job.
    pub(super) interrupted: bool,
}

impl Program {
    /// # Errors
    /// `ErrorKind::File` at the task for kernels that the library lacks, and for sizes that do not suit a kernel.
    fn of(workload: &Loaded<Workload>, at: usize, library: &dyn Library) -> Result<Self, Error> {
        let task = &workload.value.tasks[at];
        let refuse =
            |message: String, help: String| Err(error_at(workload, &format!("task.{}", task.id), &message, Some(help)));
        let mut program = Self { steps: Vec::new(), input: 0, output: 0, state: 0 };
        let (mut filled, mut last) = (0, 0);
        let mut written = 0;
        for segment in task.held() {
            match segment {
                JobSegment::Cpu(time) => program.steps.push(TaskStep::Cpu(*time)),
                JobSegment::Copy { direction: TaskDirection::ToGpu, bytes } => {
                    let end = filled + bytes.0 as usize;
                    program.steps.push(TaskStep::CopyIn(Incoming { to: filled..end, header: Vec::new() }));
                    program.input = program.input.max(end);
                    filled = end;
                }
                JobSegment::Copy { direction: TaskDirection::FromGpu, bytes } => {
                    let bytes = bytes.0 as usize;
                    program.steps.push(TaskStep::CopyOut { bytes, written: written.min(bytes) });
                    program.output = program.output.max(bytes);
                }
                JobSegment::Execute { kernel, .. } => {
                    let Some(work) = library.find(kernel) else {
                        let message = format!("task `{}` computes `{kernel}`, and there is no such kernel", task.id);
                        let known = library.ids().join("`, `");
                        return refuse(message, format!("there are `{known}`; others run with `--backend sim`"));
                    };
                    let is_new = filled > 0;
                    if is_new {
                        last = std::mem::take(&mut filled);
                    }
                    let header = if work.reads_blocks() { header(last) } else { Some(Vec::new()) };
                    let Some(header) = header else {
                        let message = format!("kernel `{kernel}` of task `{}` finds {last} bytes copied in", task.id);
                        let least = header_bytes(1) + ALIGN;
                        return refuse(message, format!("copy from {least} bytes to 4 GiB in before it"));
                    };
                    if is_new {
                        program.set_header(&header);
                    }
                    let output = work.output_bytes(last, 1);
                    written = if output == last && work.reads_blocks() { block_of(last) } else { output };
                    let state = program.state..program.state + work.state_bytes(1);
                    program.state = state.end.next_multiple_of(LAUNCH_ALIGN);
                    program.output = program.output.max(output);
                    if state.end as u64 > task.state.0 && !state.is_empty() {
                        let message = format!(
                            "kernels of task `{}` keep {} bytes of state, and its `state` is {}",
                            task.id, state.end, task.state
                        );
                        return refuse(message, format!("write `state = \"{} B\"`", state.end));
                    }
                    program.steps.push(TaskStep::Execute { work, input: last, state });
                }
            }
        }
        program.state = program.state.max(task.state.0 as usize);
        Ok(program)
    }

    /// Puts the header of a block into the copies since the last kernel, which bring that block.
    fn set_header(&mut self, header: &[u8]) {
        for step in self.steps.iter_mut().rev().take_while(|step| !matches!(step, TaskStep::Execute { .. })) {
            if let TaskStep::CopyIn(incoming) = step {
                let end = incoming.to.end.min(header.len());
                incoming.header = header[incoming.to.start.min(end)..end].to_vec();
            }
        }
    }
}

impl DeviceTask {
    /// Task `at` of the workload on `devices`, with data of `seed`.
    ///
    /// # Errors
    /// [`Error`] with what the library or a GPU lacks.
    pub(super) fn open(
        workload: &Loaded<Workload>,
        at: usize,
        library: &dyn Library,
        devices: &[Arc<dyn Gpu>],
        seed: u64,
    ) -> Result<Self, Error> {
        let program = Program::of(workload, at, library)?;
        let task: &WorkloadTask = &workload.value.tasks[at];
        let mut fresh = vec![0; program.state];
        for step in &program.steps {
            if let TaskStep::Execute { work, state, .. } = step {
                let portion = Portion { stream: task.id.clone(), ..Portion::default() };
                let filled = work.init_state(&[portion], &mut fresh[state.clone()]);
                filled.map_err(|error| Failure::Device(DeviceError::Work(error)))?;
            }
        }
        let mut data = vec![0; program.input];
        Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut data);
        Ok(Self::on(task, program, devices, fresh, data)?)
    }

    fn on(
        task: &WorkloadTask,
        program: Program,
        devices: &[Arc<dyn Gpu>],
        fresh: Vec<u8>,
        data: Vec<u8>,
    ) -> Result<Self, DeviceError> {
        let first = devices.first().ok_or_else(no_gpu)?;
        let mut gpus = Vec::new();
        for device in devices {
            let name = device.description().board_gpu();
            for step in &program.steps {
                if let TaskStep::Execute { work, .. } = step {
                    device.load(work.as_ref())?;
                }
            }
            gpus.push(OnGpu {
                queue: device.queue(false)?,
                input: device.device_buffer(program.input.max(1), CpuReach::Device)?,
                output: device.device_buffer(program.output.max(1), CpuReach::Device)?,
                state: device.device_buffer(program.state.max(1), CpuReach::Device)?,
                activity: EngineActivity::both(name),
            });
        }
        let sent = first.pinned_buffer(program.input.max(1), Caching::Cached)?;
        let received = first.pinned_buffer(program.output.max(1), Caching::Cached)?;
        let saved = first.pinned_buffer(program.state.max(1), Caching::Cached)?;
        Ok(Self {
            name: task.id.clone(),
            before: task.before(),
            after: task.after(),
            program,
            gpus,
            sent,
            received,
            saved,
            fresh,
            data,
        })
    }

    /// Does a job on every GPU, so that nothing is loaded or compiled later; the state begins anew.
    ///
    /// # Errors
    /// `ErrorKind::Device`.
    pub(super) fn warm_up(&mut self) -> Result<(), Error> {
        for gpu in 0..self.gpus.len() {
            self.reset().map_err(Failure::Device)?;
            let mut one = DoneJob { gpu: gpu as u32, ..DoneJob::default() };
            let moving = Moving { chunk: None, peer: false };
            self.hold(&mut Unmanaged, moving, &mut one, None).map_err(Failure::Device)?;
        }
        Ok(self.reset()?)
    }

    /// The state of a new run, in system memory and on every GPU.
    fn reset(&mut self) -> Result<(), DeviceError> {
        self.saved.claim(0..self.fresh.len(), Access::Write)?.bytes_mut()?.copy_from_slice(&self.fresh);
        for gpu in 0..self.gpus.len() {
            self.restore(gpu, 0..self.program.state)?;
        }
        Ok(())
    }

    /// Does the jobs of `course`, up to the one before which `interrupt` is true.
    ///
    /// # Errors
    /// `ErrorKind::Device`, `ErrorKind::Broker` when no GPU is granted.
    pub(super) fn run(
        &mut self,
        course: &Course,
        task: &mut headway_runtime::sharing::Task<'_>,
        interrupt: &AtomicBool,
    ) -> Result<Done, Error> {
        let mut done = Done::default();
        let (mut digest, mut before) = (0, 0);
        for job in 0..course.jobs {
            let release = course.begin.saturating_add(Nanos(course.period.0.saturating_mul(job)));
            if !sleep_until(release, interrupt) {
                done.interrupted = true;
                break;
            }
            let mut one =
                DoneJob { job, release: release.0, start: release.0.max(before), digest, ..DoneJob::default() };
            let mut operations = Vec::new();
            burn(self.before);
            with_gpu(task, &mut one, |rights, one| {
                self.hold(rights, course.moving, one, Some(&mut operations)).map_err(Failure::Device)
            })?;
            burn(self.after);
            one.done = clock::now().0;
            self.tell(&one, &operations);
            digest = one.digest;
            before = one.done;
            done.operations.push(operations);
            done.jobs.push(one);
        }
        Ok(done)
    }

    /// Tells the user's other programs of a job's copies, and how long they waited for their engines.
    fn tell(&self, one: &DoneJob, operations: &[Operated]) {
        let Some(gpu) = self.gpus.get(one.gpu as usize) else { return };
        for operated in operations {
            let engine = match operated.work {
                EngineWork::CopyIn => &gpu.activity[0],
                EngineWork::CopyOut => &gpu.activity[1],
                EngineWork::Peer | EngineWork::Execute => continue,
            };
            engine.moved(FlowClass::Normal, Bytes(operated.bytes));
            engine.copied(FlowClass::Normal, operated.begun.saturating_sub(operated.asked));
        }
    }

    /// What a job does while it holds a GPU.
    fn hold(
        &mut self,
        rights: &mut dyn Rights,
        moving: Moving,
        one: &mut DoneJob,
        kept: Option<&mut Vec<Operated>>,
    ) -> Result<(), DeviceError> {
        let gpu = one.gpu as usize;
        let mut operations = Operations { rights, moving, account: &mut one.account, kept };
        let state = self.program.state;
        if let Some(from) = one.from {
            if moving.peer {
                operations.copy(EngineWork::Peer, state, |range| self.migrate(from as usize, gpu, range))?;
            } else {
                operations.copy(EngineWork::CopyIn, state, |range| self.restore(gpu, range))?;
            }
        }
        for at in 0..self.program.steps.len() {
            match &self.program.steps[at] {
                TaskStep::Cpu(time) => burn(*time),
                TaskStep::CopyIn(incoming) => {
                    let to = incoming.to.clone();
                    incoming.fill(&self.data, one.job, self.sent.claim(to.clone(), Access::Write)?.bytes_mut()?);
                    operations.copy(EngineWork::CopyIn, to.len(), |range| {
                        self.push(gpu, to.start + range.start..to.start + range.end)
                    })?;
                }
                TaskStep::CopyOut { bytes, written } => {
                    let written = *written;
                    operations.copy(EngineWork::CopyOut, *bytes, |range| self.pull(gpu, range))?;
                    let received = self.received.claim(0..written, Access::Read)?;
                    one.digest = digested(received.bytes()?, one.digest);
                }
                TaskStep::Execute { .. } => operations.operate(EngineWork::Execute, 0, || self.execute(gpu, at))?,
            }
        }
        if !moving.peer {
            operations.copy(EngineWork::CopyOut, state, |range| self.save(gpu, range))?;
        }
        Ok(())
    }

    fn push(&mut self, gpu: usize, range: Range<usize>) -> Result<(), DeviceError> {
        let here = self.gpus.get_mut(gpu).ok_or_else(no_gpu)?;
        copy_range(here.queue.as_mut(), &self.sent, &here.input, range)
    }

    fn pull(&mut self, gpu: usize, range: Range<usize>) -> Result<(), DeviceError> {
        let here = self.gpus.get_mut(gpu).ok_or_else(no_gpu)?;
        copy_range(here.queue.as_mut(), &here.output, &self.received, range)
    }

    fn restore(&mut self, gpu: usize, range: Range<usize>) -> Result<(), DeviceError> {
        let here = self.gpus.get_mut(gpu).ok_or_else(no_gpu)?;
        copy_range(here.queue.as_mut(), &self.saved, &here.state, range)
    }

    fn save(&mut self, gpu: usize, range: Range<usize>) -> Result<(), DeviceError> {
        let here = self.gpus.get_mut(gpu).ok_or_else(no_gpu)?;
        copy_range(here.queue.as_mut(), &here.state, &self.saved, range)
    }

    fn migrate(&mut self, from: usize, to: usize, range: Range<usize>) -> Result<(), DeviceError> {
        let [source, target] = self.gpus.get_disjoint_mut([from, to]).map_err(|_| no_gpu())?;
        copy_range(target.queue.as_mut(), &source.state, &target.state, range)
    }

    fn execute(&mut self, gpu: usize, at: usize) -> Result<(), DeviceError> {
        let TaskStep::Execute { work, input, state } = &self.program.steps[at] else { return Ok(()) };
        let here = self.gpus.get_mut(gpu).ok_or_else(no_gpu)?;
        let output = work.output_bytes(*input, 1);
        let memory = StepMemory {
            input: here.input.claim(0..*input, Access::Read)?,
            output: here.output.claim(0..output, Access::Write)?,
            state: (!state.is_empty()).then(|| here.state.claim(state.clone(), Access::Write)).transpose()?,
        };
        complete(here.queue.as_mut(), step(work, memory, 1)?)
    }

    /// Whether CPU forms say what the jobs must copy out.
    pub(super) fn is_comparable(&self) -> bool {
        self.program.steps.iter().all(|step| match step {
            TaskStep::Execute { work, .. } => work.is_comparable(),
            _ => true,
        })
    }

    /// Compares what the jobs copied out with what the CPU forms make of the same data.
    ///
    /// # Errors
    /// `ErrorKind::WrongBytes`, `ErrorKind::Interrupted`.
    pub(super) fn verify(&self, jobs: &[DoneJob], interrupt: &AtomicBool) -> Result<(), Error> {
        let (mut state, mut digest) = (self.fresh.clone(), 0);
        let mut input = vec![0; self.program.input];
        let mut output = vec![0; self.program.output];
        for one in jobs {
            if interrupt.load(Ordering::Relaxed) {
                return Err(Failure::Interrupted.into());
            }
            for step in &self.program.steps {
                match step {
                    TaskStep::Cpu(_) => {}
                    TaskStep::CopyIn(incoming) => incoming.fill(&self.data, one.job, &mut input[incoming.to.clone()]),
                    TaskStep::CopyOut { written, .. } => digest = digested(&output[..*written], digest),
                    TaskStep::Execute { work, input: read, state: own } => {
                        let written = work.output_bytes(*read, 1);
                        work.run(&input[..*read], &mut output[..written], &mut state[own.clone()])
                            .map_err(|error| Failure::Device(DeviceError::Work(error)))?;
                    }
                }
            }
            if digest != one.digest {
                return Err(Failure::WrongJob { task: self.name.clone(), job: one.job }.into());
            }
        }
        Ok(())
    }
}

/// Bytes of the block of one portion that fits into `bytes` bytes.
const fn block_of(bytes: usize) -> usize {
    header_bytes(1) + (bytes - header_bytes(1)) / ALIGN * ALIGN
}

/// The header of a block of one portion in `bytes` bytes; none where it has no room for data, or offsets cannot say where it ends.
fn header(bytes: usize) -> Option<Vec<u8>> {
    let payload = bytes.checked_sub(header_bytes(1) + ALIGN).map(|_| block_of(bytes) - header_bytes(1))?;
    let mut block = vec![0; bytes];
    write_header(&mut block, 0, &[payload as u64]).ok()?;
    block.truncate(header_bytes(1));
    Some(block)
}

/// A hash of `bytes` and of what was hashed before, eight bytes at a time.
fn digested(bytes: &[u8], before: u64) -> u64 {
    bytes.chunks(8).fold(before ^ 0xcbf2_9ce4_8422_2325, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
    })
}
