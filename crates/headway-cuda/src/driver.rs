//! Checked calls: the driver, loaded and initialised, and what every result code means.

pub(crate) mod nvml;
pub(crate) mod structures;
pub(crate) mod table;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use headway_core::units::Bytes;
use headway_device::DeviceError;
use headway_device::buffer::{DeviceId, MemoryDomain};
use headway_os::fork::Home;

use self::table::{Code, Handle, Ordinal, Table};

/// Names another driver library than the loader's `libcuda.so.1`.
const LIBRARY_VARIABLE: &str = "HEADWAY_LIBCUDA";

/// One library per path for the whole process: devices opened apart are still of one domain.
static LOADED: Mutex<BTreeMap<PathBuf, Arc<Driver>>> = Mutex::new(BTreeMap::new());
/// The process that loaded the first one: its children cannot use any.
static FIRST: OnceLock<Home> = OnceLock::new();

/// Calls a function of the table and turns its code into a `Result`; in a forked child it calls nothing. The caller writes the
/// `unsafe`.
macro_rules! call {
    ($driver:expr, $symbol:ident($($argument:expr),* $(,)?)) => {{
        let driver: &$crate::driver::Driver = &$driver;
        match driver.here() {
            Ok(()) => driver.check(stringify!($symbol), (driver.table.$symbol)($($argument),*)),
            Err(elsewhere) => Err(elsewhere),
        }
    }};
}
pub(crate) use call;

/// The CUDA driver, loaded and initialised.
pub struct Driver {
    pub(crate) table: Table,
    pub(crate) domain: MemoryDomain,
    path: PathBuf,
    home: Home,
    ids: Mutex<BTreeMap<Ordinal, DeviceId>>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Locks `mutex`; what this crate guards stays valid when a holder panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    /// The driver named by `$HEADWAY_LIBCUDA`, else the loader's `libcuda.so.1`.
    ///
    /// # Errors
    /// Those of [`Driver::load`].
    pub fn system() -> Result<Arc<Self>, DeviceError> {
        let named = headway_os::environment::trusted(LIBRARY_VARIABLE);
        Self::load(Path::new(&named.unwrap_or_else(|| OsString::from("libcuda.so.1"))))
    }

    /// The driver in the library `path`; loaded once per process and path.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] naming the library, the function or the state that is missing.
    pub fn load(path: &Path) -> Result<Arc<Self>, DeviceError> {
        // Before the lock, which a thread of the parent may have held when it forked.
        FIRST.get().map_or(Ok(()), |first| here(*first))?;
        let mut loaded = lock(&LOADED);
        if let Some(driver) = loaded.get(path) {
            return Ok(Arc::clone(driver));
        }
        let driver = Self::of(path, Table::load(path)?)?;
        loaded.insert(path.to_owned(), Arc::clone(&driver));
        Ok(driver)
    }

    /// The driver that this program uses already, its functions found by `find` (null = not there), for copies of memory that
    /// somebody else allocated. Threads of Headway make their calls in the relaxed capture mode: they never disturb a capture.
    ///
    /// # Safety
    /// What `find` gives for the name of a function of the CUDA driver is that function, and it is never unloaded.
    ///
    /// # Errors
    /// Those of [`Driver::load`].
    pub unsafe fn of_program(find: impl Fn(&CStr) -> *const c_void) -> Result<Arc<Self>, DeviceError> {
        FIRST.get().map_or(Ok(()), |first| here(*first))?;
        let path = Path::new("the program's own libcuda.so.1");
        // SAFETY: the caller's promise.
        let table = unsafe { Table::find(path, find) }?;
        Self::of(path, table)
    }

    fn of(path: &Path, table: Table) -> Result<Arc<Self>, DeviceError> {
        FIRST.get_or_init(Home::here);
        let driver = Self {
            table,
            domain: MemoryDomain::new(),
            path: path.to_owned(),
            home: Home::here(),
            ids: Mutex::default(),
        };
        driver.init()?;
        Ok(Arc::new(driver))
    }

    fn init(&self) -> Result<(), DeviceError> {
        // SAFETY: the flags must be 0.
        let code = unsafe { (self.table.cuInit)(0) };
        let remedy = match code {
            table::SUCCESS => return Ok(()),
            table::NO_DEVICE => "check that `nvidia-smi` lists a GPU and that $CUDA_VISIBLE_DEVICES does not hide it",
            table::STUB_LIBRARY => "the library is a linking stub: name the driver's own in $HEADWAY_LIBCUDA",
            table::SYSTEM_DRIVER_MISMATCH => "kernel module and library differ in version: reload the module or reboot",
            _ => "check that the NVIDIA kernel module is loaded and that its device files may be opened",
        };
        Err(DeviceError::Unavailable {
            what: "the CUDA driver".into(),
            reason: format!("cuInit failed with {} ({code})", self.error_name(code)),
            remedy: remedy.into(),
        })
    }

    /// An error in a forked child of the process that loaded it, where the driver answers nothing (CUDA C++ programming guide:
    /// a context is not inherited by `fork`). Costs a load.
    #[inline]
    pub(crate) fn here(&self) -> Result<(), DeviceError> {
        here(self.home)
    }

    /// `Ok` for success, else the call, the code and its name.
    pub(crate) fn check(&self, call: &'static str, code: Code) -> Result<(), DeviceError> {
        if code == table::SUCCESS {
            return Ok(());
        }
        Err(DeviceError::Driver { call, code, name: self.error_name(code) })
    }

    fn error_name(&self, code: Code) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the driver stores a pointer to a constant text, or null for a code it does not know.
        let status = unsafe { (self.table.cuGetErrorName)(code, &raw mut name) };
        if status != table::SUCCESS || name.is_null() {
            return "unknown error".into();
        }
        // SAFETY: not null, so a NUL-terminated text that lives as long as the library.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Whether this is the library of the tests, with no GPU behind it.
    #[must_use]
    pub fn is_fake(&self) -> bool {
        self.table.fake
    }

    /// The newest CUDA version the driver supports, as (major, minor).
    ///
    /// # Errors
    /// [`DeviceError::Driver`].
    pub fn version(&self) -> Result<(u32, u32), DeviceError> {
        let mut version: c_int = 0;
        // SAFETY: `version` is valid for the call to write.
        unsafe { call!(self, cuDriverGetVersion(&raw mut version)) }?;
        let version = version.unsigned_abs();
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Remembers the calling thread's current context, and makes it current again when the value is dropped.
    ///
    /// # Errors
    /// [`DeviceError::Driver`].
    pub fn keep_current(self: &Arc<Self>) -> Result<CurrentContext, DeviceError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is valid for the call to write.
        unsafe { call!(self, cuCtxGetCurrent(&raw mut handle)) }?;
        Ok(CurrentContext { driver: Arc::clone(self), handle, was_relaxed: MODE_BEFORE.get().is_some() })
    }

    /// Lets the calling thread ask and allocate while another thread captures a graph. Else the driver refuses that, and ends the capture:
    /// `torch.cuda.graph` begins one of this kind. The mode is the thread's own and stays so until a [`CurrentContext`] ends.
    pub(crate) fn relax(&self) {
        // Others in this process may change it, so that it is set each time.
        let before = self.exchange_mode(table::CAPTURE_RELAXED);
        MODE_BEFORE.set(MODE_BEFORE.get().or(before));
    }

    /// Gives the calling thread a mode for captures of others; the mode that it had. `None` = this driver knows no modes.
    fn exchange_mode(&self, mut mode: c_int) -> Option<c_int> {
        let exchange = self.table.cuThreadExchangeStreamCaptureMode?;
        // SAFETY: `mode` is valid for the call to exchange.
        unsafe { exchange(&raw mut mode) };
        Some(mode)
    }

    /// The number of the GPU whose context is current on the calling thread.
    ///
    /// # Errors
    /// [`DeviceError::Driver`].
    pub fn current(&self) -> Result<Option<u32>, DeviceError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is valid for the call to write.
        unsafe { call!(self, cuCtxGetCurrent(&raw mut handle)) }?;
        if handle.is_null() {
            return Ok(None);
        }
        let mut ordinal: Ordinal = 0;
        // SAFETY: `ordinal` is valid for the call to write; a context is current.
        unsafe { call!(self, cuCtxGetDevice(&raw mut ordinal)) }?;
        Ok(Some(ordinal.unsigned_abs()))
    }

    /// The number of the GPU with this UUID, as `nvidia-smi -L` prints it.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] if there is none.
    pub fn by_uuid(&self, uuid: &str) -> Result<u32, DeviceError> {
        for index in 0..self.count()?.unsigned_abs() {
            if self.uuid(self.device(index)?)?.eq_ignore_ascii_case(uuid) {
                return Ok(index);
            }
        }
        Err(DeviceError::Unavailable {
            what: format!("the GPU {uuid}"),
            reason: "the driver reports no GPU with this UUID".into(),
            remedy: "see `nvidia-smi -L`, and check $CUDA_VISIBLE_DEVICES".into(),
        })
    }

    /// What the GPU of this number is, without opening it.
    ///
    /// # Errors
    /// [`DeviceError`] for a number that there is not.
    pub fn identity(&self, index: u32) -> Result<GpuIdentity, DeviceError> {
        let ordinal = self.device(index)?;
        Ok(GpuIdentity { name: self.name(ordinal)?, uuid: self.uuid(ordinal)?, pci: self.pci(ordinal)? })
    }

    /// Number of devices.
    pub(crate) fn count(&self) -> Result<c_int, DeviceError> {
        let mut count: c_int = 0;
        // SAFETY: `count` is valid for the call to write.
        unsafe { call!(self, cuDeviceGetCount(&raw mut count)) }?;
        Ok(count)
    }

    /// The driver's handle of the device at `index`.
    pub(crate) fn device(&self, index: u32) -> Result<Ordinal, DeviceError> {
        let count = self.count()?;
        let index = c_int::try_from(index).unwrap_or(c_int::MAX);
        if index >= count {
            return Err(DeviceError::Unavailable {
                what: format!("GPU {index}"),
                reason: format!("the driver reports {count} GPUs"),
                remedy: "choose a lower number, or check $CUDA_VISIBLE_DEVICES".into(),
            });
        }
        let mut ordinal: Ordinal = 0;
        // SAFETY: `ordinal` is valid for the call to write.
        unsafe { call!(self, cuDeviceGet(&raw mut ordinal, index)) }?;
        Ok(ordinal)
    }

    /// The identity of a device: the same however often it is opened.
    pub(crate) fn id(&self, ordinal: Ordinal) -> DeviceId {
        *lock(&self.ids).entry(ordinal).or_insert_with(DeviceId::new)
    }

    pub(crate) fn name(&self, ordinal: Ordinal) -> Result<String, DeviceError> {
        let mut text = [0 as c_char; 256];
        // SAFETY: the driver writes at most the stated length with its NUL.
        unsafe { call!(self, cuDeviceGetName(text.as_mut_ptr(), text.len() as c_int, ordinal)) }?;
        Ok(self::text(&text))
    }

    /// The PCI address in the kernel's form.
    pub(crate) fn pci(&self, ordinal: Ordinal) -> Result<Option<String>, DeviceError> {
        let mut text = [0 as c_char; 64];
        // SAFETY: the driver writes at most the stated length with its NUL.
        unsafe { call!(self, cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as c_int, ordinal)) }?;
        Ok(headway_os::topology::pci_address(&self::text(&text)))
    }

    /// The UUID as `nvidia-smi` writes it.
    pub(crate) fn uuid(&self, ordinal: Ordinal) -> Result<String, DeviceError> {
        let mut bytes = [0u8; 16];
        // SAFETY: the driver writes 16 bytes.
        unsafe { call!(self, cuDeviceGetUuid_v2(&raw mut bytes, ordinal)) }?;
        Ok(uuid_text(bytes))
    }

    pub(crate) fn memory(&self, ordinal: Ordinal) -> Result<Bytes, DeviceError> {
        let mut bytes = 0usize;
        // SAFETY: `bytes` is valid for the call to write.
        unsafe { call!(self, cuDeviceTotalMem_v2(&raw mut bytes, ordinal)) }?;
        Ok(Bytes(bytes as u64))
    }

    pub(crate) fn attribute(&self, attribute: c_int, ordinal: Ordinal) -> Result<u32, DeviceError> {
        let mut value: c_int = 0;
        // SAFETY: `value` is valid for the call to write.
        unsafe { call!(self, cuDeviceGetAttribute(&raw mut value, attribute, ordinal)) }?;
        Ok(value.unsigned_abs())
    }

    /// Whether `from` can use the memory of `to` directly.
    pub(crate) fn can_access(&self, from: Ordinal, to: Ordinal) -> Result<bool, DeviceError> {
        let mut answer: c_int = 0;
        // SAFETY: `answer` is valid for the call to write.
        unsafe { call!(self, cuDeviceCanAccessPeer(&raw mut answer, from, to)) }?;
        Ok(answer != 0)
    }
}

/// A GPU's UUID as `nvidia-smi` writes it.
#[must_use]
pub fn uuid_text(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuIdentity {
    /// As the driver calls it.
    pub name: String,
    /// As `nvidia-smi` writes it.
    pub uuid: String,
    /// The PCI address in the kernel's form, where there is one.
    pub pci: Option<String>,
}

/// A thread's current context, which is current again when this is dropped.
pub struct CurrentContext {
    driver: Arc<Driver>,
    handle: Handle,
    was_relaxed: bool,
}

thread_local! {
    /// The mode that this thread had for captures of others, before [`Driver::relax`].
    static MODE_BEFORE: Cell<Option<c_int>> = const { Cell::new(None) };
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        if !self.was_relaxed
            && let Some(mode) = MODE_BEFORE.take()
        {
            self.driver.exchange_mode(mode);
        }
        let mut now = std::ptr::null_mut();
        // SAFETY: `now` is valid for the call to write.
        let asked = unsafe { call!(self.driver, cuCtxGetCurrent(&raw mut now)) };
        if asked.is_ok() && now != self.handle {
            // SAFETY: it was this thread's current context before; null is none. The value stays on its thread.
            let _ = unsafe { call!(self.driver, cuCtxSetCurrent(self.handle)) };
        }
    }
}

/// An error in another process than `home`.
#[inline]
pub(crate) fn here(home: Home) -> Result<(), DeviceError> {
    if home.is_here() { Ok(()) } else { Err(forked()) }
}

#[cold]
fn forked() -> DeviceError {
    DeviceError::Unavailable {
        what: "the CUDA driver".into(),
        reason: "this process was forked from the one that loaded it, and CUDA does not survive a fork".into(),
        remedy: "load it after the fork, or start the process anew (`spawn` instead of `fork`)".into(),
    }
}

/// The text in `buffer` up to its NUL.
pub(crate) fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
