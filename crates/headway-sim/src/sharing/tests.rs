//! Whole runs: mutual exclusion, aliases, times blocked.

use headway_core::decisions::engine_lock::LockOrder;
use headway_core::decisions::predictor::Form;
use headway_core::decisions::sharing::{Distances, JobId, JobSegment, TaskDirection, TaskId};
use headway_core::decisions::token::TokenMode;
use headway_core::units::{Bytes, Rate};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::*;

const MS: u64 = 1_000_000;
const MODES: [TokenMode; 3] = [TokenMode::Optimal, TokenMode::WorkConserving, TokenMode::Relaxed(2)];

/// Keeps everything.
#[derive(Default)]
struct Keep {
    log: Vec<SimRecord>,
    jobs: Vec<Kept>,
}

#[derive(Clone, Debug)]
struct Kept {
    job: JobId,
    start: Nanos,
    done: Nanos,
    from: Option<u32>,
    blocked: Blocked,
}

impl SimObserver for Keep {
    fn record(&mut self, record: &SimRecord) {
        self.log.push(*record);
    }

    fn job(&mut self, finished: &Finished) {
        self.jobs.push(Kept {
            job: finished.job,
            start: finished.start,
            done: finished.done,
            from: finished.from,
            blocked: finished.blocked,
        });
    }
}

fn setting(code: &str, mode: TokenMode, seed: u64, until: Nanos) -> ClusterSetting {
    let (scenario, order) = (code.parse().unwrap(), LockOrder::Arrival);
    ClusterSetting { scenario, tokens_per_gpu: None, order, mode, predictor: Form::WINDOW, seed, until }
}

fn run(cluster: &Cluster, setting: &ClusterSetting) -> (Keep, SimTotals) {
    let mut keep = Keep::default();
    let totals = simulate(cluster, setting, &mut keep).unwrap();
    (keep, totals)
}

#[test]
fn no_job_is_blocked_for_longer_than_it_takes_in_any_scenario() {
    let cluster = trackers(0, Rate(1_000_000_000));
    for scenario in Scenario::distinct() {
        for mode in MODES {
            let setting = setting(&scenario.to_string(), mode, 3, Nanos(700 * MS));
            let (keep, totals) = run(&cluster, &setting);
            assert!(keep.jobs.len() > 30, "{scenario}: {}", keep.jobs.len());
            assert_eq!(totals.jobs, keep.jobs.len() as u64);
            for job in &keep.jobs {
                let response = job.done - job.start;
                assert!(job.blocked.total() <= response, "{scenario} {job:?}");
            }
            assert!(keep.jobs.iter().any(|job| job.blocked.total() > Nanos::ZERO), "{scenario}");
        }
    }
}

#[test]
fn codes_that_mean_the_same_log_the_same_and_the_others_do_not() {
    let cluster = trackers(7, Rate(1_000_000_000));
    let log = |scenario: Scenario| {
        run(&cluster, &setting(&scenario.to_string(), TokenMode::Relaxed(2), 5, Nanos(900 * MS))).0.log
    };
    let canonical: Vec<_> = Scenario::distinct().into_iter().map(|scenario| (scenario, log(scenario))).collect();
    for scenario in Scenario::all() {
        let (_, expected) = canonical.iter().find(|(own, _)| *own == scenario.canonical()).unwrap();
        assert_eq!(&log(scenario), expected, "{scenario}");
    }
    let distinct = |log: &Vec<SimRecord>| canonical.iter().filter(|(_, other)| other == log).count();
    assert!(canonical.iter().all(|(_, log)| distinct(log) == 1));
}

/// A rate at which 2 MiB take 1 ms.
const RATE: Rate = Rate((2 << 20) * 1_000);

fn cluster(cpus: u32, gpus: usize, tasks: Vec<SimTask>) -> Cluster {
    Cluster {
        cpus,
        copy_engines: CopyEngines::One,
        distances: Distances::uniform(gpus),
        costs: ClusterCosts {
            to_gpu: RATE,
            from_gpu: RATE,
            peer: vec![RATE],
            copy_setup: Nanos::ZERO,
            call: Nanos::ZERO,
            grant: Nanos::ZERO,
            handover: Nanos::ZERO,
        },
        tasks,
    }
}

fn task(name: &str, start: u64, deadline: u64, segments: Vec<JobSegment>) -> SimTask {
    SimTask {
        name: name.to_owned(),
        period: Nanos(100 * MS),
        deadline: Nanos(deadline * MS),
        start: Nanos(start * MS),
        state: Bytes(0),
        before: Nanos::ZERO,
        segments,
        after: Nanos::ZERO,
        jitter_ppm: 0,
    }
}

fn execute(ms: u64) -> JobSegment {
    JobSegment::Execute { kernel: "k".to_owned(), time: Nanos(ms * MS) }
}

/// Ten tasks that copy in, use CPU and kernels in turns, and copy out, on four GPUs behind two switches; their state is large.
fn trackers(seed: u64, rate: Rate) -> Cluster {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let copy = |direction, bytes| JobSegment::Copy { direction, bytes: Bytes(bytes) };
    let mut segments = vec![copy(TaskDirection::ToGpu, 600_000)];
    for _ in 0..9 {
        segments.extend([
            JobSegment::Cpu(Nanos(5 * MS / 2)),
            JobSegment::Execute { kernel: "k".to_owned(), time: Nanos(5 * MS / 2) },
        ]);
    }
    segments.push(copy(TaskDirection::FromGpu, 350_000));
    let tasks = (0..10).map(|number| {
        let period = Nanos(if number < 4 { 50 } else { 100 } * MS);
        SimTask {
            period,
            deadline: period,
            start: Nanos(random.next_u64() % period.0),
            state: Bytes(6_856_704),
            jitter_ppm: 100_000,
            ..task(&format!("camera{number}"), 0, 1, segments.clone())
        }
    });
    let (distances, tasks) = (Distances::switched(4, 2), tasks.collect());
    let mut cluster = Cluster { distances, ..cluster(6, 4, tasks) };
    cluster.costs = ClusterCosts {
        to_gpu: rate,
        from_gpu: rate,
        peer: vec![rate],
        copy_setup: Nanos(10_000),
        call: Nanos(10_000),
        ..cluster.costs
    };
    cluster
}

/// Completion of the first job of each task, ms.
fn first_done(keep: &Keep, tasks: u32) -> Vec<u64> {
    let first = |task| JobId { task: TaskId(task), job: 0 };
    let done = |task| keep.jobs.iter().find(|kept| kept.job == first(task)).unwrap().done.0;
    (0..tasks).map(|task| done(task) / MS).collect()
}

#[test]
fn the_job_with_the_earlier_deadline_takes_the_cpu_and_gives_it_back() {
    let late = SimTask { before: Nanos(30 * MS), ..task("late", 0, 100, vec![execute(1)]) };
    let early = SimTask { before: Nanos(10 * MS), ..task("early", 10, 40, vec![execute(1)]) };
    let set = setting("AEdG,X", TokenMode::Optimal, 1, Nanos(99 * MS));
    let (keep, totals) = run(&cluster(1, 1, vec![late.clone(), early.clone()]), &set);
    assert_eq!(first_done(&keep, 2), [41, 21]);
    let on_cpu: Vec<_> = keep.log.iter().filter(|r| matches!(r.what, SimEvent::OnCpu | SimEvent::Preempted)).collect();
    let seen: Vec<_> = on_cpu.iter().map(|r| (r.at.0 / MS, r.job.task.0, r.what == SimEvent::OnCpu)).collect();
    assert_eq!(
        seen,
        [(0, 0, true), (10, 1, true), (10, 0, false), (20, 0, true)].map(|(a, t, on)| (a, t, on)).to_vec()
    );
    assert_eq!((totals.cpu, totals.engines[0]), (Nanos(40 * MS), Nanos(2 * MS)));
    let (keep, _) = run(&cluster(2, 1, vec![late, early]), &set);
    assert_eq!(first_done(&keep, 2), [31, 21], "with two CPUs nobody waits");
}

#[test]
fn a_job_that_ends_on_a_cpu_leaves_it_to_the_one_that_waits() {
    // One CPU: early's 1 ms of kernel and 10 ms after it come first, then late's 5 ms, 1 ms of kernel and 2 ms after it.
    let early = SimTask { after: Nanos(10 * MS), ..task("early", 0, 50, vec![execute(1)]) };
    let late = SimTask { before: Nanos(5 * MS), after: Nanos(2 * MS), ..task("late", 2, 90, vec![execute(1)]) };
    let set = setting("AEdG,X", TokenMode::Optimal, 1, Nanos(99 * MS));
    let (keep, totals) = run(&cluster(1, 2, vec![early, late]), &set);
    assert_eq!(first_done(&keep, 2), [11, 19]);
    assert_eq!(totals.cpu, Nanos(17 * MS));
}

#[test]
fn a_holder_of_the_token_runs_at_the_priority_of_the_job_that_waits_for_it() {
    let low = task("low", 0, 90, vec![JobSegment::Cpu(Nanos(10 * MS)), execute(1)]);
    let mid = SimTask { before: Nanos(20 * MS), ..task("mid", 1, 60, vec![execute(1)]) };
    let high = task("high", 2, 30, vec![execute(1)]);
    for code in ["AedG,X", "aedg,2MB"] {
        let set = setting(code, TokenMode::Optimal, 1, Nanos(95 * MS));
        let (keep, _) = run(&cluster(1, 1, vec![low.clone(), mid.clone(), high.clone()]), &set);
        // low: 0 to 1, then from 2 to 11 in place of mid, whose 20 ms would otherwise come first; mid: 1 to 2, 11 to 30.
        assert_eq!(first_done(&keep, 3), [12, 31, 13], "{code}");
    }
}

#[test]
fn state_follows_the_job_chunk_by_chunk_and_is_saved_after_every_job_without_peer_copies() {
    // Another task holds a token of the GPU that `t` used last whenever `t` asks; 5 MiB of state take 2.5 ms.
    let t = SimTask { state: Bytes(5 << 20), ..task("t", 0, 100, vec![execute(1)]) };
    let other = task("other", 99, 100, vec![execute(30)]);
    let both = cluster(2, 2, vec![t.clone(), other]);
    let of = |code: &str| {
        let (mut keep, totals) = run(&both, &setting(code, TokenMode::WorkConserving, 1, Nanos(250 * MS)));
        keep.jobs.retain(|job| job.job.task == TaskId(0));
        let tenths: Vec<_> = keep.jobs.iter().map(|job| (job.done - job.start).0 / (MS / 10)).collect();
        let migrated = keep.jobs.iter().filter(|job| job.from.is_some()).count();
        (tenths, migrated, keep, totals)
    };
    let (tenths, migrated, keep, totals) = of("aEdG,2MB");
    assert_eq!((tenths, migrated), (vec![10, 35, 35], 2));
    let chunks = keep.log.iter().filter(|r| matches!(r.what, SimEvent::Running { kind: OpKind::Peer, .. })).count();
    assert_eq!(chunks, 6);
    let copies: u64 = [1, 4].map(|engine| totals.engines[engine].0).iter().sum();
    assert_eq!(copies, 2 * 2 * 5 * MS / 2, "a peer copy keeps both engines");
    let (tenths, migrated, ..) = of("aEdg,2MB");
    assert_eq!((tenths, migrated), (vec![35, 60, 60], 2));
    let (tenths, migrated, ..) = of("aEdG,X");
    assert_eq!((tenths, migrated), (vec![10, 35, 35], 2));
    let (tenths, migrated, ..) = of("AEdG,2MB");
    assert_eq!((tenths, migrated), (vec![10, 10, 10], 0), "with affinity the other goes where nobody has state");
}

#[test]
fn the_load_balancer_of_the_driver_stays_at_the_last_gpu_unless_another_has_fewer_users() {
    let t = SimTask { state: Bytes(2 << 20), ..task("t", 0, 100, vec![execute(1)]) };
    let set = setting("TG,2MB", TokenMode::Optimal, 1, Nanos(250 * MS));
    let (keep, totals) = run(&cluster(2, 2, vec![t.clone()]), &set);
    assert_eq!((keep.jobs.len(), totals.migrations), (3, 0));
    // Three others with long kernels: each GPU has one before the second gets two.
    let long = |name| task(name, 0, 100, vec![execute(40)]);
    let (keep, _) = run(&cluster(4, 2, vec![long("a"), long("b"), long("c"), long("d")]), &set);
    let mut done = first_done(&keep, 4);
    done.sort_unstable();
    assert_eq!(done, [40, 40, 80, 80]);
}

#[test]
fn the_time_until_another_gives_up_what_is_waited_for_is_blocked_time() {
    let slow = task("slow", 0, 90, vec![execute(10)]);
    let quick = task("quick", 3, 90, vec![execute(2)]);
    for code in ["AEdG,X", "AedG,X", "TG,X"] {
        let set = setting(code, TokenMode::Relaxed(2), 1, Nanos(80 * MS));
        let (keep, _) = run(&cluster(2, 1, vec![slow.clone(), quick.clone()]), &set);
        let job = &keep.jobs[1];
        assert_eq!((job.done - job.start, job.blocked.total()), (Nanos(9 * MS), Nanos(7 * MS)));
        // Without the other one, the job is done earlier by as much.
        let (alone, _) = run(&cluster(2, 1, vec![quick.clone()]), &set);
        assert_eq!(alone.jobs[0].done - alone.jobs[0].start, Nanos(2 * MS));
    }
}

#[test]
fn a_cluster_that_cannot_run_is_refused() {
    let one = || cluster(1, 1, vec![task("t", 0, 1, vec![execute(1)])]);
    let refused = |cluster: &Cluster| {
        simulate(cluster, &setting("AEdG,X", TokenMode::Optimal, 1, Nanos(MS)), &mut Keep::default()).unwrap_err()
    };
    assert_eq!(refused(&Cluster { cpus: 0, ..one() }), SimSharingError::Empty { cpus: 0, gpus: 1 });
    let mut still = one();
    still.tasks[0].period = Nanos::ZERO;
    assert_eq!(refused(&still), SimSharingError::NoPeriod { task: "t".into() });
    let mut stuck = one();
    stuck.costs.peer = vec![Rate(0)];
    assert_eq!(refused(&stuck), SimSharingError::NoRate);
    stuck.costs.peer.clear();
    assert_eq!(refused(&stuck), SimSharingError::NoRate);
}

/// A lock that a group lock holds idle serves a single chunk meanwhile, so that copies do not wait for nothing.
#[test]
fn backfill_serves_chunks_under_idle_locks_and_every_job_ends() {
    let cluster = trackers(0, Rate(250_000_000));
    let until = Nanos(2_000 * MS);
    let of = |code: &str| run(&cluster, &setting(code, TokenMode::Relaxed(2), 5, until));
    let ((group, _), (backfill, _), (again, _)) = (of("aEDG,2MB"), of("aEBG,2MB"), of("aEBG,2MB"));
    assert_ne!(group.log, backfill.log, "no lock was ever held idle");
    assert_eq!(backfill.log, again.log);
    assert!(backfill.jobs.len() >= group.jobs.len() * 9 / 10, "{} {}", backfill.jobs.len(), group.jobs.len());
    assert_eq!("aEBG,2MB".parse::<Scenario>().unwrap().to_string(), "aEBG,2MB");
}
