//! Tasks that share emulated GPUs run the kernels of the caller, and their state follows them.

use std::fs;
use std::sync::Arc;

use headway::run::{Backend, RunOptions, tasks};
use headway::work::{DeviceCode, Library, Work, WorkError};
use headway::workload::parse;

/// Adds the number of its runs to each byte.
struct Counted;

impl Work for Counted {
    fn id(&self) -> &'static str {
        "counted"
    }

    fn code(&self) -> DeviceCode {
        DeviceCode::Ptx("")
    }

    fn entry(&self) -> &'static str {
        "counted"
    }

    fn state_bytes(&self, _: usize) -> usize {
        1
    }

    fn run(&self, input: &[u8], output: &mut [u8], state: &mut [u8]) -> Result<(), WorkError> {
        state[0] = state[0].wrapping_add(1);
        output.iter_mut().zip(input).for_each(|(to, from)| *to = from.wrapping_add(state[0]));
        Ok(())
    }
}

struct Own;

impl Library for Own {
    fn find(&self, id: &str) -> Option<Arc<dyn Work>> {
        (id == "counted").then(|| Arc::new(Counted) as Arc<dyn Work>)
    }

    fn ids(&self) -> Vec<&'static str> {
        vec!["counted"]
    }
}

/// Three tasks on two GPUs with a token each: now and then one of them finds the GPU of its state taken, and goes to the other.
fn workload(migration: &str) -> String {
    let task = |id: u32| {
        format!(
            "[[task]]\nid = \"t{id}\"\nperiod = \"20 ms\"\nstate = \"64 KiB\"\nsegments = [{{ cpu = \"100 us\" }}, \
             {{ copy = \"host -> gpu\", bytes = \"40 B\" }}, {{ copy = \"host -> gpu\", bytes = \"100 KB\" }}, \
             {{ compute = \"counted\", time = \"1 ms\" }}, {{ copy = \"gpu -> host\", bytes = \"2 KB\" }}, \
             {{ compute = \"counted\", time = \"1 ms\" }}, {{ copy = \"gpu -> host\", bytes = \"1 KB\" }}]\n"
        )
    };
    let tasks: String = (0..3).map(task).collect();
    format!(
        "name = \"own\"\n[run]\nduration = \"400 ms\"\n[sharing]\ncpus = 3\ntokens_per_gpu = 1\nmode = \"work-conserving\"\naffinity = false\nmigration = \"{migration}\"\n{tasks}"
    )
}

#[test]
fn kernels_of_the_caller_run_in_tasks_and_their_state_follows() {
    for migration in ["system", "peer"] {
        let place = tempfile::tempdir().unwrap();
        let options = RunOptions {
            backend: Backend::Emu,
            machine: Some("h200-x4".to_owned()),
            gpus: Some(2),
            out: Some(place.path().join("results")),
            library: Arc::new(Own),
            ..RunOptions::default()
        };
        let workload = parse("own.toml", &workload(migration)).unwrap();
        let report = tasks::run(&workload, &options, |_| {}).unwrap();
        assert_eq!((report.verified, report.summary.verdict.jobs), (60, 60), "{migration}");
        let log = fs::read_to_string(report.folder.join("run.jsonl")).unwrap();
        assert!(log.lines().any(|line| line.contains("\"from\":0") || line.contains("\"from\":1")), "no state moved");
    }
}
