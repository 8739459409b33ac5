//! Where threads meet, under a scheduler that tries many interleavings: two workers, three chunks, whole or shared, both
//! directions, a failure at each step, a second link that is let go. The same sources as in the product, over primitives of
//! the model checker.

#[path = "exchange.rs"]
#[expect(dead_code, reason = "the model has no timeouts")]
#[expect(clippy::duplicate_mod, reason = "compiled over other primitives")]
mod exchange;
#[path = "line.rs"]
#[expect(dead_code, reason = "the model does not look at the clock")]
#[expect(clippy::duplicate_mod, reason = "compiled over other primitives")]
mod line;
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

use headway_core::decisions::engine_line::{FlowClass, LineEntry, LineParty};
use headway_core::decisions::staging::{
    BufferedChunk, LinkShape, StagingDirection, StagingOutcome, StagingPipeline, SubmitOrder,
};
use headway_device::DeviceError;

use self::exchange::{ChunkPart, Ended, Exchange, Fault, Round};
use self::line::{Line, Place};
use self::sync::{Arc, AtomicU32, Mutex, Ordering};
use self::workers::{Signal, Workers};

const CHUNKS: u64 = 3;
const WORKERS: usize = 2;
/// Nobody lets go of a link.
const NEVER: u32 = u32::MAX;

/// A job and the link that a worker serves.
type Call = (Arc<ModelTransfer>, usize);

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    Nothing,
    Open(u64),
    Worker(u64),
    Engine(u64),
    Cancel(u64),
}

impl ChunkPart for u32 {
    fn is_empty(&self) -> bool {
        false
    }
}

struct ModelTransfer {
    exchange: Exchange<u32>,
    /// The chunk in each part of each buffer of each link; locked while it is used, by one at a time.
    buffers: Vec<Vec<Vec<Mutex<Option<u64>>>>>,
    /// How often a worker copied each part of each chunk.
    copied: Mutex<[Vec<u32>; CHUNKS as usize]>,
    failing: Failing,
    flow: StagingDirection,
}

impl ModelTransfer {
    /// The parts of a chunk; nobody has the buffer.
    fn open(&self, link: usize, task: BufferedChunk) -> Result<Vec<u32>, Fault> {
        let parts = &self.buffers[link][task.buffer as usize];
        parts.iter().for_each(|part| drop(part.try_lock().expect("nobody has a chunk that is begun")));
        if self.failing == Failing::Open(task.chunk) {
            Err(Fault::Panic)
        } else {
            Ok((0..parts.len() as u32).collect())
        }
    }

    fn copy(&self, link: usize, task: BufferedChunk, part: u32) -> Result<(), Fault> {
        let mut place =
            self.buffers[link][task.buffer as usize][part as usize].try_lock().expect("a part has one user at a time");
        self.copied.lock().unwrap()[task.chunk as usize][part as usize] += 1;
        match self.flow {
            StagingDirection::In => *place = Some(task.chunk),
            StagingDirection::Out => assert_eq!(place.take(), Some(task.chunk)),
        }
        shuttle::thread::yield_now();
        if self.failing == Failing::Worker(task.chunk) { Err(Fault::Panic) } else { Ok(()) }
    }

    fn fly(&self, link: usize, task: BufferedChunk) -> Result<(), Fault> {
        for place in &self.buffers[link][task.buffer as usize] {
            let mut place = place.try_lock().expect("the engine has a buffer to itself");
            match self.flow {
                StagingDirection::In => assert_eq!(place.take(), Some(task.chunk)),
                StagingDirection::Out => *place = Some(task.chunk),
            }
        }
        if self.failing == Failing::Engine(task.chunk) {
            return Err(Fault::Device(DeviceError::DeviceLost));
        }
        Ok(())
    }
}

/// The driver, as [`super::drive`] does it, with the workers of each link; the engine ends what it has when there is nothing else
/// to do. The second link is let go when `let_go` chunks have been submitted.
fn transfer(
    pools: &[Arc<Workers<Call>>],
    flow: StagingDirection,
    (buffers, parts): (u32, u32),
    failing: Failing,
    let_go: u32,
) -> (StagingOutcome, u64) {
    let driver = Signal::here();
    let links = pools.len();
    let pipeline = StagingPipeline::new(
        flow,
        SubmitOrder::Arrival,
        CHUNKS,
        &vec![LinkShape { parts, buffers, in_flight: 2 }; links],
    );
    let parted = || (0..parts).map(|_| Mutex::new(None)).collect();
    let mut job = Arc::new(ModelTransfer {
        exchange: Exchange::new(pipeline, &vec![WORKERS; links], &driver),
        buffers: (0..links).map(|_| (0..buffers).map(|_| parted()).collect()).collect(),
        copied: Mutex::new([(); CHUNKS as usize].map(|()| vec![0; parts as usize])),
        failing,
        flow,
    });
    for (link, workers) in pools.iter().enumerate() {
        let hired = workers.reserve(WORKERS);
        assert_eq!(hired.len(), WORKERS, "a worker is late");
        hired.into_iter().for_each(|worker| workers.call(worker, (Arc::clone(&job), link)));
    }
    let (mut round, mut ended, mut flying) = (Round::default(), Vec::new(), Vec::new());
    let (mut flights, mut retired, mut recalled) = (0, false, false);
    let outcome = loop {
        if flights >= let_go && !retired {
            retired = true;
            job.exchange.retire(1, &mut round.called);
        }
        if retired && !recalled && job.exchange.worker_is_done(1) {
            recalled = true;
            pools[1].recall(|(other, link)| Arc::ptr_eq(other, &job) && *link == 1);
        }
        let outcome = job.exchange.round(&mut ended, |_, wanted| wanted, &mut round);
        for (link, task) in round.tasks.drain(..) {
            flights += 1;
            if failing == Failing::Cancel(u64::from(flights)) {
                job.exchange.cancel();
            }
            flying.push((link, task));
        }
        round.called.drain(..).for_each(|(link, worker)| pools[link].call(worker, (Arc::clone(&job), link)));
        if let Some(outcome) = outcome {
            break outcome;
        }
        if driver.take() {
            continue;
        }
        if flying.is_empty() {
            driver.wait();
        } else {
            let (link, task) = flying.remove(0);
            ended.push(Ended { link, buffer: task.buffer, result: job.fly(link, task) });
        }
    };
    pools.iter().for_each(|workers| workers.recall(|(other, _)| Arc::ptr_eq(other, &job)));
    job.exchange.dismiss().into_iter().for_each(|(link, worker)| pools[link].release(worker));
    while Arc::get_mut(&mut job).is_none() {
        shuttle::thread::yield_now();
    }
    let copied = job.copied.lock().unwrap().clone();
    assert!(copied.iter().flatten().all(|times| *times <= 1));
    let (prefix, _) = job.exchange.remains();
    if outcome == StagingOutcome::Complete {
        assert!(prefix == CHUNKS && copied.iter().flatten().all(|times| *times == 1));
    }
    (outcome, prefix)
}

/// Two transfers in a row by the same workers over so many links, the second without a fault.
fn scenario(links: usize, flow: StagingDirection, shape: (u32, u32), failing: Failing, let_go: u32) {
    let pools: Vec<Arc<Workers<Call>>> = (0..links).map(|_| Arc::new(Workers::new())).collect();
    let enlist = |workers: &Arc<Workers<Call>>| {
        let workers = Arc::clone(workers);
        shuttle::thread::spawn(move || {
            let me = workers.enlist();
            workers.live(&me, |(job, link)| {
                let link = *link;
                job.exchange.serve(link, me.index, |task| job.open(link, task), |task, part| job.copy(link, task, part))
            });
        })
    };
    let threads: Vec<_> = pools.iter().flat_map(|workers| (0..WORKERS).map(|_| enlist(workers))).collect();
    while pools.iter().any(|workers| workers.len() < WORKERS) {
        shuttle::thread::yield_now();
    }
    let (outcome, prefix) = transfer(&pools, flow, shape, failing, let_go);
    match failing {
        Failing::Nothing => assert_eq!(outcome, StagingOutcome::Complete),
        Failing::Open(chunk) | Failing::Worker(chunk) | Failing::Engine(chunk) => {
            assert_eq!(outcome, StagingOutcome::Failed { chunk });
            assert!(prefix <= chunk);
        }
        Failing::Cancel(_) => assert!(matches!(outcome, StagingOutcome::Cancelled | StagingOutcome::Complete)),
    }
    assert_eq!(transfer(&pools, flow, shape, Failing::Nothing, NEVER).0, StagingOutcome::Complete);
    pools.iter().for_each(|workers| workers.close());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // Nobody is lost: all are idle again.
    assert!(pools.iter().all(|workers| workers.reserve(WORKERS + 1).len() == WORKERS));
}

fn explore(flow: StagingDirection) {
    let faults = (0..CHUNKS)
        .flat_map(|at| [Failing::Open(at), Failing::Worker(at), Failing::Engine(at), Failing::Cancel(at + 1)])
        .chain([Failing::Nothing]);
    for failing in faults {
        for shape in [(1, 1), (2, 1), (4, 1), (1, 2), (3, 2)] {
            shuttle::check_random(move || scenario(1, flow, shape, failing, NEVER), 40);
            shuttle::check_pct(move || scenario(1, flow, shape, failing, NEVER), 40, 3);
        }
    }
}

#[test]
fn no_interleaving_of_two_workers_on_the_way_in_deadlocks_or_moves_a_chunk_twice() {
    explore(StagingDirection::In);
}

#[test]
fn no_interleaving_of_two_workers_on_the_way_out_deadlocks_or_moves_a_chunk_twice() {
    explore(StagingDirection::Out);
}

#[test]
fn no_interleaving_of_letting_go_of_a_link_leaves_a_chunk_in_it() {
    for flow in [StagingDirection::In, StagingDirection::Out] {
        for let_go in 0..=CHUNKS as u32 {
            for shape in [(1, 1), (2, 1), (2, 2)] {
                shuttle::check_random(move || scenario(2, flow, shape, Failing::Nothing, let_go), 60);
                shuttle::check_pct(move || scenario(2, flow, shape, Failing::Nothing, let_go), 60, 3);
            }
        }
    }
}

/// Copies of threads that share two engines: each takes its engines twice, and one goes while it waits or has its turn. Beside them a plan,
/// whose steps do not wait.
fn share_a_line() {
    let entry = |party, engine, second, limit| {
        let class = if party == LineParty::Copies { FlowClass::Normal } else { FlowClass::Bulk };
        LineEntry { engine, second, ..LineEntry::new(class, party, limit) }
    };
    let entries = [
        entry(LineParty::Copies, 0, None, 2),
        entry(LineParty::Copies, 0, Some(1), 2),
        entry(LineParty::Copies, 1, Some(0), 2),
        entry(LineParty::Staging, 0, None, 1),
    ];
    let line = Line::new();
    let on_engines = Arc::new([0; 8].map(AtomicU32::new));
    let copy = |entry: LineEntry| {
        let (line, on_engines) = (Arc::clone(&line), Arc::clone(&on_engines));
        shuttle::thread::spawn(move || {
            let rooms: Vec<usize> = [Some(entry.engine), entry.second]
                .into_iter()
                .flatten()
                .map(|engine| 4 * engine as usize + entry.party as usize)
                .collect();
            let signal = Signal::here();
            let mut place = Place::new(&line, entry).with_signal(&signal);
            for _ in 0..2 {
                while !place.take() {
                    signal.wait();
                }
                for room in &rooms {
                    assert!(on_engines[*room].fetch_add(1, Ordering::Relaxed) < entry.limit, "{entry:?}");
                }
                shuttle::thread::yield_now();
                for room in &rooms {
                    on_engines[*room].fetch_sub(1, Ordering::Relaxed);
                }
                place.release();
            }
            if entry.second.is_some() {
                place.take();
            }
        })
    };
    let plan = {
        let line = Arc::clone(&line);
        shuttle::thread::spawn(move || {
            let step = LineEntry::new(FlowClass::Guaranteed, LineParty::Planned, 1);
            let mut steps = [Place::new(&line, step), Place::new(&line, step)];
            steps.iter_mut().for_each(Place::hold);
            shuttle::thread::yield_now();
        })
    };
    let threads = entries.map(copy);
    threads.into_iter().chain([plan]).for_each(|thread| thread.join().unwrap());
    let mut last = Place::new(&line, entries[0]);
    assert!(last.take() && last.ahead().all == 0, "the line is idle again");
}

#[test]
fn no_interleaving_at_a_line_loses_a_turn_or_exceeds_a_limit() {
    shuttle::check_random(share_a_line, 1_000);
    shuttle::check_pct(share_a_line, 1_000, 3);
}
