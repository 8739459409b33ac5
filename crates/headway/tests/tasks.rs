//! Tasks that share emulated GPUs run the kernels of the caller, and their state follows them.

use std::fs;
use std::process::Command;
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

#[test]
fn a_simulation_says_which_kernel_nothing_else_can_run() {
    let place = tempfile::tempdir().unwrap();
    let warnings = |library: Arc<dyn Library>| {
        let machine = Some("h200-x4".to_owned());
        let out = Some(place.path().join("results"));
        let options =
            RunOptions { backend: Backend::Sim, machine, gpus: Some(2), out, library, ..RunOptions::default() };
        tasks::run(&parse("own.toml", &workload("system")).unwrap(), &options, |_| {}).unwrap().warnings.join("; ")
    };
    assert!(!warnings(Arc::new(Own)).contains("counted"));
    let said = warnings(Arc::clone(&RunOptions::default().library));
    assert!(said.contains("task `t0` computes `counted`, which only a simulation can run: there are `"), "{said}");
}

/// A task that finds edges with the kernel of the shipped workload `camera`, in pictures of 16 rows.
const EDGES: &str = r#"name = "w"
run = { duration = "200 ms" }
[sharing]
cpus = 2
[[task]]
id = "front"
period = "20 ms"
segments = [
  { copy = "host -> gpu", bytes = "10240 B" },
  { compute = { module = "edges.ptx", entry = "edges", grid = [40, 2], block = [16, 8], args = ["in", "out", { u32 = 640 }, { u32 = 16 }] }, time = "1 ms" },
  { copy = "gpu -> host", bytes = "10240 B" },
]
"#;

#[test]
fn a_task_runs_a_kernel_of_a_module_on_what_was_copied_in_as_it_is() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    fs::copy("../../workloads/camera/edges.ptx", path("edges.ptx")).unwrap();
    let run = |text: &str, backend| {
        fs::write(path("w.toml"), text).unwrap();
        let machine = Some("h200-x1".to_owned());
        let options = RunOptions { backend, machine, out: Some(path("results")), ..RunOptions::default() };
        let report = tasks::run(&headway::workload::open(&path("w.toml"))?, &options, |_| {});
        let _ = fs::remove_dir_all(path("results"));
        report
    };
    let report = run(EDGES, Backend::Emu).unwrap();
    assert_eq!(report.verified, 0);
    let notes = report.summary.notes.join("; ");
    assert!(notes.contains("results not compared: no CPU form (`front`)"), "{notes}");
    run(EDGES, Backend::Sim).unwrap();
    let said = run(&EDGES.replace("entry = \"edges\"", "entry = \"corners\""), Backend::Sim).unwrap_err().to_string();
    assert!(said.contains("w.toml:10:") && said.contains("has no kernel `corners`"), "{said}");
    if Command::new("cc").arg("--version").output().is_err() {
        return eprintln!("skipped: there is no C compiler");
    }
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-o"]).arg(path("libedges.so")).arg("../../workloads/camera/edges.c");
    assert!(cc.status().unwrap().success());
    let cpu = "cpu = { library = \"libedges.so\", function = \"edges\" } }, time";
    let report = run(&EDGES.replace("}, time", &format!(", {cpu}")), Backend::Emu).unwrap();
    assert_eq!(report.verified, 10, "{:?}", report.summary.notes);
}
