//! Files of other tools: what comes in, what goes out, and what is refused.

use proptest::prelude::*;

use super::jobs::{ImportedJob, read_jobs, unfold, write_jobs};
use super::*;
use headway_core::files::workload;

const JOBS: &str = "Task ID, Job ID, Arrival min, Arrival max, Cost min, Cost max, Deadline, Priority\n\
    1, 1, 0, 0, 1, 1, 3, 3\n1, 2, 3, 3, 1, 1, 6, 6\n2, 1, 1, 1, 0, 2, 7, 7\n2, 2, 7, 7, 0, 2, 13, 13\n";

fn of(format: FileFormat, text: &str, options: &Import) -> Result<Vec<ServerDemand>, FormatError> {
    let imported = import(format, text, options)?;
    Ok(workload::parse("w", &imported.workload).unwrap().value.demands)
}

/// (start, period, cost, deadline) in nanoseconds.
fn times(demands: &[ServerDemand]) -> Vec<[u64; 4]> {
    demands.iter().map(|f| [f.start.0, f.period.0, f.cost.0, f.deadline.0]).collect()
}

fn refusal(format: FileFormat, text: &str, options: &Import) -> String {
    let error = import(format, text, options).unwrap_err();
    let source = std::error::Error::source(&error).map(|s| format!(": {s}")).unwrap_or_default();
    format!("{error}{source}")
}

#[test]
fn a_unit_of_nothing_is_refused_by_its_name() {
    let options = Import { unit: Some(Nanos(0)), ..Import::default() };
    for format in [FileFormat::Tasks, FileFormat::Schedcat, FileFormat::Jobs, FileFormat::Simso] {
        assert!(refusal(format, JOBS, &options).starts_with("`--unit` is zero"), "{format:?}");
    }
}

fn workload_of(text: &str) -> Workload {
    workload::parse("w", &format!("name = \"w\"\n{text}")).unwrap().value
}

fn demand(id: &str, start: u64, period: u64, cost: u64) -> String {
    format!("[[demand]]\nid = \"{id}\"\nstart = \"{start} ns\"\nperiod = \"{period} ns\"\ncost = \"{cost} ns\"\n")
}

#[test]
fn a_job_set_becomes_the_flows_that_release_its_jobs() {
    let plain = Import::default();
    let demands = of(FileFormat::Jobs, JOBS, &plain).unwrap();
    assert_eq!(times(&demands), [[0, 3, 1, 3], [1, 6, 2, 6]]);
    let micro = Import { unit: Some(Nanos(1_000)), server: Some("dma".into()), ..plain.clone() };
    let demands = of(FileFormat::Jobs, JOBS, &micro).unwrap();
    assert_eq!((times(&demands)[1], demands[1].server.as_str()), ([1_000, 6_000, 2_000, 6_000], "dma"));
    let one = "Task ID,Job ID,Arrival min,Arrival max,Cost min,Cost max,Deadline,Priority\n7,1,0,0,0,2,6,6\n";
    assert!(refusal(FileFormat::Jobs, one, &plain).contains("`--window`"));
    let window = Import { window: Some(Nanos(12)), ..plain };
    assert_eq!(times(&of(FileFormat::Jobs, one, &window).unwrap()), [[0, 12, 2, 6]]);
}

#[test]
fn what_a_workload_cannot_say_is_refused_with_its_place() {
    let edited = |from: &str, to: &str| {
        assert!(JOBS.contains(from));
        refusal(FileFormat::Jobs, &JOBS.replacen(from, to, 1), &Import::default())
    };
    assert!(edited("1, 2, 3, 3,", "1, 2, 3, 4,").contains("task 1: release jitter cannot be said there"));
    assert!(edited("6, 6\n2", "6, 1\n2").contains("task 1: a priority other than the deadline"));
    assert!(edited("1, 2, 3, 3, 1, 1", "1, 2, 3, 3, 1, 2").contains("jobs of different costs"));
    assert!(edited("7, 7\n2", "8, 8\n2").contains("task 2: jobs of different relative deadlines"));
    assert!(edited("2, 2, 7, 7,", "2, 1, 7, 7,").contains("job 1 of task 2 is there twice"));
    assert!(edited("0, 2, 7", "3, 2, 7").contains("line 4: `3 to 2` is not an interval"));
    assert!(edited("Cost min", "Cost").contains("the columns are `Task ID, Job ID, Arrival min, Arrival max, Cost,"));
    assert!(edited("1, 1, 0", "1, 1, -1").contains("line 2: `-1` is not a whole number"));
    assert!(
        edited("1, 2, 3, 3, 1, 1, 6, 6\n", "1, 2, 3, 3, 1, 1, 6, 6\n1, 3, 7, 7, 1, 1, 10, 10\n")
            .contains("one period apart")
    );
    let costly = JOBS.replace("1, 1, 3, 3", "1, 5, 3, 3").replace("1, 1, 6, 6", "1, 5, 6, 6");
    assert!(refusal(FileFormat::Jobs, &costly, &Import::default()).contains("more than the deadline"));
}

#[test]
fn jobs_go_out_for_the_window_that_decides_and_come_back() {
    let text = demand("a", 0, 3, 1) + &demand("b", 0, 6, 2) + &demand("c", 0, 12, 4);
    let workload = workload_of(&text);
    let exported = export(FileFormat::Jobs, &workload, &Export::PLAIN).unwrap();
    assert!(exported.notes.iter().any(|n| n.contains("finds a missed deadline")), "{:?}", exported.notes);
    let workload = workload_of(&(demand("a", 0, 4, 1) + &demand("b", 1, 6, 2)));
    for format in [FileFormat::Jobs, FileFormat::JobsYaml] {
        let exported = export(format, &workload, &Export::PLAIN).unwrap();
        assert!(exported.notes.iter().any(|n| n.starts_with("window: all jobs released before")));
        let read = if format == FileFormat::Jobs { read_jobs } else { yaml::read };
        assert_eq!(
            read(&exported.text).unwrap()[0],
            ImportedJob { task: 1, job: 1, cost: (0, 1), deadline: 4, priority: 4, ..ImportedJob::default() }
        );
        let back = of(format, &exported.text, &Import::default()).unwrap();
        assert_eq!(times(&back), times(&workload.demands));
    }
}

#[test]
fn jobs_that_were_written_are_read_again_and_are_not_without_end() {
    let demands = workload_of(&(demand("a", 5, 30, 10) + &demand("b", 0, 20, 4))).demands;
    let demands: Vec<&ServerDemand> = demands.iter().collect();
    let jobs = unfold(&demands, Nanos(40)).unwrap();
    assert_eq!(jobs.len(), 4);
    assert_eq!((jobs[1].task, jobs[1].cost, jobs[1].arrival, jobs[1].deadline), (1, (0, 10), (35, 35), 65));
    assert_eq!(yaml::read(&yaml::write(&jobs)).unwrap(), jobs);
    assert_eq!(read_jobs(&write_jobs(&jobs)).unwrap(), jobs);
    let endless = unfold(&demands, Nanos(u64::MAX));
    assert!(matches!(endless, Err(FormatError::Jobs { max: JOBS_MAX })));
}

#[test]
fn jobs_in_yaml_have_all_keys_and_no_successors_and_deep_nesting_is_refused() {
    let text = "jobset:\n  - {Task ID: 1, Job ID: 1, Arrival min: 0, Arrival max: 0, Cost min: 1, Cost max: 2,\n     \
                Deadline: 9, Priority: 9, Successors: []}\n";
    assert_eq!(yaml::read(text).unwrap().len(), 1);
    let refused = |text: &str| yaml::read(text).unwrap_err().to_string();
    assert!(
        refused(&text.replace("[]", "[[1, 2]]"))
            .contains("job 1 of the list: a precedence between jobs cannot be said")
    );
    assert!(refused(&text.replace("Job ID: 1, A", "Job: 1, A")).contains("`Job`"));
    assert!(refused(&text.replace("Deadline: 9, ", "")).contains("no Deadline"));
    assert!(yaml::read(&"[".repeat(100_000)).is_err());
    assert!(yaml::read("").is_err() && yaml::read("jobset: 3").is_err());
}

#[test]
fn schedcat_comes_in_with_a_unit_and_goes_out_without_offsets() {
    let text = "<taskset><properties utilization='0.5'/><task id='3' period='10' wcet='2' partition='0'/>\
                <task period='20' wcet='5' deadline='15'/></taskset>";
    assert!(refusal(FileFormat::Schedcat, text, &Import::default()).contains("`--unit`"));
    let micro = Import { unit: Some(Nanos(1_000)), ..Import::default() };
    let demands = of(FileFormat::Schedcat, text, &micro).unwrap();
    assert_eq!(times(&demands), [[0, 10_000, 2_000, 10_000], [0, 20_000, 5_000, 15_000]]);
    assert_eq!((demands[0].id.as_str(), demands[1].id.as_str()), ("task3", "task2"));
    let resources = text.replace("wcet='2' partition='0'/>", "wcet='2'><resources/></task>");
    assert!(refusal(FileFormat::Schedcat, &resources, &micro).contains("task 3: elements inside a task"));
    let workload = Workload { demands, ..workload_of(&demand("x", 0, 9, 1)) };
    let out = export(FileFormat::Schedcat, &workload, &Export { unit: Some(Nanos(1_000)), server: None }).unwrap();
    assert!(out.text.contains("<task id=\"2\" period=\"20\" wcet=\"5\" deadline=\"15\"/>"), "{}", out.text);
    let odd = export(FileFormat::Schedcat, &workload, &Export { unit: Some(Nanos(3_000)), server: None });
    assert!(odd.unwrap_err().to_string().contains("choose a smaller `--unit`"));
    let late = export(FileFormat::Schedcat, &workload_of(&demand("x", 4, 9, 1)), &Export::PLAIN);
    assert!(late.unwrap_err().to_string().contains("demand `x`: a first release cannot be said there"));
}

#[test]
fn simso_keeps_its_decimal_milliseconds_both_ways() {
    let text = "<simulation duration='1'><processors><processor id='1'/></processors><tasks>\
        <task name='T 1' id='1' task_type='Periodic' abort_on_miss='yes' period='7.5' activationDate='0.25' deadline='7' \
        WCET='3.000001' list_activation_dates='' followed_by=''/></tasks></simulation>";
    let demands = of(FileFormat::Simso, text, &Import::default()).unwrap();
    assert_eq!(times(&demands), [[250_000, 7_500_000, 3_000_001, 7_000_000]]);
    assert_eq!(demands[0].id, "T_1");
    let edited = |from: &str, to: &str| refusal(FileFormat::Simso, &text.replacen(from, to, 1), &Import::default());
    assert!(edited("'Periodic'", "'Sporadic'").contains("task `T 1`, type `Sporadic`"));
    assert!(edited("followed_by=''", "followed_by='2'").contains("a task that follows another"));
    assert!(edited("<processor id='1'/>", "<processor/><processor/>").contains("more than one processor"));
    assert!(edited("3.000001", "1e9").contains("`WCET`: the time cannot be read: unknown unit"));
    assert!(edited("3.000001", "0.0000001").contains("not a whole number of nanoseconds"));
    let workload = Workload { demands: demands.clone(), ..workload_of(&demand("x", 0, 9, 1)) };
    let out = export(FileFormat::Simso, &workload, &Export::PLAIN).unwrap();
    assert_eq!(times(&of(FileFormat::Simso, &out.text, &Import::default()).unwrap()), times(&demands));
}

#[test]
fn lines_of_tasks_and_latency_targets_become_flows() {
    let milli = Import { unit: Some(Nanos(1_000_000)), ..Import::default() };
    let demands = of(FileFormat::Tasks, "taskid,workload,period,wcet\n1,vgg 16,40,5\n2,klt,30,4\n", &milli).unwrap();
    assert_eq!(times(&demands), [[0, 40_000_000, 5_000_000, 40_000_000], [0, 30_000_000, 4_000_000, 30_000_000]]);
    assert_eq!(demands[0].id, "1:vgg_16");
    let text = "# all times in ms\nresnet50.Server.target_latency = 15\n*.Server.target_qps = 2000.5 # mean\n\
                gpt-6.7.Server.target_latency = 20.5\ngpt-6.7.Server.target_qps = 10\nbert.Offline.target_qps = 1\n";
    assert!(refusal(FileFormat::Mlperf, text, &Import::default()).contains("`--cost`"));
    let cost = Import { cost: Some(Nanos(300_000)), ..Import::default() };
    let demands = of(FileFormat::Mlperf, text, &cost).unwrap();
    assert_eq!(times(&demands), [[0, 100_000_000, 300_000, 20_500_000], [0, 499_875, 300_000, 15_000_000]]);
    assert_eq!(demands[0].id, "gpt-6.7");
    assert!(
        refusal(FileFormat::Mlperf, "a.Server.target_latency = 3\n", &cost).contains("model `a` has no target_qps")
    );
    assert!(refusal(FileFormat::Mlperf, "a.SingleStream.target_latency = 3\n", &cost).contains("MODEL.Server"));
    assert!(refusal(FileFormat::Mlperf, "a.Server\n", &cost).contains("line 1: `a.Server` is not of the form"));
}

#[test]
fn streams_and_several_servers_are_refused_on_the_way_out() {
    let other = demand("b", 0, 9, 1).replace("[[demand]]\n", "[[demand]]\nserver = \"two\"\n");
    let both = workload_of(&(demand("a", 0, 9, 1) + &other));
    let message = export(FileFormat::Jobs, &both, &Export::PLAIN).unwrap_err().to_string();
    assert!(message.contains("engine, two") && message.contains("`--server`"), "{message}");
    let two = Export { server: Some("two".into()), ..Export::PLAIN };
    assert!(export(FileFormat::Jobs, &both, &two).unwrap().notes[0].contains("1 = b"));
    let none = Export { server: Some("three".into()), ..Export::PLAIN };
    assert!(export(FileFormat::Jobs, &both, &none).unwrap_err().to_string().contains("engine, two"));
    let stream = workload_of(
        "[[stream]]\nid = \"s\"\npacket = \"1 B\"\nperiod = \"9 ns\"\ndeadline = \"9 ns\"\nsteps = [{ copy = \"host -> gpu\" }]\n",
    );
    assert!(export(FileFormat::Jobs, &stream, &Export::PLAIN).unwrap_err().to_string().contains("stream `s`"));
    let overload = workload_of(&(demand("a", 0, 9, 9) + &demand("b", 0, 9, 1)));
    assert!(matches!(export(FileFormat::Jobs, &overload, &Export::PLAIN), Err(FormatError::Overload)));
    let primes = workload_of(&(demand("a", 0, 31_000_000_000_000_001, 1) + &demand("b", 0, 1 << 50, 1)));
    assert!(matches!(export(FileFormat::Jobs, &primes, &Export::PLAIN), Err(FormatError::Window(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flows_that_go_out_come_back_the_same(
        demands in prop::collection::vec((0..4u64, prop::sample::select(vec![4u64, 6, 12, 24]), 1..3u64), 1..5),
    ) {
        let text: String = demands.iter().enumerate().map(|(n, &(start, period, cost))| demand(&format!("f{n}"), start, period, cost)).collect();
        let workload = workload_of(&text);
        // A task with one job in the window has the hyperperiod as its period: 24, or 12 without a task of 24.
        let longest = demands.iter().map(|f| f.1).max().unwrap_or(1);
        let window = if demands.iter().any(|f| f.1 == 4) && demands.iter().any(|f| f.1 == 6) { longest.max(12) } else { longest };
        let options = Import { unit: Some(Nanos(1)), window: Some(Nanos(window)), ..Import::default() };
        for format in [FileFormat::Jobs, FileFormat::JobsYaml, FileFormat::Simso, FileFormat::Schedcat] {
            let Ok(exported) = export(format, &workload, &Export::PLAIN) else { continue };
            let options = if format == FileFormat::Simso { Import::default() } else { options.clone() };
            let Ok(back) = of(format, &exported.text, &options) else {
                // Only a window that ends at a miss may hold one job of a task of a shorter period.
                prop_assert!(exported.notes.iter().any(|note| note.contains("finds a missed")), "{:?}", exported.text);
                continue;
            };
            if !exported.notes.iter().any(|note| note.contains("finds a missed")) {
                prop_assert_eq!(times(&back), times(&workload.demands));
            }
        }
    }
}
