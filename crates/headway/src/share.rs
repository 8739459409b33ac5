//! Tasks that share GPUs: what a job can be kept waiting, and whether tardiness is bounded, on a machine.

use headway_core::analysis::sharing::{Acquisition, Analysis, Blockers, CpuGuarantee, System, TaskDemand, analyse};
pub use headway_core::analysis::sharing::{Resource, TardinessVerdict, Unknown};
use headway_core::decisions::sharing::{ClientId, ClusterId, JobSegment, TaskId, TaskParameters};
use headway_core::decisions::token::TokenMode;
use headway_core::files::error::Loaded;
use headway_core::files::machine::{EndpointId, EndpointKind, Machine, RouteId};
use headway_core::files::workload::{SharingTable, Workload, WorkloadTask};
use headway_core::interconnect::Network;
use headway_core::plan::planner::{PlanError, PlanOptions};
use headway_core::plan::{Named, Strategy};
use headway_core::units::{Bytes, Nanos, PPM, Rate};
use serde::Serialize;

use crate::error::error_at;
use crate::{Error, Failure};

/// GPUs that the tasks of this program use in turns: by an arbiter of its own, or by a broker that serves other processes too.
pub mod tasks {
    pub use headway_core::decisions::engine_lock::{EngineWork, LockedOperation};
    pub use headway_core::decisions::sharing::{ArbiterParameters, ClusterId, GpuId, TaskId};
    /// The clock of releases.
    pub use headway_os::clock::now;
    pub use headway_runtime::sharing::{
        Client, ClientError, EngineGuard, GpuToken, Sharing, SharingError, Task, TaskJob, TaskShape,
    };
}

/// What the analysis says of a workload's tasks.
#[derive(Clone, Debug, Serialize)]
pub struct SharingReport {
    /// Version of the JSON form.
    pub schema: u32,
    /// The workload file.
    pub workload: Named,
    /// The machine file.
    pub machine: Named,
    /// GPUs shared, by name.
    pub gpus: Vec<String>,
    /// CPUs `m`.
    pub cpus: u32,
    pub tokens_per_gpu: u32,
    /// Queue discipline of the tokens.
    pub mode: TokenMode,
    /// `LC`: longest time that one chunk keeps its engines.
    pub longest_copy: Nanos,
    /// `LE`: longest kernel segment.
    pub longest_execute: Nanos,
    /// Requests that can be ahead; `None` where nothing is known.
    pub blockers: Option<Blockers>,
    /// Whether tardiness is bounded.
    pub verdict: TardinessVerdict,
    /// One per task; empty where nothing is known.
    pub tasks: Vec<TaskReport>,
    /// What the answer rests on.
    pub notes: Vec<String>,
}

/// Bounds of one task.
#[derive(Clone, Debug, Serialize)]
pub struct TaskReport {
    pub id: String,
    pub period: Nanos,
    /// Relative deadline.
    pub deadline: Nanos,
    /// Bound on the time for which it holds a token: each copy and kernel counts as the longest of all tasks, with those ahead of it.
    pub token_hold: Nanos,
    /// Longest wait for a token.
    pub token_wait: Nanos,
    /// Longest wait for engines, all its requests together.
    pub engine_wait: Nanos,
    /// Both waits together.
    pub blocking: Nanos,
    /// Own time and blocking.
    pub inflated: Nanos,
    /// Longest tardiness; `None` where none follows simply.
    pub tardiness: Option<Nanos>,
}

/// GPUs and routes that the tasks use.
struct Used {
    gpus: Vec<EndpointId>,
    routes: Vec<RouteId>,
    peer: bool,
}

/// Bounds the blocking of every task of `workload` on `machine`.
///
/// # Errors
/// `ErrorKind::File` where the workload has no tasks, names a GPU that the machine does not have, or needs a route that is not
/// there; `ErrorKind::Plan` if a route has no rate; `ErrorKind::Options` for a machine beside other programs, and for a strategy.
pub fn bounds(machine: &Machine, workload: &Loaded<Workload>, options: PlanOptions) -> Result<SharingReport, Error> {
    refuse_of_plans(options.strategy, machine.others)?;
    let Some(sharing) = &workload.value.sharing else {
        let help = Some("add a `[[task]]` and a `[sharing]` table".to_owned());
        return Err(error_at(workload, "", "the workload has no tasks that share GPUs", help));
    };
    Ok(model(machine, workload, sharing)?.report)
}

/// Refuses options of plans that tasks do not have.
pub(crate) fn refuse_of_plans(strategy: Option<Strategy>, others: u32) -> Result<(), Error> {
    if strategy.is_some() {
        let why = "tasks that share GPUs have no `--strategy`: `[sharing]` says how they do it";
        return Err(Failure::Options(why).into());
    }
    if others > 0 {
        let why = "`--others` is for streams and messages; tasks share their GPUs with those of other programs by `headway broker`";
        return Err(Failure::Options(why).into());
    }
    Ok(())
}

/// What [`bounds`] rests on, for whoever runs the tasks.
pub(crate) struct Model {
    pub(crate) report: SharingReport,
    /// The rate that every route keeps whatever the others do, and the longest time before a copy's first byte.
    pub(crate) rate: Rate,
    pub(crate) setup: Nanos,
    /// Whether state goes from GPU to GPU.
    pub(crate) peer: bool,
}

/// Like [`bounds`], for tasks that share as `sharing` says.
pub(crate) fn model(machine: &Machine, workload: &Loaded<Workload>, sharing: &SharingTable) -> Result<Model, Error> {
    let used = used(machine, workload, sharing)?;
    let (rate, setup) = pace(machine, &used)?;
    let system = system(machine, &workload.value.tasks, sharing, &used, rate, setup);
    let demands: Vec<_> = (0..).zip(&workload.value.tasks).map(|(at, task)| demand(at, task, &system)).collect();
    let analysis = analyse(&system, &demands);
    Ok(Model { report: report(machine, &workload.value, &used, &system, analysis), rate, setup, peer: used.peer })
}

/// The GPUs and the routes between them and their host memory.
fn used(machine: &Machine, workload: &Loaded<Workload>, sharing: &SharingTable) -> Result<Used, Error> {
    let at = |place: &str, message: String, help: &str| error_at(workload, place, &message, Some(help.to_owned()));
    let mut gpus = Vec::new();
    match &sharing.gpus {
        None => gpus.extend(machine.gpus()),
        Some(names) => {
            for name in names {
                let found = machine.endpoint(name).filter(|id| machine.endpoints[id.at()].kind == EndpointKind::Gpu);
                let Some(gpu) = found else {
                    let message = format!("`{name}` is no GPU of machine `{}`", machine.name);
                    return Err(at(
                        "sharing.gpus",
                        message,
                        "name GPUs of this machine, or choose another with `--machine`",
                    ));
                };
                if gpus.contains(&gpu) {
                    return Err(at("sharing.gpus", format!("`{name}` is named twice"), "name each GPU once"));
                }
                gpus.push(gpu);
            }
        }
    }
    if gpus.is_empty() {
        let message = format!("machine `{}` has no GPU to share", machine.name);
        return Err(at("sharing", message, "choose a machine with GPUs"));
    }
    let mut routes = Vec::new();
    for gpu in &gpus {
        let both = |memory| Some([machine.route(memory, *gpu)?, machine.route(*gpu, memory)?]);
        let Some(both) = machine.memories().find_map(both) else {
            let name = &machine.endpoints[gpu.at()].id;
            let message = format!("machine `{}` has no routes between a memory and `{name}`", machine.name);
            return Err(at("sharing", message, "add the routes to the machine file"));
        };
        routes.extend(both);
    }
    let pairs = gpus.iter().flat_map(|from| gpus.iter().map(move |to| (*from, *to))).filter(|(from, to)| from != to);
    let between: Option<Vec<_>> = pairs.map(|(from, to)| machine.route(from, to)).collect();
    let peer = sharing.peer_copies && gpus.len() > 1;
    match between {
        Some(between) if peer => routes.extend(between),
        None if peer => {
            let message = format!("machine `{}` has no peer route between some of the shared GPUs", machine.name);
            return Err(at(
                "sharing.migration",
                message,
                "write `migration = \"system\"`, or share GPUs that are peers",
            ));
        }
        _ => {}
    }
    Ok(Used { gpus, routes, peer })
}

/// The rate that every route keeps whatever the others do, and the longest time before a copy's first byte.
fn pace(machine: &Machine, used: &Used) -> Result<(Rate, Nanos), Error> {
    let network = Network::new(machine);
    let mut rate = Rate(u64::MAX);
    let mut setup = Nanos::ZERO;
    for route in &used.routes {
        let kept = network.guaranteed_rate(*route, &used.routes);
        rate = rate.min(kept.map_err(|starved| Failure::Plan(Box::new(PlanError::Network(starved))))?);
        setup = setup.max(machine.routes[route.at()].setup);
    }
    Ok((rate, setup))
}

fn system(
    machine: &Machine,
    tasks: &[WorkloadTask],
    sharing: &SharingTable,
    used: &Used,
    rate: Rate,
    setup: Nanos,
) -> System {
    let copied = |segment: &JobSegment| match segment {
        JobSegment::Copy { bytes, .. } => *bytes,
        JobSegment::Cpu(_) | JobSegment::Execute { .. } => Bytes(0),
    };
    let largest = tasks.iter().flat_map(|task| task.segments.iter().map(copied).chain([task.state])).max();
    let largest = largest.unwrap_or_default();
    let chunk = sharing.chunk.map_or(largest, |chunk| chunk.min(largest));
    let longest_copy = if chunk == Bytes(0) { Nanos::ZERO } else { calibrated(machine, setup, rate.time_for(chunk)) };
    let executed = |segment: &JobSegment| match segment {
        JobSegment::Execute { time, .. } => *time,
        JobSegment::Cpu(_) | JobSegment::Copy { .. } => Nanos::ZERO,
    };
    let gpus = used.gpus.len() as u32;
    System {
        gpus,
        tokens: sharing.tokens(gpus),
        engines: sharing.engines(),
        peer_copies: used.peer,
        longest_copy,
        longest_execute: tasks.iter().flat_map(|task| &task.segments).map(executed).max().unwrap_or_default(),
        grant_latency: Nanos::ZERO,
        cpu: CpuGuarantee::Priorities,
    }
}

/// A copy's time with what the calibration adds, rounded up.
fn calibrated(machine: &Machine, setup: Nanos, moving: Nanos) -> Nanos {
    let time = setup.saturating_add(moving);
    let Some(calibration) = &machine.calibration else { return time };
    let margin = (u128::from(time.0) * u128::from(calibration.margin_ppm)).div_ceil(u128::from(PPM));
    let margin = Nanos(u64::try_from(margin).unwrap_or(u64::MAX));
    time.saturating_add(margin).saturating_add(calibration.jitter)
}

fn demand(number: u32, task: &WorkloadTask, system: &System) -> TaskDemand {
    let parameters = TaskParameters {
        id: TaskId(number),
        client: ClientId(0),
        cluster: ClusterId(0),
        period: task.period,
        deadline: task.deadline,
        state: if system.gpus > 1 { task.state } else { Bytes(0) },
        segments: task.held().to_vec(),
    };
    let chunk = system.engines.and_then(|engines| engines.chunk_bytes);
    // Every chunk counts as the longest: no copy takes more.
    let held = Acquisition::of(&parameters, chunk, system.peer_copies, |_| system.longest_copy);
    TaskDemand {
        task: TaskId(number),
        period: task.period,
        cpu_outside: task.before().saturating_add(task.after()),
        acquisitions: vec![held],
    }
}

fn report(machine: &Machine, workload: &Workload, used: &Used, system: &System, analysis: Analysis) -> SharingReport {
    let task = |(bound, task): (&headway_core::analysis::sharing::TaskBound, &WorkloadTask)| TaskReport {
        id: task.id.clone(),
        period: task.period,
        deadline: task.deadline,
        token_hold: bound.token_hold,
        token_wait: bound.token_wait,
        engine_wait: bound.engine_wait,
        blocking: bound.blocking,
        inflated: bound.inflated,
        tardiness: bound.tardiness(task.deadline),
    };
    let mut notes = vec![
        "CPU priority of token holders: assumed, the most urgent run as soon as they are ready; `headway doctor` says whether \
         this host does that, and what it lacks"
            .to_owned(),
        "times of kernels and CPU segments are those of the workload file; hand-over between jobs is not included".to_owned(),
    ];
    if machine.calibration.is_none() {
        notes.push(format!("machine `{}` is not calibrated: the bounds hold for its model only", machine.name));
    }
    let named = |name: &str, hash: &str| Named { name: name.to_owned(), hash: hash.to_owned() };
    SharingReport {
        schema: 1,
        workload: named(&workload.name, &workload.hash),
        machine: named(&machine.name, &machine.hash),
        gpus: used.gpus.iter().map(|gpu| machine.endpoints[gpu.at()].id.clone()).collect(),
        cpus: system.tokens.cpus,
        tokens_per_gpu: system.tokens.per_gpu,
        mode: system.tokens.mode,
        longest_copy: system.longest_copy,
        longest_execute: system.longest_execute,
        blockers: analysis.blockers,
        verdict: analysis.verdict,
        tasks: analysis.tasks.iter().zip(&workload.tasks).map(task).collect(),
        notes,
    }
}

#[cfg(test)]
mod tests {
    use headway_core::files::workload::parse;

    use super::*;

    const TEXT: &str = "name = \"t\"\n[sharing]\ncpus = 8\n[[task]]\nid = \"a\"\nperiod = \"50 ms\"\nstate = \"5 MiB\"\n\
                        segments = [{ cpu = \"1 ms\" }, { copy = \"host -> gpu\", bytes = \"1 MiB\" }, \
                        { compute = \"klt\", time = \"2 ms\" }]\n[[task]]\nid = \"b\"\nperiod = \"100 ms\"\n\
                        segments = [{ compute = \"klt\", time = \"3 ms\" }]\n";

    fn of(machine: &str, text: &str) -> Result<SharingReport, Error> {
        bounds(&crate::machine::open(machine).unwrap(), &parse("t.toml", text).unwrap(), PlanOptions::default())
    }

    #[test]
    fn tasks_are_bounded_on_a_machine_by_the_rule_of_the_analysis() {
        let report = of("h200-x4", TEXT).unwrap();
        assert_eq!((report.gpus.len(), report.mode, report.verdict), (4, TokenMode::Optimal, TardinessVerdict::Yes));
        let blockers = report.blockers.unwrap();
        // One other holder per engine; group locks can meet every other one of the eight holders.
        assert_eq!((blockers.execute, blockers.copy, blockers.holders, blockers.token), (1, 7, 8, 1));
        let [a, b] = &report.tasks[..] else { panic!("{report:?}") };
        // a: one chunk in, three of state; b: no copy at all.
        assert_eq!(a.engine_wait, Nanos(4 * 7 * report.longest_copy.0 + 3_000_000));
        assert_eq!((b.engine_wait, report.longest_execute), (Nanos(3_000_000), Nanos(3_000_000)));
        assert_eq!((a.token_wait, b.token_wait), (a.token_hold.max(b.token_hold), a.token_hold.max(b.token_hold)));
        assert_eq!((a.tardiness, b.tardiness), (Some(Nanos::ZERO), Some(Nanos::ZERO)));
        assert!(a.inflated >= a.blocking && report.longest_copy > Nanos(30_000), "{report:?}");
    }

    #[test]
    fn what_the_machine_does_not_have_is_refused_at_its_place() {
        let refused = |machine: &str, from: &str, to: &str| {
            let error = of(machine, &TEXT.replacen(from, to, 1)).unwrap_err();
            let Some(error) = error.place() else { panic!("{error:?}") };
            (error.line, error.message.clone())
        };
        let (line, message) = refused("h200-x1", "cpus = 8", "cpus = 8\ngpus = [\"gpu0\", \"gpu7\"]");
        assert_eq!((line, message.contains("`gpu7` is no GPU")), (4, true), "{message}");
        let (_, message) = refused("gpusync-8xgtx470", "cpus = 8", "cpus = 8\nmigration = \"peer\"");
        assert!(message.contains("no peer route"), "{message}");
        let flow = "name = \"f\"\n[[demand]]\nid = \"a\"\ncost = \"1 ms\"\nperiod = \"2 ms\"\n";
        assert!(of("h200-x1", flow).unwrap_err().to_string().contains("no tasks"));
        assert!(of("gpusync-8xgtx470", &TEXT.replacen("cpus = 8", "cpus = 8\nmigration = \"system\"", 1)).is_ok());
    }

    #[test]
    fn too_much_work_is_no_and_an_unbounded_mode_is_do_not_know() {
        let verdict = |from: &str, to: &str| of("h200-x1", &TEXT.replacen(from, to, 1)).unwrap().verdict;
        assert!(matches!(verdict("time = \"3 ms\"", "time = \"101 ms\""), TardinessVerdict::No(_)));
        assert!(matches!(verdict("cpus = 8", "cpus = 8\nmode = \"priority\""), TardinessVerdict::DontKnow(_)));
        assert!(matches!(verdict("cpus = 8", "cpus = 8\nengine_locks = false"), TardinessVerdict::DontKnow(_)));
    }
}
