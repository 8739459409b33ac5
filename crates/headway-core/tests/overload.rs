//! What the dispatcher does with work that is late or more than planned: `on_miss`, and who is paused.

use crate::bench::Bench;
use crate::case::{self, copy, flow, server, step, stream};
use headway_core::decisions::dispatch::{DispatchAction, DispatchEvent, DispatchInput};
use headway_core::files::workload::OnMiss;
use headway_core::plan::{Pipeline, PipelineSource, Plan};
use headway_core::units::{Bytes, Nanos};
use headway_kernels::workload::parse;
use proptest::prelude::*;

/// One server; pipelines of one copy each: (cost, period, what a miss does). Periods are windows and deadlines.
fn plan(of: &[(u64, u64, OnMiss)]) -> Plan {
    let pipeline = |(at, &(cost, period, _)): (u32, &(u64, u64, OnMiss))| Pipeline {
        source: PipelineSource::Streams(vec![at]),
        ..flow(period, period, vec![step(0, cost, vec![copy(8)])])
    };
    let stream = |(at, &(_, period, on_miss)): (u32, &(u64, u64, OnMiss))| {
        let mut stream = stream(at, period, period);
        stream.on_miss = on_miss;
        stream
    };
    case::plan(vec![server(1)], (0..).zip(of).map(pipeline).collect(), (0..).zip(of).map(stream).collect())
}

/// Operation, pipeline, cycle.
type Submitted = (u64, u32, u64);

impl Bench {
    /// Submissions and dropped cycles.
    fn actions(&mut self) -> (Vec<Submitted>, Vec<(u32, u64)>) {
        let (mut submitted, mut dropped) = (Vec::new(), Vec::new());
        while let Some(action) = self.0.poll_action() {
            match action {
                DispatchAction::Submit { operation, pipeline, cycle, .. } => {
                    submitted.push((operation, pipeline, cycle))
                }
                DispatchAction::Drop { pipeline, cycle } => dropped.push((pipeline, cycle)),
                DispatchAction::Deliver { .. } => {}
            }
        }
        (submitted, dropped)
    }
}

#[test]
fn a_stream_that_skips_drops_a_packet_that_is_late_and_starts_the_next_one_clean() {
    for (on_miss, dropped) in [(OnMiss::Skip, vec![(0, 0)]), (OnMiss::Finish, vec![]), (OnMiss::Stop, vec![])] {
        let mut bench = Bench::started(plan(&[(2, 10, on_miss), (12, 100, OnMiss::Finish)]), 2);
        bench.data(0, 1, 0);
        assert_eq!(bench.actions(), (vec![(0, 1, 0)], vec![]));
        bench.data(1, 0, 0);
        bench.events();
        // When the other one ends, packet 0 was due.
        bench.done(0, 0, 12);
        bench.data(12, 0, 1);
        let late = dropped.is_empty();
        assert_eq!(bench.actions(), (vec![(1, 0, u64::from(!late))], dropped), "{on_miss:?}");
        let lost =
            bench.events().iter().filter(|event| **event == DispatchEvent::Lost { stream: 0, packet: 0 }).count();
        assert_eq!(lost, usize::from(!late));
    }
}

#[test]
fn what_is_left_of_a_late_packet_is_dropped_at_the_next_chunk() {
    let mut plan = plan(&[(8, 10, OnMiss::Skip)]);
    plan.pipelines[0].steps[0].chunk = Bytes(2);
    let mut bench = Bench::started(plan, 1);
    bench.data(0, 0, 0);
    assert_eq!(bench.actions().0, [(0, 0, 0)]);
    bench.done(0, 0, 6);
    assert_eq!(bench.actions().0, [(1, 0, 0)], "there is time left");
    bench.done(1, 6, 10);
    assert_eq!(bench.actions(), (vec![], vec![(0, 0)]), "none is left, and half of the bytes are");
    assert!(bench.0.is_finished() && bench.events().contains(&DispatchEvent::Lost { stream: 0, packet: 0 }));
}

#[test]
fn every_overrun_pauses_one_more_until_the_server_has_caught_up() {
    let (finish, skip) = (OnMiss::Finish, OnMiss::Skip);
    let mut bench = Bench::started(plan(&[(2, 100, finish), (2, 100, skip), (2, 100, finish), (2, 100, skip)]), 1);
    for pipeline in 0..4 {
        bench.data(0, pipeline, 0);
    }
    assert_eq!(bench.actions(), (vec![(0, 0, 0)], vec![]));
    bench.done(0, 0, 3);
    assert_eq!(bench.pauses(), [(3, true)]);
    // The jobs of a paused pipeline that skips are given up; the next one comes from those that take part.
    assert_eq!(bench.actions(), (vec![(1, 1, 0)], vec![(3, 0)]));
    bench.done(1, 3, 6);
    assert_eq!(bench.pauses(), [(1, true)]);
    assert_eq!(bench.actions().0, [(2, 2, 0)]);
    bench.done(2, 6, 9);
    // Two take part: the later one is paused. Nothing is left to do, so all take part again, the latest pause first.
    assert_eq!(bench.pauses(), [(2, true), (2, false), (1, false), (3, false)]);
    assert!(bench.0.is_finished());
}

#[test]
fn a_paused_pipeline_that_does_not_skip_waits_behind_all_others() {
    let (finish, skip) = (OnMiss::Finish, OnMiss::Skip);
    // The second has the shorter deadline; the third skips and is paused first.
    let mut bench = Bench::started(plan(&[(2, 100, finish), (2, 50, finish), (2, 90, skip)]), 2);
    for pipeline in [2, 0, 1] {
        bench.data(0, pipeline, 0);
    }
    assert_eq!(bench.actions().0, [(0, 1, 0)]);
    bench.data(0, 1, 1); // released at 50
    bench.done(0, 0, 3);
    assert_eq!(bench.pauses(), [(2, true)]);
    assert_eq!(bench.actions(), (vec![(1, 0, 0)], vec![(2, 0)]));
    bench.0.handle(Nanos(50), &DispatchInput::Timeout).unwrap();
    bench.data(100, 0, 1);
    bench.done(1, 3, 101);
    // The second is paused: though due earlier, it goes behind the first.
    assert_eq!(bench.pauses(), [(1, true)]);
    assert_eq!(bench.actions().0, [(2, 0, 1)]);
    bench.done(2, 101, 103);
    assert_eq!(bench.actions().0, [(3, 1, 1)], "and is served all the same");
}

#[test]
fn without_a_stream_that_skips_nothing_is_given_up_or_paused() {
    let mut bench = Bench::started(plan(&[(2, 10, OnMiss::Finish), (2, 20, OnMiss::Stop)]), 1);
    bench.data(0, 0, 0);
    bench.data(0, 1, 0);
    assert_eq!(bench.actions().0.len(), 1);
    bench.done(0, 0, 30);
    assert_eq!(bench.actions(), (vec![(1, 1, 0)], vec![]));
    assert_eq!(bench.pauses(), []);
}

#[test]
fn a_chain_cannot_skip() {
    let text = |on_miss: &str, kernel: &str| {
        format!(
            "name = \"w\"\n[[stream]]\nid = \"s\"\npacket = \"16 B\"\nperiod = \"2 ms\"\ndeadline = \"40 ms\"\n\
             on_miss = \"{on_miss}\"\nsteps = [{{ copy = \"host -> gpu\" }}, {{ compute = \"{kernel}\" }}]\n{}",
            if kernel == "spin" {
                ""
            } else {
                "key = \"000102030405060708090a0b0c0d0e0f\"\niv = \"101112131415161718191a1b1c1d1e1f\"\n"
            }
        )
    };
    assert_eq!(parse("w.toml", &text("skip", "spin")).unwrap().value.streams[0].on_miss, OnMiss::Skip);
    assert!(parse("w.toml", &text("finish", "aes128-cbc")).is_ok());
    let refused = parse("w.toml", &text("skip", "aes128-cbc")).unwrap_err().to_string();
    assert!(refused.contains("no packet can be left out"), "{refused}");
}

/// Random work on one server, costs up to three times the planned ones.
fn drive(of: &[(u64, u64, OnMiss)], cycles: u64, seed: u64) -> (u64, u64, Vec<DispatchEvent>) {
    let mut bench = Bench::started(plan(of), cycles);
    let mut seed = seed;
    let mut below = move |end: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % end
    };
    let (mut now, mut running) = (0, None);
    let mut next = vec![0; of.len()];
    let (mut delivered, mut dropped, mut events) = (0, 0, Vec::new());
    loop {
        while let Some(action) = bench.0.poll_action() {
            match action {
                DispatchAction::Submit { operation, pipeline, .. } => {
                    assert_eq!(running, None, "one at a time");
                    let cost = of[pipeline as usize].0;
                    running = Some((operation, now, now + 1 + below(3 * cost)));
                }
                DispatchAction::Deliver { .. } => delivered += 1,
                DispatchAction::Drop { pipeline, .. } => {
                    assert_eq!(of[pipeline as usize].2, OnMiss::Skip, "only who skips is given up");
                    dropped += 1;
                }
            }
        }
        events.extend(bench.events());
        let arrival = (0..of.len()).filter(|&p| next[p] < cycles).map(|p| (next[p] * of[p].1, p)).min();
        match (running, arrival) {
            (Some((operation, from, to)), arrival) if arrival.is_none_or(|(at, _)| to <= at) => {
                now = to;
                bench.done(operation, from, to);
                running = None;
            }
            (_, Some((at, pipeline))) => {
                now = now.max(at);
                bench.data(now, pipeline as u32, next[pipeline]);
                next[pipeline] += 1;
            }
            (_, None) => break,
        }
    }
    assert!(bench.0.is_finished(), "every cycle is delivered or dropped");
    (delivered, dropped, events)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_cycle_is_delivered_or_given_up_once_and_every_pause_ends(
        of in proptest::collection::vec((1u64..6, 10u64..40, any::<bool>()), 1..6),
        seed in any::<u64>(),
    ) {
        let of: Vec<(u64, u64, OnMiss)> =
            of.into_iter().map(|(c, p, skips)| (c, p, if skips { OnMiss::Skip } else { OnMiss::Finish })).collect();
        let cycles = 12;
        let (delivered, dropped, events) = drive(&of, cycles, seed);
        prop_assert_eq!(delivered + dropped, cycles * of.len() as u64);
        let count = |wanted: fn(&DispatchEvent) -> bool| events.iter().filter(|event| wanted(event)).count() as u64;
        prop_assert_eq!(count(|e| matches!(e, DispatchEvent::Lost { .. })), dropped);
        let (paused, resumed) =
            (count(|e| matches!(e, DispatchEvent::Paused { .. })), count(|e| matches!(e, DispatchEvent::Resumed { .. })));
        prop_assert_eq!(paused, resumed, "at the end the server is idle");
        if of.iter().all(|(_, _, on_miss)| *on_miss == OnMiss::Finish) {
            prop_assert_eq!((dropped, paused), (0, 0));
        }
    }
}
