//! Calls of the C library in any order, with nulls, sizes and options that are wrong, on a driver without a GPU.
//!
//! The caller keeps what the header demands of it: no handle is used after it was closed, and memory is the caller's. All else is allowed.
#![allow(unsafe_code, reason = "the functions of a C library are called")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use headway_capi::{
    Contract, Copier, CopierOptions, CopyResult, FlowResult, OpenFlow, OpenNode, Status, SubmittedCopy, Ticket,
    headway_contract_init, headway_copier_close, headway_copier_open, headway_copier_open_uuid, headway_copy,
    headway_copy_async, headway_flow_bound, headway_flow_close, headway_flow_copy, headway_flow_job_free,
    headway_flow_job_wait, headway_flow_open, headway_flow_submit, headway_last_error, headway_node_close,
    headway_node_open, headway_options_init, headway_ticket_descriptor, headway_ticket_free, headway_ticket_query,
    headway_ticket_wait, headway_ticket_when_done, headway_version,
};

use crate::script::Script;

/// Bytes at each end of the copies.
const BYTES: usize = 1 << 20;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CU_MEMHOSTALLOC_PORTABLE`.
const PORTABLE: u32 = 1;
/// Handles of a kind that are open at once.
const OPEN_MAX: usize = 3;
/// Nothing takes that long, however slow the machine is.
const LIMIT: Duration = Duration::from_secs(100);
const LIMIT_NS: u64 = 100_000_000_000;

/// A driver without a GPU, and memory of its device; `None` without a C compiler.
static DEVICE: LazyLock<Option<Device>> = LazyLock::new(Device::new);

/// Memory of both sides lasts as long as the process: a copy goes on when its ticket is freed, and a job of a flow may outlive the flow.
struct Device {
    /// Device memory of the driver is host memory, so that a test can look at it.
    memory: usize,
    host: usize,
    /// What only flows use, since nobody can wait for a job that was freed.
    flow_memory: usize,
    flow_pinned: usize,
    query_stream: unsafe extern "C" fn(*mut c_void) -> c_int,
    _library: libloading::Library,
    _folder: tempfile::TempDir,
}

impl Device {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let driver = compile(folder.path())?;
        // SAFETY: every reader of the environment in this process is Rust's library, which has a lock for it.
        unsafe { std::env::set_var("HEADWAY_LIBCUDA", &driver) };
        // SAFETY: the same; what copies of one input teach is not to change what the next one does.
        unsafe { std::env::set_var("HEADWAY_CACHE", "off") };
        // SAFETY: a library of this repository, which does nothing when it is loaded.
        let library = unsafe { libloading::Library::new(&driver) }.expect("the driver loads");
        let mut context = null_mut();
        let (mut memory, mut flow_memory, mut flow_pinned) = (0_u64, 0_u64, null_mut::<c_void>());
        // SAFETY: the functions have these types in the driver's interface, and all places live until they return.
        let query_stream = unsafe {
            let init = library.get::<unsafe extern "C" fn(u32) -> c_int>(c"cuInit").expect("cuInit");
            let retain =
                library.get::<unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int>(c"cuDevicePrimaryCtxRetain");
            let set = library.get::<unsafe extern "C" fn(*mut c_void) -> c_int>(c"cuCtxSetCurrent");
            let allocate =
                library.get::<unsafe extern "C" fn(*mut u64, usize) -> c_int>(c"cuMemAlloc_v2").expect("cuMemAlloc_v2");
            let pin = library.get::<unsafe extern "C" fn(*mut *mut c_void, usize, u32) -> c_int>(c"cuMemHostAlloc");
            assert_eq!(init(0), 0);
            assert_eq!(retain.expect("cuDevicePrimaryCtxRetain")(&raw mut context, 0), 0);
            assert_eq!(set.expect("cuCtxSetCurrent")(context), 0);
            assert_eq!(allocate(&raw mut memory, BYTES), 0);
            assert_eq!(allocate(&raw mut flow_memory, BYTES), 0);
            assert_eq!(pin.expect("cuMemHostAlloc")(&raw mut flow_pinned, BYTES, PORTABLE), 0);
            *library.get::<unsafe extern "C" fn(*mut c_void) -> c_int>(c"cuStreamQuery").expect("cuStreamQuery")
        };
        let [memory, flow_memory] = [memory, flow_memory].map(|address| usize::try_from(address).expect("an address"));
        let host = Vec::leak(vec![7_u8; BYTES]).as_mut_ptr().expose_provenance();
        let flow_pinned = flow_pinned.expose_provenance();
        Some(Self { memory, host, flow_memory, flow_pinned, query_stream, _library: library, _folder: folder })
    }
}

/// The driver that the tests of the C library have.
fn compile(folder: &Path) -> Option<PathBuf> {
    let driver = folder.join("libfake.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../headway-cuda/tests/fake/fake.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-pthread", "-DSTREAMS", "-o"]).arg(&driver).arg(source);
    match compiler.output() {
        Ok(done) => {
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            Some(driver)
        }
        Err(_) => {
            println!("skipped: no compiler named `cc`");
            None
        }
    }
}

/// What the caller has, in the order in which it got it.
#[derive(Default)]
struct Handles {
    copiers: Vec<*mut Copier>,
    tickets: Vec<*mut Ticket>,
    nodes: Vec<*mut OpenNode>,
    flows: Vec<*mut OpenFlow>,
    jobs: Vec<*mut SubmittedCopy>,
    /// Flows that are named, since each needs another name.
    named: u32,
}

pub(crate) fn cross(bytes: &[u8]) {
    let Some(device) = &*DEVICE else { return };
    let mut script = Script(bytes);
    let mut handles = Handles::default();
    let (called, asked) = (AtomicU32::new(0), AtomicU32::new(0));
    while let Some(kind) = script.byte() {
        match kind % 16 {
            0 => handles.open_copier(&mut script),
            1 => close(&mut handles.copiers, &mut script, headway_copier_close),
            2 | 3 => handles.copy(kind % 16 == 3, device, &mut script),
            4 => handles.ask(&mut script),
            5 => close(&mut handles.tickets, &mut script, headway_ticket_free),
            6 => handles.call_back(&called, &asked, &mut script),
            7 => handles.open_node(&mut script),
            8 => close(&mut handles.nodes, &mut script, headway_node_close),
            9 => handles.open_flow(&mut script),
            10 => close(&mut handles.flows, &mut script, headway_flow_close),
            11 | 12 => handles.flow_copy(kind % 16 == 12, device, &mut script),
            13 => handles.wait_for_job(&mut script),
            14 => close(&mut handles.jobs, &mut script, headway_flow_job_free),
            _ => check_texts(),
        }
    }
    handles.end(&mut script);
    let start = Instant::now();
    while called.load(Ordering::Acquire) < asked.load(Ordering::Acquire) {
        assert!(start.elapsed() < LIMIT, "a callback was never called");
        std::thread::yield_now();
    }
    // Copies whose ticket was freed before they ended.
    // SAFETY: the legacy stream, of the driver that is loaded.
    while let code @ 1.. = unsafe { (device.query_stream)(null_mut()) } {
        assert_eq!(code, NOT_READY);
        assert!(start.elapsed() < LIMIT, "a copy without a ticket does not end");
        std::thread::yield_now();
    }
}

/// A handle, or null.
fn some<T>(handles: &[*mut T], script: &mut Script<'_>) -> *mut T {
    let at = usize::from(script.byte().unwrap_or(0)) % (OPEN_MAX + 1);
    handles.get(at).copied().unwrap_or(null_mut())
}

/// Ends a handle, or null, whatever still depends on it.
fn close<T>(handles: &mut Vec<*mut T>, script: &mut Script<'_>, close: unsafe extern "C" fn(*mut T)) {
    let handle = some(handles, script);
    handles.retain(|open| *open != handle);
    // SAFETY: null, or a handle that is not used any more.
    unsafe { close(handle) };
}

/// What every call promises of its status: a failure has a text, and is never a fault of ours.
fn checked(status: Status) -> Status {
    assert_ne!(status, Status::Internal, "{}", last_error());
    if !matches!(status, Status::Ok | Status::NotReady) {
        assert!(!last_error().is_empty(), "{status:?} has no text");
    }
    status
}

fn last_error() -> String {
    // SAFETY: a text that lives until the next call of this thread fails.
    unsafe { CStr::from_ptr(headway_last_error()) }.to_str().expect("a text is UTF-8").to_owned()
}

fn check_texts() {
    // SAFETY: a text that lives as long as the program.
    let version = unsafe { CStr::from_ptr(headway_version()) };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
    // SAFETY: null is allowed.
    unsafe { (headway_options_init(null_mut()), headway_contract_init(null_mut())) };
    let _ = last_error();
}

/// A result is there after success, and none after a failure; `at` was set to what is no handle.
fn keep<T>(status: Status, at: *mut T, handles: &mut Vec<*mut T>, wrong: bool) {
    match checked(status) {
        Status::Ok => {
            assert!(!wrong, "wrong arguments were taken");
            assert!(!at.is_null() && at != no_handle());
            handles.push(at);
        }
        status => {
            assert!(!wrong || status == Status::Invalid, "{status:?} for wrong arguments: {}", last_error());
            assert!(at.is_null(), "a failure leaves {at:?}");
        }
    }
}

fn no_handle<T>() -> *mut T {
    std::ptr::without_provenance_mut(8)
}

const MACHINES: [Option<&CStr>; 4] = [None, Some(c"verner-r1"), Some(c"nowhere/file.toml"), Some(c"\xff")];

fn machine(script: &mut Script<'_>) -> *const c_char {
    MACHINES[script.small(4) as usize].map_or(null(), CStr::as_ptr)
}

impl Handles {
    fn open_copier(&mut self, script: &mut Script<'_>) {
        if self.copiers.len() == OPEN_MAX {
            return;
        }
        let mut options = CopierOptions { size: 0, threads: 0, pinned_bytes: 0, patience_ns: 0, machine: null() };
        // SAFETY: it is the caller's structure.
        unsafe { headway_options_init(&raw mut options) };
        let changes = script.byte().unwrap_or(0);
        let is = |bit: u8| changes & 1 << bit != 0;
        if is(0) {
            options.threads = [0, 1, 3, u32::MAX][script.small(4) as usize];
        }
        if is(1) {
            options.pinned_bytes = [0, 1, 1 << 20, u64::MAX][script.small(4) as usize];
        }
        if is(2) {
            options.patience_ns = [LIMIT_NS, u64::MAX][script.small(2) as usize];
        }
        if is(3) {
            options.machine = machine(script);
        }
        let has_size = !is(4);
        if !has_size {
            options.size = usize::from(script.byte().unwrap_or(0)) % size_of::<CopierOptions>();
        }
        let threads = options.threads;
        let options = if is(5) { null() } else { &raw const options };
        let has_size = has_size || options.is_null();
        let mut copier = no_handle();
        let place = if is(6) { null_mut() } else { &raw mut copier };
        let gpu = [0, -1, 1, 7, c_int::MIN][script.small(5) as usize];
        // SAFETY: places and options are null or the caller's.
        let status = unsafe {
            match script.small(4) {
                0 => headway_copier_open_uuid(c"GPU-none".as_ptr(), options, place),
                1 => headway_copier_open_uuid(null(), options, place),
                _ => headway_copier_open(gpu, options, place),
            }
        };
        if place.is_null() {
            assert_eq!(checked(status), Status::Invalid);
            return;
        }
        let threads_fit = options.is_null() || (1..=1_024).contains(&threads);
        assert!(status != Status::Ok || threads_fit, "{threads} threads were started");
        keep(status, copier, &mut self.copiers, !has_size);
    }

    /// A copy one way or the other, in the call or behind it.
    fn copy(&mut self, waits: bool, device: &Device, script: &mut Script<'_>) {
        let copier = some(&self.copiers, script);
        let Ends { to, from, bytes, crosses } = Ends::of(device.host, device.memory, script);
        if waits {
            let mut report = CopyResult { bytes: 0, nanoseconds: 0, method: [0; 32] };
            let place = if script.small(2) == 0 { null_mut() } else { &raw mut report };
            // SAFETY: both ranges are the caller's, and nobody looks at them meanwhile but copies of this caller, in the same stream.
            let status = checked(unsafe { headway_copy(copier, to, from, bytes, null_mut(), place) });
            assert!(status != Status::Ok || !copier.is_null() && crosses, "{status:?}");
            assert!(!copier.is_null() || status == Status::Invalid, "{status:?}");
            if status == Status::Ok && !place.is_null() {
                assert_eq!(report.bytes, bytes as u64);
                assert_eq!(report.method[31], 0);
            }
            if status == Status::Ok {
                // SAFETY: both ranges are the caller's, and the stream did all earlier copies before this one.
                let [to, from] =
                    [to.cast_const(), from].map(|at| unsafe { std::slice::from_raw_parts(at.cast::<u8>(), bytes) });
                assert!(to == from, "{bytes} bytes did not arrive");
            }
            return;
        }
        if self.tickets.len() == OPEN_MAX {
            return;
        }
        let mut ticket = no_handle();
        let place = if script.small(8) == 7 { null_mut() } else { &raw mut ticket };
        // SAFETY: both ranges last as long as the process, and all copies of them are in one stream.
        let status = unsafe { headway_copy_async(copier, to, from, bytes, null_mut(), place) };
        if place.is_null() {
            assert_eq!(checked(status), Status::Invalid);
        } else {
            keep(status, ticket, &mut self.tickets, copier.is_null() || !crosses);
        }
    }

    fn ask(&self, script: &mut Script<'_>) {
        let ticket = some(&self.tickets, script);
        // SAFETY: null or an open ticket.
        let status = checked(unsafe {
            match script.small(3) {
                0 => headway_ticket_query(ticket),
                1 => headway_ticket_wait(ticket, [0, 1, LIMIT_NS][script.small(3) as usize]),
                _ => match headway_ticket_descriptor(ticket) {
                    -1 => Status::Invalid,
                    descriptor => {
                        drop(OwnedFd::from_raw_fd(descriptor));
                        Status::Ok
                    }
                },
            }
        });
        assert!(!ticket.is_null() || status == Status::Invalid, "{status:?}");
    }

    fn call_back(&self, called: &AtomicU32, asked: &AtomicU32, script: &mut Script<'_>) {
        unsafe extern "C" fn then(_: Status, context: *mut c_void) {
            // SAFETY: the counter lives until all callbacks that were asked for have come.
            unsafe { &*context.cast::<AtomicU32>() }.fetch_add(1, Ordering::AcqRel);
        }
        let ticket = some(&self.tickets, script);
        let function = (script.small(4) != 3).then_some(then as unsafe extern "C" fn(Status, *mut c_void));
        let context = (&raw const *called).cast_mut().cast();
        // SAFETY: null or an open ticket; the counter may be used on any thread.
        let status = checked(unsafe { headway_ticket_when_done(ticket, function, context) });
        if ticket.is_null() || function.is_none() {
            assert_eq!(status, Status::Invalid);
        }
        asked.fetch_add((status == Status::Ok).into(), Ordering::AcqRel);
    }

    fn open_node(&mut self, script: &mut Script<'_>) {
        if self.nodes.len() == OPEN_MAX {
            return;
        }
        let (copier, machine) = (some(&self.copiers, script), machine(script));
        let mut node = no_handle();
        // SAFETY: null or an open copier, null or a text, and a place of the caller's.
        let status = unsafe { headway_node_open(copier, machine, &raw mut node) };
        keep(status, node, &mut self.nodes, copier.is_null() || machine.is_null());
        // SAFETY: null is allowed, as an argument that is refused.
        assert_eq!(checked(unsafe { headway_node_open(copier, machine, null_mut()) }), Status::Invalid);
    }

    fn open_flow(&mut self, script: &mut Script<'_>) {
        if self.flows.len() == OPEN_MAX {
            return;
        }
        self.named += 1;
        let name = format!("flow {}\0", self.named);
        let node = some(&self.nodes, script);
        let mut contract =
            Contract { size: 0, name: null(), direction: 0, bytes: 0, period_ns: 0, deadline_ns: 0, on_miss: 0 };
        // SAFETY: it is the caller's structure.
        unsafe { headway_contract_init(&raw mut contract) };
        contract.name = name.as_ptr().cast();
        contract.direction = script.small(4);
        contract.on_miss = script.small(5);
        contract.bytes = [0, 1, 4_096, 65_536, u64::MAX][script.small(5) as usize];
        // A caller that submits sooner waits for a period.
        contract.period_ns = [0, 1, 1_000_000, 2_000_000][script.small(4) as usize];
        contract.deadline_ns = [0, 1, 1_000_000, 1_000_000_000, u64::MAX][script.small(5) as usize];
        let changes = script.small(16);
        match changes {
            0 => contract.size -= 1,
            1 => contract.name = null(),
            _ => {}
        }
        let given = if changes == 2 { null() } else { &raw const contract };
        let wrong = changes <= 2 || node.is_null() || contract.direction > 1 || contract.on_miss > 2;
        let mut flow = no_handle();
        // SAFETY: null or an open node, null or a contract of the caller's, and a place of the caller's.
        let status = unsafe { headway_flow_open(node, given, &raw mut flow) };
        keep(status, flow, &mut self.flows, wrong);
    }

    fn flow_copy(&mut self, waits: bool, device: &Device, script: &mut Script<'_>) {
        let flow = some(&self.flows, script);
        // Flows refuse host memory that is not pinned.
        let host = if script.small(4) == 3 { device.host } else { device.flow_pinned };
        let Ends { to, from, bytes, .. } = Ends::of(host, device.flow_memory, script);
        // SAFETY: null or an open flow.
        assert!((unsafe { headway_flow_bound(flow) } == 0) == flow.is_null());
        if waits {
            let mut result = no_result();
            // SAFETY: both ranges are the caller's, and nobody looks at them meanwhile.
            let status = checked(unsafe { headway_flow_copy(flow, to, from, bytes, null_mut(), &raw mut result) });
            assert!(!flow.is_null() || status == Status::Invalid, "{status:?}");
            check_result(status, &result);
            return;
        }
        if self.jobs.len() == OPEN_MAX {
            return;
        }
        let mut job = no_handle();
        // SAFETY: both ranges last as long as the process, and what several copies at once leave in them is not looked at.
        let status = unsafe { headway_flow_submit(flow, to, from, bytes, null_mut(), &raw mut job) };
        keep(status, job, &mut self.jobs, flow.is_null());
    }

    fn wait_for_job(&self, script: &mut Script<'_>) {
        let job = some(&self.jobs, script);
        let mut result = no_result();
        let time = [0, 1, LIMIT_NS][script.small(3) as usize];
        // SAFETY: null or an open job, and a place of the caller's.
        let status = checked(unsafe { headway_flow_job_wait(job, time, &raw mut result) });
        assert!(!job.is_null() || status == Status::Invalid, "{status:?}");
        check_result(status, &result);
    }

    /// Ends everything, the kinds in an order of the script's. Copies end before the memory does.
    fn end(&mut self, script: &mut Script<'_>) {
        for ticket in &self.tickets {
            // SAFETY: an open ticket.
            let status = checked(unsafe { headway_ticket_wait(*ticket, LIMIT_NS) });
            assert_ne!(status, Status::Timeout, "a copy does not end: {}", last_error());
        }
        for job in &self.jobs {
            // SAFETY: an open job; the result is not asked for.
            checked(unsafe { headway_flow_job_wait(*job, LIMIT_NS, null_mut()) });
        }
        let first = script.small(5);
        for kind in (0..5).map(|kind| (kind + first) % 5) {
            // SAFETY: each handle is used here for the last time.
            unsafe {
                match kind {
                    0 => self.copiers.drain(..).for_each(|it| headway_copier_close(it)),
                    1 => self.tickets.drain(..).for_each(|it| headway_ticket_free(it)),
                    2 => self.nodes.drain(..).for_each(|it| headway_node_close(it)),
                    3 => self.flows.drain(..).for_each(|it| headway_flow_close(it)),
                    _ => self.jobs.drain(..).for_each(|it| headway_flow_job_free(it)),
                }
            }
        }
    }
}

/// Where a copy goes.
struct Ends {
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    /// One end is the host's and the other the device's.
    crosses: bool,
}

impl Ends {
    fn of(host: usize, device: usize, script: &mut Script<'_>) -> Self {
        let bytes = [0, 1, 4_096, 65_536, BYTES / 2][script.small(5) as usize];
        let offset = usize::from(script.byte().unwrap_or(0)) * (BYTES / 2 / 255);
        let [host, device] = [host, device].map(|at| std::ptr::with_exposed_provenance_mut::<c_void>(at + offset));
        let (to, from, crosses) = match script.small(8) {
            0 => (host, host.cast_const(), false),
            1 => (null_mut(), host.cast_const(), false),
            2..=4 => (device, host.cast_const(), true),
            _ => (host, device.cast_const(), true),
        };
        // No bytes may go from anywhere to anywhere.
        Self { to, from, bytes, crosses: crosses || bytes == 0 }
    }
}

fn no_result() -> FlowResult {
    FlowResult { response_ns: 0, bound_ns: 0, missed: 2, given_up: 2, blame: [1; 256] }
}

/// A result is whole after success, and untouched after a failure.
fn check_result(status: Status, result: &FlowResult) {
    if status == Status::Ok {
        assert!(result.missed <= 1 && result.given_up <= 1 && result.blame[255] == 0, "{result:?}");
    } else {
        assert!(result.missed == 2 && result.given_up == 2 && result.blame == [1; 256], "{status:?}: {result:?}");
    }
}
