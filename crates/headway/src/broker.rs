//! The broker of a machine: arbitrates its GPUs between processes, and lists holders and waiters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use headway_broker::{BrokerLimits, BrokerServer, GpuProbe, Health, MpsError, Tell, place};
use headway_core::decisions::engine_lock::EngineParameters;
pub use headway_core::decisions::engine_lock::{EngineRole, LockId, LockOrder, PeerLocks};
use headway_core::decisions::sharing::{
    ArbiterLimits, ArbiterParameters, CLASSES, Class, ClusterId, ClusterParameters, Distances, GpuId, ModelId,
};
pub use headway_core::decisions::token::TokenMode;
use headway_core::decisions::token::TokenParameters;
use headway_core::files::machine::{Endpoint, EndpointId, Machine};
use headway_core::units::{Bytes, Nanos, PPM, Rate};
use headway_cuda::{Nvml, NvmlGpu};
use headway_os::affinity;

pub use headway_broker::{
    BrokerStatus, Client, FlowStatus, LimitUse, MemoryStatus, MpsOptions, MpsStatus, OnLoss, Phase, TaskShape,
    UserAccess,
};

use crate::{Error, Failure};

/// How GPUs are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerOptions {
    /// Where the broker listens; `None` = the usual place of the access.
    pub socket: Option<PathBuf>,
    /// Who may connect.
    pub access: UserAccess,
    /// Machine by name or file, whose GPUs are shared.
    pub machine: String,
    /// Share only its first so many GPUs.
    pub gpus: Option<usize>,
    /// CPUs that managed tasks may use, per cluster; `None` = those allowed here, divided among the clusters.
    pub cpus: Option<u32>,
    /// Tokens of each GPU.
    pub per_gpu: u32,
    /// Queue discipline; `None` = work-conserving where there are more tokens than CPUs, else optimal.
    pub mode: Option<TokenMode>,
    /// Whether engines are locked one by one; else a token is the right to all.
    pub engine_locks: bool,
    /// Copy engines of each GPU with a role, 1 or 2.
    pub copy_engines: u32,
    /// How peer copies take their two locks.
    pub peer: PeerLocks,
    /// Who an engine serves first.
    pub order: LockOrder,
    /// Longest chunk; `None` = whole copies.
    pub chunk: Option<Bytes>,
    /// How long a GPU may still work for a process that has ended.
    pub drain: Nanos,
    /// A client that holds something for longer is cut off.
    pub watchdog: Nanos,
    /// How long a broker that is started again waits for its predecessor's clients.
    pub recover: Nanos,
    /// How long it looks for requests before it sleeps, at most.
    pub spin: Nanos,
    /// Most of the time that it spends so, in parts per million of one CPU.
    pub spin_share_ppm: u64,
    /// Whether the priority of holders follows their jobs, where the kernel permits.
    pub boost: bool,
    /// File for every input.
    pub log: Option<PathBuf>,
    /// Start even where a process of another user has claimed one of the GPUs.
    pub despite_claims: bool,
    /// The highest real-time priority that threads of other users may get; `None` = none.
    pub lend_realtime: Option<i32>,
    /// The shortest relative deadline of a task.
    pub deadline_min: Nanos,
    /// Programs whose turns each flow bears from the beginning: so many can always open flows on a GPU.
    pub flow_programs: u32,
    /// Tasks of all users together.
    pub tasks_max: usize,
    /// Size at which another file of the log is begun.
    pub log_bytes: Bytes,
    /// Files of the log that are kept.
    pub log_files: u32,
    /// Whether nobody is granted anything while what happens cannot be written down.
    pub must_remember: bool,
    /// Runs an MPS daemon for the broker's user ([`mps`](crate::mps)); what is here has it started and stopped.
    pub mps: Option<MpsOptions>,
}

impl Default for BrokerOptions {
    fn default() -> Self {
        let usual = headway_broker::ServerOptions::new(PathBuf::new(), ArbiterParameters::new(Vec::new(), None));
        Self {
            socket: None,
            access: usual.access,
            machine: "h200-x4".to_owned(),
            gpus: None,
            cpus: None,
            per_gpu: 2,
            mode: None,
            engine_locks: true,
            copy_engines: 2,
            peer: PeerLocks::Group,
            order: LockOrder::Arrival,
            chunk: Some(Bytes(2 << 20)),
            drain: usual.drain,
            watchdog: usual.watchdog,
            recover: usual.recover,
            spin: usual.spin,
            spin_share_ppm: usual.spin_share_ppm,
            boost: usual.boost,
            log: None,
            despite_claims: usual.despite_claims,
            lend_realtime: usual.lend_realtime,
            deadline_min: usual.limits.deadline_min,
            flow_programs: usual.limits.flow_programs,
            tasks_max: usual.arbiter.limits.tasks_max,
            log_bytes: Bytes(usual.log_bytes),
            log_files: usual.log_files,
            must_remember: usual.must_remember,
            mps: None,
        }
    }
}

/// Where a broker with these options listens.
#[must_use]
pub fn socket(options: &BrokerOptions) -> PathBuf {
    let usual = || match options.access {
        UserAccess::Private => place::private(),
        UserAccess::Group => PathBuf::from(place::SYSTEM),
    };
    options.socket.clone().unwrap_or_else(usual)
}

/// Arbitrates until `stop` is set; `started` is told where it listens, `tell` what goes wrong meanwhile.
///
/// # Errors
/// `ErrorKind::Broker`, and what reading the machine gives.
pub fn serve(
    options: &BrokerOptions,
    stop: &AtomicBool,
    tell: impl Fn(&str) + Send + Sync + 'static,
    started: impl FnOnce(&Path),
) -> Result<(), Error> {
    let machine = crate::machine::open(&options.machine)?;
    let machine = match options.gpus {
        Some(gpus) => crate::machine::restrict(&machine, gpus)?,
        None => machine,
    };
    let socket = socket(options);
    let arbiter = parameters(&machine, options)?;
    if let Some(why) = options.mps.as_ref().and_then(|_| crate::mps::forbidden()) {
        return Err(Failure::Broker(MpsError::Forbidden(why).into()).into());
    }
    let is_shipped = crate::machine::shipped(&options.machine).is_some();
    let (claims, probe) = known(&machine, is_shipped);
    let usual = headway_broker::ServerOptions::new(socket.clone(), arbiter);
    let mut server = BrokerServer::bind(headway_broker::ServerOptions {
        access: options.access,
        limits: BrokerLimits {
            deadline_min: options.deadline_min,
            flow_programs: options.flow_programs,
            ..usual.limits
        },
        claims,
        despite_claims: options.despite_claims,
        lend_realtime: options.lend_realtime,
        drain: options.drain,
        watchdog: options.watchdog,
        recover: options.recover,
        spin: options.spin,
        spin_share_ppm: options.spin_share_ppm,
        urgent: options.boost,
        boost: options.boost,
        probe,
        log: options.log.clone(),
        log_bytes: options.log_bytes.0,
        log_files: options.log_files,
        must_remember: options.must_remember,
        mps: options.mps.clone(),
        tell: Some(Tell::new(tell)),
        ..usual
    })
    .map_err(Failure::Broker)?;
    started(&socket);
    Ok(server.run(stop).map_err(Failure::Broker)?)
}

/// Who holds and waits at the broker of `socket`, or of the usual place.
///
/// # Errors
/// `ErrorKind::Broker`.
pub fn status(socket: Option<&Path>) -> Result<BrokerStatus, Error> {
    let usual = place::usual();
    Ok(headway_broker::client::status(socket.unwrap_or(&usual)).map_err(Failure::Client)?)
}

/// What the system knows of a machine's GPUs: the UUIDs by which no other broker may arbitrate them, and whom to ask whether they
/// are still there.
///
/// The driver (NVML) knows a GPU by the UUID or PCI address of the machine file, or by its place if there are as many. Where it
/// does not, the UUID of the machine file counts, unless the machine is a shipped one, whose GPUs are elsewhere. A GPU without a UUID is
/// simulated: it exists in its broker only, and brokers at different sockets each have their own.
fn known(machine: &Machine, is_shipped: bool) -> (Vec<String>, Option<GpuProbe>) {
    let ends: Vec<_> = machine.gpus().map(|gpu| &machine.endpoints[gpu.at()]).collect();
    let nvml = Nvml::system().ok();
    let there = nvml.as_ref().and_then(|nvml| nvml.report().ok()).map_or_else(Vec::new, |report| report.gpus);
    let find = |at: usize| {
        let end = ends[at];
        let same = |gpu: &NvmlGpu| end.uuid.as_ref() == Some(&gpu.uuid) || (end.pci.is_some() && end.pci == gpu.pci);
        there.iter().position(same).or_else(|| (there.len() == ends.len()).then_some(at))
    };
    let found: Vec<Option<usize>> = (0..ends.len()).map(find).collect();
    let uuid = |(at, end): (&Option<usize>, &&Endpoint)| {
        at.map_or_else(|| end.uuid.clone().filter(|_| !is_shipped), |at| Some(there[at].uuid.clone()))
    };
    let mut claims: Vec<String> = found.iter().zip(&ends).filter_map(uuid).collect();
    claims.sort_unstable();
    claims.dedup();
    let indices: Option<Vec<u32>> = found.iter().map(|at| u32::try_from((*at)?).ok()).collect();
    let probe = nvml.zip(indices).map(|(nvml, indices)| {
        GpuProbe::new(move |gpu| match indices.get(gpu.0 as usize).map(|index| nvml.is_lost(*index)) {
            Some(Ok(true)) => Health::Lost,
            Some(Ok(false)) => Health::There,
            Some(Err(_)) | None => Health::Unknown,
        })
    });
    (claims, probe)
}

/// Gives a GPU up at the broker of `socket`, or of the usual place. Only for the user who runs it.
///
/// # Errors
/// `ErrorKind::Broker`.
pub fn declare_lost(socket: Option<&Path>, gpu: u32) -> Result<(), Error> {
    let usual = place::usual();
    let client = Client::connect(socket.unwrap_or(&usual), "headway status", OnLoss::Fail).map_err(Failure::Client)?;
    Ok(client.declare_lost(GpuId(gpu)).map_err(Failure::Client)?)
}

/// The GPUs of a machine as an arbiter takes them: one cluster for each NUMA node that the file names, one for the rest.
///
/// All GPUs count as one model. How far apart they are follows from what moving a state of 8 MiB between them takes by the
/// machine file: by the route between them, else through a memory.
///
/// # Errors
/// `ErrorKind::Io` if the system does not tell the CPUs.
pub fn parameters(machine: &Machine, options: &BrokerOptions) -> Result<ArbiterParameters, Error> {
    let mut nodes: BTreeMap<Option<u32>, Vec<GpuId>> = BTreeMap::new();
    for (gpu, number) in machine.gpus().zip(0..) {
        nodes.entry(machine.endpoints[gpu.at()].numa).or_default().push(GpuId(number));
    }
    let count = u32::try_from(nodes.len().max(1)).unwrap_or(u32::MAX);
    let cpus = match options.cpus {
        Some(cpus) => cpus,
        None => (u32::try_from(affinity::allowed()?.len()).unwrap_or(u32::MAX) / count).max(1),
    };
    let cluster = |(gpus, number): (Vec<GpuId>, u32)| {
        let tokens = u32::try_from(gpus.len()).unwrap_or(u32::MAX).saturating_mul(options.per_gpu);
        let usual = if tokens > cpus { TokenMode::WorkConserving } else { TokenMode::Optimal };
        let mode = options.mode.unwrap_or(usual);
        ClusterParameters {
            id: ClusterId(number),
            models: vec![ModelId(0); gpus.len()],
            distances: distances(machine, &gpus),
            tokens: TokenParameters { cpus, per_gpu: options.per_gpu, mode, affinity: true },
            gpus,
        }
    };
    let engines = EngineParameters {
        copy_engines: options.copy_engines,
        peer: options.peer,
        order: options.order,
        chunk_bytes: options.chunk,
        watchdog: options.watchdog,
    };
    let clusters = nodes.into_values().zip(0..).map(cluster).collect();
    Ok(ArbiterParameters {
        limits: ArbiterLimits { tasks_max: options.tasks_max, requests_max: options.tasks_max },
        ..ArbiterParameters::new(clusters, options.engine_locks.then_some(engines))
    })
}

/// State whose move between two GPUs is priced: about that of the papers' tasks.
const MOVED: Bytes = Bytes(8 << 20);
/// Prices that differ by less than this, in parts per hundred, are the same distance.
const SAME_PERCENT: u64 = 10;

/// Classes of distance between GPUs, in the order of their prices.
fn distances(machine: &Machine, gpus: &[GpuId]) -> Distances {
    let ends: Vec<EndpointId> = machine.gpus().collect();
    let end = |gpu: &GpuId| ends.get(gpu.0 as usize).copied();
    let price = |from: &GpuId, to: &GpuId| moving(machine, end(from)?, end(to)?);
    let pairs = || gpus.iter().flat_map(|from| gpus.iter().map(move |to| (from, to))).filter(|(from, to)| from != to);
    let mut prices: Vec<Nanos> = pairs().filter_map(|(from, to)| price(from, to)).collect();
    prices.sort_unstable();
    // The first price of each class.
    let mut classes: Vec<Nanos> = Vec::new();
    for price in prices {
        let is_new = |last: &Nanos| price.0 > last.0.saturating_add(last.0 / 100 * SAME_PERCENT);
        if classes.last().is_none_or(is_new) {
            classes.push(price);
        }
    }
    let farthest = CLASSES - 1;
    let class = |from: &GpuId, to: &GpuId| {
        // Where there is no way, it is as far as can be.
        let known = price(from, to).map_or(farthest, |price| classes.iter().filter(|first| **first <= price).count());
        Class(u8::try_from(known.clamp(1, farthest)).unwrap_or(1))
    };
    let row = |from: &GpuId| gpus.iter().map(|to| if from == to { Class(0) } else { class(from, to) }).collect();
    Distances::new(gpus.iter().map(row).collect()).unwrap_or_else(|_| Distances::uniform(gpus.len()))
}

/// What moving a state takes; `None` if there is no way.
fn moving(machine: &Machine, from: EndpointId, to: EndpointId) -> Option<Nanos> {
    let along = |from, to| {
        let route = &machine.routes[machine.route(from, to)?.at()];
        let rates = route.uses.iter().map(|(capacity, ppm)| {
            let rate =
                u128::from(machine.capacities[capacity.at()].rate.0) * u128::from(PPM) / u128::from((*ppm).max(1));
            Rate(u64::try_from(rate).unwrap_or(u64::MAX).max(1))
        });
        Some(route.setup.saturating_add(rates.min()?.time_for(MOVED)))
    };
    let through = |memory| Some(along(from, memory)?.saturating_add(along(memory, to)?));
    along(from, to).or_else(|| machine.memories().filter_map(through).min())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn every_gpu_is_in_one_cluster() {
        let machine = crate::machine::open("h200-x4").unwrap();
        let parameters = parameters(&machine, &BrokerOptions { cpus: Some(6), ..BrokerOptions::default() }).unwrap();
        let mut gpus: Vec<u32> =
            parameters.clusters.iter().flat_map(|cluster| &cluster.gpus).map(|gpu| gpu.0).collect();
        gpus.sort_unstable();
        assert_eq!(gpus, [0, 1, 2, 3]);
    }

    #[test]
    fn gpus_of_a_shipped_machine_that_are_not_here_are_nobodys() {
        let machine = crate::machine::open("h200-x4").unwrap();
        let is_here = |claim: &String| {
            let there = Nvml::system().and_then(|nvml| nvml.report()).map_or_else(|_| Vec::new(), |report| report.gpus);
            there.iter().any(|gpu| gpu.uuid == *claim)
        };
        assert!(known(&machine, true).0.iter().all(is_here));
        assert_eq!(known(&machine, false).0.len(), 4, "a file of one's own names the GPUs of this node");
    }

    #[test]
    fn distances_follow_from_what_moving_a_state_takes() {
        let classes = |name: &str| {
            let machine = crate::machine::open(name).unwrap();
            let gpus: Vec<GpuId> = (0..machine.gpus().count() as u32).map(GpuId).collect();
            let distances = distances(&machine, &gpus);
            let row = |from: usize| (0..gpus.len()).map(|to| distances.class(from, to).0).collect::<Vec<_>>();
            (0..gpus.len()).map(row).collect::<Vec<_>>()
        };
        // NVLink between all: one distance.
        assert!(classes("h200-x4").iter().flatten().all(|class| *class <= 1));
        for machine in ["h200-x4", "gpusync-8xgtx470"] {
            for (from, row) in classes(machine).iter().enumerate() {
                assert!(row.iter().enumerate().all(|(to, class)| (*class == 0) == (from == to)), "{machine}: {row:?}");
            }
        }
    }

    #[test]
    fn a_broker_tells_its_status_until_it_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("broker");
        let options =
            BrokerOptions { socket: Some(socket.clone()), boost: false, cpus: Some(2), ..BrokerOptions::default() };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (started, listening) = std::sync::mpsc::channel();
            let (options, stop) = (&options, &stop);
            let server = scope.spawn(move || serve(options, stop, |_| {}, |_| started.send(()).unwrap()));
            listening.recv().unwrap();
            let status = status(Some(&socket)).unwrap();
            assert_eq!((status.gpus.len(), status.clients.len()), (4, 0));
            stop.store(true, Ordering::Relaxed);
            server.join().unwrap().unwrap();
        });
        assert!(matches!(status(Some(&socket)).map_err(Error::into_failure), Err(Failure::Client(_))));
    }
}
