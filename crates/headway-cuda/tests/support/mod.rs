//! The library with the driver's interface and no GPU behind it, compiled with the faults that a test needs.

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

    /// Objects and allocations that the library has handed out and not got back.
    pub fn live(&self) -> i32 {
        // SAFETY: the library is loaded already, and this function of it takes nothing and returns an int.
        unsafe {
            let library = libloading::Library::new(&self.path).unwrap();
            library.get::<unsafe extern "C" fn() -> i32>(b"headway_fake_live\0").unwrap()()
        }
    }
}

/// A library whose call `call` fails with `code`, the `at`-th time.
pub fn failing(call: &str, code: i32, at: u32, more: &[&str]) -> Fake {
    let fault = [format!("-DFAIL_CALL=\"{call}\""), format!("-DFAIL_CODE={code}"), format!("-DFAIL_AT={at}")];
    let options: Vec<&str> = fault.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Fake::build(&options)
}
