//! Copies by all methods: what each keeps busy, for as long as the profile says.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use headway_core::files::machine::{EndpointId, EngineClass, Machine};
use headway_core::models::transfer::{Cpu, Direction, HostMemory, Key, Load, Method, Multiprocessors, Statistic};
use headway_core::units::{Bytes, Nanos};

/// A copy that somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requested {
    pub at: Nanos,
    /// The GPU; of a peer copy the source.
    pub gpu: EndpointId,
    /// The target of a peer copy.
    pub peer: Option<EndpointId>,
    pub method: Method,
    pub direction: Direction,
    /// The host end.
    pub memory: HostMemory,
    pub bytes: Bytes,
    /// Size of the chunks that it is cut into; `None` = one. Others may come between two chunks.
    pub chunk: Option<Bytes>,
    /// The CPU that asks. It does one thing at a time.
    pub cpu: u32,
}

/// A copy that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// When its first chunk began.
    pub start: Nanos,
    /// When its last chunk ended.
    pub end: Nanos,
    /// How long its chunks waited for what others kept busy.
    pub waited: Nanos,
}

/// A copy that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopiesError {
    /// The profile does not say what the copy costs.
    #[error(
        "request {request}: the profile of machine `{machine}` has no curve for {method:?} {direction:?} on endpoint {gpu}; \
         measure it, or take another way",
        gpu = gpu.0
    )]
    NoCurve {
        /// Position of the request.
        request: usize,
        machine: String,
        method: Method,
        direction: Direction,
        gpu: EndpointId,
    },
    /// The GPU lacks an engine that the method needs.
    #[error("request {request}: endpoint {gpu} of machine `{machine}` has no engine of class {class:?}", gpu = gpu.0)]
    NoEngine {
        /// Position of the request.
        request: usize,
        machine: String,
        class: EngineClass,
        gpu: EndpointId,
    },
}

/// What one chunk keeps busy; each does one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    /// By position in the machine.
    Engine(usize),
    Cpu(u32),
    /// The one small mapping of a GPU.
    Pager(EndpointId),
    /// The resident copier of a GPU in one form.
    Resident(EndpointId, Method),
}

/// Makes the copies `requests` on `machine`, each taking what the machine's profile says of an idle node. The answers are in
/// the order of the requests.
///
/// Chunks are served in the order of asking; among equals, of the requests. None is preempted. What a copy keeps busy is what
/// [`Occupies`](headway_core::models::transfer::Occupies) says of its method; threads of `staged` and `multipath` count as the
/// caller's CPU, and a copier that polls as none. That copies at the same time share links and memory is not modelled here.
///
/// # Errors
/// [`CopiesError`].
pub fn simulate_copies(
    machine: &Machine,
    requests: &[Requested],
    statistic: Statistic,
) -> Result<Vec<Completed>, CopiesError> {
    let resources = requests
        .iter()
        .enumerate()
        .map(|(at, request)| occupies(machine, at, request))
        .collect::<Result<Vec<_>, _>>()?;
    let mut done: Vec<Option<Completed>> = vec![None; requests.len()];
    let mut free: BTreeMap<Resource, Nanos> = BTreeMap::new();
    // (when it asks, request, bytes that are left).
    let mut asking: BinaryHeap<_> =
        requests.iter().enumerate().map(|(at, request)| Reverse((request.at, at, request.bytes))).collect();
    while let Some(Reverse((asked, at, left))) = asking.pop() {
        let request = &requests[at];
        let chunk = request.chunk.map_or(left, |chunk| left.min(Bytes(chunk.0.max(1))));
        let takes = cost(machine, at, request, chunk, statistic)?;
        let busy = resources[at].iter().filter_map(|resource| free.get(resource)).max();
        let start = busy.copied().unwrap_or(Nanos::ZERO).max(asked);
        let end = start.saturating_add(takes);
        for resource in &resources[at] {
            free.insert(*resource, end);
        }
        let completed = done[at].get_or_insert(Completed { start, end, waited: Nanos::ZERO });
        completed.end = end;
        completed.waited = completed.waited.saturating_add(start.saturating_sub(asked));
        if left > chunk {
            asking.push(Reverse((end, at, Bytes(left.0 - chunk.0))));
        }
    }
    Ok(done.into_iter().map(|completed| completed.expect("every request is served once at least")).collect())
}

fn cost(
    machine: &Machine,
    at: usize,
    request: &Requested,
    bytes: Bytes,
    statistic: Statistic,
) -> Result<Nanos, CopiesError> {
    let Requested { gpu, peer, method, direction, memory, .. } = *request;
    let key = Key { gpu, peer, method, direction, memory, load: Load::Alone, active: 1, pieces: 1 };
    let curve = machine.profile.curves.get(&key).ok_or_else(|| CopiesError::NoCurve {
        request: at,
        machine: machine.name.clone(),
        method,
        direction,
        gpu,
    })?;
    Ok(curve.at(bytes, statistic))
}

fn occupies(machine: &Machine, at: usize, request: &Requested) -> Result<Vec<Resource>, CopiesError> {
    let engine = |gpu: EndpointId, class: EngineClass| {
        let mut engines = machine.engines.iter();
        let found = engines.position(|engine| engine.gpu == gpu && engine.serves.contains(&class));
        found.map(Resource::Engine).ok_or_else(|| CopiesError::NoEngine {
            request: at,
            machine: machine.name.clone(),
            class,
            gpu,
        })
    };
    let class = match request.direction {
        Direction::H2d => EngineClass::H2d,
        Direction::D2h => EngineClass::D2h,
        Direction::Peer => EngineClass::Peer,
    };
    let held = request.method.abilities().occupies;
    let mut resources = Vec::new();
    if held.cpu != Cpu::Idle {
        resources.push(Resource::Cpu(request.cpu));
    }
    if held.engine {
        resources.push(engine(request.gpu, class)?);
        if let (Direction::Peer, Some(peer)) = (request.direction, request.peer) {
            resources.push(engine(peer, class)?);
        }
    }
    if held.pager {
        resources.push(Resource::Pager(request.gpu));
    }
    match held.multiprocessors {
        Multiprocessors::Free => {}
        Multiprocessors::Launch => resources.push(engine(request.gpu, EngineClass::Ee)?),
        Multiprocessors::Resident => resources.push(Resource::Resident(request.gpu, request.method)),
    }
    Ok(resources)
}
