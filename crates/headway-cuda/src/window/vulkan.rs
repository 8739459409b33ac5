//! The route through Vulkan: memory shared between CUDA and Vulkan, and mapped there.
//!
//! Vulkan maps device memory for the CPU where its memory type is DEVICE_LOCAL, HOST_VISIBLE and HOST_COHERENT; such an
//! allocation and one of CUDA's can be the same memory, in either direction, through `VK_KHR_external_memory_fd`.

mod choice;
mod loader;

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use ash::khr::external_memory_fd;
use ash::vk;
use headway_device::DeviceError;

use self::choice::Seen;
use self::loader::{LibrarySource, SOURCES};
use super::home::{Home, keep_from_children};
use super::memory::{External, Mapped, Physical, consume};
use super::pager::{Base, Mover};
use super::{Missing, Refusal};
use crate::driver::table::Address;
use crate::driver::{call, lock};
use crate::owned::Context;

const FD: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;
const MAP: &str = "vkMapMemory";
const UPDATE: &str = "update the NVIDIA driver; in a container, give it the driver's graphics libraries too";
/// A buffer of this size asks Vulkan which memory types external buffers may have.
const SAMPLE_BYTES: u64 = 64 << 10;

/// A Vulkan device of every CUDA device that one was found for; for the whole process.
static DEVICES: Mutex<BTreeMap<[u8; 16], Arc<Gpu>>> = Mutex::new(BTreeMap::new());

/// A Vulkan device that is also a CUDA device.
pub(crate) struct Gpu {
    instance: ash::Instance,
    device: ash::Device,
    external: external_memory_fd::Device,
    /// Types that can back a window, best first.
    types: Vec<u32>,
    /// All types, for messages.
    listed: Vec<String>,
    /// What external buffers can be, for messages: our memory has none, so nothing is demanded of it.
    features: vk::ExternalMemoryFeatureFlags,
    home: Home,
}

/// What a call of Vulkan came to.
fn check<T>(call: &'static str, result: Result<T, vk::Result>) -> Result<T, DeviceError> {
    result.map_err(|code| DeviceError::Driver { call, code: code.as_raw(), name: format!("{code:?}") })
}

/// Why the route is not there, for a call that failed.
fn refused(error: &DeviceError) -> Missing {
    Missing { word: "ImportRefused", detail: error.to_string(), remedy: UPDATE }
}

impl Gpu {
    /// The Vulkan device of the CUDA device of `context`; opened once per process.
    pub(crate) fn of(context: &Context) -> Result<Arc<Self>, Missing> {
        let mut uuid = [0u8; 16];
        // SAFETY: the driver writes 16 bytes.
        unsafe { call!(context.driver, cuDeviceGetUuid_v2(&raw mut uuid, context.ordinal)) }
            .map_err(|error| refused(&error))?;
        let mut devices = lock(&DEVICES);
        if let Some(gpu) = devices.get(&uuid) {
            if gpu.home.is_here() {
                return Ok(Arc::clone(gpu));
            }
            return Err(Missing {
                word: "NoVulkan",
                detail: "the parent process opened it before it forked".into(),
                remedy: "start the child with `exec`",
            });
        }
        let gpu = Arc::new(first_that_opens(SOURCES, |source| Self::open(source, uuid))?);
        devices.insert(uuid, Arc::clone(&gpu));
        Ok(gpu)
    }

    fn open(source: LibrarySource, uuid: [u8; 16]) -> Result<Self, Missing> {
        let entry = source.open().map_err(|detail| Missing {
            word: "NoVulkan",
            detail,
            remedy: "install the Vulkan loader (package libvulkan1 or vulkan-loader)",
        })?;
        let instance = instance(&entry)?;
        match Self::open_in(&instance, uuid) {
            Ok(gpu) => Ok(gpu),
            Err(missing) => {
                // SAFETY: nothing made from it is left.
                unsafe { instance.destroy_instance(None) };
                Err(missing)
            }
        }
    }

    fn open_in(instance: &ash::Instance, uuid: [u8; 16]) -> Result<Self, Missing> {
        // SAFETY: the instance is alive.
        let found = check("vkEnumeratePhysicalDevices", unsafe { instance.enumerate_physical_devices() });
        let found = found.map_err(|error| no_driver(&error.to_string()))?;
        let seen: Vec<Seen> = found.iter().map(|&device| see(instance, device)).collect();
        let physical = found[choice::device(&seen, uuid)?];
        // SAFETY: the handle came from this instance.
        let extensions = check("vkEnumerateDeviceExtensionProperties", unsafe {
            instance.enumerate_device_extension_properties(physical)
        });
        let extensions = extensions.map_err(|error| refused(&error))?;
        if !extensions.iter().any(|one| one.extension_name_as_c_str() == Ok(external_memory_fd::NAME)) {
            return Err(Missing {
                word: "ImportRefused",
                detail: format!("the device lacks {}", external_memory_fd::NAME.to_string_lossy()),
                remedy: UPDATE,
            });
        }
        // SAFETY: the handle came from this instance.
        let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(choice::queue_family(&families))
            .queue_priorities(&[1.0])];
        let names = [external_memory_fd::NAME.as_ptr()];
        let wanted = vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
        // SAFETY: the handle came from this instance; the extension is there.
        let device = check("vkCreateDevice", unsafe { instance.create_device(physical, &wanted, None) });
        let device = device.map_err(|error| refused(&error))?;
        let external = external_memory_fd::Device::new(instance, &device);
        let mut gpu = Self {
            instance: instance.clone(),
            device,
            external,
            types: Vec::new(),
            listed: Vec::new(),
            features: vk::ExternalMemoryFeatureFlags::empty(),
            home: Home::here(),
        };
        match gpu.ask(physical) {
            Ok(()) => Ok(gpu),
            Err(missing) => {
                // SAFETY: nothing made from it is left.
                unsafe { gpu.device.destroy_device(None) };
                Err(missing)
            }
        }
    }

    /// Asks what external buffers can be, and which memory they can have.
    fn ask(&mut self, physical: vk::PhysicalDevice) -> Result<(), Missing> {
        let usage = vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST;
        let kind = vk::PhysicalDeviceExternalBufferInfo::default().usage(usage).handle_type(FD);
        let mut answer = vk::ExternalBufferProperties::default();
        // SAFETY: the handle came from this instance, which is of Vulkan 1.1.
        unsafe { self.instance.get_physical_device_external_buffer_properties(physical, &kind, &mut answer) };
        self.features = answer.external_memory_properties.external_memory_features;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(FD);
        let sample = vk::BufferCreateInfo::default().size(SAMPLE_BYTES).usage(usage).push_next(&mut external);
        // SAFETY: the device is alive; the buffer is destroyed before it.
        let requirements = check("vkCreateBuffer", unsafe { self.device.create_buffer(&sample, None) }).map(|buffer| {
            // SAFETY: the device is alive; the buffer is destroyed before it.
            unsafe {
                let requirements = self.device.get_buffer_memory_requirements(buffer);
                self.device.destroy_buffer(buffer, None);
                requirements
            }
        });
        let buffers = requirements.map_err(|error| refused(&error))?.memory_type_bits;
        // SAFETY: the handle came from this instance.
        let memory = unsafe { self.instance.get_physical_device_memory_properties(physical) };
        let (types, heaps) = (memory.memory_types_as_slice(), memory.memory_heaps_as_slice());
        self.types = choice::memory_types(types, heaps, buffers)?;
        let heap_bytes = |kind: &vk::MemoryType| heaps.get(kind.heap_index as usize).map_or(0, |heap| heap.size);
        let listed = (0u32..).zip(types).map(|(at, kind)| choice::describe(at, kind, heap_bytes(kind)));
        self.listed = listed.collect();
        Ok(())
    }

    /// `make` with the first memory type that it succeeds with.
    fn with_a_type<T>(&self, make: impl Fn(u32) -> Result<T, DeviceError>) -> Result<T, Missing> {
        let mut said = Vec::new();
        let mut unmapped = false;
        for &kind in &self.types {
            match make(kind) {
                Ok(made) => return Ok(made),
                Err(error) => {
                    unmapped |= matches!(error, DeviceError::Driver { call: MAP, .. });
                    said.push(format!("memory type {}: {error}", self.listed[kind as usize]));
                }
            }
        }
        let detail = format!("{} (features of external buffers: {:#x})", said.join("; "), self.features.as_raw());
        Err(if unmapped {
            let remedy = "use a smaller buffer, or `paged-window`; or enable resizable BAR in the firmware";
            Missing { word: "BarTooSmall", detail, remedy }
        } else {
            Missing { word: "ImportRefused", detail, remedy: UPDATE }
        })
    }
}

/// The first of `sources` that opens; else the reason of the one that got furthest, with what the others said.
fn first_that_opens<T>(
    sources: impl IntoIterator<Item = LibrarySource>,
    open: impl Fn(LibrarySource) -> Result<T, Missing>,
) -> Result<T, Missing> {
    const STEPS: [&str; 5] = ["NoVulkan", "NoIcd", "NoDeviceMatch", "NoMemoryType", "ImportRefused"];
    let step = |missing: &Missing| STEPS.iter().position(|word| *word == missing.word);
    let mut furthest: Option<Missing> = None;
    let mut said = Vec::new();
    for source in sources {
        match open(source) {
            Ok(opened) => return Ok(opened),
            Err(missing) => {
                // A loader that does not find a library names it itself.
                let named = missing.detail.starts_with(source.library);
                said.push(if named {
                    missing.detail.clone()
                } else {
                    format!("{}: {}", source.library, missing.detail)
                });
                if furthest.as_ref().is_none_or(|before| step(before) < step(&missing)) {
                    furthest = Some(missing);
                }
            }
        }
    }
    let furthest = furthest.unwrap_or_else(|| no_driver("no library was tried"));
    Err(Missing { detail: said.join("; "), ..furthest })
}

fn no_driver(detail: &str) -> Missing {
    Missing {
        word: "NoIcd",
        detail: format!("{detail} ({})", loader::manifests()),
        remedy: "install the NVIDIA driver's Vulkan library and its manifest nvidia_icd.json, or name the manifest in \
                 $VK_DRIVER_FILES; in a container, add `graphics` to $NVIDIA_DRIVER_CAPABILITIES",
    }
}

fn instance(entry: &ash::Entry) -> Result<ash::Instance, Missing> {
    let program = vk::ApplicationInfo::default()
        .application_name(c"headway")
        .engine_name(c"headway")
        .api_version(vk::API_VERSION_1_1);
    let wanted = vk::InstanceCreateInfo::default().application_info(&program);
    // SAFETY: the entry points are Vulkan's and stay loaded.
    check("vkCreateInstance", unsafe { entry.create_instance(&wanted, None) })
        .map_err(|error| no_driver(&error.to_string()))
}

fn see(instance: &ash::Instance, device: vk::PhysicalDevice) -> Seen {
    let mut id = vk::PhysicalDeviceIDProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
    // SAFETY: the handle came from this instance, which is of Vulkan 1.1.
    unsafe { instance.get_physical_device_properties2(device, &mut properties) };
    let version = properties.properties.api_version;
    let name = properties.properties.device_name_as_c_str().map(CStr::to_string_lossy).unwrap_or_default().into_owned();
    let version = (vk::api_version_major(version), vk::api_version_minor(version));
    Seen { name, uuid: id.device_uuid, version }
}

/// An allocation of Vulkan, mapped or not.
pub(crate) struct Allocation {
    gpu: Arc<Gpu>,
    memory: vk::DeviceMemory,
    bytes: usize,
    kind: u32,
    mapped: bool,
}

impl Allocation {
    /// The memory behind `fd`, all `bytes` bytes of it.
    fn import(gpu: &Arc<Gpu>, fd: OwnedFd, bytes: usize, kind: u32) -> Result<Self, DeviceError> {
        let memory = consume(fd, |fd| {
            let mut source = vk::ImportMemoryFdInfoKHR::default().handle_type(FD).fd(fd);
            let wanted = vk::MemoryAllocateInfo::default().allocation_size(bytes as u64).memory_type_index(kind);
            // SAFETY: the device is alive; the descriptor is open and stands for memory of this size of the same GPU.
            let memory = unsafe { gpu.device.allocate_memory(&wanted.push_next(&mut source), None) };
            check("vkAllocateMemory (import)", memory)
        })?;
        Ok(Self { gpu: Arc::clone(gpu), memory, bytes, kind, mapped: false })
    }

    /// New memory that can be exported.
    fn exportable(gpu: &Arc<Gpu>, bytes: usize, kind: u32) -> Result<Self, DeviceError> {
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(FD);
        let wanted = vk::MemoryAllocateInfo::default().allocation_size(bytes as u64).memory_type_index(kind);
        // SAFETY: the device is alive.
        let memory = unsafe { gpu.device.allocate_memory(&wanted.push_next(&mut export), None) };
        let memory = check("vkAllocateMemory (export)", memory)?;
        Ok(Self { gpu: Arc::clone(gpu), memory, bytes, kind, mapped: false })
    }

    fn export(&self) -> Result<OwnedFd, DeviceError> {
        let wanted = vk::MemoryGetFdInfoKHR::default().memory(self.memory).handle_type(FD);
        // SAFETY: the memory is alive and was allocated for export.
        let fd = check("vkGetMemoryFdKHR", unsafe { self.gpu.external.get_memory_fd(&wanted) })?;
        // SAFETY: Vulkan opened it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Maps `bytes` bytes from `at` on instead of what was mapped before.
    fn map(&mut self, at: usize, bytes: usize) -> Result<Base, DeviceError> {
        self.unmap();
        // SAFETY: the memory is alive, host-visible and not mapped; callers stay within its size.
        let base =
            unsafe { self.gpu.device.map_memory(self.memory, at as u64, bytes as u64, vk::MemoryMapFlags::empty()) };
        let base = NonNull::new(check(MAP, base)?.cast::<u8>());
        let no_address = DeviceError::Driver { call: MAP, code: 0, name: "no address".into() };
        let base = base.ok_or(no_address)?;
        self.mapped = true;
        // SAFETY: a mapping of the driver, whose pages hold nothing else.
        unsafe { keep_from_children(base.as_ptr(), bytes) };
        Ok(Base(base))
    }

    fn unmap(&mut self) {
        if std::mem::take(&mut self.mapped) {
            // SAFETY: it is mapped; what used the mapping is gone, or excluded by `&mut self`.
            unsafe { self.gpu.device.unmap_memory(self.memory) };
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.gpu.home.is_here() {
            self.unmap();
            // SAFETY: allocated once, freed once, not mapped.
            unsafe { self.gpu.device.free_memory(self.memory, None) };
        }
    }
}

/// Memory shared by CUDA and Vulkan. Fields drop in their order: the CPU's mapping, the addresses, the memory.
pub(crate) enum Shared {
    /// CUDA's memory, imported into Vulkan.
    Imported {
        /// The mapped import.
        window: Allocation,
        /// CUDA's addresses.
        mapped: Mapped,
        /// The memory.
        physical: Physical,
    },
    /// Vulkan's memory, imported into CUDA.
    Exported {
        /// CUDA's import.
        external: External,
        /// The mapped memory.
        window: Allocation,
    },
}

impl Shared {
    /// CUDA allocates, Vulkan imports and maps all of it.
    pub(crate) fn imported(context: &Arc<Context>, bytes: usize) -> Result<(Self, Base), Refusal> {
        let gpu = Gpu::of(context)?;
        let physical = Physical::new(context, bytes)?;
        let mapped = Mapped::new(context, &physical)?;
        let (window, base) = gpu.with_a_type(|kind| {
            let mut window = Allocation::import(&gpu, physical.export()?, physical.bytes(), kind)?;
            let base = window.map(0, physical.bytes())?;
            Ok((window, base))
        })?;
        Ok((Self::Imported { window, mapped, physical }, base))
    }

    /// Vulkan allocates and maps, CUDA imports.
    pub(crate) fn exported(context: &Arc<Context>, bytes: usize) -> Result<(Self, Base), Refusal> {
        let gpu = Gpu::of(context)?;
        // As CUDA's own granularity: what both map in their largest pages.
        let too_large =
            || DeviceError::Invalid { what: "device buffer", reason: format!("{bytes} bytes are too many") };
        let bytes = bytes.max(1).checked_next_multiple_of(2 << 20).ok_or_else(too_large)?;
        let (window, external, base) = gpu.with_a_type(|kind| {
            let mut window = Allocation::exportable(&gpu, bytes, kind)?;
            let base = window.map(0, bytes)?;
            let external = External::new(context, window.export()?, bytes)?;
            Ok((window, external, base))
        })?;
        Ok((Self::Exported { external, window }, base))
    }

    /// CUDA's address of the first byte.
    pub(crate) fn address(&self) -> Address {
        match self {
            Self::Imported { mapped, .. } => mapped.address(),
            Self::Exported { external, .. } => external.address(),
        }
    }

    /// An import of its own for a small mapping that is moved: one allocation has one mapping at a time.
    pub(crate) fn mover(&self) -> Result<Box<dyn Mover>, DeviceError> {
        let (Self::Imported { window, .. } | Self::Exported { window, .. }) = self;
        let fd = match self {
            Self::Imported { physical, .. } => physical.export()?,
            Self::Exported { window, .. } => window.export()?,
        };
        Ok(Box::new(Allocation::import(&window.gpu, fd, window.bytes, window.kind)?))
    }
}

impl Mover for Allocation {
    fn map(&mut self, at: usize, bytes: usize) -> Result<Base, DeviceError> {
        self.map(at, bytes.min(self.bytes.saturating_sub(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_that_got_furthest_gives_the_reason_and_all_give_the_detail() {
        let words = ["NoVulkan", "NoDeviceMatch", "NoIcd"];
        let at = std::cell::Cell::new(0);
        let missing = first_that_opens(SOURCES, |_| {
            let word = words[at.replace(at.get() + 1)];
            Err::<(), _>(Missing { word, detail: format!("said {word}"), remedy: "" })
        });
        let missing = missing.unwrap_err();
        assert_eq!(missing.word, "NoDeviceMatch");
        assert_eq!(
            missing.detail,
            "libvulkan.so.1: said NoVulkan; libGLX_nvidia.so.0: said NoDeviceMatch; libEGL_nvidia.so.0: said NoIcd"
        );
    }

    #[test]
    fn the_first_source_that_opens_is_taken() {
        let opened = first_that_opens(SOURCES, |source| {
            if source.library.contains("GLX") {
                Ok(source.library)
            } else {
                Err(Missing { word: "NoVulkan", detail: String::new(), remedy: "" })
            }
        });
        assert_eq!(opened.unwrap(), "libGLX_nvidia.so.0");
    }
}
