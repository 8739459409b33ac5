//! Flows: copies of arrays with deadlines that are promised before the first of them.

use std::mem::forget;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headway::Failure;
use headway::copy::{Direction, StreamCopier};
use headway::flow::{Flow, FlowContract, FlowCopy, FlowError, FlowNode, FlowTicket, OnMiss};
use headway::units::{Bytes, Nanos};
use pyo3::prelude::*;

use crate::Machine;
use crate::arrays::{Keeper, stream_handle};
use crate::copies::{Ends, Timeout, copier, failed, late};
use crate::errors::{ArrayFacts, array_error, is_timeout, options_error};
use crate::sync::lock;
use crate::visits::{self, Visit};
use crate::wait;

/// Between two looks at Python's signals.
const LOOK: Duration = Duration::from_millis(150);

/// What is promised on one GPU, by the machine that says what copies cost.
struct GpuNode {
    gpu: u32,
    machine: Arc<headway::machine::Machine>,
    broker: Option<PathBuf>,
    node: FlowNode,
}

static NODES: Mutex<Vec<GpuNode>> = Mutex::new(Vec::new());
/// Submitted copies whose arrays are kept.
static UNDER_WAY: Mutex<Vec<Arc<Submitted>>> = Mutex::new(Vec::new());

struct Submitted {
    ticket: FlowTicket,
    keepers: Mutex<Option<[Keeper; 2]>>,
}

/// Lets go of the arrays of copies that have ended; the interpreter's lock is held.
fn sweep(py: Python<'_>) {
    let _visit = Visit::of_python(py);
    let over: Vec<_> = lock(&UNDER_WAY).extract_if(.., |submitted| submitted.ticket.is_done()).collect();
    let arrays: Vec<_> = over.iter().filter_map(|submitted| lock(&submitted.keepers).take()).collect();
    // No lock is held: what they run when they go may copy.
    drop(arrays);
}

/// A flow with the arrays that its copies move where none are given.
#[pyclass(frozen, module = "headway._native")]
pub(crate) struct NativeFlow {
    flow: Mutex<Option<Arc<Flow>>>,
    name: String,
    dst: Py<PyAny>,
    src: Py<PyAny>,
}

fn miss_policy(py: Python<'_>, word: &str) -> PyResult<OnMiss> {
    match word {
        "finish" => Ok(OnMiss::Finish),
        "skip" => Ok(OnMiss::Skip),
        "stop" => Ok(OnMiss::Stop),
        other => {
            let text = format!("`on_miss=\"{other}\"` is none of \"finish\", \"skip\" and \"stop\"");
            Err(options_error(py, &text))
        }
    }
}

/// A flow as it would be opened: name, direction, GPU, bytes, period and deadline in nanoseconds.
#[derive(FromPyObject)]
pub(crate) struct NativeContract {
    name: String,
    direction: String,
    gpu: u32,
    nbytes: u64,
    period_ns: u64,
    deadline_ns: u64,
}

impl NativeContract {
    fn asked(self, py: Python<'_>, on_miss: OnMiss) -> PyResult<FlowContract> {
        let direction = match self.direction.as_str() {
            "in" => Direction::H2d,
            "out" => Direction::D2h,
            other => {
                let text = format!("`direction=\"{other}\"` of `{}` is neither \"in\" nor \"out\"", self.name);
                return Err(options_error(py, &text));
            }
        };
        Ok(FlowContract {
            name: self.name,
            gpu: self.gpu,
            direction,
            bytes: Bytes(self.nbytes),
            period: Nanos(self.period_ns),
            deadline: Nanos(self.deadline_ns),
            on_miss,
        })
    }
}

/// The longest response of each flow on a machine, if all of them were open.
#[pyfunction]
pub(crate) fn flow_bounds(py: Python<'_>, machine: &Machine, contracts: Vec<NativeContract>) -> PyResult<Vec<u64>> {
    let asked = contracts.into_iter().map(|of| of.asked(py, OnMiss::Finish)).collect::<PyResult<Vec<_>>>()?;
    let bounds = py.detach(|| headway::flow::bounds(&machine.0, &asked)).map_err(|error| failed(py, &error))?;
    Ok(bounds.into_iter().map(|bound| bound.0).collect())
}

/// Opens a flow on the GPU that has one of both arrays; with `promised`, for all that this contract allows for. A broker at `broker`, or for an
/// empty text at the usual place, counts other programs.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "Python's part gives each by its name")]
#[pyo3(signature = (machine, name, dst, src, period_ns, deadline_ns, on_miss, promised=None, broker=None))]
pub(crate) fn open_flow(
    py: Python<'_>,
    machine: &Machine,
    name: &str,
    dst: &Bound<'_, PyAny>,
    src: &Bound<'_, PyAny>,
    period_ns: u64,
    deadline_ns: u64,
    on_miss: &str,
    promised: Option<NativeContract>,
    broker: Option<PathBuf>,
) -> PyResult<NativeFlow> {
    let on_miss = miss_policy(py, on_miss)?;
    let _visit = Visit::of_python(py);
    let ends = Ends::of(dst, src, None)?;
    let copier = ends.copier(py)?;
    check_pinned(py, &ends, &copier, name)?;
    let gpu = copier.gpu().index();
    let node = node(py, gpu, machine, broker)?;
    let mut contract = FlowContract {
        name: name.to_owned(),
        gpu,
        direction: ends.direction(),
        bytes: Bytes(ends.bytes() as u64),
        period: Nanos(period_ns),
        deadline: Nanos(deadline_ns),
        on_miss,
    };
    if let Some(promised) = promised {
        let promised = promised.asked(py, on_miss)?;
        if (promised.gpu, promised.direction) != (gpu, contract.direction) || contract.bytes > promised.bytes {
            return Err(other_arrays(py, &promised, &contract));
        }
        contract = promised;
    }
    // The node of one GPU numbers it so.
    contract.gpu = 0;
    let opened = py.detach(|| node.open(contract));
    let flow = Mutex::new(Some(Arc::new(opened.map_err(|error| failed(py, &error))?)));
    Ok(NativeFlow { flow, name: name.to_owned(), dst: dst.clone().unbind(), src: src.clone().unbind() })
}

fn other_arrays(py: Python<'_>, promised: &FlowContract, arrays: &FlowContract) -> PyErr {
    let told = |of: &FlowContract| format!("{} {} GPU {}", of.bytes, of.direction.preposition(), of.gpu);
    let name = &promised.name;
    let message =
        format!("the contract of flow `{name}` is for up to {}, and the arrays are {}", told(promised), told(arrays));
    let help = "give arrays that the contract allows for, or ask for another contract".to_owned();
    array_error(py, ArrayFacts { help: Some(help), ..ArrayFacts::of(message) })
}

fn check_pinned(py: Python<'_>, ends: &Ends, copier: &StreamCopier, name: &str) -> PyResult<()> {
    if ends.is_pinned(py, copier)? {
        return Ok(());
    }
    let message = format!("the host memory of flow `{name}` is not page-locked, so that its copies cannot be promised");
    let help = "use `headway.pinned_empty`, or a tensor with `pin_memory=True`".to_owned();
    Err(array_error(py, ArrayFacts { help: Some(help), ..ArrayFacts::of(message) }))
}

/// The node of a GPU: there is one, whatever flows come and go, since promises hold until the last copies have ended.
fn node(py: Python<'_>, gpu: u32, machine: &Machine, broker: Option<PathBuf>) -> PyResult<FlowNode> {
    let copier = copier(py, Some(gpu))?;
    let mut nodes = lock(&NODES);
    if let Some(known) = nodes.iter().find(|known| known.gpu == gpu) {
        let is_same = Arc::ptr_eq(&known.machine, &machine.0) || *known.machine == *machine.0;
        if is_same && known.broker == broker {
            return Ok(known.node.clone());
        }
        if is_same && !known.node.is_empty() {
            let text =
                format!("the flows of GPU {gpu} have another broker, or none; use one for all, or close the others");
            drop(nodes);
            return Err(options_error(py, &text));
        }
        if !known.node.is_empty() {
            let (name, other) = (&known.machine.name, &machine.0.name);
            let text = format!(
                "the flows of GPU {gpu} go by machine `{name}`, this one by `{other}`; use one machine for all, or close the others"
            );
            drop(nodes);
            return Err(options_error(py, &text));
        }
    }
    let mut node = FlowNode::in_streams(copier, &machine.0);
    if let Some(socket) = &broker {
        node = node.and_then(|node| node.under(Some(socket.as_path()).filter(|path| !path.as_os_str().is_empty())));
    }
    let node = match node {
        Ok(node) => node,
        Err(error) => {
            drop(nodes);
            return Err(failed(py, &error));
        }
    };
    nodes.retain(|known| known.gpu != gpu);
    nodes.push(GpuNode { gpu, machine: Arc::clone(&machine.0), broker, node: node.clone() });
    Ok(node)
}

#[pymethods]
impl NativeFlow {
    /// Nanoseconds that no copy's response exceeds, as promised now.
    #[getter]
    fn bound_ns(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.flow(py)?.bound().0)
    }

    /// What the promise rests on, a sentence each.
    #[getter]
    fn assumptions(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.flow(py)?.admitted().assumptions.iter().map(ToString::to_string).collect())
    }

    /// Bytes that an engine gets at once while this flow is open.
    #[getter]
    fn chunk_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.flow(py)?.admitted().chunk.0)
    }

    /// Makes one copy, and returns when the bytes are there.
    fn copy(
        &self,
        py: Python<'_>,
        dst: Option<&Bound<'_, PyAny>>,
        src: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<FlowReport> {
        let flow = self.flow(py)?;
        let (ends, stream) = self.ends(py, dst, src, stream)?;
        let copy = FlowCopy::Addresses(ends.raw(ends.bytes(), stream));
        let mut raised = None;
        let made = py.detach(|| {
            flow.copy_unless(copy, &mut || {
                // Late in its end the interpreter lets nobody in.
                let asked = Python::try_attach(|py| {
                    raised = raised.take().or_else(|| py.check_signals().err());
                    raised.is_some()
                });
                asked.unwrap_or(true)
            })
        });
        let _visit = Visit::of_python(py);
        if made.as_ref().is_err_and(is_timeout) {
            // What was queued may still use the arrays.
            forget(ends);
        } else {
            drop(ends);
        }
        match raised {
            Some(error) => Err(error),
            None => made.map(FlowReport).map_err(|error| failed(py, &error)),
        }
    }

    /// Has the flow's thread make one copy.
    fn submit(
        &self,
        py: Python<'_>,
        dst: Option<&Bound<'_, PyAny>>,
        src: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<NativeFlowTicket> {
        let _visit = Visit::of_python(py);
        sweep(py);
        let flow = self.flow(py)?;
        let (ends, stream) = self.ends(py, dst, src, stream)?;
        let copy = FlowCopy::Addresses(ends.raw(ends.bytes(), stream));
        let ticket = py.detach(|| flow.submit(copy)).map_err(|error| failed(py, &error))?;
        let submitted = Arc::new(Submitted { ticket, keepers: Mutex::new(Some(ends.keepers())) });
        lock(&UNDER_WAY).push(Arc::clone(&submitted));
        Ok(NativeFlowTicket(submitted))
    }

    /// Closes the flow: waits for the copies that were submitted. One that is held until the period allows it is not made.
    fn close(&self, py: Python<'_>) {
        // The lock is free before others run.
        let flow = lock(&self.flow).take();
        py.detach(|| {
            if let Some(flow) = flow {
                flow.finish();
            }
        });
        sweep(py);
    }
}

impl NativeFlow {
    fn flow(&self, py: Python<'_>) -> PyResult<Arc<Flow>> {
        let closed = || options_error(py, &format!("flow `{}` is closed; open it again", self.name));
        lock(&self.flow).clone().ok_or_else(closed)
    }

    fn ends(
        &self,
        py: Python<'_>,
        dst: Option<&Bound<'_, PyAny>>,
        src: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Ends, usize)> {
        let _visit = Visit::of_python(py);
        let stream = stream.map(stream_handle).transpose()?;
        let ends =
            Ends::of(dst.unwrap_or_else(|| self.dst.bind(py)), src.unwrap_or_else(|| self.src.bind(py)), stream)?;
        // The flow's own arrays were checked when it was opened.
        if (dst.is_some() || src.is_some()) && ends.bytes() > 0 {
            check_pinned(py, &ends, &*ends.copier(py)?, &self.name)?;
        }
        let stream = stream.or_else(|| ends.on_gpu().stream).unwrap_or(0);
        Ok((ends, stream))
    }
}

impl Drop for NativeFlow {
    fn drop(&mut self) {
        if visits::are_over() {
            // The driver may keep what closes it.
            forget(lock(&self.flow).take());
        }
    }
}

/// A copy that was submitted.
#[pyclass(frozen, module = "headway._native")]
pub(crate) struct NativeFlowTicket(Arc<Submitted>);

impl Drop for NativeFlowTicket {
    fn drop(&mut self) {
        if visits::are_over() {
            forget(Arc::clone(&self.0));
        }
    }
}

#[pymethods]
impl NativeFlowTicket {
    /// Whether the copy has ended.
    #[getter]
    fn done(&self, py: Python<'_>) -> bool {
        let is_done = self.0.ticket.is_done();
        if is_done {
            sweep(py);
        }
        is_done
    }

    /// Waits for the copy's end: what it did.
    #[pyo3(signature = (timeout))]
    fn wait(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<FlowReport> {
        let timeout = timeout.map(|timeout| timeout.duration(py)).transpose()?;
        let start = Instant::now();
        loop {
            let left = timeout.map_or(LOOK, |limit| limit.saturating_sub(start.elapsed()));
            match py.detach(|| self.0.ticket.wait(left.min(LOOK))) {
                Ok(report) => {
                    sweep(py);
                    return Ok(FlowReport(report));
                }
                Err(error) => {
                    // Any other error is the copy's, which may have ended since the wait did.
                    let Failure::Flow(FlowError::Late { flow, .. }) = error.failure() else {
                        sweep(py);
                        return Err(failed(py, &error));
                    };
                    if let Some(limit) = timeout.filter(|limit| start.elapsed() >= *limit) {
                        return Err(late(py, &format!("a copy of flow `{flow}`"), limit));
                    }
                }
            }
            py.check_signals()?;
        }
    }
}

/// What one copy of a flow did.
#[pyclass(frozen, eq, module = "headway")]
#[derive(PartialEq, Eq)]
pub(crate) struct FlowReport(headway::flow::FlowReport);

#[pymethods]
impl FlowReport {
    /// Nanoseconds from its release until the bytes were there.
    #[getter]
    fn response_ns(&self) -> u64 {
        self.0.job.response.0
    }

    /// The longest response that was promised then, in nanoseconds.
    #[getter]
    fn bound_ns(&self) -> u64 {
        self.0.job.bound.0
    }

    /// Whether the deadline was missed.
    #[getter]
    fn missed(&self) -> bool {
        self.0.job.missed
    }

    /// Nanoseconds for which it was held, since it came earlier than the period allows. The response begins after that.
    #[getter]
    fn held_ns(&self) -> u64 {
        self.0.job.held.0
    }

    /// Whether it was given up, since it could not begin before its deadline and the flow has `on_miss="skip"`.
    #[getter]
    fn given_up(&self) -> bool {
        self.0.moved.is_none()
    }

    /// What the time went into; of a copy beyond its bound, first what broke the promise. A sentence each.
    #[getter]
    fn blame(&self) -> Vec<String> {
        self.0.job.blame.iter().map(ToString::to_string).collect()
    }

    fn __repr__(&self) -> String {
        let job = &self.0.job;
        let missed = if job.missed { ", missed" } else { "" };
        format!("<headway.FlowReport: {} of at most {}{missed}>", job.response, job.bound)
    }
}

/// At the interpreter's end: flows that are open end with it.
#[pyfunction]
pub(crate) fn finish_flows(py: Python<'_>) -> PyResult<()> {
    let nodes = std::mem::take(&mut *lock(&NODES));
    let finished = wait::close(py, nodes);
    forget(std::mem::take(&mut *lock(&UNDER_WAY)));
    finished
}
