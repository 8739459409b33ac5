//! The figures of a run, checked by hand for a small one and against each other for a large one.

use crate::common;

use crate::common::{Bend, log, plan, run};
use headway_core::log::OtherCopies;
use headway_core::models::transfer::Direction;
use headway_core::plan::{OperationWork, PipelineSource, PlannedOperation, Server};
use headway_core::units::{Bytes, Nanos};
use headway_trace::RunLog;
use headway_trace::replay::replay;
use headway_trace::summary::summarize;
use headway_trace::timeline::Timeline;

#[test]
fn one_cycle_of_one_stream_is_what_the_clock_says() {
    let log = log(&plan(1), 1, Bend::default());
    let summary = summarize(&log);
    // One block of 2 x 400 000 + 32 bytes in pieces of 300 000, 300 000 and 200 032; 2 us + bytes / 10 per piece in and
    // out, 8 us + bytes / 20 for the kernel; every step starts when its window of 2 ms opens.
    let copy = 3 * 2_000 + 30_000 + 30_000 + 20_003;
    let kernel = 8_000 + 40_001;
    let engine = |name: &str| summary.engines.iter().find(|engine| engine.name == name).unwrap();
    assert_eq!((engine("gpu0.h2d").busy, engine("gpu0.h2d").operations), (Nanos(copy), 3));
    assert_eq!((engine("gpu0.ee").busy, engine("gpu0.ee").operations), (Nanos(kernel), 1));
    assert_eq!(engine("gpu1.h2d").operations, 0);
    let delivered = 3 * 2_000_000 + copy;
    assert_eq!(summary.span, Nanos(delivered));
    assert_eq!(engine("gpu0.h2d").utilisation_ppm, copy * 1_000_000 / delivered);
    let stream = &summary.streams[0];
    let response = stream.response.unwrap();
    assert_eq!((response.min, response.max), (Nanos(delivered - 1_000_000), Nanos(delivered)));
    assert_eq!(stream.worst_slack_ns, Some(8_000_000 - delivered as i64));
    assert_eq!((stream.packets, stream.delivered, stream.lost, stream.misses), (2, 2, 0, 0));
    assert_eq!(stream.bytes, Bytes(800_000));
    let step = &summary.steps[0];
    assert_eq!((step.jobs, step.took_max), (1, Nanos(copy)));
    let link = &summary.capacities[0];
    assert_eq!((link.name.as_str(), link.bytes), ("host -> gpu0", Bytes(800_032)));
    assert_eq!(summary.capacities[4].bytes, Bytes(2 * 800_032));
    assert!(summary.verdict.held);
    assert_eq!(summary.verdict.text, "all 2 deadlines held");
    assert!(summary.blame.is_empty());
}

#[test]
fn waits_are_blamed_completely_on_those_that_occupied_the_server() {
    let log = log(&plan(9), 10, Bend::default());
    let timeline = Timeline::new(&log);
    let summary = summarize(&log);
    let waiting = timeline.jobs.iter().filter(|job| job.wait() > Nanos::ZERO).count();
    assert!(waiting > 10, "{waiting}");
    for job in &timeline.jobs {
        let parts: u64 = job.waits.iter().map(|wait| wait.time.0).sum();
        assert_eq!(parts, job.wait().0, "{job:?}");
        assert!(job.waits.iter().all(|wait| wait.cause.is_some()), "{job:?}");
    }
    let blamed: u64 = summary.blame.iter().map(|pair| pair.total.0).sum();
    assert_eq!(blamed, summary.totals.wait.0);
    let longest = summary.servers.iter().filter_map(|server| server.longest.as_ref()).max_by_key(|l| l.wait).unwrap();
    assert_eq!(longest.cause.as_ref().unwrap().pipeline, "bulk");
    let server = summary.servers.iter().find(|server| server.name == "gpu0.h2d").unwrap();
    assert_eq!(server.waited, timeline_waited(&log, &timeline, 0));
}

fn timeline_waited(log: &RunLog, timeline: &Timeline, server: u32) -> u64 {
    let on = |(at, _): &(usize, _)| timeline.step(log, *at).server == server;
    timeline.jobs.iter().enumerate().filter(on).filter(|(_, job)| job.wait() > Nanos::ZERO).count() as u64
}

#[test]
fn a_late_operation_shows_as_overrun_and_misses_with_negative_slack() {
    let log = log(&plan(3), 10, Bend { slow: Some((9, Nanos(12_000_000))), ..Bend::default() });
    let summary = summarize(&log);
    assert!(!summary.verdict.held && summary.verdict.misses > 0 && summary.verdict.lost == 0);
    let missed: u64 = log
        .records()
        .iter()
        .filter(|r| {
            matches!(
                r.what,
                headway_core::log::RecordBody::Event(headway_core::decisions::dispatch::DispatchEvent::Missed { .. })
            )
        })
        .count() as u64;
    assert_eq!(summary.verdict.misses, missed);
    assert_eq!(summary.totals.overruns, 1);
    assert!(summary.streams.iter().any(|stream| stream.worst_slack_ns.unwrap() < 0));
    assert!(summary.verdict.text.contains(" missed"), "{}", summary.verdict.text);
}

#[test]
fn a_driver_that_is_later_than_the_plan_allows_is_named_whether_deadlines_hold_or_not() {
    let verdict = |late: u64| {
        let bend = Bend { oversleeps: Nanos(late), ..Bend::default() };
        summarize(&log(&plan(1), 1, bend)).verdict
    };
    assert_eq!(verdict(1_000).unpromised, None, "the plan allows it");
    for (late, held) in [(2_000, true), (10_000_000, false)] {
        let verdict = verdict(late);
        let why = verdict.unpromised.unwrap();
        assert_eq!(verdict.held, held);
        assert!(why.contains("windows were opened up to ") && why.ends_with("it allows 1 us"), "{why}");
    }
}

#[test]
fn a_program_that_copied_over_an_engine_of_the_plan_is_named() {
    let (mut header, records) = run(&plan(1), 1, Bend::default());
    let since = records[0].at + Nanos(1_500_000);
    let command = "python3".to_owned();
    header.others =
        vec![OtherCopies { pid: 42, command, gpu: 0, direction: Direction::D2h, since, bytes: Bytes(3 << 20) }];
    let verdict = summarize(&RunLog::new(header, records, "fixture").unwrap()).verdict;
    assert!(verdict.held);
    let why = verdict.unpromised.unwrap();
    assert!(why.ends_with("`python3` (42) copied 3 MiB out of GPU 0 from 1.5 ms on"), "{why}");
}

#[test]
fn a_delivery_at_the_deadline_is_in_time_and_one_nanosecond_later_is_not() {
    let mut plan = plan(1);
    let longest = summarize(&log(&plan, 1, Bend::default())).streams[0].response.unwrap().max;
    plan.streams[0].deadline = longest;
    let in_time = log(&plan, 1, Bend::default());
    assert!(Timeline::new(&in_time).packets(&in_time).all(|packet| !packet.missed()));
    let summary = summarize(&in_time);
    assert!(summary.verdict.held && summary.streams[0].worst_slack_ns == Some(0));
    plan.streams[0].deadline = Nanos(longest.0 - 1);
    let late = log(&plan, 1, Bend::default());
    let summary = summarize(&late);
    assert_eq!((summary.verdict.misses, summary.streams[0].worst_slack_ns), (1, Some(-1)));
    let timeline = Timeline::new(&late);
    assert_eq!(timeline.packets(&late).map(|packet| packet.missed()).collect::<Vec<_>>(), [true, false]);
    assert_eq!(summary.verdict.text, "1 of 2 deadlines missed");
}

#[test]
fn the_last_packet_of_a_stream_may_be_shorter() {
    let (mut header, records) = run(&plan(1), 1, Bend::default());
    header.streams[0].bytes = Bytes(400_001);
    let log = RunLog::new(header, records, "fixture").unwrap();
    let sizes: Vec<u64> = Timeline::new(&log).packets(&log).map(|packet| packet.bytes.0).collect();
    assert_eq!(sizes, [400_000, 1]);
    assert_eq!(summarize(&log).totals.bytes, Bytes(400_001));
}

#[test]
fn a_batch_takes_from_its_first_start_to_its_last_finish_and_a_flow_needs_no_engine() {
    let mut plan = plan(2);
    plan.streams.clear();
    for pipeline in &mut plan.pipelines {
        pipeline.source = PipelineSource::Message;
        pipeline.gather = Nanos::ZERO;
        pipeline.steps.truncate(1);
    }
    let other = plan.pipelines[1].steps[0].operations[0].clone();
    let batch = &mut plan.pipelines[0].steps[0];
    batch.operations.push(other);
    for (operation, size) in batch.operations.iter_mut().zip([100_000, 300_000]) {
        if let OperationWork::Copy { bytes, .. } = &mut operation.work {
            *bytes = Bytes(size);
        }
    }
    batch.bound = Some(Nanos(40_000));
    let flow = &mut plan.pipelines[1];
    flow.source = PipelineSource::Demand;
    flow.steps[0].server = plan.servers.len() as u32;
    flow.steps[0].operations = vec![PlannedOperation { engines: vec![], work: OperationWork::Hold }];
    plan.servers.push(Server { name: "bus".to_owned(), engines: vec![], in_flight: 1, verdict: common::verdict() });
    let log = log(&plan, 3, Bend::default());
    let summary = summarize(&log);
    assert_eq!(summary.steps[0].took_max, Nanos(2_000 + 30_000), "both blocks start together");
    assert_eq!(summary.engines.iter().map(|engine| engine.operations).collect::<Vec<_>>(), [3, 0, 0, 3, 0, 0]);
    assert_eq!(summary.engines[3].bytes, Bytes(900_000));
    assert_eq!(summary.servers.last().unwrap().jobs, log.header().cycles[1]);
    // A job for each block of the message and period, and for each of the flow.
    let [message, flow] = [0, 1].map(|at| log.header().cycles[at]);
    let totals = &summary.totals;
    assert_eq!(
        (totals.message_jobs, totals.message_jobs_delivered, totals.demand_jobs),
        (2 * message, 2 * message, flow)
    );
    assert_eq!((totals.message_bytes, totals.demand_jobs_done), (Bytes(400_000 * message), flow));
    assert_eq!(summary.verdict.deadlines, 2 * message + flow);
    assert!(summary.verdict.held && replay(&log).unwrap().finished);
    // Each has a row of its own. Both blocks end 32 us after their window of 2 ms opens; the plan allows 40 us.
    let [of_message, of_flow] = [&summary.messages[0], &summary.demands[0]];
    assert_eq!((of_message.jobs, of_message.delivered, of_flow.jobs), (2 * message, 2 * message, flow));
    let window = log.header().plan.pipelines[0].window;
    assert_eq!((of_message.deadline, of_message.bound), (window, Some(Nanos(40_000))));
    let response = of_message.response.unwrap();
    assert_eq!((response.min, response.max), (Nanos(32_000), Nanos(32_000)));
    assert_eq!(of_message.worst_slack_ns, Some(window.0 as i64 - 32_000));
    let table = summary.table(140);
    let first = |head: &str| table.lines().skip_while(|line| !line.starts_with(head)).nth(2).unwrap().to_owned();
    assert!(first("Messages, response times in ms [sim]").starts_with(&format!("  {} ", of_message.id)), "{table}");
    assert!(first("Demands, response times in ").starts_with(&format!("  {} ", of_flow.id)), "{table}");
    // A plan that proves nothing has no bound.
    let mut header = log.header().clone();
    header.plan.pipelines[0].steps[0].bound = None;
    let unproven = summarize(&RunLog::new(header, log.records().to_vec(), "fixture").unwrap());
    assert_eq!((unproven.messages[0].bound, unproven.messages[0].response), (None, of_message.response));
}

#[test]
fn a_halted_run_reports_lost_packets_and_does_not_hold() {
    let summary = summarize(&log(&plan(3), 10, Bend { fails: Some(9), ..Bend::default() }));
    assert!(!summary.verdict.held && summary.verdict.halted && summary.verdict.lost > 0);
    for stream in &summary.streams {
        assert_eq!(stream.lost, stream.packets - stream.delivered);
    }
}

#[test]
fn tables_keep_to_the_width_carry_the_source_and_name_streams() {
    let summary = summarize(&log(&plan(64), 2, Bend::default()));
    for width in [80, 100, 140] {
        let table = summary.table(width);
        let tables = table.split("\n\n").skip(1).take(5);
        for block in tables {
            assert!(block.lines().next().unwrap().ends_with("[sim]"), "{block}");
            for line in block.lines() {
                assert!(line.chars().count() <= width, "{} > {width}: {line}", line.chars().count());
            }
        }
        let streams = table.split("\n\n").nth(1).unwrap();
        let named = (0..64).filter(|stream| streams.contains(&format!("  voice-{stream} "))).count();
        assert_eq!((named, table.contains(": the 16 of 64 nearest to their deadlines [sim]")), (16, true), "{table}");
        assert!(table.contains("missed"));
    }
    let few = summarize(&log(&plan(16), 2, Bend::default())).table(80);
    assert!((1..16).all(|stream| few.contains(&format!("  voice-{stream} "))), "{few}");
}
