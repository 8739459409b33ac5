//! The library with the driver's interface and no GPU behind it, compiled with the faults that a test needs.
#![allow(unsafe_code)]
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use headway_cuda::Driver;
use tempfile::TempDir;

/// A compiled library; its folder is kept as long as the value.
pub struct Fake {
    _folder: TempDir,
    pub path: PathBuf,
}

impl Fake {
    /// Compiles it with `options` for the compiler.
    pub fn build(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libfake.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/fake.c");
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-pthread", "-o"])
            .arg(&path)
            .args(options)
            .arg(source)
            .status()
            .expect("a C compiler named `cc` is needed for these tests");
        assert!(status.success());
        Self { _folder: folder, path }
    }

    /// It as a driver.
    pub fn driver(&self) -> Arc<Driver> {
        Driver::load(&self.path).unwrap()
    }

    /// A copy of the compiled library, which the loader takes for another one.
    pub fn another(&self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libfake.so");
        std::fs::copy(&self.path, &path).unwrap();
        Self { _folder: folder, path }
    }

    /// From the `at`-th call of `call` from now on, every call fails with `code`; at once if `at` is 0.
    pub fn fail(&self, call: &str, code: i32, at: i32) {
        let call = std::ffi::CString::new(call).unwrap();
        // SAFETY: the library is loaded already, and this function of it takes a text and two ints.
        unsafe {
            let library = libloading::Library::new(&self.path).unwrap();
            let fail = library.get::<unsafe extern "C" fn(*const std::ffi::c_char, i32, i32)>(b"headway_fake_fail\0");
            fail.unwrap()(call.as_ptr(), code, at);
        }
    }

    /// While this is set nothing that was queued ends.
    pub fn hold(&self, hold: bool) {
        // SAFETY: the library is loaded already, and this function of it takes an int.
        unsafe {
            let library = libloading::Library::new(&self.path).unwrap();
            library.get::<unsafe extern "C" fn(i32)>(b"headway_fake_hold\0").unwrap()(hold.into());
        }
    }

    /// While this is set each call waits until all streams rest, as if another thread freed memory just then; the library is built with `-DSTREAMS`.
    pub fn keep_out(&self, on: bool) {
        // SAFETY: the library is loaded already, and this function of it takes an int.
        unsafe {
            let library = libloading::Library::new(&self.path).unwrap();
            library.get::<unsafe extern "C" fn(i32)>(b"headway_fake_keep_out\0").unwrap()(on.into());
        }
    }

    /// While this is set a thread of the program captures a graph; the library is built with `-DSTREAMS`.
    pub fn capture(&self, on: bool) {
        // SAFETY: the library is loaded already, and this function of it takes an int.
        unsafe {
            let library = libloading::Library::new(&self.path).unwrap();
            library.get::<unsafe extern "C" fn(i32)>(b"headway_fake_capture\0").unwrap()(on.into());
        }
    }

    /// Objects and allocations that the library has handed out and not got back.
    pub fn live(&self) -> i32 {
        // SAFETY: the library is loaded already, and this function of it takes nothing and returns an int.
        unsafe {
            let library = libloading::Library::new(&self.path).unwrap();
            library.get::<unsafe extern "C" fn() -> i32>(b"headway_fake_live\0").unwrap()()
        }
    }

    /// Operations of streams that have not ended; the library is built with `-DSTREAMS`.
    pub fn unfinished(&self) -> i32 {
        // SAFETY: the library is loaded already, and this function of it takes nothing and returns an int.
        unsafe {
            let library = libloading::Library::new(&self.path).unwrap();
            library.get::<unsafe extern "C" fn() -> i32>(b"headway_fake_unfinished\0").unwrap()()
        }
    }

    /// Words that streams have written.
    pub fn words(&self) -> i32 {
        // SAFETY: the library is loaded already, and this function of it takes nothing and returns an int.
        unsafe {
            let library = libloading::Library::new(&self.path).unwrap();
            library.get::<unsafe extern "C" fn() -> i32>(b"headway_fake_words\0").unwrap()()
        }
    }
}

/// A library whose call `call` fails with `code`, the `at`-th time.
pub fn failing(call: &str, code: i32, at: u32, more: &[&str]) -> Fake {
    let fault = [format!("-DFAIL_CALL=\"{call}\""), format!("-DFAIL_CODE={code}"), format!("-DFAIL_AT={at}")];
    let options: Vec<&str> = fault.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Fake::build(&options)
}

/// Waits for `holds`, five minutes at most: however slow the machine is, nothing takes that long.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(300);
    while !holds() {
        assert!(std::time::Instant::now() < until, "in vain for five minutes: {what}");
        std::thread::yield_now();
    }
}

/// What `body` gives on a thread of its own, within ten minutes.
pub fn in_time<R: Send + 'static>(what: &str, body: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(body()));
    match receiver.recv_timeout(std::time::Duration::from_secs(600)) {
        Ok(result) => result,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it ended without a result"))
        }
    }
}
