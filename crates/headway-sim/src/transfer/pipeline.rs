//! One staged copy: the state machine of the product over workers and engines that take modelled times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use headway_core::decisions::staging::{
    Cuts, EngineStep, Flow, LinkShape, Order, Outcome, Pipeline, Ramp, Task, WorkerStep,
};
use headway_core::units::{Bytes, Nanos, Rate};

/// What moving a chunk over one part of its way takes: a set-up, then bytes at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Before the first byte. An engine's set-up of one chunk passes while it moves another.
    pub setup: Nanos,
    /// Of the bytes.
    pub rate: Rate,
}

/// One link of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedLink {
    /// Threads that copy between ordinary memory and pinned buffers; 0 = the memory is pinned.
    pub workers: u32,
    /// Whether they share each chunk, as the product does; else each has chunks, and two buffers, of its own (Cho 2018).
    pub shares: bool,
    /// What one of them takes.
    pub worker: Leg,
    /// Chunks on the engine at a time.
    pub in_flight: u32,
    /// The engine between host and GPU.
    pub engine: Leg,
    /// Of a relay: between it and the target.
    pub peer: Option<Leg>,
}

/// A copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Direction.
    pub flow: Flow,
    pub bytes: Bytes,
    /// Size of one buffer.
    pub buffer: Bytes,
    /// Whether chunks grow at the start (in) and shrink at the end (out).
    pub ramp: bool,
    /// In which order full buffers are submitted.
    pub order: Order,
    /// The links, the target's own first.
    pub links: Vec<StagedLink>,
}

/// Something that happened to a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagedEvent {
    /// A worker began to copy it, or its part of it.
    Copies,
    /// That worker has copied it, or its part.
    Copied,
    /// It went to the engine.
    Submitted,
    /// It left the engine, and the relay if there is one.
    Ended,
}

/// What came of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedRun {
    /// When everything is in place; [`Nanos::MAX`] = never.
    pub end: Nanos,
    /// Chunks of each link.
    pub chunks: Vec<u64>,
    /// How long each link's engine moved bytes.
    pub busy: Vec<Nanos>,
}

/// A copy without a link, which never ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the copy has no link; give it one at least")]
pub struct NoLink;

/// (when, class: ends of engines first, sequence).
type Moment = (Nanos, u8, u64);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Engine { link: usize, buffer: u32, chunk: u64 },
    Worker { link: usize, worker: u32, buffer: u32, chunk: u64 },
}

struct Run<'a, L> {
    copy: &'a Staged,
    cuts: Cuts,
    pipeline: Pipeline,
    /// Of each link, the parts of a chunk.
    parts: Vec<u32>,
    now: Nanos,
    sequence: u64,
    ends: BinaryHeap<Reverse<(Moment, End)>>,
    /// Of each link, its free workers, the lowest last.
    free: Vec<Vec<u32>>,
    /// Until when each link's engine and peer engine are taken.
    taken: Vec<[Nanos; 2]>,
    run: StagedRun,
    log: L,
}

/// Runs `copy` from time zero. `log` gets (when, link, chunk, what) in order.
///
/// # Errors
/// [`NoLink`].
pub fn simulate_staged(copy: &Staged, log: impl FnMut(Nanos, usize, u64, StagedEvent)) -> Result<StagedRun, NoLink> {
    let links = copy.links.len();
    if links == 0 {
        return Err(NoLink);
    }
    let workers: u32 = copy.links.iter().fold(0, |sum, link| sum.saturating_add(link.workers));
    let sharing = copy.links.iter().filter(|link| link.shares && link.workers > 0).count() as u32;
    let ramp = if sharing > 0 { Ramp::shared(sharing) } else { Ramp::own(workers) };
    let cuts = if copy.ramp && workers > 0 {
        Cuts::ramped(copy.flow, 0, copy.bytes, copy.buffer, ramp)
    } else {
        Cuts::even(copy.flow, 0, copy.bytes, copy.buffer)
    };
    let shapes: Vec<_> = copy.links.iter().map(|link| shape(link, &cuts, sharing)).collect();
    let mut run = Run {
        copy,
        pipeline: Pipeline::new(copy.flow, copy.order, cuts.count(), &shapes),
        parts: shapes.iter().map(|shape| shape.parts).collect(),
        cuts,
        now: Nanos::ZERO,
        sequence: 0,
        ends: BinaryHeap::new(),
        free: copy.links.iter().map(|link| (0..link.workers).rev().collect()).collect(),
        taken: vec![[Nanos::ZERO; 2]; links],
        run: StagedRun { end: Nanos::ZERO, chunks: vec![0; links], busy: vec![Nanos::ZERO; links] },
        log,
    };
    run.go_on();
    while let Some(Reverse(((at, ..), end))) = run.ends.pop() {
        run.now = at;
        run.end(end);
        run.go_on();
    }
    assert_eq!(run.pipeline.outcome(), Some(Outcome::Complete), "a pipeline without faults comes to its end");
    run.run.end = run.now;
    Ok(run.run)
}

/// `sharing` of the links have workers that share chunks.
fn shape(link: &StagedLink, cuts: &Cuts, sharing: u32) -> LinkShape {
    let in_flight = link.in_flight.max(1);
    match link.workers {
        0 => LinkShape { parts: 0, buffers: in_flight, in_flight },
        workers if link.shares => LinkShape::sharing(workers, in_flight, cuts.bound(), cuts.total(), sharing),
        workers => LinkShape { parts: 1, buffers: workers.saturating_mul(2), in_flight: in_flight.min(workers) },
    }
}

impl<L: FnMut(Nanos, usize, u64, StagedEvent)> Run<'_, L> {
    fn end(&mut self, end: End) {
        match end {
            End::Engine { link, buffer, chunk } => {
                (self.log)(self.now, link, chunk, StagedEvent::Ended);
                self.pipeline.engine_done(link, buffer, true);
            }
            End::Worker { link, worker, buffer, chunk } => {
                (self.log)(self.now, link, chunk, StagedEvent::Copied);
                self.pipeline.worker_done(link, buffer, true);
                self.free[link].push(worker);
            }
        }
    }

    /// Everybody begins what can be begun now.
    fn go_on(&mut self) {
        for link in 0..self.copy.links.len() {
            while let EngineStep::Submit(task) = self.pipeline.engine_next(link) {
                self.submit(link, task);
            }
            while let Some(worker) = self.free[link].pop() {
                let step = self.pipeline.worker_next(link, 0);
                let (WorkerStep::Fill(task, part) | WorkerStep::Drain(task, part)) = step else {
                    self.free[link].push(worker);
                    break;
                };
                (self.log)(self.now, link, task.chunk, StagedEvent::Copies);
                let leg = self.copy.links[link].worker;
                let range = self.cuts.part(task.chunk, part, self.parts[link]);
                let at = self
                    .now
                    .saturating_add(leg.setup)
                    .saturating_add(leg.rate.time_for(Bytes(range.end - range.start)));
                self.schedule(at, 1, End::Worker { link, worker, buffer: task.buffer, chunk: task.chunk });
            }
        }
    }

    fn submit(&mut self, link: usize, task: Task) {
        (self.log)(self.now, link, task.chunk, StagedEvent::Submitted);
        self.run.chunks[link] += 1;
        let StagedLink { engine, peer, .. } = self.copy.links[link];
        let moves = self.time(engine, task);
        self.run.busy[link] = self.run.busy[link].saturating_add(moves);
        // On the way in the relay comes behind the link, on the way out before it.
        let mut legs = vec![(0, engine)];
        legs.extend(peer.map(|peer| (1, peer)));
        if self.copy.flow == Flow::Out {
            legs.reverse();
        }
        let mut at = self.now;
        for (place, leg) in legs {
            let taken = self.taken[link][place];
            at = at.saturating_add(leg.setup).max(taken).saturating_add(self.time(leg, task));
            self.taken[link][place] = at;
        }
        self.schedule(at, 0, End::Engine { link, buffer: task.buffer, chunk: task.chunk });
    }

    fn time(&self, leg: Leg, task: Task) -> Nanos {
        let range = self.cuts.chunk(task.chunk);
        leg.rate.time_for(Bytes(range.end - range.start))
    }

    fn schedule(&mut self, at: Nanos, class: u8, end: End) {
        self.ends.push(Reverse(((at, class, self.sequence), end)));
        self.sequence += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::StagedEvent::{Copied, Copies, Ended, Submitted};
    use super::*;

    const MIB: u64 = 1 << 20;
    /// One byte a nanosecond.
    const UNIT: Leg = Leg { setup: Nanos::ZERO, rate: Rate(1_000_000_000) };

    const fn link(workers: u32) -> StagedLink {
        StagedLink { workers, shares: false, worker: UNIT, in_flight: 2, engine: UNIT, peer: None }
    }

    fn copy(flow: Flow, bytes: u64, buffer: u64, links: &[StagedLink]) -> Staged {
        let links = links.to_vec();
        Staged { flow, bytes: Bytes(bytes), buffer: Bytes(buffer), ramp: false, order: Order::Arrival, links }
    }

    fn end(copy: &Staged) -> u64 {
        simulate_staged(copy, |_, _, _, _| {}).unwrap().end.0
    }

    /// The H200's figures, as far as one link is concerned: workers at 11.3 GB/s, the link at 55.5.
    fn h200(flow: Flow, bytes: u64, workers: u32, ramp: bool) -> Staged {
        let leg = |setup, rate| Leg { setup: Nanos(setup), rate: Rate(rate) };
        let link = StagedLink {
            workers,
            shares: false,
            worker: leg(0, 11_300_000_000),
            in_flight: 2,
            engine: leg(7_000, 55_500_000_000),
            peer: None,
        };
        Staged { ramp, ..copy(flow, bytes, 4 * MIB, &[link]) }
    }

    fn events(copy: &Staged) -> (StagedRun, Vec<(u64, u64, StagedEvent)>) {
        let mut log = Vec::new();
        let run = simulate_staged(copy, |at, _, chunk, what| log.push((at.0, chunk, what))).unwrap();
        (run, log)
    }

    #[test]
    fn two_chunks_of_one_worker_overlap_as_computed_by_hand() {
        let (run, log) = events(&copy(Flow::In, 128, 64, &[link(1)]));
        let expected = [
            (0, 0, Copies),
            (64, 0, Copied),
            (64, 0, Submitted),
            (64, 1, Copies),
            (128, 0, Ended),
            (128, 1, Copied),
            (128, 1, Submitted),
            (192, 1, Ended),
        ];
        assert_eq!(log, expected);
        assert_eq!(run, StagedRun { end: Nanos(192), chunks: vec![2], busy: vec![Nanos(128)] });
        let (run, log) = events(&copy(Flow::Out, 128, 64, &[link(1)]));
        let expected = [
            (0, 0, Submitted),
            (64, 0, Ended),
            (64, 1, Submitted),
            (64, 0, Copies),
            (128, 1, Ended),
            (128, 0, Copied),
            (128, 1, Copies),
            (192, 1, Copied),
        ];
        assert_eq!(log, expected);
        assert_eq!(run.end, Nanos(192));
    }

    #[test]
    fn a_second_chunk_in_flight_hides_the_engines_set_up() {
        let slow = Leg { setup: Nanos(10), ..UNIT };
        let with = |in_flight| StagedLink { in_flight, engine: slow, ..link(0) };
        assert_eq!(end(&copy(Flow::In, 640, 64, &[with(1)])), 10 * (10 + 64));
        assert_eq!(end(&copy(Flow::In, 640, 64, &[with(2)])), 10 + 640);
    }

    #[test]
    fn one_worker_slower_than_the_engine_sets_the_pace() {
        let slow = StagedLink { worker: Leg { rate: Rate(500_000_000), ..UNIT }, ..link(1) };
        assert_eq!(end(&copy(Flow::In, 640, 64, &[slow])), 2 * 640 + 64);
        assert_eq!(end(&copy(Flow::Out, 640, 64, &[slow])), 64 + 2 * 640);
    }

    #[test]
    fn a_relay_adds_its_second_leg_once_and_a_slow_link_takes_less() {
        let relay = StagedLink { peer: Some(UNIT), ..link(0) };
        for flow in [Flow::In, Flow::Out] {
            assert_eq!(end(&copy(flow, 640, 64, &[relay])), 64 + 640);
            let slow = StagedLink { engine: Leg { rate: Rate(100_000_000), ..UNIT }, ..link(0) };
            let (run, _) = events(&copy(flow, 6400, 64, &[link(0), slow]));
            assert_eq!(run.chunks.iter().sum::<u64>(), 100);
            assert!((88..=92).contains(&run.chunks[0]), "{run:?}");
        }
    }

    #[test]
    fn in_order_of_index_nothing_overtakes() {
        // The second worker finishes its short last chunk first.
        let late = Staged { order: Order::Index, ..copy(Flow::In, 65, 64, &[link(2)]) };
        let submitted = |copy: &Staged| {
            let (_, log) = events(copy);
            log.into_iter().filter(|(_, _, what)| *what == Submitted).map(|(_, chunk, _)| chunk).collect::<Vec<_>>()
        };
        assert_eq!(submitted(&late), [0, 1]);
        assert_eq!(submitted(&Staged { order: Order::Arrival, ..late }), [1, 0]);
    }

    #[test]
    fn no_bytes_take_no_time_and_no_link_is_an_error() {
        assert_eq!(
            events(&copy(Flow::In, 0, 64, &[link(1)])),
            (StagedRun { end: Nanos::ZERO, chunks: vec![0], busy: vec![Nanos::ZERO] }, vec![])
        );
        assert_eq!(simulate_staged(&copy(Flow::In, 1, 64, &[]), |_, _, _, _| {}), Err(NoLink));
        let stopped = StagedLink { engine: Leg { rate: Rate(0), ..UNIT }, ..link(1) };
        assert_eq!(end(&copy(Flow::In, 1, 64, &[stopped])), u64::MAX);
    }

    #[test]
    fn workers_that_share_each_chunk_keep_the_engine_busier_with_fewer_buffers() {
        for flow in [Flow::In, Flow::Out] {
            // At 16 MiB both ramps come to the same within 3 %.
            for bytes in [4 * MIB, 64 * MIB, 256 * MIB] {
                let own = h200(flow, bytes, 6, true);
                let mut shared = own.clone();
                shared.links[0].shares = true;
                assert!(end(&shared) < end(&own), "{flow:?} {bytes}: {} and {}", end(&shared), end(&own));
            }
        }
    }

    #[test]
    fn eight_workers_bring_a_link_close_to_its_rate_and_a_ramp_helps_short_copies() {
        for flow in [Flow::In, Flow::Out] {
            let dma = |bytes: u64| Rate(55_500_000_000).time_for(Bytes(bytes)).0 as f64;
            for (bytes, ramp) in [(1024 * MIB, 0.97), (256 * MIB, 0.94), (64 * MIB, 0.85)] {
                let share = dma(bytes) / end(&h200(flow, bytes, 8, true)) as f64;
                assert!(share > ramp, "{flow:?} {bytes}: {share}");
                assert!(end(&h200(flow, bytes, 8, true)) < end(&h200(flow, bytes, 8, false)), "{flow:?} {bytes}");
            }
        }
    }
}
