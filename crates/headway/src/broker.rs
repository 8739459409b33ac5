//! The broker of a machine: arbitrates its GPUs between processes, and tells who holds and waits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use headway_broker::{BrokerLimits, Server, place};
use headway_core::engine_lock::{EngineParameters, PeerLocks};
use headway_core::machine::Machine;
use headway_core::predictor::PredictorParameters;
use headway_core::sharing::{ArbiterParameters, ClusterId, ClusterParameters, Distances, GpuId, Limits, ModelId};
use headway_core::token::{Mode, TokenParameters};
use headway_core::units::{Bytes, Nanos};
use headway_os::affinity;

pub use headway_broker::{Access, Client, OnLoss, Phase, Status, TaskShape};

use crate::{Error, files};

/// How GPUs are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the broker listens; `None` = the usual place of the access.
    pub socket: Option<PathBuf>,
    /// Who may connect.
    pub access: Access,
    /// Machine by name or file, whose GPUs are shared.
    pub machine: String,
    /// Share only its first so many GPUs.
    pub gpus: Option<usize>,
    /// CPUs that managed tasks may use, per cluster; `None` = those allowed here, divided among the clusters.
    pub cpus: Option<u32>,
    /// Tokens of each GPU.
    pub per_gpu: u32,
    /// Queue discipline; `None` = work-conserving where there are more tokens than CPUs, else optimal.
    pub mode: Option<Mode>,
    /// Whether engines are locked one by one; else a token is the right to all.
    pub engine_locks: bool,
    /// Copy engines of each GPU with a role, 1 or 2.
    pub copy_engines: u32,
    /// How peer copies take their two locks.
    pub peer: PeerLocks,
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
    /// Whether an engine lock may go from one client to another of the same user without the broker between.
    pub direct: bool,
    /// Whether the priority of holders follows their jobs, where the kernel permits.
    pub boost: bool,
    /// File for every input.
    pub log: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let usual = headway_broker::Options::new(
            PathBuf::new(),
            ArbiterParameters {
                clusters: Vec::new(),
                engines: None,
                predictor: PredictorParameters::default(),
                limits: Limits::default(),
            },
        );
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
            chunk: Some(Bytes(2 << 20)),
            drain: usual.drain,
            watchdog: usual.watchdog,
            recover: usual.recover,
            spin: usual.spin,
            spin_share_ppm: usual.spin_share_ppm,
            direct: usual.direct,
            boost: usual.boost,
            log: None,
        }
    }
}

/// Arbitrates until `stop` is set; `started` is told where it listens.
///
/// # Errors
/// [`Error::Broker`], and what reading the machine gives.
pub fn serve(options: &Options, stop: &AtomicBool, started: impl FnOnce(&Path)) -> Result<(), Error> {
    let machine = files::machine(&options.machine)?;
    let machine = match options.gpus {
        Some(gpus) => files::restrict(&machine, gpus)?,
        None => machine,
    };
    let usual = match options.access {
        Access::Private => place::private(),
        Access::Group => PathBuf::from(place::SYSTEM),
    };
    let socket = options.socket.clone().unwrap_or(usual);
    let arbiter = parameters(&machine, options)?;
    let mut server = Server::bind(headway_broker::Options {
        socket: socket.clone(),
        access: options.access,
        arbiter,
        limits: BrokerLimits::default(),
        drain: options.drain,
        watchdog: options.watchdog,
        recover: options.recover,
        spin: options.spin,
        spin_share_ppm: options.spin_share_ppm,
        urgent: options.boost,
        direct: options.direct,
        boost: options.boost,
        log: options.log.clone(),
    })
    .map_err(Error::Broker)?;
    started(&socket);
    server.run(stop).map_err(Error::Broker)
}

/// Who holds and waits at the broker of `socket`, or of the usual place.
///
/// # Errors
/// [`Error::Client`].
pub fn status(socket: Option<&Path>) -> Result<Status, Error> {
    let usual = place::usual();
    headway_broker::client::status(socket.unwrap_or(&usual)).map_err(Error::Client)
}

/// The GPUs of a machine as an arbiter takes them: one cluster for each NUMA node that the file names, one for the rest.
///
/// All GPUs count as one model, and as equally far from each other: a machine file does not say otherwise yet.
///
/// # Errors
/// [`Error::System`] if the system does not tell the CPUs.
pub fn parameters(machine: &Machine, options: &Options) -> Result<ArbiterParameters, Error> {
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
        let usual = if tokens > cpus { Mode::WorkConserving } else { Mode::Optimal };
        let mode = options.mode.unwrap_or(usual);
        ClusterParameters {
            id: ClusterId(number),
            models: vec![ModelId(0); gpus.len()],
            distances: Distances::uniform(gpus.len()),
            tokens: TokenParameters { cpus, per_gpu: options.per_gpu, mode, affinity: true, discount_holder: false },
            gpus,
        }
    };
    let engines = EngineParameters {
        copy_engines: options.copy_engines,
        peer: options.peer,
        chunk_bytes: options.chunk,
        keep_bytes: Bytes(0),
        unlocked_below: Bytes(0),
        watchdog: options.watchdog,
    };
    Ok(ArbiterParameters {
        clusters: nodes.into_values().zip(0..).map(cluster).collect(),
        engines: options.engine_locks.then_some(engines),
        predictor: PredictorParameters::default(),
        limits: Limits::default(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn every_gpu_is_in_one_cluster() {
        let machine = files::machine("h200-x4").unwrap();
        let parameters = parameters(&machine, &Options { cpus: Some(6), ..Options::default() }).unwrap();
        let mut gpus: Vec<u32> =
            parameters.clusters.iter().flat_map(|cluster| &cluster.gpus).map(|gpu| gpu.0).collect();
        gpus.sort_unstable();
        assert_eq!(gpus, [0, 1, 2, 3]);
    }

    #[test]
    fn a_broker_tells_its_status_until_it_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("broker");
        let options = Options { socket: Some(socket.clone()), boost: false, cpus: Some(2), ..Options::default() };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (started, listening) = std::sync::mpsc::channel();
            let (options, stop) = (&options, &stop);
            let server = scope.spawn(move || serve(options, stop, |_| started.send(()).unwrap()));
            listening.recv().unwrap();
            let status = status(Some(&socket)).unwrap();
            assert_eq!((status.gpus.len(), status.clients.len()), (4, 0));
            stop.store(true, Ordering::Relaxed);
            server.join().unwrap().unwrap();
        });
        assert!(matches!(status(Some(&socket)), Err(Error::Client(_))));
    }
}
