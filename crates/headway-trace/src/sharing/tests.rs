//! Logs of shared GPUs: read back, summed up, drawn.

use super::*;

const MS: u64 = 1_000_000;

fn span(doing: Doing, begin: u64, end: u64, unit: Option<Unit>) -> JobSpan {
    let engine = unit.map(|unit| GpuEngine { gpu: 0, unit });
    JobSpan { doing, begin: Nanos(begin * MS), end: Nanos(end * MS), engines: [engine, None], bytes: Bytes(0) }
}

/// Two tasks: `b` waits for a kernel of `a`, and then for its own kernel; `a`'s second job waits for `b`'s token.
fn log() -> TaskLog {
    let task = |id: &str| TaskHead {
        id: id.to_owned(),
        period: Nanos(10 * MS),
        bound: Some(JobBounds { token: Nanos(4 * MS), engines: Nanos(4 * MS), blocking: Nanos(4 * MS) }),
    };
    let named = |name: &str| Named { name: name.to_owned(), hash: "0".to_owned() };
    let header = TaskLogHeader {
        schema: SCHEMA,
        kind: KIND.to_owned(),
        source: RunSource::Sim,
        version: "1".into(),
        commit: "x".into(),
        seed: 1,
        workload: named("two <tasks>"),
        machine: named("m"),
        gpus: vec!["gpu0".into()],
        cpus: 2,
        tokens_per_gpu: 2,
        mode: "optimal".into(),
        engine_locks: true,
        tasks: vec![task("a"), task("b")],
        notes: vec!["n".into()],
    };
    let job = |task: u32, job: u64, times: [u64; 4], blocked: [u64; 2], spans: Vec<JobSpan>| CompletedJob {
        task,
        job,
        release: Nanos(times[0] * MS),
        start: Nanos(times[0] * MS),
        deadline: Nanos(times[0] * MS + 10 * MS),
        done: Nanos(times[3] * MS),
        held: [Nanos(times[1] * MS), Nanos(times[2] * MS)],
        gpu: 0,
        from: None,
        blocked: blocked.map(|ms| Nanos(ms * MS)),
        spans,
    };
    let ee = Some(Unit::Ee);
    let jobs = vec![
        job(0, 0, [0, 0, 4, 4], [0, 0], vec![span(Doing::Execute, 0, 4, ee)]),
        job(1, 0, [1, 1, 7, 7], [0, 3], vec![span(Doing::EngineWait, 1, 4, ee), span(Doing::Execute, 4, 7, ee)]),
        job(0, 1, [5, 7, 17, 17], [2, 0], vec![span(Doing::TokenWait, 5, 7, None), span(Doing::Execute, 7, 17, ee)]),
    ];
    TaskLog { header, jobs, incomplete: None }
}

#[test]
fn a_wait_belongs_to_whoever_had_what_was_waited_for_meanwhile() {
    let log = log();
    let engine = Some(GpuEngine { gpu: 0, unit: Unit::Ee });
    assert_eq!(
        waits(&log),
        [
            JobWait { job: 1, behind: 0, engine, time: Nanos(3 * MS) },
            JobWait { job: 2, behind: 1, engine: None, time: Nanos(2 * MS) },
        ]
    );
}

#[test]
fn a_log_reads_as_it_was_written_and_a_cut_one_says_so() {
    let log = log();
    let mut text = Vec::new();
    log.write(&mut text).unwrap();
    assert_eq!(TaskLog::read(text.as_slice(), "x").unwrap(), log);
    let text = String::from_utf8(text).unwrap();
    assert!(TaskLog::begins(text.lines().next().unwrap()) && !TaskLog::begins("{\"schema\":1}"));
    let cut: String = text.lines().take(3).map(|line| format!("{line}\n")).collect();
    assert!(matches!(TaskLog::read(cut.as_bytes(), "x"), Err(LogError::Truncated { found: 2, .. })));
    let wrong = text.replace("\"jobs\":3", "\"jobs\":4");
    assert!(matches!(TaskLog::read(wrong.as_bytes(), "x"), Err(LogError::Truncated { expected: Some(4), .. })));
}

#[test]
fn the_summary_counts_misses_waits_and_what_exceeds_a_bound() {
    let summary = summarize(&log());
    assert_eq!((summary.verdict.jobs, summary.verdict.misses, summary.verdict.above_bound), (3, 1, 0));
    let [a, b] = &summary.tasks[..] else { panic!("{summary:?}") };
    assert_eq!((a.mean_ppm, a.max_ppm, a.misses, a.tardiness_max), (800_000, 1_200_000, 1, Nanos(2 * MS)));
    assert_eq!((b.blocked_max, b.p50_ppm), ([Nanos::ZERO, Nanos(3 * MS), Nanos(3 * MS)], 600_000));
    assert_eq!((summary.engines[0].id.as_str(), summary.engines[0].busy_ppm), ("gpu0.ee", 1_000_000));
    assert_eq!((summary.waits[0].task.as_str(), summary.waits[0].behind.as_str()), ("b", "a"));
    assert_eq!(summary.late, ["job 1 of a: late by 2 ms; it waited 2 ms for a token behind b"]);
    let mut late = log();
    late.jobs[1].blocked[0] = Nanos(2 * MS);
    let verdict = summarize(&late).verdict;
    assert_eq!((verdict.held, verdict.above_bound), (false, 1), "{}", verdict.text);
}

#[test]
fn page_and_trace_name_everything_and_nothing_can_run() {
    let log = log();
    let summary = summarize(&log);
    let (mut page, mut trace) = (Vec::new(), Vec::new());
    write_page(&log, &summary, &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("two &lt;tasks&gt;") && !page.contains("<tasks>"), "{page}");
    assert_eq!(page.matches("</script>").count(), 2, "the data and the page's own script");
    write_trace(&log, &mut trace).unwrap();
    let has = |text: &str| trace.windows(text.len()).any(|window| window == text.as_bytes());
    // Two tasks, then the engine; fields 5, 11 and 12 are the parent, the order of children and the rank.
    assert!(has("a\x28\x01\x60\x00") && has("b\x28\x01\x60\x01") && has("gpu0.ee\x28\x01\x60\x02") && has("\x58\x03"));
    assert!(has("gpu0.ee") && has("waits for an engine") && has("behind") && has("a 0"));
}
