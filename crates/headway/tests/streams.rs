//! Copies in a stream, on the driver of the tests of `headway-cuda`, which has no GPU behind it.
#![allow(unsafe_code)]

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use headway::copy::{
    Access, CpuReach, CudaDriver, Gpu, Profile, RawCopy, StreamCopier, StreamHandle, StreamOptions, WhichGpu,
};

#[test]
fn a_callback_that_panics_leaves_others_theirs() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libfake.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../headway-cuda/tests/fake/fake.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-pthread", "-DSTREAMS", "-o"]).arg(&library).arg(source);
    assert!(compiler.status().expect("a C compiler named `cc` is needed for this test").success());
    let driver = CudaDriver::load(&library).unwrap();
    let options = StreamOptions { threads: 1, ..StreamOptions::default() };
    let copier = StreamCopier::of(&driver, &WhichGpu::Index(0), Some(Profile::default()), &options).unwrap();
    let (device, host) = (copier.gpu().device_buffer(8, CpuReach::Device).unwrap(), [7_u8; 8]);
    let to = device.claim(0..8, Access::Write).unwrap().as_ptr().addr() as u64;
    let from = host.as_ptr().expose_provenance() as u64;
    // SAFETY: both ends stay until the copier has been dropped.
    let copy = || copier.copy_async(unsafe { RawCopy::new(to, from, 8, StreamHandle(0)) }).unwrap();
    copy().when_done(|_| panic!("a callback of the caller's")).unwrap();
    let (sender, receiver) = channel();
    copy().when_done(move |result| sender.send(result.is_ok()).unwrap()).unwrap();
    assert_eq!(receiver.recv_timeout(Duration::from_secs(300)), Ok(true));
}
