//! Routes on a library with the driver's interface and no GPU behind it, compiled by each test with the faults it needs.
//!
//! Vulkan is not faked: its choices are tested on plain data, its calls on a GPU.

use std::path::{Path, PathBuf};
use std::process::Command;

use headway_device::buffer::Reservation;
use tempfile::{NamedTempFile, TempDir};

use super::gdrdrv::Parts;
use super::memory::{External, Mapped, Physical, consume};
use super::pager::SPAN_BYTES;
use super::*;

/// A compiled library, its folder, and a file that stands for the kernel module's.
struct Fake {
    _folder: TempDir,
    path: PathBuf,
    node: NamedTempFile,
}

impl Fake {
    fn build(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libfake.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/fake.c");
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-pthread", "-DMEMFD", "-o"])
            .arg(&path)
            .args(options)
            .arg(source)
            .status()
            .expect("a C compiler named `cc` is needed for these tests");
        assert!(status.success());
        Self { _folder: folder, path, node: NamedTempFile::new().unwrap() }
    }

    fn failing(call: &str, code: i32, at: u32) -> Self {
        let options = [format!("-DFAIL_CALL=\"{call}\""), format!("-DFAIL_CODE={code}"), format!("-DFAIL_AT={at}")];
        Self::build(&options.each_ref().map(String::as_str))
    }

    fn context(&self) -> Arc<Context> {
        Context::retain(&Driver::load(&self.path).unwrap(), 0).unwrap()
    }

    fn session(&self) -> Arc<Session> {
        Session::of(self.node.path(), &self.path).map_err(|missing| missing.detail).unwrap()
    }

    /// Objects and allocations that the library has handed out and not got back.
    fn live(&self) -> i32 {
        // SAFETY: takes nothing.
        unsafe { self.counter()() }
    }

    fn counter(&self) -> unsafe extern "C" fn() -> i32 {
        // SAFETY: the library is loaded already and stays so; this function of it takes nothing and returns an int.
        unsafe {
            let library = libloading::Library::new(&self.path).unwrap();
            *library.get(b"headway_fake_live\0").unwrap()
        }
    }
}

/// With which the driver says that a dma-buf can be mapped.
const MAPPABLE: [&str; 2] = ["-DVERSION=13030", "-DMMAP_ATTRIBUTE=1"];

fn reservation(bytes: usize) -> Reservation {
    let limits = DeviceLimits { device_bytes_max: headway_core::units::Bytes(1 << 30), ..DeviceLimits::default() };
    Budget::new(&limits, limits.device_bytes_max).reserve(1, 0, bytes as u64).unwrap()
}

fn text(refusal: Refusal) -> String {
    refusal.error("it".into()).to_string()
}

/// The reason for which `route` is not there.
fn reason(context: &Arc<Context>, route: WindowRoute) -> String {
    text(open(context, route, 1000).err().expect("the route is not there"))
}

fn passes(memory: &WindowMemory) {
    self_test::run(memory).map_err(text).unwrap();
}

#[test]
fn gdrdrv_maps_what_cuda_allocates_by_either_version_of_its_library() {
    for options in [&[][..], &["-DGDR_V1"]] {
        let fake = Fake::build(options);
        let (context, session) = (fake.context(), fake.session());
        let before = fake.live();
        let memory = by_gdrdrv(&context, &session, self_test::BYTES).map_err(text).unwrap();
        passes(&memory);
        assert_eq!((memory.address % GPU_PAGE as u64, memory.view.mapping()), (0, WindowMapping::Gdrdrv));
        drop(memory);
        assert_eq!(fake.live(), before, "nothing is left pinned, mapped or allocated");
    }
}

#[test]
fn a_session_of_gdrdrv_is_opened_once() {
    let fake = Fake::build(&[]);
    assert!(Arc::ptr_eq(&fake.session(), &fake.session()));
}

#[test]
fn a_refused_pin_names_call_and_number_and_leaks_nothing() {
    let fake = Fake::build(&["-UMEMFD"]);
    let (context, session) = (fake.context(), fake.session());
    let error = by_gdrdrv(&context, &session, 1000).err().unwrap();
    assert_eq!(text(error), "gdr_pin_buffer_v2 failed with EINVAL (22)");
    assert_eq!(fake.live(), 1);
}

#[test]
fn the_parts_of_a_buffer_are_shown_one_after_another_by_gdrdrv() {
    let fake = Fake::build(&[]);
    let (context, session) = (fake.context(), fake.session());
    let bytes = 2 * SPAN_BYTES + 1000;
    let memory = by_gdrdrv(&context, &session, bytes).map_err(text).unwrap();
    // SAFETY: the pager keeps the buffer.
    let parts = unsafe { Parts::new(&session, memory.address) };
    check_pager(Box::new(parts), memory);
    assert_eq!(fake.live(), 1, "only the context is left");
}

/// Stores and loads across all places of `mover` over `memory`, compared through its own window.
fn check_pager(mover: Box<dyn Mover>, memory: WindowMemory) {
    let bytes = memory.bytes;
    let owner = Owner::new(DeviceId::new()).unwrap();
    let buffer = Buffer::new(memory, reservation(bytes));
    let mut pager = Moving::new(mover, &buffer, owner);
    let data: Vec<u8> = (0..bytes).map(|at| (at % 253) as u8).collect();
    pager.store(0, &data).unwrap();
    pager.store(5, &[9; 10]).unwrap();
    assert_eq!(pager.moves(), 4);
    let mut seen = vec![0; bytes];
    let span = buffer.claim(0..bytes, Access::Read).unwrap();
    span.load(0, &mut seen).unwrap();
    assert!(seen[..5] == data[..5] && seen[5..15] == [9; 10] && seen[15..] == data[15..]);
    let mut seen = vec![0; 100];
    pager.load(SPAN_BYTES - 50, &mut seen).unwrap();
    assert_eq!(seen, data[SPAN_BYTES - 50..SPAN_BYTES + 50]);
}

#[test]
fn a_dma_buf_is_mapped_where_the_driver_says_it_can_be() {
    let fake = Fake::build(&MAPPABLE);
    let context = fake.context();
    let verdicts = probe(&context);
    assert_eq!(verdicts.iter().map(|(mapping, _)| *mapping).collect::<Vec<_>>(), FORMS);
    verdicts[2].1.as_ref().unwrap();
    let memory = allocate(&context, WindowMapping::DmaBuf, self_test::BYTES).unwrap();
    passes(&memory);
    let (address, bytes) = (memory.address, memory.bytes);
    let mover = by_parts_of_a_dma_buf(&context, address, bytes).map_err(text).unwrap();
    drop((mover, memory));
    assert_eq!(fake.live(), 1);
}

#[test]
fn the_parts_of_a_buffer_are_shown_one_after_another_by_a_dma_buf() {
    let fake = Fake::build(&MAPPABLE);
    let context = fake.context();
    let bytes = 2 * SPAN_BYTES + 1000;
    let memory = by_dma_buf(&context, bytes).map_err(text).unwrap();
    let mover = by_parts_of_a_dma_buf(&context, memory.address, bytes).map_err(text).unwrap();
    check_pager(mover, memory);
    assert_eq!(fake.live(), 1);
}

#[test]
fn a_dma_buf_that_cannot_be_mapped_says_why() {
    let old = Fake::build(&[]);
    assert!(reason(&old.context(), WindowRoute::DmaBuf).contains("AttributeAbsent: CUDA 13.1, attribute 152"));
    let without = Fake::build(&[&MAPPABLE[..], &["-DNO_DMA_BUF"]].concat());
    assert!(reason(&without.context(), WindowRoute::DmaBuf).contains("lacks cuMemGetHandleForAddressRange"));
    let sealed = Fake::build(&[&MAPPABLE[..], &["-DSEALED"]].concat());
    assert!(
        reason(&sealed.context(), WindowRoute::DmaBuf).contains("MmapRefused: mmap of the dma-buf failed with EACCES")
    );
    assert_eq!((old.live(), without.live(), sealed.live()), (0, 0, 0));
}

#[test]
fn a_gpu_has_one_small_mapping_and_it_needs_a_buffer_of_that_gpu() {
    let fake = Fake::build(&MAPPABLE);
    let context = fake.context();
    let buffer = Buffer::new(allocate(&context, WindowMapping::DmaBuf, 1000).unwrap(), reservation(1000));
    let first = pager(&context, WindowMapping::DmaBuf, &buffer).unwrap();
    assert!(matches!(pager(&context, WindowMapping::DmaBuf, &buffer), Err(DeviceError::Refused { max: 1, .. })));
    drop(first);
    drop(pager(&context, WindowMapping::DmaBuf, &buffer).unwrap());
    let error = pager(&context, WindowMapping::Vulkan, &buffer).err().unwrap().to_string();
    assert!(error.contains("allocate the buffer with a window of the form `vulkan`"), "{error}");
    let second = Context::retain(&context.driver, 1).unwrap();
    assert!(matches!(pager(&second, WindowMapping::DmaBuf, &buffer), Err(DeviceError::Invalid { .. })));
}

#[test]
fn memory_with_a_window_is_zeroed_and_of_its_gpu() {
    let fake = Fake::build(&MAPPABLE);
    let context = fake.context();
    let buffer = Buffer::new(allocate(&context, WindowMapping::DmaBuf, 1000).unwrap(), reservation(1000));
    assert_eq!(buffer.place(), MemoryPlace::Device { id: context.id, domain: context.driver.domain });
    let mut span = buffer.claim(0..1000, Access::Write).unwrap();
    let mut seen = [9; 1000];
    span.load(0, &mut seen).unwrap();
    assert_eq!(seen, [0; 1000]);
    span.store(999, &[7]).unwrap();
    assert!(span.store(999, &[7, 7]).is_err());
}

#[test]
fn a_forked_child_has_no_window_and_frees_nothing() {
    let fake = Fake::build(&MAPPABLE);
    let context = fake.context();
    let memory = allocate(&context, WindowMapping::DmaBuf, 1000).unwrap();
    let (live, counter) = (fake.live(), fake.counter());
    assert!(Memory::window(&memory).is_some());
    // SAFETY: the child uses nothing that another thread can have locked: this library is the test's own.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let windowless = Memory::window(&memory).is_none();
        drop(memory);
        // SAFETY: takes nothing.
        let kept = unsafe { counter() } == live;
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(if windowless { 0 } else { 1 } + if kept { 0 } else { 2 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    drop(memory);
    assert_eq!(fake.live(), 1);
}

#[test]
fn memory_handed_out_as_a_file_is_the_same_memory_after_its_import() {
    let fake = Fake::build(&[]);
    let context = fake.context();
    let physical = Physical::new(&context, 3 << 20).unwrap();
    assert_eq!(physical.bytes(), 4 << 20);
    let mapped = Mapped::new(&context, &physical).unwrap();
    let external = External::new(&context, physical.export().unwrap(), physical.bytes()).unwrap();
    assert_ne!(mapped.address(), external.address());
    let (from, mut to) = (*b"headway", [0; 7]);
    let at = |address: Address| without_provenance_mut::<u8>(address as usize + (4 << 20) - 7);
    // SAFETY: 7 bytes at the end of memory of 4 MiB, nobody else's.
    unsafe {
        let (from, to) = (from.as_ptr().cast_mut(), to.as_mut_ptr());
        copy_pageable(&context, CopyKind::HostToDevice, from, at(mapped.address()), 7).unwrap();
        copy_pageable(&context, CopyKind::DeviceToHost, at(external.address()), to, 7).unwrap();
    }
    assert_eq!(to, from);
    drop((mapped, physical, external));
    assert_eq!(fake.live(), 1, "the library refuses a wrong order, and counts");
}

#[test]
fn a_file_is_closed_once_after_a_refused_import_and_not_at_all_after_one_that_took_it() {
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
    let fresh = || OwnedFd::from(tempfile::tempfile().unwrap());
    // A number high above those that other tests get meanwhile.
    let moved = |fd: OwnedFd| {
        // SAFETY: a new descriptor of an open file.
        unsafe { OwnedFd::from_raw_fd(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 700)) }
    };
    // SAFETY: asks about a number.
    let open = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
    let taken = consume(moved(fresh()), Ok).unwrap();
    assert!(open(taken));
    // SAFETY: it was taken over above.
    drop(unsafe { OwnedFd::from_raw_fd(taken) });
    let mut refused = -1;
    let refuse = |fd| {
        refused = fd;
        Err::<(), _>(DeviceError::DeviceLost)
    };
    consume(moved(fresh()), refuse).unwrap_err();
    assert!(refused >= 700 && !open(refused));
    // A driver that closes what it refuses.
    consume(moved(fresh()), |fd| {
        // SAFETY: open, and ours.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        Err::<(), _>(DeviceError::DeviceLost)
    })
    .unwrap_err();
}

#[test]
fn every_call_that_fails_while_memory_is_shared_is_named_and_leaks_nothing() {
    let calls = [
        "cuMemGetAllocationGranularity",
        "cuMemCreate",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemExportToShareableHandle",
        "cuImportExternalMemory",
        "cuExternalMemoryGetMappedBuffer",
    ];
    for call in calls {
        let fake = Fake::failing(call, 1, 1);
        let context = fake.context();
        let shared = || -> Result<(), DeviceError> {
            let physical = Physical::new(&context, 1)?;
            let _mapped = Mapped::new(&context, &physical)?;
            External::new(&context, physical.export()?, physical.bytes()).map(drop)
        };
        let error = shared().unwrap_err();
        assert!(
            matches!(&error, DeviceError::Driver { call: failed, code: 1, .. } if *failed == call),
            "{call}: {error}"
        );
        assert_eq!(fake.live(), 1, "{call}");
        shared().unwrap();
    }
}

#[test]
fn exhausted_memory_is_out_of_memory_and_not_a_missing_route() {
    for (call, run) in [("cuMemCreate", true), ("cuMemAlloc_v2", false)] {
        let fake = Fake::failing(call, 2, 1);
        let context = fake.context();
        let result =
            if run { Physical::new(&context, 1).map(drop) } else { Aligned::new(&context, 1, GPU_PAGE).map(drop) };
        assert!(matches!(result, Err(DeviceError::OutOfMemory { .. })), "{call}");
        assert!(matches!(Refusal::from(result.unwrap_err()).settled(), Refusal::Failed(_)), "{call}");
    }
}

#[test]
fn sizes_beyond_all_memory_are_refused_without_a_panic() {
    let fake = Fake::build(&MAPPABLE);
    let context = fake.context();
    for route in [WindowRoute::DmaBuf] {
        for bytes in [usize::MAX, usize::MAX - 4096] {
            assert!(matches!(open(&context, route, bytes), Err(Refusal::Failed(DeviceError::Invalid { .. }))));
        }
    }
    assert!(matches!(Physical::new(&context, usize::MAX), Err(DeviceError::Invalid { .. })));
}

#[test]
fn a_peer_that_cannot_have_the_memory_is_left_out() {
    let fake = Fake::failing("cuMemSetAccess", 801, 2);
    let context = fake.context();
    let physical = Physical::new(&context, 1).unwrap();
    drop(Mapped::new(&context, &physical).unwrap());
}

fn gone(word: &'static str) -> Refusal {
    Refusal::Missing(Missing { word, detail: format!("why {word}"), remedy: "do" })
}

#[test]
fn each_form_takes_its_first_route_that_passes() {
    let mut tried = Vec::new();
    let probed = Probed::find(0, |route| {
        tried.push(route);
        if route == WindowRoute::VulkanExport || route == WindowRoute::DmaBuf { Ok(()) } else { Err(gone("Gone")) }
    });
    assert_eq!(tried, WindowRoute::ALL);
    assert_eq!(probed.route(WindowMapping::Vulkan), Ok(WindowRoute::VulkanExport));
    assert_eq!(probed.route(WindowMapping::DmaBuf), Ok(WindowRoute::DmaBuf));
    assert!(probed.settled && probed.route(WindowMapping::Gdrdrv).is_err());
    let mut tried = Vec::new();
    Probed::find(0, |route| {
        tried.push(route);
        Ok(())
    });
    assert_eq!(tried, [WindowRoute::Gdrdrv, WindowRoute::VulkanImport, WindowRoute::DmaBuf]);
}

#[test]
fn reasons_of_both_vulkan_routes_are_told_once_if_they_are_one() {
    let same = Probed::find(3, |_| Err(gone("NoIcd"))).route(WindowMapping::Vulkan).unwrap_err();
    assert_eq!(same.to_string(), "the window `vulkan` of GPU 3 is not available: NoIcd: why NoIcd; do");
    let both = Probed::find(3, |route| Err(gone(if route == WindowRoute::VulkanImport { "A" } else { "B" })));
    assert_eq!(
        both.route(WindowMapping::Vulkan).unwrap_err().to_string(),
        "the window `vulkan` of GPU 3 is not available: A: vulkan (CUDA's memory): why A; \
         vulkan (Vulkan's memory): B: why B; do"
    );
}

#[test]
fn a_refused_call_settles_a_probe_and_exhausted_memory_does_not() {
    let refused = || DeviceError::Driver { call: "cuMemCreate", code: 801, name: "CUDA_ERROR_NOT_SUPPORTED".into() };
    let probed = Probed::find(0, |_| Err(refused().into()));
    let error = probed.route(WindowMapping::Vulkan).unwrap_err().to_string();
    assert!(probed.settled && error.contains("ImportRefused: cuMemCreate failed with"), "{error}");
    let lost = DeviceError::Driver { call: "cuMemCreate", code: 700, name: "CUDA_ERROR_ILLEGAL_ADDRESS".into() };
    for error in [lost, DeviceError::DeviceLost] {
        let probed = Probed::find(0, |_| Err(error.clone().into()));
        assert!(!probed.settled);
        assert_eq!(probed.route(WindowMapping::Vulkan), Err(error));
    }
}

#[test]
fn a_probe_is_remembered_for_the_gpu() {
    let fake = Fake::build(&MAPPABLE);
    let context = fake.context();
    let probed = Probed::of(&context);
    assert_eq!(probed.route(WindowMapping::DmaBuf), Ok(WindowRoute::DmaBuf));
    assert!(lock(&PROBED).contains_key(&context.id));
    let again = fake.context();
    assert_eq!(again.id, context.id);
    assert_eq!(Probed::of(&again).route(WindowMapping::DmaBuf), Ok(WindowRoute::DmaBuf));
}
