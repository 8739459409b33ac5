//! Tasks as threads of this process that share GPUs through its own arbiter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use headway_core::decisions::engine_lock::EngineWork;
use headway_core::decisions::sharing::{ArbiterParameters, ClusterId, ClusterParameters};
use headway_core::files::error::Loaded;
use headway_core::files::machine::Machine;
use headway_core::files::workload::{SharingTable, Workload, WorkloadTask};
use headway_core::log::RunSource;
use headway_core::units::{Bytes, Nanos};
use headway_device::gpu::Gpu;
use headway_os::{clock, threads};
use headway_runtime::sharing::{Sharing, TaskShape};
use headway_trace::sharing::{CompletedJob, Doing, GpuEngine, JobBounds, JobSpan, Unit};

use super::super::{Progress, RunOptions};
use super::Ran;
use super::segments::{Course, DeviceTask, Done};
use crate::jobs::{DoneJob, HAND_OVER, Moving, ObservedMaxima, Operated, observed};
use crate::share::Model;
use crate::{Error, Failure, gpus};

/// Time for threads to get ready.
const LEAD: Nanos = Nanos(100_000_000);
/// Waits shorter than this are not drawn.
const SHORT: Nanos = Nanos(1_000);

#[expect(clippy::too_many_arguments, reason = "called once, by the function that has all of it")]
pub(super) fn run(
    source: RunSource,
    machine: &Machine,
    model: &Model,
    workload: &Loaded<Workload>,
    rules: &SharingTable,
    options: &RunOptions,
    seed: u64,
    progress: &mut impl FnMut(Progress),
) -> Result<Ran, Error> {
    let tasks = &workload.value.tasks;
    let gpus = open(source, machine, model, options)?;
    let mut own = Vec::new();
    for at in 0..tasks.len() {
        progress(Progress { phase: "preparing", done: at as u64, total: tasks.len() as u64 });
        let seed = seed.wrapping_add(at as u64);
        let mut task = DeviceTask::open(workload, at, options.library.as_ref(), &gpus, seed)?;
        task.warm_up()?;
        own.push(task);
    }
    let count = model.report.gpus.len() as u32;
    let tokens = rules.tokens(count);
    let arbiter = ArbiterParameters::new(vec![ClusterParameters::equal(count, tokens)], rules.engines());
    let sharing = Sharing::local(arbiter).map_err(Failure::Shared)?;
    let duration = options.duration.unwrap_or(workload.value.duration);
    let done = run_all(&sharing, model, rules, tasks, &mut own, duration, options, progress)?;
    let (mut verified, mut not_compared) = (0, Vec::new());
    for (at, (task, one)) in own.iter().zip(&done).enumerate().filter(|_| options.verify) {
        progress(Progress { phase: "verifying", done: at as u64, total: tasks.len() as u64 });
        if !task.is_comparable() {
            not_compared.push(format!("`{}`", tasks[at].id));
            continue;
        }
        task.verify(&one.jobs, &options.interrupt)?;
        verified += one.jobs.len() as u64;
    }
    let first = done.iter().flat_map(|one| &one.jobs).map(|job| job.release).min().unwrap_or(0);
    let seen: Vec<_> =
        tasks.iter().zip(&done).map(|(task, one)| (task.period, ObservedMaxima::of(&one.jobs))).collect();
    let analysis = observed(count, tokens, rules.engines(), model.peer, &seen, false);
    let bound = |bound: &headway_core::analysis::sharing::TaskBound| {
        Some(JobBounds { token: bound.token_wait, engines: bound.engine_wait, blocking: bound.blocking })
    };
    let mut bounds: Vec<_> = analysis.tasks.iter().map(bound).collect();
    bounds.resize(tasks.len(), None);
    let two = rules.copy_engines == 2;
    let mut jobs = Vec::new();
    for (at, (task, one)) in tasks.iter().zip(&done).enumerate() {
        for (job, operations) in one.jobs.iter().zip(&one.operations) {
            jobs.push(logged(at as u32, task, job, operations, two, first));
        }
    }
    jobs.sort_by_key(|job| (job.done, job.task));
    let interrupted = done.iter().any(|one| one.interrupted);
    let mut notes = vec![format!(
        "bounds rest on the longest operations seen in this run and {HAND_OVER} for each hand-over, and hold if holders get a CPU"
    )];
    if !not_compared.is_empty() {
        notes.push(format!("results not compared: no CPU form ({})", not_compared.join(", ")));
    }
    Ok(Ran { jobs, bounds, verified, notes, interrupted })
}

/// The GPUs that the tasks share, in the order of the model.
fn open(source: RunSource, machine: &Machine, model: &Model, options: &RunOptions) -> Result<Vec<Arc<dyn Gpu>>, Error> {
    let (backend, name) = match source {
        RunSource::Cuda => (gpus::CopyBackend::Cuda, None),
        _ => (gpus::CopyBackend::Emu, options.machine.as_deref()),
    };
    let all = gpus::open(backend, name, Some(machine.gpus().count()))?;
    let named = machine.gpus().map(|gpu| machine.endpoints[gpu.at()].id.as_str());
    let wanted = named.zip(all).filter(|(name, _)| model.report.gpus.iter().any(|gpu| gpu == name));
    Ok(wanted.map(|(_, gpu)| gpu).collect())
}

#[expect(clippy::too_many_arguments, reason = "called once, by the function that has all of it")]
fn run_all(
    sharing: &Sharing,
    model: &Model,
    rules: &SharingTable,
    tasks: &[WorkloadTask],
    own: &mut [DeviceTask],
    duration: Nanos,
    options: &RunOptions,
    progress: &mut impl FnMut(Progress),
) -> Result<Vec<Done>, Error> {
    let begin = clock::now().saturating_add(LEAD);
    let moving = Moving { chunk: rules.chunk.map(|chunk| chunk.0), peer: model.peer || model.report.gpus.len() == 1 };
    let mut registered = Vec::new();
    for task in tasks {
        let shape = TaskShape {
            name: task.id.clone(),
            cluster: ClusterId(0),
            period: task.period,
            deadline: task.deadline,
            state: task.state,
            segments: task.held().to_vec(),
            thread: None,
        };
        registered.push(sharing.register(shape).map_err(Failure::Shared)?);
    }
    let works = tasks.iter().zip(own).zip(registered).map(|((task, own), mut registered)| {
        let course = Course {
            begin: begin.saturating_add(task.start),
            period: task.period,
            jobs: (duration.0 / task.period.0.max(1)).max(1),
            moving,
        };
        let work = move |stop: &AtomicBool| own.run(&course, &mut registered, stop);
        (task.id.as_str(), work)
    });
    side_by_side(works, |stop| {
        thread::sleep(Duration::from_millis(20));
        if options.interrupt.load(Ordering::Relaxed) {
            stop.store(true, Ordering::Relaxed);
        }
        let done = clock::now().saturating_sub(begin).0.min(duration.0);
        progress(Progress { phase: "running", done, total: duration.0 });
    })
}

/// Sets a flag when it is dropped, by a panic too.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does `work`, and sets `stop` unless it succeeds: nobody is waited for after a failure.
fn watched<T>(work: impl FnOnce(&AtomicBool) -> Result<T, Error>, stop: &AtomicBool) -> Result<T, Error> {
    let failed = Sets(stop);
    let done = work(stop)?;
    std::mem::forget(failed);
    Ok(done)
}

/// Runs each of the named `works` in a thread of its own, and `meanwhile` again and again until all have ended. Both are given a
/// flag that tells the works to end; it is set when one fails.
///
/// # Errors
/// The first failure; a panic is one.
fn side_by_side<'a, T: Send>(
    works: impl Iterator<Item = (&'a str, impl FnOnce(&AtomicBool) -> Result<T, Error> + Send)>,
    mut meanwhile: impl FnMut(&AtomicBool),
) -> Result<Vec<T>, Error> {
    let stop = AtomicBool::new(false);
    let results: Vec<(&str, thread::Result<Result<T, Error>>)> = thread::scope(|scope| {
        let stop = &stop;
        let spawn = |(name, work)| (name, threads::without_signals(|| scope.spawn(move || watched(work, stop))));
        let threads: Vec<_> = works.map(spawn).collect();
        while !threads.iter().all(|(_, thread)| thread.is_finished()) {
            meanwhile(stop);
        }
        threads.into_iter().map(|(name, thread)| (name, thread.join())).collect()
    });
    // A failure ends the others early, too: an end that was asked for is told only if nothing else was the matter.
    let mut ended = Vec::new();
    let mut asked = None;
    for (name, result) in results {
        match result.unwrap_or_else(|panic| Err(panicked(name, &*panic))) {
            Ok(one) => ended.push(one),
            Err(error) if error.is_interrupted() => asked = asked.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    asked.map_or(Ok(ended), Err)
}

/// That the thread of a task panicked, and with what.
fn panicked(task: &str, panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    Failure::Panicked { task: task.to_owned(), text: text.to_owned() }.into()
}

/// A job as the log has it; times count from the first release.
fn logged(
    task: u32,
    about: &WorkloadTask,
    one: &DoneJob,
    operations: &[Operated],
    two: bool,
    first: u64,
) -> CompletedJob {
    let time = |at: u64| Nanos(at.saturating_sub(first));
    let mut spans = Vec::new();
    let mut until = time(one.start);
    let mut add = |doing, end: Nanos, engines, bytes| {
        if end > until {
            let span = JobSpan { doing, begin: until, end, engines, bytes: Bytes(bytes) };
            // A short wait is part of what comes before it.
            if doing != Doing::EngineWait || span.time() >= SHORT {
                spans.push(span);
            }
            until = end;
        }
    };
    add(Doing::TokenWait, time(one.granted), [None; 2], 0);
    for operated in operations {
        let engines = engines(operated.work, one, two);
        let doing = if operated.work == EngineWork::Execute { Doing::Execute } else { Doing::Copy };
        add(Doing::Cpu, time(operated.asked.0), [None; 2], 0);
        add(Doing::EngineWait, time(operated.begun.0), engines, 0);
        add(doing, time(operated.ended.0), engines, operated.bytes);
    }
    add(Doing::Cpu, time(one.done), [None; 2], 0);
    let release = time(one.release);
    CompletedJob {
        task,
        job: one.job,
        release,
        start: time(one.start),
        deadline: release.saturating_add(about.deadline),
        done: time(one.done),
        held: [time(one.granted), time(one.released)],
        gpu: one.gpu,
        from: one.from,
        blocked: [one.token_wait(), Nanos(one.account.engine_wait)],
        spans,
    }
}

fn engines(work: EngineWork, one: &DoneJob, two: bool) -> [Option<GpuEngine>; 2] {
    let outbound = if two { Unit::D2h } else { Unit::H2d };
    let here = |unit| Some(GpuEngine { gpu: one.gpu, unit });
    match work {
        EngineWork::Execute => [here(Unit::Ee), None],
        EngineWork::CopyIn => [here(Unit::H2d), None],
        EngineWork::CopyOut => [here(outbound), None],
        EngineWork::Peer => [here(Unit::H2d), one.from.map(|gpu| GpuEngine { gpu, unit: outbound })],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Work = Box<dyn FnOnce(&AtomicBool) -> Result<u32, Error> + Send>;

    /// Ends when it is told to; a test that never does is a failure.
    fn waits() -> Work {
        Box::new(|stop| {
            while !stop.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            Ok(1)
        })
    }

    #[test]
    fn a_thread_that_panics_ends_the_others_and_is_named() {
        let panics: Work = Box::new(|_| panic!("frame {} is gone", 7));
        let works = [("left", waits()), ("right", panics), ("middle", waits())];
        let failed = side_by_side(works.into_iter(), |_| thread::yield_now()).unwrap_err();
        assert_eq!(failed.to_string(), "the thread of task `right` panicked: frame 7 is gone");
    }

    #[test]
    fn a_failure_is_told_before_the_ends_that_it_caused() {
        let fails: Work = Box::new(|_| Err(Failure::Options("no").into()));
        let ends: Work = Box::new(|stop| waits()(stop).and_then(|_| Err(Failure::Interrupted.into())));
        let works = [("left", ends), ("right", fails)];
        assert!(matches!(
            side_by_side(works.into_iter(), |_| thread::yield_now()).map_err(Error::into_failure),
            Err(Failure::Options("no"))
        ));
        assert_eq!(
            side_by_side([("one", waits())].into_iter(), |stop| stop.store(true, Ordering::Relaxed)).unwrap(),
            [1]
        );
    }
}
