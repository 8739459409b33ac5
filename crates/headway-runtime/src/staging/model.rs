//! Where threads meet, under a scheduler that tries many interleavings: two workers, three chunks, whole or shared, both
//! directions, a failure at each step. The same sources as in the product, over primitives of the model checker.

#[path = "exchange.rs"]
#[expect(dead_code, reason = "the model has no timeouts")]
#[expect(clippy::duplicate_mod, reason = "compiled over other primitives")]
mod exchange;
#[path = "workers.rs"]
#[expect(dead_code, reason = "the model does without time")]
#[expect(clippy::duplicate_mod, reason = "compiled over other primitives")]
mod workers;

mod sync {
    use std::time::Duration;

    pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    pub(super) use shuttle::sync::{Arc, Mutex, MutexGuard};
    pub(super) use shuttle::thread::{Thread, current};

    pub(super) fn spin_until(mut ready: impl FnMut() -> bool) -> bool {
        ready()
    }

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    /// Without a bound, so that a lost wake-up is a deadlock.
    pub(super) fn park(_: Option<Duration>) {
        shuttle::thread::park();
    }
}

use headway_core::decisions::staging::{Flow, LinkShape, Order, Outcome, Pipeline, Task};
use headway_device::DeviceError;

use self::exchange::{Ended, Exchange, Fault, Part, Round};
use self::sync::{Arc, Mutex};
use self::workers::{Signal, Workers};

const CHUNKS: u64 = 3;
const WORKERS: usize = 2;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    Nothing,
    Open(u64),
    Worker(u64),
    Engine(u64),
    Cancel(u64),
}

impl Part for u32 {
    fn is_empty(&self) -> bool {
        false
    }
}

struct Job {
    exchange: Exchange<u32>,
    /// The chunk in each part of each buffer; locked while it is used, by one at a time.
    buffers: Vec<Vec<Mutex<Option<u64>>>>,
    /// How often a worker copied each part of each chunk.
    copied: Mutex<[Vec<u32>; CHUNKS as usize]>,
    failing: Failing,
    flow: Flow,
}

impl Job {
    /// The parts of a chunk; nobody has the buffer.
    fn open(&self, task: Task) -> Result<Vec<u32>, Fault> {
        let parts = &self.buffers[task.buffer as usize];
        parts.iter().for_each(|part| drop(part.try_lock().expect("nobody has a chunk that is begun")));
        if self.failing == Failing::Open(task.chunk) {
            Err(Fault::Panic)
        } else {
            Ok((0..parts.len() as u32).collect())
        }
    }

    fn copy(&self, task: Task, part: u32) -> Result<(), Fault> {
        let mut place =
            self.buffers[task.buffer as usize][part as usize].try_lock().expect("a part has one user at a time");
        self.copied.lock().unwrap()[task.chunk as usize][part as usize] += 1;
        match self.flow {
            Flow::In => *place = Some(task.chunk),
            Flow::Out => assert_eq!(place.take(), Some(task.chunk)),
        }
        shuttle::thread::yield_now();
        if self.failing == Failing::Worker(task.chunk) { Err(Fault::Panic) } else { Ok(()) }
    }

    fn fly(&self, task: Task) -> Result<(), Fault> {
        for place in &self.buffers[task.buffer as usize] {
            let mut place = place.try_lock().expect("the engine has a buffer to itself");
            match self.flow {
                Flow::In => assert_eq!(place.take(), Some(task.chunk)),
                Flow::Out => *place = Some(task.chunk),
            }
        }
        if self.failing == Failing::Engine(task.chunk) {
            return Err(Fault::Device(DeviceError::DeviceLost));
        }
        Ok(())
    }
}

/// The driver, as [`super::drive`] does it; the engine ends what it has when there is nothing else to do.
fn transfer(workers: &Workers<Arc<Job>>, flow: Flow, (buffers, parts): (u32, u32), failing: Failing) -> (Outcome, u64) {
    let driver = Signal::here();
    let shape = LinkShape { parts, buffers, in_flight: 2 };
    let pipeline = Pipeline::new(flow, Order::Arrival, CHUNKS, &[shape]);
    let mut job = Arc::new(Job {
        exchange: Exchange::new(pipeline, &[WORKERS], &driver),
        buffers: (0..buffers).map(|_| (0..parts).map(|_| Mutex::new(None)).collect()).collect(),
        copied: Mutex::new([(); CHUNKS as usize].map(|()| vec![0; parts as usize])),
        failing,
        flow,
    });
    let hired = workers.reserve(WORKERS);
    assert_eq!(hired.len(), WORKERS, "a worker is late");
    workers.offer(Arc::clone(&job), WORKERS - hired.len());
    hired.into_iter().for_each(|worker| workers.call(worker, Arc::clone(&job)));
    let (mut round, mut ended, mut flying) = (Round::default(), Vec::new(), Vec::new());
    let mut flights = 0;
    let outcome = loop {
        let outcome = job.exchange.round(&mut ended, |_, wanted| wanted, &mut round);
        for (_, task) in round.tasks.drain(..) {
            flights += 1;
            if failing == Failing::Cancel(flights) {
                job.exchange.cancel();
            }
            flying.push(task);
        }
        round.called.drain(..).for_each(|(_, worker)| workers.call(worker, Arc::clone(&job)));
        if let Some(outcome) = outcome {
            break outcome;
        }
        if driver.take() {
            continue;
        }
        if flying.is_empty() {
            driver.wait();
        } else {
            let task: Task = flying.remove(0);
            ended.push(Ended { link: 0, buffer: task.buffer, result: job.fly(task) });
        }
    };
    workers.recall(|other| Arc::ptr_eq(other, &job));
    job.exchange.dismiss().into_iter().for_each(|(_, worker)| workers.release(worker));
    while Arc::get_mut(&mut job).is_none() {
        shuttle::thread::yield_now();
    }
    let copied = job.copied.lock().unwrap().clone();
    assert!(copied.iter().flatten().all(|times| *times <= 1));
    let (prefix, _) = job.exchange.remains();
    if outcome == Outcome::Complete {
        assert!(prefix == CHUNKS && copied.iter().flatten().all(|times| *times == 1));
    }
    (outcome, prefix)
}

/// Two transfers in a row by the same workers, the second without a fault.
fn scenario(flow: Flow, shape: (u32, u32), failing: Failing) {
    let workers: Arc<Workers<Arc<Job>>> = Arc::new(Workers::new());
    let threads: Vec<_> = (0..WORKERS)
        .map(|_| {
            let workers = Arc::clone(&workers);
            shuttle::thread::spawn(move || {
                let me = workers.enlist();
                workers.live(&me, |job| {
                    job.exchange.serve(0, me.index, |task| job.open(task), |task, part| job.copy(task, part))
                });
            })
        })
        .collect();
    while workers.len() < WORKERS {
        shuttle::thread::yield_now();
    }
    let (outcome, prefix) = transfer(&workers, flow, shape, failing);
    match failing {
        Failing::Nothing => assert_eq!(outcome, Outcome::Complete),
        Failing::Open(chunk) | Failing::Worker(chunk) | Failing::Engine(chunk) => {
            assert_eq!(outcome, Outcome::Failed { chunk });
            assert!(prefix <= chunk);
        }
        Failing::Cancel(_) => assert!(matches!(outcome, Outcome::Cancelled | Outcome::Complete)),
    }
    assert_eq!(transfer(&workers, flow, shape, Failing::Nothing).0, Outcome::Complete);
    workers.close();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // Nobody is lost: both are idle again.
    assert_eq!(workers.reserve(WORKERS + 1).len(), WORKERS);
}

fn explore(flow: Flow) {
    let faults = (0..CHUNKS)
        .flat_map(|at| [Failing::Open(at), Failing::Worker(at), Failing::Engine(at), Failing::Cancel(at + 1)])
        .chain([Failing::Nothing]);
    for failing in faults {
        for shape in [(1, 1), (2, 1), (4, 1), (1, 2), (3, 2)] {
            shuttle::check_random(move || scenario(flow, shape, failing), 40);
            shuttle::check_pct(move || scenario(flow, shape, failing), 40, 3);
        }
    }
}

#[test]
fn no_interleaving_of_two_workers_on_the_way_in_deadlocks_or_moves_a_chunk_twice() {
    explore(Flow::In);
}

#[test]
fn no_interleaving_of_two_workers_on_the_way_out_deadlocks_or_moves_a_chunk_twice() {
    explore(Flow::Out);
}
