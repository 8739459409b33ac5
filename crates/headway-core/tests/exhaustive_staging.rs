//! Every interleaving of small staged transfers: two workers, up to three chunks, both directions, both orders, with a
//! failure at each step and a cancellation at each step.
#![expect(clippy::disallowed_types, reason = "the sets are only asked for membership")]

use std::collections::HashSet;

use headway_core::decisions::staging::{
    BufferedChunk, EngineStep, LinkShape, StagingDirection, StagingOutcome, StagingPipeline, SubmitOrder, WorkerStep,
};

/// Most parts of a chunk.
const PARTS_MAX: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Worker {
    Idle,
    Holds(BufferedChunk, u32),
    Ended,
}

/// The pipeline, those who use it, and what they have done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    pipeline: StagingPipeline,
    /// (link, worker).
    workers: Vec<(usize, Worker)>,
    /// (link, task).
    engine: Vec<(usize, BufferedChunk)>,
    /// Filled, submitted and placed, as sets of bits.
    copied: u64,
    submitted: u64,
    placed: u64,
    /// Failures and cancellations that may still happen.
    failures: u32,
    cancels: u32,
    /// Whether the second link may still retire.
    retires: bool,
    first_failure: Option<u64>,
}

struct Case {
    flow: StagingDirection,
    order: SubmitOrder,
    chunks: u64,
    shapes: Vec<LinkShape>,
    /// Link of each worker.
    workers: Vec<usize>,
}

fn once(set: &mut u64, chunk: u64, what: &str) {
    assert_eq!(*set & 1 << chunk, 0, "chunk {chunk} was {what} twice");
    *set |= 1 << chunk;
}

impl World {
    fn new(case: &Case, failures: u32, cancels: u32) -> Self {
        Self {
            pipeline: StagingPipeline::new(case.flow, case.order, case.chunks, &case.shapes),
            workers: case.workers.iter().map(|link| (*link, Worker::Idle)).collect(),
            engine: Vec::new(),
            copied: 0,
            submitted: 0,
            placed: 0,
            failures,
            cancels,
            retires: false,
            first_failure: None,
        }
    }

    fn is_copied(&self, case: &Case, link: usize, chunk: u64) -> bool {
        (0..u64::from(case.shapes[link].parts)).all(|part| self.copied & 1 << (chunk * PARTS_MAX + part) != 0)
    }

    fn fail(&mut self, chunk: u64) {
        self.failures -= 1;
        self.first_failure = Some(chunk);
    }

    /// Every world one step on.
    fn successors(&self, case: &Case) -> Vec<Self> {
        let mut all = Vec::new();
        for (worker, (link, state)) in self.workers.iter().enumerate() {
            match state {
                Worker::Ended => {}
                Worker::Idle => all.extend(self.worker_asks(case, worker, *link)),
                Worker::Holds(task, part) => {
                    let ends = |fails| self.worker_ends(case, worker, *task, *part, fails == 1);
                    all.extend((0..=self.failures).map(ends));
                }
            }
        }
        for link in 0..case.shapes.len() {
            all.extend(self.engine_asks(case, link));
        }
        for flight in 0..self.engine.len() {
            all.extend((0..=self.failures).map(|fails| self.engine_ends(case, flight, fails == 1)));
        }
        if self.retires {
            let mut next = self.clone();
            next.retires = false;
            next.pipeline.retire(1);
            all.push(next);
        }
        if self.cancels > 0 {
            let mut next = self.clone();
            next.cancels -= 1;
            next.pipeline.cancel();
            all.push(next);
        }
        all
    }

    fn worker_asks(&self, case: &Case, worker: usize, link: usize) -> Option<Self> {
        let mut next = self.clone();
        let work = self.pipeline.work(link);
        next.workers[worker].1 = match next.pipeline.worker_next(link, worker as u32) {
            WorkerStep::Wait => {
                assert_eq!((&next, work), (self, 0), "waiting changes nothing");
                return None;
            }
            WorkerStep::Done => {
                assert!(self.pipeline.worker_is_done(link) && work == 0);
                Worker::Ended
            }
            WorkerStep::Fill(task, part) => {
                assert_eq!(case.flow, StagingDirection::In);
                assert_eq!(next.pipeline.work(link), work - 1);
                Worker::Holds(task, part)
            }
            WorkerStep::Drain(task, part) => {
                assert_eq!((case.flow, next.pipeline.work(link)), (StagingDirection::Out, work - 1));
                Worker::Holds(task, part)
            }
        };
        Some(next)
    }

    fn worker_ends(&self, case: &Case, worker: usize, task: BufferedChunk, part: u32, fails: bool) -> Self {
        let mut next = self.clone();
        let link = next.workers[worker].0;
        next.workers[worker].1 = Worker::Idle;
        if fails {
            next.fail(task.chunk);
        } else {
            once(&mut next.copied, task.chunk * PARTS_MAX + u64::from(part), "copied");
            if case.flow == StagingDirection::Out && next.is_copied(case, link, task.chunk) {
                once(&mut next.placed, task.chunk, "placed");
            }
        }
        let notified = next.pipeline.worker_done(link, task.buffer, !fails);
        let wakes = next.pipeline.engine_is_ready(link) && !self.pipeline.engine_is_ready(link);
        assert!(notified || !(wakes || next.pipeline.outcome().is_some()), "the engine would not hear of it");
        next
    }

    fn engine_asks(&self, case: &Case, link: usize) -> Option<Self> {
        let mut next = self.clone();
        let ready = self.pipeline.engine_is_ready(link);
        let step = next.pipeline.engine_next(link);
        assert_eq!(ready, matches!(step, EngineStep::Submit(_)));
        let EngineStep::Submit(task) = step else {
            assert_eq!(next, *self, "waiting changes nothing");
            return None;
        };
        if case.flow == StagingDirection::In && case.shapes[link].parts > 0 {
            assert!(self.is_copied(case, link, task.chunk), "a buffer was submitted before it was full");
        }
        let lower = (1 << task.chunk) - 1;
        let behind = (lower & !self.submitted).count_ones();
        let bound = match case.order {
            SubmitOrder::Arrival => case.shapes.iter().map(|shape| shape.buffers).sum::<u32>().saturating_sub(1),
            SubmitOrder::Index if case.shapes.len() == 1 => 0,
            SubmitOrder::Index => u32::MAX,
        };
        assert!(behind <= bound, "{behind} lower chunks were not submitted yet");
        once(&mut next.submitted, task.chunk, "submitted");
        next.engine.push((link, task));
        assert!(next.engine.iter().filter(|(of, _)| *of == link).count() <= case.shapes[link].in_flight as usize);
        Some(next)
    }

    fn engine_ends(&self, case: &Case, flight: usize, fails: bool) -> Self {
        let mut next = self.clone();
        let (link, task) = next.engine.remove(flight);
        if fails {
            next.fail(task.chunk);
        } else if case.flow == StagingDirection::In || case.shapes[link].parts == 0 {
            once(&mut next.placed, task.chunk, "placed");
        }
        next.pipeline.engine_done(link, task.buffer, !fails);
        next
    }

    fn check(&self, case: &Case) {
        for (link, shape) in case.shapes.iter().enumerate() {
            let census = self.pipeline.census(link);
            assert_eq!(census.empty + census.copying + census.full + census.flying, shape.buffers);
            let held = |(of, worker): &&(usize, Worker)| *of == link && matches!(worker, Worker::Holds(..));
            let held = self.workers.iter().filter(held).count();
            // A chunk of which some parts are copied and the others are not claimed is with nobody.
            let open = usize::from(shape.parts > 1);
            assert!((held.div_ceil(shape.parts.max(1) as usize)..=held + open).contains(&(census.copying as usize)));
            assert_eq!(census.flying as usize, self.engine.iter().filter(|(of, _)| *of == link).count());
        }
        let prefix = self.pipeline.completed_prefix();
        assert_eq!(!self.placed & ((1 << prefix) - 1), 0, "a chunk below the prefix {prefix} is not in place");
        if self.pipeline.outcome() == Some(StagingOutcome::Complete) {
            assert_eq!((self.placed, prefix), ((1 << case.chunks) - 1, case.chunks));
        }
    }

    /// Nothing can happen any more: it must be the end.
    fn check_last(&self, case: &Case) {
        let outcome = self.pipeline.outcome();
        assert!(outcome.is_some(), "deadlock: {self:?}");
        assert!(self.workers.iter().all(|(_, worker)| *worker == Worker::Ended) && self.engine.is_empty());
        for link in 0..case.shapes.len() {
            assert_eq!(self.pipeline.clone().engine_next(link), EngineStep::Done);
            assert_eq!(self.pipeline.census(link).empty, case.shapes[link].buffers, "a buffer is missing");
        }
        match outcome {
            Some(StagingOutcome::Failed { chunk }) => assert_eq!(Some(chunk), self.first_failure),
            Some(StagingOutcome::Complete) => assert_eq!(self.first_failure, None),
            Some(StagingOutcome::Cancelled) | None => {}
        }
    }

    fn check_step(&self, next: &Self) {
        assert!(next.pipeline.completed_prefix() >= self.pipeline.completed_prefix(), "the prefix went back");
        if let Some(outcome) = self.pipeline.outcome() {
            assert_eq!(next.pipeline.outcome(), Some(outcome));
            assert_eq!(next.pipeline, self.pipeline, "something changed after the end");
        }
    }
}

/// Visits every reachable world; gives the number of worlds and the outcomes seen.
fn explore(case: &Case, failures: u32, cancels: u32) -> (usize, Vec<StagingOutcome>) {
    visit(case, World::new(case, failures, cancels))
}

fn visit(case: &Case, start: World) -> (usize, Vec<StagingOutcome>) {
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    let mut outcomes = Vec::new();
    while let Some(world) = open.pop() {
        world.check(case);
        let successors = world.successors(case);
        // A cancellation, or the end of a link, may always come, but nothing may depend on it.
        if successors.iter().all(|next| next.cancels < world.cancels || next.retires != world.retires) {
            world.check_last(case);
            let outcome = world.pipeline.outcome().unwrap();
            if !outcomes.contains(&outcome) {
                outcomes.push(outcome);
            }
        }
        for next in successors {
            world.check_step(&next);
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    (seen.len(), outcomes)
}

const fn shape(workers: bool, buffers: u32, in_flight: u32) -> LinkShape {
    shared(if workers { 1 } else { 0 }, buffers, in_flight)
}

const fn shared(parts: u32, buffers: u32, in_flight: u32) -> LinkShape {
    LinkShape { parts, buffers, in_flight }
}

/// One link or two, with workers or without, with as many buffers as the paper has, and with fewer.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for flow in [StagingDirection::In, StagingDirection::Out] {
        for order in [SubmitOrder::Arrival, SubmitOrder::Index] {
            for chunks in 0..=3 {
                let mut add = |shapes: &[LinkShape], workers: &[usize]| {
                    cases.push(Case { flow, order, chunks, shapes: shapes.to_vec(), workers: workers.to_vec() });
                };
                for buffers in 1..=4 {
                    for in_flight in 1..=2 {
                        add(&[shape(true, buffers, in_flight)], &[0, 0]);
                    }
                }
                add(&[shared(2, 1, 1)], &[0, 0]);
                add(&[shared(2, 3, 2)], &[0, 0]);
                add(&[shared(3, 2, 2)], &[0, 0]);
                add(&[shared(2, 2, 1), shape(true, 2, 1)], &[0, 1]);
                add(&[shape(true, 2, 1), shape(true, 2, 2)], &[0, 1]);
                add(&[shape(true, 2, 1), shape(true, 0, 1)], &[0, 1]);
                add(&[shape(false, 2, 2)], &[]);
                add(&[shape(false, 1, 1), shape(false, 2, 2)], &[]);
                add(&[shape(false, 2, 1), shape(true, 2, 1)], &[1, 1]);
            }
        }
    }
    cases
}

#[test]
fn every_interleaving_places_every_chunk_once_and_ends() {
    for case in cases() {
        let (_, outcomes) = explore(&case, 0, 0);
        assert_eq!(outcomes, [StagingOutcome::Complete]);
    }
}

#[test]
fn a_failure_at_any_step_ends_with_all_buffers_back_and_the_prefix_in_place() {
    for case in cases() {
        let (_, outcomes) = explore(&case, 1, 0);
        for chunk in 0..case.chunks {
            assert!(outcomes.contains(&StagingOutcome::Failed { chunk }));
        }
        assert_eq!(outcomes.len() as u64, 1 + case.chunks);
    }
}

#[test]
fn a_cancellation_at_any_step_ends_with_all_buffers_back_and_the_prefix_in_place() {
    for case in cases() {
        let (_, outcomes) = explore(&case, 0, 1);
        assert_eq!(outcomes.contains(&StagingOutcome::Cancelled), case.chunks > 0);
    }
}

#[test]
fn a_link_that_retires_at_any_step_leaves_the_rest_to_the_other() {
    let mut claimed_after = false;
    for case in cases().into_iter().filter(|case| case.shapes.len() > 1 && case.chunks > 0) {
        for failures in [0, 1] {
            let (_, outcomes) = visit(&case, World { retires: true, ..World::new(&case, failures, 0) });
            assert!(outcomes.contains(&StagingOutcome::Complete));
            assert_eq!(outcomes.len() as u64, 1 + u64::from(failures) * case.chunks);
        }
        let mut pipeline = StagingPipeline::new(case.flow, case.order, case.chunks, &case.shapes);
        pipeline.retire(1);
        assert!(pipeline.worker_is_done(1));
        claimed_after |= matches!(pipeline.engine_next(1), EngineStep::Submit(_));
    }
    assert!(!claimed_after);
}

#[test]
fn a_failure_and_a_cancellation_together_end_too() {
    let mut worlds = 0;
    for case in cases() {
        worlds += explore(&case, 1, 1).0;
    }
    // The search is not vacuous.
    assert!(worlds > 50_000, "{worlds}");
}

#[test]
fn a_link_without_buffers_carries_nothing() {
    let mut pipeline =
        StagingPipeline::new(StagingDirection::In, SubmitOrder::Arrival, 1, &[shape(true, 0, 1), shape(true, 1, 1)]);
    assert_eq!(pipeline.worker_next(0, 0), WorkerStep::Wait);
    assert_eq!(pipeline.worker_next(1, 0), WorkerStep::Fill(BufferedChunk { buffer: 0, chunk: 0 }, 0));
    assert_eq!(pipeline.worker_next(0, 0), WorkerStep::Done);
}

#[test]
fn a_worker_gets_its_own_place_in_every_chunk_while_it_is_free() {
    let mut pipeline = StagingPipeline::new(StagingDirection::In, SubmitOrder::Arrival, 2, &[shared(3, 2, 1)]);
    let mut part = |preferred| match pipeline.worker_next(0, preferred) {
        WorkerStep::Fill(task, part) => (task.chunk, part),
        step => panic!("{step:?}"),
    };
    assert_eq!([part(2), part(0), part(5)], [(0, 2), (0, 0), (0, 1)]);
    assert_eq!([part(2), part(2), part(2)], [(1, 2), (1, 0), (1, 1)]);
}

#[test]
#[should_panic(expected = "was not on the engine")]
fn an_end_that_was_never_submitted_is_our_own_defect() {
    StagingPipeline::new(StagingDirection::In, SubmitOrder::Arrival, 1, &[shape(true, 1, 1)]).engine_done(0, 0, true);
}
