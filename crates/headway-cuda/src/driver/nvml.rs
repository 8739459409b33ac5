//! NVML, NVIDIA's management library, loaded at run time: driver version, PCIe links and what they carry, NVLink neighbours.

use std::ffi::{CStr, CString, c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};
use std::path::Path;
use std::time::Duration;

use headway_device::DeviceError;
use headway_os::topology::pci_address;
use libloading::Library;

use crate::driver::table::loader_text;
use crate::driver::text;

type Code = c_int;
type Handle = *mut c_void;

/// `NVML_NVLINK_MAX_LINKS`.
const NVLINKS_MAX: c_uint = 18;
const NOT_SUPPORTED: Code = 3;
const INVALID_ARGUMENT: Code = 2;
const GPU_IS_LOST: Code = 15;
const RESET_REQUIRED: Code = 16;

/// `nvmlPciInfo_t` of the `_v3` and `_v2` functions below.
#[repr(C)]
struct PciInfo {
    legacy: [c_char; 16],
    numbers: [c_uint; 5],
    address: [c_char; 32],
}

impl PciInfo {
    const fn new() -> Self {
        Self { legacy: [0; 16], numbers: [0; 5], address: [0; 32] }
    }
}

/// `NVML_FI_DEV_PCIE_COUNT_TX_BYTES`.
const PCIE_SENT: c_uint = 197;
/// `NVML_FI_DEV_PCIE_COUNT_RX_BYTES`.
const PCIE_RECEIVED: c_uint = 198;

/// `nvmlFieldValue_t`.
#[repr(C)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: c_longlong,
    latency_us: c_longlong,
    kind: c_int,
    code: Code,
    value: c_ulonglong,
}

impl FieldValue {
    const fn new(field: c_uint) -> Self {
        Self { field, scope: 0, timestamp: 0, latency_us: 0, kind: 0, code: 0, value: 0 }
    }
}

macro_rules! table {
    ($($symbol:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the library's own names")]
        struct Table {
            nvmlErrorString: unsafe extern "C" fn(Code) -> *const c_char,
            $($symbol: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Table {
            fn find(library: &Library, path: &Path) -> Result<Self, DeviceError> {
                Ok(Self {
                    // SAFETY: the signature is that of `nvml.h`.
                    nvmlErrorString: *unsafe { library.get(b"nvmlErrorString\0") }
                        .map_err(|_| missing(path, "nvmlErrorString"))?,
                    $($symbol: {
                        let name = concat!(stringify!($symbol), "\0");
                        // SAFETY: the signature is that of `nvml.h` for the symbol of this name and ABI version.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> Code>(name.as_bytes())
                        };
                        *found.map_err(|_| missing(path, stringify!($symbol)))?
                    },)*
                })
            }
        }
    };
}

table! {
    nvmlInit_v2();
    nvmlShutdown();
    nvmlSystemGetDriverVersion(*mut c_char, c_uint);
    nvmlDeviceGetCount_v2(*mut c_uint);
    nvmlDeviceGetHandleByIndex_v2(c_uint, *mut Handle);
    nvmlDeviceGetHandleByUUID(*const c_char, *mut Handle);
    nvmlDeviceGetFieldValues(Handle, c_int, *mut FieldValue);
    nvmlDeviceGetName(Handle, *mut c_char, c_uint);
    nvmlDeviceGetUUID(Handle, *mut c_char, c_uint);
    nvmlDeviceGetPciInfo_v3(Handle, *mut PciInfo);
    nvmlDeviceGetCurrPcieLinkGeneration(Handle, *mut c_uint);
    nvmlDeviceGetCurrPcieLinkWidth(Handle, *mut c_uint);
    nvmlDeviceGetMaxPcieLinkGeneration(Handle, *mut c_uint);
    nvmlDeviceGetMaxPcieLinkWidth(Handle, *mut c_uint);
    nvmlDeviceGetComputeMode(Handle, *mut c_uint);
    nvmlDeviceGetNvLinkState(Handle, c_uint, *mut c_uint);
    nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, c_uint, *mut PciInfo);
}

fn missing(path: &Path, symbol: &str) -> DeviceError {
    DeviceError::Unavailable {
        what: format!("the function {symbol} of NVML"),
        reason: format!("`{}` does not have it", path.display()),
        remedy: "update the NVIDIA driver".into(),
    }
}

/// NVML, loaded and initialised.
pub struct Nvml {
    table: Table,
    // Unloaded after `Drop` has shut it down.
    _library: Library,
}

/// What NVML says of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmlReport {
    /// Version of the NVIDIA driver, for example `580.159.04`.
    pub driver_version: String,
    /// The GPUs, in NVML's order (by PCI address), `$CUDA_VISIBLE_DEVICES` not applied.
    pub gpus: Vec<NvmlGpu>,
}

/// One GPU as NVML describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmlGpu {
    /// Name for people.
    pub name: String,
    /// UUID, the same as the CUDA driver's.
    pub uuid: String,
    /// PCI address in the kernel's form.
    pub pci: Option<String>,
    /// The PCIe link now; an idle GPU may lower its generation.
    pub pcie_now: Option<PcieLink>,
    /// The fastest this GPU and this slot can do.
    pub pcie_max: Option<PcieLink>,
    /// Which programs may use it.
    pub compute_mode: ComputeMode,
    /// PCI addresses at the other end of its active NVLinks: one entry per link; switches on nodes that have them.
    pub nvlinks: Vec<Option<String>>,
}

/// Which programs may use a GPU, as its administrator has set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number of programs.
    Default,
    /// One at a time; several under one MPS daemon.
    ExclusiveProcess,
    /// No program.
    Prohibited,
    /// A mode of other drivers, or the driver does not say.
    Unknown,
}

impl ComputeMode {
    const fn of(number: c_uint) -> Self {
        match number {
            0 => Self::Default,
            2 => Self::Prohibited,
            3 => Self::ExclusiveProcess,
            _ => Self::Unknown,
        }
    }
}

/// Speed of a PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcieLink {
    /// Generation, 1 to 6.
    pub generation: u32,
    /// PCIe lanes in use.
    pub width: u32,
}

/// What the PCIe link of a GPU has carried since some instant, modulo 4 GiB, protocol overhead included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcieCounters {
    sent: u32,
    received: u32,
}

/// Bytes of copies that a PCIe link carried, estimated from its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcieTraffic {
    /// Into the GPU.
    pub inward: u64,
    /// Out of the GPU.
    pub outward: u64,
}

impl PcieCounters {
    /// Bytes on the link for each byte copied out of the GPU (128.0 GiB on an H200, 2026-11-28).
    const SENT_PER_BYTE_OUT: f64 = 1.0938;
    /// The same for copies into it: completions, and the requests that the GPU sends for them.
    const RECEIVED_PER_BYTE_IN: f64 = 1.0780;
    const SENT_PER_BYTE_IN: f64 = 0.0938;
    /// Time between two readings that is short enough for every link: one of PCIe 6 carries 4 GiB in 33 ms.
    pub const READ_EVERY: Duration = Duration::from_millis(25);
    /// Readings further apart say nothing: a PCIe 5 link carries 4 GiB in 67 ms, and then its counters have wrapped.
    pub const READ_MAX: Duration = Duration::from_millis(60);

    /// What was copied between `earlier` and these, which are at most [`Self::READ_MAX`] apart.
    #[must_use]
    pub fn since(self, earlier: Self) -> PcieTraffic {
        let inward = f64::from(self.received.wrapping_sub(earlier.received)) / Self::RECEIVED_PER_BYTE_IN;
        let sent = f64::from(self.sent.wrapping_sub(earlier.sent));
        let outward = (sent - inward * Self::SENT_PER_BYTE_IN).max(0.0) / Self::SENT_PER_BYTE_OUT;
        PcieTraffic { inward: inward as u64, outward: outward as u64 }
    }
}

impl std::fmt::Display for NvmlGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.name)?;
        if let Some(PcieLink { generation, width }) = self.pcie_max {
            write!(f, " PCIe {generation}.0 x{width}")?;
        }
        let active = self.nvlinks.iter().flatten().count();
        if active > 0 { write!(f, ", {active} NVLinks") } else { Ok(()) }
    }
}

impl Nvml {
    /// The loader's `libnvidia-ml.so.1`.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] with the remedy.
    pub fn system() -> Result<Self, DeviceError> {
        Self::load(Path::new("libnvidia-ml.so.1"))
    }

    /// NVML in the library `path`.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] naming the library, the function or the state that is missing.
    pub fn load(path: &Path) -> Result<Self, DeviceError> {
        // SAFETY: loading runs the library's initialisers. It is the system's or the one that the user names, which is
        // trusted like the program itself.
        let library = unsafe { Library::new(path) }.map_err(|error| DeviceError::Unavailable {
            what: format!("the NVML library `{}`", path.display()),
            reason: loader_text(&error),
            remedy: "install the NVIDIA driver with its utilities".into(),
        })?;
        let table = Table::find(&library, path)?;
        // SAFETY: no argument.
        let code = unsafe { (table.nvmlInit_v2)() };
        if code != 0 {
            return Err(DeviceError::Unavailable {
                what: "NVML".into(),
                reason: format!("nvmlInit_v2 failed with {} ({code})", error_text(&table, code)),
                remedy: "check that the NVIDIA kernel module is loaded and has the version of the library".into(),
            });
        }
        Ok(Self { table, _library: library })
    }

    fn check(&self, call: &'static str, code: Code) -> Result<(), DeviceError> {
        if code == 0 { Ok(()) } else { Err(DeviceError::Driver { call, code, name: error_text(&self.table, code) }) }
    }

    /// Asks everything of every GPU.
    ///
    /// # Errors
    /// [`DeviceError::Driver`].
    pub fn report(&self) -> Result<NvmlReport, DeviceError> {
        let table = &self.table;
        let driver_version = self.text("nvmlSystemGetDriverVersion", |buffer, bytes| {
            // SAFETY: NVML writes at most `bytes` bytes with the NUL.
            unsafe { (table.nvmlSystemGetDriverVersion)(buffer, bytes) }
        })?;
        let mut count = 0;
        // SAFETY: `count` is valid for the call to write.
        self.check("nvmlDeviceGetCount_v2", unsafe { (table.nvmlDeviceGetCount_v2)(&raw mut count) })?;
        let gpus = (0..count).map(|index| self.gpu(index)).collect::<Result<_, _>>()?;
        Ok(NvmlReport { driver_version, gpus })
    }

    /// The PCIe counters of the GPU with this UUID. Reading them takes 0.3 to 0.8 ms (H200).
    ///
    /// # Errors
    /// [`DeviceError::Driver`]: there is no such GPU, or it does not count.
    pub fn pcie_counters(&self, uuid: &str) -> Result<PcieCounters, DeviceError> {
        let uuid = CString::new(uuid).unwrap_or_default();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the text ends with a NUL; `handle` is valid for the call to write.
        let code = unsafe { (self.table.nvmlDeviceGetHandleByUUID)(uuid.as_ptr(), &raw mut handle) };
        self.check("nvmlDeviceGetHandleByUUID", code)?;
        let mut values = [FieldValue::new(PCIE_SENT), FieldValue::new(PCIE_RECEIVED)];
        // SAFETY: the handle is NVML's. The call writes to `values` only, since it is given their number.
        let code = unsafe { (self.table.nvmlDeviceGetFieldValues)(handle, values.len() as c_int, values.as_mut_ptr()) };
        self.check("nvmlDeviceGetFieldValues", code)?;
        for value in &values {
            self.check("nvmlDeviceGetFieldValues of the PCIe counters", value.code)?;
        }
        let [sent, received] = values.map(|value| value.value as u32);
        Ok(PcieCounters { sent, received })
    }

    /// Whether the GPU at `index` no longer answers until it, or the node, is reset.
    ///
    /// # Errors
    /// [`DeviceError::Driver`] if the question failed for another reason.
    pub fn is_lost(&self, index: u32) -> Result<bool, DeviceError> {
        let lost = |code: Code| code == GPU_IS_LOST || code == RESET_REQUIRED;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is valid for the call to write.
        let code = unsafe { (self.table.nvmlDeviceGetHandleByIndex_v2)(index, &raw mut handle) };
        if lost(code) {
            return Ok(true);
        }
        self.check("nvmlDeviceGetHandleByIndex_v2", code)?;
        let mut generation = 0;
        // SAFETY: the handle is NVML's; the number is valid for the call to write. What it says is read from the GPU.
        let code = unsafe { (self.table.nvmlDeviceGetCurrPcieLinkGeneration)(handle, &raw mut generation) };
        match code {
            NOT_SUPPORTED => Ok(false),
            code if lost(code) => Ok(true),
            code => self.check("nvmlDeviceGetCurrPcieLinkGeneration", code).map(|()| false),
        }
    }

    fn gpu(&self, index: c_uint) -> Result<NvmlGpu, DeviceError> {
        let table = &self.table;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is valid for the call to write.
        let code = unsafe { (table.nvmlDeviceGetHandleByIndex_v2)(index, &raw mut handle) };
        self.check("nvmlDeviceGetHandleByIndex_v2", code)?;
        let mut pci = PciInfo::new();
        // SAFETY: the handle is NVML's; `pci` is valid for the call to write.
        let code = unsafe { (table.nvmlDeviceGetPciInfo_v3)(handle, &raw mut pci) };
        self.check("nvmlDeviceGetPciInfo_v3", code)?;
        // SAFETY: the handle is NVML's, which writes at most `bytes` bytes with the NUL.
        let name = |at, bytes| unsafe { (table.nvmlDeviceGetName)(handle, at, bytes) };
        // SAFETY: as for the name.
        let uuid = |at, bytes| unsafe { (table.nvmlDeviceGetUUID)(handle, at, bytes) };
        Ok(NvmlGpu {
            name: self.text("nvmlDeviceGetName", name)?,
            uuid: self.text("nvmlDeviceGetUUID", uuid)?,
            pci: pci_address(&text(&pci.address)),
            pcie_now: self.pcie(
                handle,
                table.nvmlDeviceGetCurrPcieLinkGeneration,
                table.nvmlDeviceGetCurrPcieLinkWidth,
            ),
            pcie_max: self.pcie(handle, table.nvmlDeviceGetMaxPcieLinkGeneration, table.nvmlDeviceGetMaxPcieLinkWidth),
            compute_mode: self.compute_mode(handle),
            nvlinks: self.nvlinks(handle)?,
        })
    }

    fn compute_mode(&self, handle: Handle) -> ComputeMode {
        let mut mode = 0;
        // SAFETY: the handle is NVML's; `mode` is valid for the call to write.
        let code = unsafe { (self.table.nvmlDeviceGetComputeMode)(handle, &raw mut mode) };
        if code == 0 { ComputeMode::of(mode) } else { ComputeMode::Unknown }
    }

    fn text(&self, call: &'static str, ask: impl Fn(*mut c_char, c_uint) -> Code) -> Result<String, DeviceError> {
        let mut buffer = [0 as c_char; 128];
        self.check(call, ask(buffer.as_mut_ptr(), buffer.len() as c_uint))?;
        Ok(text(&buffer))
    }

    /// `None` where the GPU has no PCIe link or a virtual machine hides it.
    fn pcie(
        &self,
        handle: Handle,
        generation: unsafe extern "C" fn(Handle, *mut c_uint) -> Code,
        width: unsafe extern "C" fn(Handle, *mut c_uint) -> Code,
    ) -> Option<PcieLink> {
        let mut link = PcieLink { generation: 0, width: 0 };
        // SAFETY: the handle is NVML's; both numbers are valid for the calls to write.
        let known =
            unsafe { generation(handle, &raw mut link.generation) == 0 && width(handle, &raw mut link.width) == 0 };
        known.then_some(link)
    }

    fn nvlinks(&self, handle: Handle) -> Result<Vec<Option<String>>, DeviceError> {
        let mut peers = Vec::new();
        for link in 0..NVLINKS_MAX {
            let mut active = 0;
            // SAFETY: the handle is NVML's; `active` is valid for the call to write.
            match unsafe { (self.table.nvmlDeviceGetNvLinkState)(handle, link, &raw mut active) } {
                0 if active != 0 => {}
                0 => continue,
                // No NVLink at all, or fewer links than the largest GPU has.
                NOT_SUPPORTED | INVALID_ARGUMENT => break,
                code => self.check("nvmlDeviceGetNvLinkState", code)?,
            }
            let mut pci = PciInfo::new();
            // SAFETY: the handle is NVML's; `pci` is valid for the call to write.
            let code = unsafe { (self.table.nvmlDeviceGetNvLinkRemotePciInfo_v2)(handle, link, &raw mut pci) };
            peers.push(if code == 0 { pci_address(&text(&pci.address)) } else { None });
        }
        Ok(peers)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: initialised by `load`; calls are counted by NVML.
        let _ = unsafe { (self.table.nvmlShutdown)() };
    }
}

fn error_text(table: &Table, code: Code) -> String {
    // SAFETY: NVML returns a constant text for every code.
    let text = unsafe { (table.nvmlErrorString)(code) };
    if text.is_null() {
        return "unknown error".into();
    }
    // SAFETY: not null, so a NUL-terminated text that lives as long as the library.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_told_from_what_the_protocol_adds_also_where_a_counter_wraps() {
        let before = PcieCounters { sent: 0xffff_ff00, received: 0xffff_fff0 };
        let later = |sent: u64, received: u64| PcieCounters {
            sent: before.sent.wrapping_add(sent as u32),
            received: before.received.wrapping_add(received as u32),
        };
        // Rates of one second of each, of an H200, over 20 ms: 54.9 GB out, then 55.4 GB in.
        let out = later(60_010_000_000 / 50, 1_000_000 / 50).since(before);
        assert!((1_090_000_000..1_105_000_000).contains(&out.outward) && out.inward < 20_000, "{out:?}");
        let inward = later(5_200_000_000 / 50, 59_700_000_000 / 50).since(before);
        assert!((1_100_000_000..1_115_000_000).contains(&inward.inward) && inward.outward < 1_000_000, "{inward:?}");
    }
}
