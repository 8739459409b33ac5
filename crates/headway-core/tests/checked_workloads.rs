//! Workloads that code made: what the check accepts, a file says; what it refuses, it refuses of a file in the same words.

use headway_core::decisions::sharing::{JobSegment, TaskDirection};
use headway_core::decisions::token::TokenMode;
use headway_core::files::workload::{
    CopyEndpoint, Message, MessageBlock, Otherwise, PacketPart, PartStep, PartWork, ServerDemand, SharingTable, Stream,
    StreamPlacement, StreamStep, Unplanned, UnplannedKind, Urgent, Workload, WorkloadTask, parse, write,
};
use headway_core::units::{Bytes, Nanos};
use proptest::prelude::*;

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        12 => "[a-d]{1,2}",
        1 => Just("host".to_owned()),
        1 => Just("gpu".to_owned()),
        1 => Just("auto".to_owned()),
        1 => "[ A./\"\\\\é]{0,3}",
    ]
}

fn time() -> impl Strategy<Value = Nanos> {
    prop_oneof![20 => 1..50_000_000u64, 1 => Just(0), 1 => 0..8u64, 1 => any::<u64>()].prop_map(Nanos)
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![20 => 1..5_000_000u64, 1 => Just(0), 1 => any::<u64>()].prop_map(Bytes)
}

/// An end of a copy that is not elsewhere: of whole packets, only sets of steps work on another GPU.
fn own_end() -> impl Strategy<Value = CopyEndpoint> {
    prop_oneof![
        3 => Just(CopyEndpoint::Host),
        3 => Just(CopyEndpoint::OwnGpu),
        1 => Just(CopyEndpoint::Named("x y".to_owned())),
    ]
}

fn endpoint() -> impl Strategy<Value = CopyEndpoint> {
    prop_oneof![6 => own_end(), 1 => "[ab]".prop_map(CopyEndpoint::Named)]
}

fn placement() -> impl Strategy<Value = StreamPlacement> {
    prop_oneof![
        4 => Just(StreamPlacement::Auto),
        1 => Just(StreamPlacement::Cpu),
        1 => Just(StreamPlacement::Either),
        // A file cannot say that `auto` is a GPU.
        1 => name().prop_map(|name| StreamPlacement::Gpu(name.replace("auto", "gpu"))),
    ]
}

/// Steps that often connect: in, compute, out, some of them left out.
fn plain_steps() -> impl Strategy<Value = Vec<StreamStep>> {
    let step = prop_oneof![
        (endpoint(), own_end()).prop_map(|(from, to)| StreamStep::Copy { from, to }),
        name().prop_map(|kernel| StreamStep::Compute { kernel }),
    ];
    let usual = vec![StreamStep::into_gpu(), StreamStep::compute("spin"), StreamStep::out_of_gpu()];
    prop_oneof![4 => Just(usual), 1 => prop::collection::vec(step, 0..4)]
}

fn work() -> impl Strategy<Value = PartWork> {
    prop_oneof![
        (endpoint(), endpoint()).prop_map(|(from, to)| PartWork::Copy { from, to }),
        (name(), endpoint()).prop_map(|(kernel, at)| PartWork::Compute { kernel, at, on_cpu: false }),
        name().prop_map(|kernel| PartWork::Compute { kernel, at: CopyEndpoint::Host, on_cpu: true }),
    ]
}

/// Two parts that are copied in, with one step that may be anything.
fn stream_in_parts() -> impl Strategy<Value = Stream> {
    let set = prop::collection::vec((0..2u32, work()).prop_map(|(part, work)| PartStep { part, work }), 1..3);
    let odd = prop_oneof![3 => Just(0u64), 1 => 0..3u64];
    (name(), "[ab]", odd, prop::option::of(set), placement()).prop_map(|(id, other, odd, set, gpu)| {
        let parts = [("a", 64), (&other, 36)].map(|(id, bytes)| PacketPart { id: id.to_owned(), bytes: Bytes(bytes) });
        let both = |from: &CopyEndpoint, to: &CopyEndpoint| {
            let copy = |part| PartStep { part, work: PartWork::Copy { from: from.clone(), to: to.clone() } };
            StreamStep::Parts((0..2).map(copy).collect())
        };
        let mut steps = vec![both(&CopyEndpoint::Host, &CopyEndpoint::OwnGpu)];
        if let Some(mut set) = set {
            // A file has the copies of a step before its kernels.
            set.sort_by_key(|step| step.kernel().is_some());
            steps.push(StreamStep::Parts(set));
        }
        let stream = Stream::new(&id, Bytes(100 + odd), Nanos(1_000_000), Nanos(9_000_000), steps);
        Stream { gpu, parts: parts.to_vec(), ..stream }
    })
}

fn stream() -> impl Strategy<Value = Stream> {
    let plain = (name(), bytes(), time(), time(), time(), placement(), plain_steps()).prop_map(
        |(id, packet, period, deadline, start, gpu, steps)| Stream {
            start,
            gpu,
            ..Stream::new(&id, packet, period, deadline, steps)
        },
    );
    prop_oneof![2 => plain, 1 => stream_in_parts()]
}

fn message() -> impl Strategy<Value = Message> {
    let block = (name(), name(), bytes()).prop_map(|(from, to, bytes)| MessageBlock { from, to, bytes });
    (name(), time(), time(), prop::option::of(time()), prop::collection::vec(block, 0..3))
        .prop_map(|(id, period, start, late, blocks)| Message { id, period, start, late, blocks })
}

fn demand() -> impl Strategy<Value = ServerDemand> {
    (name(), name(), time(), time(), time(), time()).prop_map(|(id, server, start, cost, period, deadline)| {
        ServerDemand { id, server, start, cost, period, deadline }
    })
}

fn unplanned() -> impl Strategy<Value = Unplanned> {
    let urgent = (bytes(), time(), prop::option::of(time())).prop_map(|(bytes, deadline, every)| Urgent {
        bytes,
        deadline,
        every,
        otherwise: Otherwise::BestEffort,
    });
    let kind =
        prop_oneof![prop::option::of(bytes()).prop_map(UnplannedKind::Bulk), urgent.prop_map(UnplannedKind::Urgent)];
    (name(), name(), name(), time(), kind).prop_map(|(id, from, to, start, kind)| Unplanned {
        id,
        from,
        to,
        start,
        kind,
    })
}

fn task() -> impl Strategy<Value = WorkloadTask> {
    let segment = prop_oneof![
        time().prop_map(JobSegment::Cpu),
        bytes().prop_map(|bytes| JobSegment::Copy { direction: TaskDirection::ToGpu, bytes }),
        (name(), time()).prop_map(|(kernel, time)| JobSegment::Execute { kernel, time }),
    ];
    (name(), time(), bytes(), prop::collection::vec(segment, 0..3))
        .prop_map(|(id, period, state, segments)| WorkloadTask { state, ..WorkloadTask::new(&id, period, segments) })
}

fn sharing() -> impl Strategy<Value = SharingTable> {
    let mode =
        prop_oneof![Just(None), Just(Some(TokenMode::Fifo)), (0..9u32).prop_map(|n| Some(TokenMode::Relaxed(n)))];
    (0..9u32, prop::option::of(prop::collection::vec(name(), 0..2)), mode, 1..4u32, prop::option::of(bytes())).prop_map(
        |(cpus, gpus, mode, copy_engines, chunk)| SharingTable {
            gpus,
            mode,
            copy_engines,
            chunk,
            ..SharingTable::new(cpus)
        },
    )
}

fn workload() -> impl Strategy<Value = Workload> {
    let planned = (
        prop::collection::vec(stream(), 0..3),
        prop::collection::vec(message(), 0..2),
        prop::collection::vec(demand(), 0..2),
        prop::collection::vec(unplanned(), 0..2),
    );
    let shared = (prop::collection::vec(task(), 0..2), prop::option::of(sharing()));
    let (no_tasks, no_plan) = (Just((Vec::new(), None)), Just((Vec::new(), Vec::new(), Vec::new(), Vec::new())));
    let all = prop_oneof![
        6 => (planned, no_tasks.boxed()),
        3 => (no_plan, shared.boxed()),
    ];
    (name(), time(), any::<u32>(), all).prop_map(|(name, duration, seed, (planned, (tasks, sharing)))| {
        let (streams, messages, demands, mut unplanned) = planned;
        // A file has bulk transfers before urgent ones.
        unplanned.sort_by_key(|transfer: &Unplanned| matches!(transfer.kind, UnplannedKind::Urgent(_)));
        let seed = seed.into();
        Workload { duration, seed, streams, messages, demands, unplanned, tasks, sharing, ..Workload::new(&name) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn the_check_and_the_reader_of_files_say_the_same(workload in workload()) {
        let text = write(&workload);
        match (workload.check(), parse("w.toml", &text)) {
            (Ok(()), Ok(read)) => prop_assert_eq!(Workload { hash: String::new(), ..read.value }, workload),
            (Err(made), Err(read)) => {
                // Only in a file does the other part with this id stand in a line.
                let said = read.message.split(", in line").next().unwrap_or_default();
                prop_assert_eq!(said, made.message(), "{}", text);
                prop_assert_eq!(read.help.as_deref(), made.help());
            }
            (made, read) => prop_assert!(false, "{made:?} in code, {read:?} in a file:\n{text}"),
        }
    }
}

#[test]
fn an_error_names_the_part() {
    let steps = vec![StreamStep::into_gpu()];
    let camera = Stream::new("cam", Bytes(1), Nanos(0), Nanos(9), steps);
    let error = Workload { streams: vec![camera], ..Workload::new("w") }.check().unwrap_err();
    assert_eq!(error.to_string(), "stream.cam.period: `period = \"0 ns\"` is zero");
    assert_eq!((error.place(), error.help()), ("stream.cam.period", Some("write for example `period = \"4 ms\"`")));
}
