//! Cores of the CPU as processors of streams: a thread on each, which runs the CPU form of kernels over packed blocks.
//!
//! Where the machine has CPUs to spare, every thread has one of its own and stays awake on it, and the driver's threads keep off;
//! elsewhere threads sleep between jobs and go where the system puts them.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use headway_core::units::Nanos;
use headway_device::buffer::{Budget, HeapMemory};
use headway_device::work::{Portion, Work};
use headway_device::{Access, Buffer, Completion, DeviceError, DeviceLimits, Span, Waker, WorkError, wake};
use headway_os::sched::{Classes, Role};
use headway_os::{affinity, clock, sched, threads, topology};

/// CPUs that are left to everybody else before cores have CPUs of their own: the driver's, and that of what feeds and empties.
const OTHERS: usize = 2;

/// A kernel with the state that it keeps from job to job.
pub struct CoreStage {
    kernel: Arc<dyn Work>,
    state: Vec<u8>,
}

impl CoreStage {
    /// The stage of `kernel` before its first job.
    ///
    /// # Errors
    /// [`WorkError`] if the kernel lacks a parameter.
    pub fn new(kernel: Arc<dyn Work>, portions: &[Portion]) -> Result<Self, WorkError> {
        let mut state = vec![0; kernel.state_bytes(portions.len())];
        kernel.init_state(portions, &mut state)?;
        Ok(Self { kernel, state })
    }

    /// Runs the CPU form over one block and moves the state on.
    ///
    /// # Errors
    /// [`WorkError`] if the kernel refuses the block.
    pub fn run(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), WorkError> {
        self.kernel.run(input, output, &mut self.state)
    }
}

/// A compute operation of a plan: pipeline, step, and which of the step's operations.
pub type StepOperation = (u32, u32, u32);

/// What a core serves.
pub type Stages = BTreeMap<StepOperation, CoreStage>;

/// One block for one stage.
#[derive(Debug)]
pub struct CoreJob {
    /// What its completion carries.
    pub tag: u64,
    pub stage: StepOperation,
    /// The packed block; host memory.
    pub input: Span,
    /// Where the result goes, claimed for writing; host memory of the same length.
    pub output: Span,
}

/// Where jobs wait and completions are left.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Counts up with every job and at the end, for a thread that stays awake.
    bell: AtomicU64,
    done: Mutex<Vec<Completion>>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<CoreJob>,
    stop: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that serves one job at a time, in the order of submission.
pub struct Core {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Core {
    /// Starts the thread, on `cpu` alone and always awake if there is one. `waker` is called after every job.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] when the system gives no thread.
    pub fn start(number: u32, stages: Stages, cpu: Option<u32>, waker: Waker) -> Result<Self, DeviceError> {
        Self::start_in(number, stages, cpu, waker, None)
    }

    /// Like [`Core::start`], in a scheduling class of `classes`. A thread that is always awake would use up a class that is
    /// rationed: with such a one, leave `cpu` out.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] when the system gives no thread.
    pub fn start_in(
        number: u32,
        stages: Stages,
        cpu: Option<u32>,
        waker: Waker,
        classes: Option<Arc<Classes>>,
    ) -> Result<Self, DeviceError> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = threads::spawn(&format!("headway-cpu-{number}"), move || {
            let _held = classes.map(|classes| classes.take(Role::Core));
            serve(&own, stages, cpu, &waker);
        })
        .map_err(|error| DeviceError::Unavailable {
            what: "a thread for streams on the CPU".into(),
            reason: error.to_string(),
            remedy: "raise the limit on threads".into(),
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Hands a job to the thread.
    pub fn submit(&self, job: CoreJob) {
        lock(&self.shared.state).jobs.push_back(job);
        self.shared.bell.fetch_add(1, Ordering::Release);
        self.shared.changed.notify_one();
    }

    /// Appends what has completed since the last poll.
    pub fn poll(&self, done: &mut Vec<Completion>) {
        let mut finished = lock(&self.shared.done);
        if finished.is_empty() {
            return;
        }
        let noticed = clock::now();
        done.extend(finished.drain(..).map(|completion| Completion { noticed, ..completion }));
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.stop = true;
        let waiting = std::mem::take(&mut state.jobs);
        drop(state);
        self.shared.bell.fetch_add(1, Ordering::Release);
        self.shared.changed.notify_one();
        drop(waiting);
        if let Some(thread) = self.thread.take() {
            // The thread contains the panics of its kernels; should one escape there is nothing left to save.
            let _ = thread.join();
        }
    }
}

/// The loop of a core's thread.
fn serve(shared: &Shared, mut stages: Stages, cpu: Option<u32>, waker: &Waker) {
    // Without it a thread that sleeps would wake later; a refusal only costs that.
    let _ = sched::lower_timer_slack();
    let awake = cpu.is_some_and(|cpu| affinity::restrict(&[cpu]).is_ok());
    let mut heard = 0;
    loop {
        if awake {
            while shared.bell.load(Ordering::Acquire) == heard {
                std::hint::spin_loop();
            }
            heard += 1;
        }
        let mut state = lock(&shared.state);
        while state.jobs.is_empty() && !state.stop && !awake {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stop {
            return;
        }
        let Some(job) = state.jobs.pop_front() else { continue };
        drop(state);
        let started = clock::now();
        let tag = job.tag;
        let result =
            catch_unwind(AssertUnwindSafe(|| execute(&mut stages, job))).unwrap_or(Err(DeviceError::DeviceLost));
        let finished = clock::now();
        lock(&shared.done).push(Completion { tag, result, started, finished, noticed: finished });
        wake(waker);
    }
}

/// Runs one job; its claims are released by the end.
fn execute(stages: &mut Stages, job: CoreJob) -> Result<(), DeviceError> {
    let CoreJob { stage, input, mut output, .. } = job;
    let Some(stage) = stages.get_mut(&stage) else {
        return Err(DeviceError::Invalid { what: "job", reason: "no such stage is on this core".into() });
    };
    Ok(stage.run(input.bytes()?, output.bytes_mut()?)?)
}

/// The CPUs of `cores` cores, ascending, and those that everybody else keeps to; `None` where there are too few for cores of their
/// own.
#[must_use]
pub fn apart(cores: usize) -> Option<(Vec<u32>, Vec<u32>)> {
    let root = Path::new(topology::SYSFS);
    divide(&affinity::allowed().ok()?, cores, |cpu| topology::siblings(root, cpu).unwrap_or_else(|| vec![cpu]))
}

/// Takes CPUs from the end. A CPU that shares its core with another is half as fast beside it, so nobody gets the other; where no
/// siblings are told, as in most virtual machines, neighbours count as such.
fn divide(allowed: &[u32], cores: usize, siblings: impl Fn(u32) -> Vec<u32>) -> Option<(Vec<u32>, Vec<u32>)> {
    let (mut own, mut others) = (Vec::new(), allowed.to_vec());
    while own.len() < cores {
        let cpu = *others.last()?;
        let mut same_core = siblings(cpu);
        if same_core.len() < 2 {
            same_core = vec![cpu, cpu ^ 1];
        }
        others.retain(|other| *other != cpu && !same_core.contains(other));
        own.insert(0, cpu);
    }
    (others.len() >= OTHERS).then_some((own, others))
}

/// Host memory for the blocks of cores.
pub struct CoreMemory {
    budget: Arc<Budget>,
}

impl Default for CoreMemory {
    fn default() -> Self {
        Self { budget: Budget::new(&DeviceLimits::default(), headway_core::units::Bytes(0)) }
    }
}

impl CoreMemory {
    /// A buffer of ordinary host memory, all of whose pages are there.
    ///
    /// # Errors
    /// [`DeviceError::Refused`], [`DeviceError::OutOfMemory`].
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        let reservation = self.budget.reserve(1, bytes as u64, 0)?;
        let buffer = Buffer::new(HeapMemory::pageable(bytes)?, reservation);
        // The system gives pages when they are first written, which can take as long as a whole job.
        buffer.claim(0..bytes, Access::Write)?.bytes_mut()?.fill(0);
        Ok(buffer)
    }
}

/// Time from handing a job to a core to the poll that sees its end.
///
/// # Errors
/// The job's.
pub fn timed(core: &Core, job: CoreJob) -> Result<Nanos, DeviceError> {
    let submitted = clock::now();
    core.submit(job);
    let mut done = Vec::new();
    loop {
        core.poll(&mut done);
        if let Some(completion) = done.pop() {
            completion.result?;
            return Ok(completion.noticed.saturating_sub(submitted));
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_core::plan::block;
    use headway_kernels::Cipher;

    fn portion() -> Portion {
        let parameters = Cipher { key: [1; 16], iv: [2; 16] }.parameters();
        Portion { stream: "s".to_owned(), parameters, item: 0 }
    }

    fn stages(portions: usize) -> Stages {
        let portions = vec![portion(); portions];
        let kernel = headway_kernels::find("aes128-cbc").unwrap();
        [((3, 0, 0), CoreStage::new(kernel, &portions).unwrap())].into()
    }

    fn block() -> (Buffer, Buffer, usize) {
        let memory = CoreMemory::default();
        let bytes = block::block_bytes([32]).0 as usize;
        let (input, output) = (memory.buffer(bytes).unwrap(), memory.buffer(bytes).unwrap());
        let mut span = input.claim(0..bytes, Access::Write).unwrap();
        block::write_header(span.bytes_mut().unwrap(), 0, &[32]).unwrap();
        (input, output, bytes)
    }

    fn job(tag: u64, stage: StepOperation, (input, output, bytes): &(Buffer, Buffer, usize)) -> CoreJob {
        let (input, output) = (input.claim(0..*bytes, Access::Read), output.claim(0..*bytes, Access::Write));
        CoreJob { tag, stage, input: input.unwrap(), output: output.unwrap() }
    }

    #[test]
    fn a_core_goes_on_with_its_chain_from_job_to_job_and_wakes_whoever_waits() {
        let woken = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&woken);
        let waker: Waker = Arc::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        let core = Core::start(0, stages(1), None, waker).unwrap();
        let blocks = block();
        let result = |blocks: &(Buffer, Buffer, usize)| {
            let span = blocks.1.claim(0..blocks.2, Access::Read).unwrap();
            span.bytes().unwrap()[block::header_bytes(1)..][..32].to_vec()
        };
        timed(&core, job(7, (3, 0, 0), &blocks)).unwrap();
        let first = result(&blocks);
        timed(&core, job(8, (3, 0, 0), &blocks)).unwrap();
        let second = result(&blocks);
        drop(core);
        assert_eq!(woken.load(Ordering::SeqCst), 2);
        // One message of 64 zero bytes.
        let reference = headway_kernels::reference("aes128-cbc").unwrap();
        let size = block::block_bytes([64]).0 as usize;
        let (mut input, mut output) = (vec![0; size], vec![0; size]);
        block::write_header(&mut input, 0, &[64]).unwrap();
        let mut state = vec![0; reference.state_bytes(1)];
        reference.init_state(&[portion()], &mut state).unwrap();
        reference.run(&input, &mut output, &mut state).unwrap();
        assert_eq!(output[block::header_bytes(1)..][..64], [first, second].concat());
    }

    #[test]
    fn a_job_for_a_stage_that_is_elsewhere_fails_and_the_core_goes_on() {
        let core = Core::start(0, stages(1), None, Arc::new(|| {})).unwrap();
        let blocks = block();
        assert!(timed(&core, job(1, (9, 0, 0), &blocks)).is_err());
        timed(&core, job(2, (3, 0, 0), &blocks)).unwrap();
    }

    #[test]
    fn dropping_a_core_releases_what_waits() {
        let core = Core::start(0, stages(1), None, Arc::new(|| {})).unwrap();
        let all: Vec<_> = (0..8).map(|_| block()).collect();
        all.iter().for_each(|blocks| core.submit(job(0, (3, 0, 0), blocks)));
        drop(core);
        all.iter().for_each(|blocks| drop(blocks.1.claim(0..blocks.2, Access::Write).unwrap()));
    }

    #[test]
    fn cores_get_cpus_of_their_own_without_siblings_and_leave_others_two() {
        let all: Vec<u32> = (0..8).collect();
        let alone = |cpu: u32| vec![cpu];
        let far = |cpu: u32| vec![cpu % 4, cpu % 4 + 4];
        assert_eq!(divide(&all, 2, far), Some((vec![6, 7], vec![0, 1, 4, 5])));
        assert_eq!(divide(&all, 3, far), Some((vec![5, 6, 7], vec![0, 4])));
        assert_eq!(divide(&all, 4, far), None);
        assert_eq!(divide(&all, 2, alone), Some((vec![5, 7], vec![0, 1, 2, 3])));
        assert_eq!(divide(&all[..2], 1, alone), None);
        assert_eq!(divide(&[], 1, alone), None);
    }
}
