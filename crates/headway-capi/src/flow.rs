//! Flows: copies with deadlines that are promised before the first of them.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use headway::copy::Direction;
use headway::flow::{FlowContract, FlowCopy, FlowNode, FlowReport, FlowTicket, OnMiss};
use headway::units::{Bytes, Nanos};

use super::{Copier, Status, fill, guarded, invalid, raw, release, text};

/// The way of a flow's copies.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowDirection {
    /// From the host into the GPU.
    In = 0,
    /// From the GPU to the host.
    Out = 1,
}

/// What happens when a deadline passes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissPolicy {
    /// The copy is completed, and counts as missed.
    Finish = 0,
    /// A copy that has not begun by its deadline is given up.
    Skip = 1,
    /// The flow takes no copies any more.
    Stop = 2,
}

/// What is promised of a flow. Set it with `headway_contract_init`, then change what differs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Contract {
    /// Bytes of this structure, by which later versions know which fields there are.
    pub size: usize,
    /// For people; each of a node's flows has another one.
    pub name: *const c_char,
    /// 0 = into the GPU, 1 = out of it.
    pub direction: u32,
    /// The most that one copy moves.
    pub bytes: u64,
    /// The least time between two copies, in nanoseconds.
    pub period_ns: u64,
    /// From the call, or from when the stream has come to it, until the bytes are there, in nanoseconds.
    pub deadline_ns: u64,
    /// 0 = finish, 1 = skip, 2 = stop.
    pub on_miss: u32,
}

/// What one copy of a flow did.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FlowResult {
    /// Nanoseconds from its release until the bytes were there.
    pub response_ns: u64,
    /// What was promised, in nanoseconds.
    pub bound_ns: u64,
    /// 1 = the deadline was missed.
    pub missed: u32,
    /// 1 = it was given up before it began.
    pub given_up: u32,
    /// What its time went into, or what broke the promise; a text that ends with 0.
    pub blame: [c_char; 256],
}

/// A GPU's copy engines with what is promised on them. Any thread may use it, several at a time.
pub struct OpenNode(FlowNode);

/// A flow. Any thread may use it, several at a time.
pub struct OpenFlow(headway::flow::Flow);

/// A copy of a flow that was submitted. Any thread may use it, several at a time.
pub struct SubmittedCopy(FlowTicket);

/// Sets a contract that has no name, no bytes and no time yet.
///
/// # Safety
/// `contract` is null or points to a structure of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_contract_init(contract: *mut Contract) {
    let (direction, on_miss) = (FlowDirection::In as u32, MissPolicy::Finish as u32);
    let name = std::ptr::null();
    let made =
        Contract { size: size_of::<Contract>(), name, direction, bytes: 0, period_ns: 0, deadline_ns: 0, on_miss };
    if !contract.is_null() {
        // SAFETY: the caller's promise.
        unsafe { contract.write(made) };
    }
}

/// Opens the node of a copier: there is one for each copier. `machine` names a machine file or a shipped machine, which says what copies
/// cost at worst. On success `*node` is the caller's, to be closed with
/// `headway_node_close`. The copier may be closed before.
///
/// # Safety
/// `copier` came from `headway_copier_open`; `machine` is a text that ends with 0; `node` points to a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_node_open(
    copier: *const Copier,
    machine: *const c_char,
    node: *mut *mut OpenNode,
) -> Status {
    if node.is_null() {
        return invalid("node is null: there is no place for the result");
    }
    // SAFETY: the caller's promise.
    unsafe { node.write(std::ptr::null_mut()) };
    // SAFETY: the caller's promise.
    let Some(Copier(copier)) = (unsafe { copier.as_ref() }) else { return invalid("copier is null") };
    // SAFETY: the caller's promise.
    let Some(machine) = (unsafe { text(machine) }) else {
        return invalid("machine is null; name the file that `headway measure` writes");
    };
    guarded(|| {
        let opened = FlowNode::in_streams(Arc::clone(copier), &headway::machine::open(&machine)?)?;
        // SAFETY: the caller's promise.
        unsafe { node.write(Box::into_raw(Box::new(OpenNode(opened)))) };
        Ok(Status::Ok)
    })
}

/// Has the broker at `socket` admit the flows of this node beside those of other programs; null = the usual place of brokers. Before the first
/// flow, once. If the broker ends, flows are lost (`HEADWAY_STATUS_FAILED` for each copy): open them again.
///
/// # Safety
/// `node` came from `headway_node_open`; `socket` is null or a text that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_node_share(node: *const OpenNode, socket: *const c_char) -> Status {
    // SAFETY: the caller's promise.
    let Some(OpenNode(node)) = (unsafe { node.as_ref() }) else { return invalid("node is null") };
    // SAFETY: the caller's promise.
    let socket = unsafe { text(socket) };
    guarded(|| {
        node.clone().under(socket.as_deref().map(Path::new))?;
        Ok(Status::Ok)
    })
}

/// Closes a node; null is allowed. Its flows go on.
///
/// # Safety
/// `node` is null or came from `headway_node_open` and is not used by any thread any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_node_close(node: *mut OpenNode) {
    // SAFETY: the caller's promise.
    unsafe { release(node) };
}

/// Opens a flow: from now on each of its copies ends within its deadline, or `HEADWAY_STATUS_NOT_PROMISED`, and `headway_last_error` says
/// which flow would suffer and what would help. On success `*flow` is the caller's, to be closed with `headway_flow_close`.
/// `HEADWAY_STATUS_TIMEOUT`: other promised copies kept the engine busy for ten seconds. `HEADWAY_STATUS_FAILED`: the broker ended meanwhile.
/// After either, open the flow again.
///
/// # Safety
/// `node` came from `headway_node_open`; `contract` was set by `headway_contract_init`, and its name ends with 0; `flow` points to a place
/// for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_flow_open(
    node: *const OpenNode,
    contract: *const Contract,
    flow: *mut *mut OpenFlow,
) -> Status {
    if flow.is_null() {
        return invalid("flow is null: there is no place for the result");
    }
    // SAFETY: the caller's promise.
    unsafe { flow.write(std::ptr::null_mut()) };
    // SAFETY: the caller's promise.
    let Some(OpenNode(node)) = (unsafe { node.as_ref() }) else { return invalid("node is null") };
    if contract.is_null() {
        return invalid("contract is null");
    }
    // SAFETY: the caller's promise. The size comes first in every version, and says how much more may be read.
    if unsafe { (&raw const (*contract).size).read() } != size_of::<Contract>() {
        return invalid("contract.size is not this library's: call headway_contract_init, or use its own header");
    }
    // SAFETY: the caller's promise: a structure of this size.
    let Contract { size: _, name, direction, bytes, period_ns, deadline_ns, on_miss } = unsafe { contract.read() };
    // SAFETY: the caller's promise.
    let Some(name) = (unsafe { text(name) }) else { return invalid("contract.name is null") };
    let direction = match direction {
        0 => Direction::H2d,
        1 => Direction::D2h,
        _ => return invalid("contract.direction is neither 0 (into the GPU) nor 1 (out of it)"),
    };
    let on_miss = match on_miss {
        0 => OnMiss::Finish,
        1 => OnMiss::Skip,
        2 => OnMiss::Stop,
        _ => return invalid("contract.on_miss is none of 0 (finish), 1 (skip), 2 (stop)"),
    };
    guarded(|| {
        let opened = node.open(FlowContract {
            name,
            gpu: 0,
            direction,
            bytes: Bytes(bytes),
            period: Nanos(period_ns),
            deadline: Nanos(deadline_ns),
            on_miss,
        })?;
        // SAFETY: the caller's promise.
        unsafe { flow.write(Box::into_raw(Box::new(OpenFlow(opened)))) };
        Ok(Status::Ok)
    })
}

/// Closes a flow; null is allowed. Copies that were submitted are made, but for those that are held until the period allows them.
///
/// # Safety
/// `flow` is null or came from `headway_flow_open` and is not used by any thread any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_flow_close(flow: *mut OpenFlow) {
    // SAFETY: the caller's promise.
    unsafe { release(flow) };
}

/// The longest response that is promised now, in nanoseconds; 0 for null.
///
/// # Safety
/// `flow` is null or came from `headway_flow_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_flow_bound(flow: *const OpenFlow) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { flow.as_ref() }.map_or(0, |OpenFlow(flow)| flow.bound().0)
}

/// Makes one copy of a flow on the calling thread, after all that `stream` was given before, and returns when the bytes are there. The host
/// memory is pinned. A missed deadline is no error: the result says so. `result` may be null.
///
/// # Safety
/// The caller keeps the promise of `headway_copy`; `flow` came from `headway_flow_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_flow_copy(
    flow: *const OpenFlow,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
    result: *mut FlowResult,
) -> Status {
    // SAFETY: the caller's promise.
    let Some(OpenFlow(flow)) = (unsafe { flow.as_ref() }) else { return invalid("flow is null") };
    guarded(|| {
        // SAFETY: the caller's promise.
        let report = flow.copy(FlowCopy::Addresses(unsafe { raw(to, from, bytes, stream) }))?;
        // SAFETY: the caller's promise.
        unsafe { write(result, &report) };
        Ok(Status::Ok)
    })
}

/// Has the flow's own thread make such a copy, and returns at once. What `stream` is given later does not wait for the copy. On success
/// `*job` is the caller's, to be freed with `headway_flow_job_free`.
///
/// # Safety
/// The caller keeps the promise of `headway_copy` until the copy has ended; `flow` came from `headway_flow_open`; `job` points to a place
/// for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_flow_submit(
    flow: *const OpenFlow,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
    job: *mut *mut SubmittedCopy,
) -> Status {
    if job.is_null() {
        return invalid("job is null: there is no place for the result");
    }
    // SAFETY: the caller's promise.
    unsafe { job.write(std::ptr::null_mut()) };
    // SAFETY: the caller's promise.
    let Some(OpenFlow(flow)) = (unsafe { flow.as_ref() }) else { return invalid("flow is null") };
    guarded(|| {
        // SAFETY: the caller's promise.
        let ticket = flow.submit(FlowCopy::Addresses(unsafe { raw(to, from, bytes, stream) }))?;
        // SAFETY: the caller's promise.
        unsafe { job.write(Box::into_raw(Box::new(SubmittedCopy(ticket)))) };
        Ok(Status::Ok)
    })
}

/// Waits until the copy has ended, for `timeout_ns` nanoseconds at most (`HEADWAY_STATUS_TIMEOUT`; the copy goes on). `result` may be null.
///
/// # Safety
/// `job` came from `headway_flow_submit`; `result` is null or points to a place for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_flow_job_wait(
    job: *const SubmittedCopy,
    timeout_ns: u64,
    result: *mut FlowResult,
) -> Status {
    // SAFETY: the caller's promise.
    let Some(SubmittedCopy(ticket)) = (unsafe { job.as_ref() }) else { return invalid("job is null") };
    guarded(|| {
        let report = ticket.wait(Duration::from_nanos(timeout_ns))?;
        // SAFETY: the caller's promise.
        unsafe { write(result, &report) };
        Ok(Status::Ok)
    })
}

/// Frees a job; null is allowed. The copy goes on, and its memory must stay until it has ended.
///
/// # Safety
/// `job` is null or came from `headway_flow_submit` and is not used by any thread any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn headway_flow_job_free(job: *mut SubmittedCopy) {
    // SAFETY: the caller's promise.
    unsafe { release(job) };
}

/// # Safety
/// `result` is null or points to a place for the result.
unsafe fn write(result: *mut FlowResult, report: &FlowReport) {
    if result.is_null() {
        return;
    }
    let job = &report.job;
    let mut made = FlowResult {
        response_ns: job.response.0,
        bound_ns: job.bound.0,
        missed: job.missed.into(),
        given_up: report.moved.is_none().into(),
        blame: [0; 256],
    };
    let blame: Vec<String> = job.blame.iter().map(ToString::to_string).collect();
    fill(&mut made.blame, &blame.join("; "));
    // SAFETY: the caller's promise.
    unsafe { result.write(made) };
}
