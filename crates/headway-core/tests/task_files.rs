//! Tasks in workload files: what is read, what is refused and where the error points.

use headway_core::decisions::engine_lock::PeerLocks;
use headway_core::decisions::sharing::{JobSegment, TaskDirection};
use headway_core::decisions::token::TokenMode;
use headway_core::files::error::FileError;
use headway_core::files::machine::shipped;
use headway_core::files::workload::{Workload, parse};
use headway_core::plan::planner::{PlanError, PlanOptions, plan};
use headway_core::units::{Bytes, Nanos};

const BASE: &str = r#"name = "trackers"
[sharing]
cpus = 6
[[task]]
id = "cam0"
period = "50 ms"
state = "4 MiB"
segments = [
  { cpu = "1 ms" }, { cpu = "2 ms" },
  { copy = "host -> gpu", bytes = "307200 B" },
  { cpu = "3 ms" },
  { compute = "klt", time = "20 ms" },
  { copy = "gpu->host", bytes = "4 KiB" },
  { cpu = "4 ms" },
]
[[task]]
id = "cam1"
period = "100 ms"
deadline = "80 ms"
start = "5 ms"
segments = [{ compute = "klt", time = "20 ms" }]
"#;

fn read(text: &str) -> Workload {
    parse("t.toml", text).unwrap_or_else(|error| panic!("{error}")).value
}

fn refused(old: &str, new: &str) -> FileError {
    assert!(BASE.contains(old), "{old}");
    parse("t.toml", &BASE.replacen(old, new, 1)).expect_err(new)
}

const MS: u64 = 1_000_000;

#[test]
fn a_file_becomes_tasks_whose_token_spans_the_first_to_the_last_use_of_a_gpu() {
    let workload = read(BASE);
    let [first, second] = &workload.tasks[..] else { panic!("{:?}", workload.tasks) };
    assert_eq!((first.period, first.deadline, first.start), (Nanos(50 * MS), Nanos(50 * MS), Nanos::ZERO));
    assert_eq!((first.state, first.before(), first.after()), (Bytes(4 << 20), Nanos(3 * MS), Nanos(4 * MS)));
    assert_eq!(first.held().len(), 4);
    assert_eq!(first.held()[0], JobSegment::Copy { direction: TaskDirection::ToGpu, bytes: Bytes(307_200) });
    assert_eq!(first.held()[2], JobSegment::Execute { kernel: "klt".into(), time: Nanos(20 * MS) });
    assert_eq!((second.deadline, second.start, second.state), (Nanos(80 * MS), Nanos(5 * MS), Bytes(0)));
    assert_eq!((second.before(), second.held().len(), second.after()), (Nanos::ZERO, 1, Nanos::ZERO));
}

#[test]
fn a_task_may_say_that_it_has_no_state() {
    for none in ["0 MiB", "0 B"] {
        let text = BASE.replacen("state = \"4 MiB\"", &format!("state = \"{none}\""), 1);
        assert_eq!(read(&text).tasks[0].state, Bytes(0), "{none}");
    }
}

#[test]
fn sharing_has_defaults_and_every_key_is_read() {
    let sharing = read(BASE).sharing.expect("it is written");
    assert_eq!((sharing.cpus, sharing.tokens_per_gpu, sharing.mode, &sharing.gpus), (6, 2, None, &None));
    assert_eq!((sharing.mode_for(4), sharing.mode_for(3)), (TokenMode::WorkConserving, TokenMode::Optimal));
    let every = "cpus = 6\ngpus = [\"gpu1\"]\ntokens_per_gpu = 3\nmode = \"relaxed\"\nqueue = 4\naffinity = false\n\
                 engine_locks = false\npeer_locks = \"nested\"\nmigration = \"system\"\ncopy_engines = 1\nchunk = \"whole\"";
    let sharing = read(&BASE.replacen("cpus = 6", every, 1)).sharing.expect("it is written");
    assert_eq!((sharing.mode, sharing.mode_for(4)), (Some(TokenMode::Relaxed(4)), TokenMode::Relaxed(4)));
    assert_eq!((sharing.affinity, sharing.engine_locks, sharing.peer_copies), (false, false, false));
    assert_eq!((sharing.peer_locks, sharing.copy_engines, sharing.chunk), (PeerLocks::Nested, 1, None));
    assert_eq!((sharing.gpus.as_deref(), sharing.tokens_per_gpu), (Some(&["gpu1".to_owned()][..]), 3));
    let chunk = read(&BASE.replacen("cpus = 6", "cpus = 6\nchunk = \"4 MiB\"", 1)).sharing.and_then(|s| s.chunk);
    assert_eq!(chunk, Some(Bytes(4 << 20)));
}

#[test]
fn what_no_task_can_do_is_refused_at_its_place() {
    let check = |old: &str, new: &str, line: usize, message: &str| {
        let error = refused(old, new);
        assert_eq!((error.line, error.message.as_str()), (line, message), "{error}");
        assert!(error.help.is_some(), "{error}");
    };
    check("segments = [{ compute = \"klt\", time = \"20 ms\" }]", "segments = []", 21, "task `cam1` uses no GPU");
    check(
        "{ cpu = \"3 ms\" }",
        "{ cpu = \"3 ms\", copy = \"host -> gpu\" }",
        11,
        "a segment is one `cpu`, one `copy` or one `compute`",
    );
    check("gpu->host", "gpu -> gpu1", 13, "`copy = \"gpu -> gpu1\"` is no copy of a task");
    check("id = \"cam1\"", "id = \"cam0\"", 17, "a task is already called `cam0`, in line 5");
    check("cpus = 6", "cpus = 6\nqueue = 2", 4, "only `relaxed` FIFOs have a length of their own");
    check("cpus = 6", "cpus = 0", 3, "`cpus = 0` is outside 1 to 1024");
    check("[sharing]\ncpus = 6\n", "", 2, "nothing says how the tasks share the GPUs");
    let flow = "[[demand]]\nid = \"f\"\ncost = \"1 ms\"\nperiod = \"2 ms\"\n[[task]]\nid = \"cam1\"";
    check("[[task]]\nid = \"cam1\"", flow, 4, "tasks and other parts are planned in different ways");
    let none = parse("t.toml", "name = \"a\"\n[sharing]\ncpus = 1\n").expect_err("no tasks");
    assert_eq!(none.message, "there is no task that shares GPUs");
}

#[test]
fn the_planner_of_streams_refuses_tasks() {
    let machine = shipped("h200-x4").expect("it is shipped");
    let error = plan(&machine, &read(BASE), PlanOptions::default()).expect_err("tasks are no streams");
    assert!(matches!(&error, PlanError::Impossible { place, .. } if place == "task.cam0"), "{error}");
}
