//! Windows: device memory that the CPU reads and writes by itself.
//!
//! A [`WindowRoute`] is a way to such memory; a probe takes each to its end, a test of every byte, and remembers the result for the
//! GPU. Order of preference: `gdrdrv` (an administrator installed it on purpose, and it maps any memory), Vulkan (on the stock
//! driver), dma-buf. (Specification of transfers, 1.4 and 1.5.)

mod dma_buf;
mod gdrdrv;
mod home;
mod memory;
mod pager;
mod ping;
mod self_test;
mod vulkan;

#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Arc, LazyLock, Mutex};

use headway_core::models::transfer::WindowMapping;
use headway_device::buffer::{Budget, DeviceId, Memory, MemoryPlace};
use headway_device::gpu::{Pager, Window};
use headway_device::{Access, Buffer, DeviceError, DeviceLimits};
use headway_os::copy;
use headway_os::memory::page_bytes;

use self::gdrdrv::{GPU_PAGE, Session};
use self::home::Home;
use self::memory::Aligned;
use self::pager::{Base, Mover, Moving, Owner};
use self::self_test::Bench;
use crate::driver::table::{self, Address, Ordinal};
use crate::driver::{Driver, call, lock};
use crate::owned::{Context, CopyKind};
use crate::pageable::copy_pageable;

pub(crate) use self::ping::of_form as round_trips_of_form;
pub use self::ping::round_trips;

/// A way to memory with a window: a form, and for Vulkan which side allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowRoute {
    /// The kernel module gdrdrv pins and maps CUDA's memory.
    Gdrdrv,
    /// CUDA allocates; Vulkan imports and maps.
    VulkanImport,
    /// Vulkan allocates and maps; CUDA imports.
    VulkanExport,
    /// The driver exports CUDA's memory as a dma-buf, which is mapped.
    DmaBuf,
}

impl WindowRoute {
    /// All of them, in the order of preference.
    pub const ALL: [Self; 4] = [Self::Gdrdrv, Self::VulkanImport, Self::VulkanExport, Self::DmaBuf];

    /// The form it is a way to.
    #[must_use]
    pub const fn mapping(self) -> WindowMapping {
        match self {
            Self::Gdrdrv => WindowMapping::Gdrdrv,
            Self::VulkanImport | Self::VulkanExport => WindowMapping::Vulkan,
            Self::DmaBuf => WindowMapping::DmaBuf,
        }
    }
}

impl fmt::Display for WindowRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gdrdrv => "gdrdrv",
            Self::VulkanImport => "vulkan (CUDA's memory)",
            Self::VulkanExport => "vulkan (Vulkan's memory)",
            Self::DmaBuf => "dma-buf",
        })
    }
}

/// Forms of windows, in the order of preference.
const FORMS: [WindowMapping; 3] = [WindowMapping::Gdrdrv, WindowMapping::Vulkan, WindowMapping::DmaBuf];

/// Why a route is not there: a word for programs, a text for people, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    word: &'static str,
    detail: String,
    remedy: &'static str,
}

/// Why memory with a window could not be had.
pub(crate) enum Refusal {
    /// The route is not there.
    Missing(Missing),
    /// This attempt failed.
    Failed(DeviceError),
}

impl From<Missing> for Refusal {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        Self::Failed(error)
    }
}

impl Refusal {
    /// The error for the caller.
    fn error(self, what: String) -> DeviceError {
        match self {
            Self::Missing(Missing { word, detail, remedy }) => {
                DeviceError::Unavailable { what, reason: format!("{word}: {detail}"), remedy: remedy.into() }
            }
            Self::Failed(error) => error,
        }
    }

    /// A call that a driver refuses is a route that is not there; a lost GPU or exhausted memory says nothing of the route.
    fn settled(self) -> Self {
        match self {
            Self::Failed(error @ DeviceError::Driver { code, .. }) if !table::ends_the_context(code) => {
                Self::Missing(Missing {
                    word: "ImportRefused",
                    detail: error.to_string(),
                    remedy: "update the NVIDIA driver",
                })
            }
            other => other,
        }
    }
}

fn name(mapping: WindowMapping, ordinal: Ordinal) -> String {
    format!("the window `{mapping}` of GPU {ordinal}")
}

/// Which routes of a GPU passed, by form.
#[derive(Clone, Debug)]
struct Probed {
    verdicts: [(WindowMapping, Result<WindowRoute, DeviceError>); FORMS.len()],
    /// Whether asking again would give the same.
    settled: bool,
}

/// What probes found, by GPU.
static PROBED: LazyLock<Mutex<HashMap<DeviceId, Probed>>> = LazyLock::new(Mutex::default);

impl Probed {
    fn of(context: &Arc<Context>) -> Self {
        let mut found = lock(&PROBED);
        if let Some(probed) = found.get(&context.id) {
            return probed.clone();
        }
        let probed = Self::find(context.ordinal, |route| attempt(context, route));
        if probed.settled {
            found.insert(context.id, probed.clone());
        }
        probed
    }

    /// Tries the routes of every form in order, up to the first that passes.
    fn find(ordinal: Ordinal, mut attempt: impl FnMut(WindowRoute) -> Result<(), Refusal>) -> Self {
        let mut settled = true;
        let verdicts = FORMS.map(|mapping| {
            let mut refusals = Vec::new();
            for route in WindowRoute::ALL.into_iter().filter(|route| route.mapping() == mapping) {
                match attempt(route).map_err(Refusal::settled) {
                    Ok(()) => return (mapping, Ok(route)),
                    Err(refusal) => refusals.push((route, refusal)),
                }
            }
            let verdict = merged(refusals).error(name(mapping, ordinal));
            settled &= matches!(verdict, DeviceError::Unavailable { .. });
            (mapping, Err(verdict))
        });
        Self { verdicts, settled }
    }

    fn route(&self, mapping: WindowMapping) -> Result<WindowRoute, DeviceError> {
        let found = self.verdicts.iter().find(|(form, _)| *form == mapping);
        found.map(|(_, verdict)| verdict.clone()).expect("every mapping has a verdict")
    }
}

/// One refusal for all routes of a form: what is not settled first, else the first with the texts of all.
fn merged(mut refusals: Vec<(WindowRoute, Refusal)>) -> Refusal {
    if let Some(at) = refusals.iter().position(|(_, refusal)| matches!(refusal, Refusal::Failed(_))) {
        return refusals.swap_remove(at).1;
    }
    let mut missing = refusals.into_iter().filter_map(|(route, refusal)| match refusal {
        Refusal::Missing(missing) => Some((route, missing)),
        Refusal::Failed(_) => None,
    });
    let Some((route, mut first)) = missing.next() else { return Refusal::Failed(DeviceError::DeviceLost) };
    for (other, next) in missing.filter(|(_, next)| next.detail != first.detail).collect::<Vec<_>>() {
        first.detail = format!("{route}: {}; {other}: {}: {}", first.detail, next.word, next.detail);
    }
    Refusal::Missing(first)
}

/// Takes one route to its end.
fn attempt(context: &Arc<Context>, route: WindowRoute) -> Result<(), Refusal> {
    self_test::run(&open(context, route, self_test::BYTES)?)
}

/// Every form with why it cannot be used, if it cannot; in the order of preference. Slow the first time, remembered then.
pub(crate) fn probe(context: &Arc<Context>) -> Vec<(WindowMapping, Result<(), DeviceError>)> {
    let verdicts = Probed::of(context).verdicts;
    verdicts.into_iter().map(|(mapping, verdict)| (mapping, verdict.map(drop))).collect()
}

/// Device memory of `bytes` bytes, zeroed, with a window of the form `mapping` on all of it.
pub(crate) fn allocate(
    context: &Arc<Context>,
    mapping: WindowMapping,
    bytes: usize,
) -> Result<WindowMemory, DeviceError> {
    let route = Probed::of(context).route(mapping)?;
    open(context, route, bytes).map_err(|refusal| refusal.error(name(mapping, context.ordinal)))
}

/// Memory by `route`, zeroed.
fn open(context: &Arc<Context>, route: WindowRoute, bytes: usize) -> Result<WindowMemory, Refusal> {
    match route {
        WindowRoute::Gdrdrv => by_gdrdrv(context, &Session::system()?, bytes),
        WindowRoute::DmaBuf => {
            dma_buf::allowed(context)?;
            by_dma_buf(context, bytes)
        }
        WindowRoute::VulkanImport => {
            let (shared, base) = vulkan::Shared::imported(context, bytes)?;
            WindowMemory::new(context, WindowMapping::Vulkan, base, shared.address(), bytes, Backing::Vulkan(shared))
        }
        WindowRoute::VulkanExport => {
            let (shared, base) = vulkan::Shared::exported(context, bytes)?;
            WindowMemory::new(context, WindowMapping::Vulkan, base, shared.address(), bytes, Backing::Vulkan(shared))
        }
    }
}

fn by_gdrdrv(context: &Arc<Context>, session: &Arc<Session>, bytes: usize) -> Result<WindowMemory, Refusal> {
    let memory = Aligned::new(context, bytes, GPU_PAGE)?;
    let address = memory.address();
    // SAFETY: the memory is at least as long as this and is dropped after the pages.
    let mut pages = unsafe { gdrdrv::Pages::pin(session, address, bytes.max(1).next_multiple_of(GPU_PAGE)) }?;
    let base = pages.map()?;
    WindowMemory::new(
        context,
        WindowMapping::Gdrdrv,
        base,
        address,
        bytes,
        Backing::Gdrdrv { _pages: pages, _memory: memory },
    )
}

fn by_dma_buf(context: &Arc<Context>, bytes: usize) -> Result<WindowMemory, Refusal> {
    let page = page_bytes();
    let memory = Aligned::new(context, bytes, page.max(GPU_PAGE))?;
    let address = memory.address();
    let mapped = bytes.max(1).next_multiple_of(page);
    let mapping = dma_buf::File::export(context, address, mapped)?.map(0, mapped).map_err(dma_buf::refused)?;
    let base = mapping.base;
    WindowMemory::new(
        context,
        WindowMapping::DmaBuf,
        base,
        address,
        bytes,
        Backing::DmaBuf { _mapping: mapping, _memory: memory },
    )
}

/// A small mapping moved over `buffer`.
pub(crate) fn pager(
    context: &Arc<Context>,
    mapping: WindowMapping,
    buffer: &Buffer,
) -> Result<Box<dyn Pager>, DeviceError> {
    let span = buffer.claim(0..0, Access::Read)?;
    if span.place() != (MemoryPlace::Device { id: context.id, domain: context.driver.domain }) {
        return Err(DeviceError::Invalid { what: "pager", reason: "the buffer is not memory of this GPU".into() });
    }
    let owner = Owner::new(context.id)?;
    let mover =
        mover(context, mapping, span.memory()).map_err(|refusal| refusal.error(name(mapping, context.ordinal)))?;
    Ok(Box::new(Moving::new(mover, buffer, owner)))
}

fn mover(context: &Arc<Context>, mapping: WindowMapping, memory: &dyn Memory) -> Result<Box<dyn Mover>, Refusal> {
    let any: &dyn Any = memory;
    let address = memory.base().addr() as Address;
    match mapping {
        WindowMapping::Vulkan => match any.downcast_ref::<WindowMemory>().map(|memory| &memory.backing) {
            Some(Backing::Vulkan(shared)) => Ok(shared.mover()?),
            _ => Err(Missing {
                word: "ImportRefused",
                detail: "Vulkan maps only memory that is shared with it from the start".into(),
                remedy: "allocate the buffer with a window of the form `vulkan`",
            }
            .into()),
        },
        WindowMapping::Gdrdrv => {
            let session = Session::system()?;
            aligned(address, GPU_PAGE)?;
            // SAFETY: the pager keeps the buffer, and drops it after the mover.
            Ok(Box::new(unsafe { gdrdrv::Parts::new(&session, address) }))
        }
        WindowMapping::DmaBuf => {
            dma_buf::allowed(context)?;
            by_parts_of_a_dma_buf(context, address, memory.bytes())
        }
    }
}

fn by_parts_of_a_dma_buf(context: &Context, address: Address, bytes: usize) -> Result<Box<dyn Mover>, Refusal> {
    aligned(address, page_bytes())?;
    let file = dma_buf::File::export(context, address, bytes.max(1).next_multiple_of(page_bytes()))?;
    Ok(Box::new(dma_buf::DmaBufMapping::new(file)))
}

fn aligned(address: Address, to: usize) -> Result<(), DeviceError> {
    if address.is_multiple_of(to as u64) {
        return Ok(());
    }
    let reason = format!("the buffer starts at {address:#x}, not at a multiple of {to}; allocate it with a window");
    Err(DeviceError::Invalid { what: "pager", reason })
}

/// Device memory with a window on all of it.
pub(crate) struct WindowMemory {
    view: View,
    backing: Backing,
    context: Arc<Context>,
    address: Address,
    bytes: usize,
}

/// What is behind it; in each the mapping drops before the memory.
enum Backing {
    Vulkan(vulkan::Shared),
    Gdrdrv { _pages: gdrdrv::Pages, _memory: Aligned },
    DmaBuf { _mapping: dma_buf::Mapping, _memory: Aligned },
}

/// The mapping as the CPU uses it.
struct View {
    mapping: WindowMapping,
    base: Base,
    home: Home,
}

impl WindowMemory {
    /// Takes over what is behind it, and zeroes it.
    fn new(
        context: &Arc<Context>,
        mapping: WindowMapping,
        base: Base,
        address: Address,
        bytes: usize,
        backing: Backing,
    ) -> Result<Self, Refusal> {
        let view = View { mapping, base, home: Home::here() };
        let memory = Self { view, backing, context: Arc::clone(context), address, bytes };
        context.bind()?;
        // SAFETY: the memory has at least this size, 1 or more.
        context.note(unsafe { call!(context.driver, cuMemsetD8_v2(address, 0, bytes.max(1))) })?;
        // SAFETY: null names the default stream, in which the call above runs; it may return before the memory is set.
        context.note(unsafe { call!(context.driver, cuStreamSynchronize(null_mut())) })?;
        Ok(memory)
    }
}

// SAFETY: a fresh allocation of at least `bytes` bytes, zeroed, freed on drop only; not host memory; the answers come from
// fields that never change.
unsafe impl Memory for WindowMemory {
    fn base(&self) -> *mut u8 {
        without_provenance_mut(self.address as usize)
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn place(&self) -> MemoryPlace {
        MemoryPlace::Device { id: self.context.id, domain: self.context.driver.domain }
    }
    /// None in a forked child, whose accesses the parent's driver knows nothing of.
    fn window(&self) -> Option<&dyn Window> {
        self.view.home.is_here().then_some(&self.view)
    }
}

// SAFETY: `window_store` touches no byte outside the range, `window_load` none outside its lines, and a store ends with a fence.
unsafe impl Window for View {
    fn mapping(&self) -> WindowMapping {
        self.mapping
    }
    unsafe fn store(&self, at: usize, from: &[u8]) {
        // SAFETY: the caller stays within the memory, all of which is mapped, and excludes others.
        unsafe { copy::window_store(self.base.0.as_ptr().add(at), from) };
    }
    unsafe fn load(&self, at: usize, to: &mut [u8]) {
        // SAFETY: as in `store`.
        unsafe { copy::window_load(self.base.0.as_ptr().add(at), to) };
    }
}

impl Bench for WindowMemory {
    fn window(&self) -> &dyn Window {
        &self.view
    }
    fn write(&self, at: usize, from: &[u8]) -> Result<(), DeviceError> {
        let to = self.base().wrapping_add(at);
        // SAFETY: the self-test stays within the memory, which nobody else has yet; the source is only read.
        unsafe { copy_pageable(&self.context, CopyKind::HostToDevice, from.as_ptr().cast_mut(), to, from.len()) }
    }
    fn read(&self, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        let from = self.base().wrapping_add(at);
        // SAFETY: as in `write`.
        unsafe { copy_pageable(&self.context, CopyKind::DeviceToHost, from, to.as_mut_ptr(), to.len()) }
    }
}

/// A route, with why it cannot be used, if it cannot.
pub type WindowAvailability = (WindowRoute, Result<(), DeviceError>);

/// Tries every route of GPU number `index`, each to its end, whatever another gave; for reports and measurements.
///
/// # Errors
/// [`DeviceError::Unavailable`], [`DeviceError::Driver`] when the GPU cannot be opened.
pub fn routes(driver: &Arc<Driver>, index: u32) -> Result<Vec<WindowAvailability>, DeviceError> {
    let context = Context::retain(driver, driver.device(index)?)?;
    let verdict =
        |route: WindowRoute| attempt(&context, route).map_err(|refusal| refusal.error(format!("the route {route}")));
    Ok(WindowRoute::ALL.into_iter().map(|route| (route, verdict(route))).collect())
}

/// Device memory of GPU number `index` by one route, zeroed, with a window on all of it; not probed before. For measurements:
/// [`CudaGpu`](crate::CudaGpu) chooses the route itself.
///
/// # Errors
/// [`DeviceError::Unavailable`] with the route's reason, [`DeviceError::OutOfMemory`], [`DeviceError::Driver`].
pub fn buffer(driver: &Arc<Driver>, index: u32, route: WindowRoute, bytes: usize) -> Result<Buffer, DeviceError> {
    let ordinal = driver.device(index)?;
    let context = Context::retain(driver, ordinal)?;
    let reservation = Budget::new(&DeviceLimits::default(), driver.memory(ordinal)?).reserve(1, 0, bytes as u64)?;
    let memory = open(&context, route, bytes).map_err(|refusal| refusal.error(format!("the route {route}")))?;
    Ok(Buffer::new(memory, reservation))
}
