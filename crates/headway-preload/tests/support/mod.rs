//! Programs in C and a driver without a GPU, built for one test program, and the preloaded library.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use headway_core::files::guest::{FIRST_VARIABLE, GuestOptions, VARIABLE};
use tempfile::TempDir;

/// Where what was compiled lies, with `libcuda.so.1`.
pub(crate) struct Built {
    folder: TempDir,
}

/// Whether there is a C compiler; says so if not.
fn compiler() -> bool {
    let there = Command::new("cc").arg("--version").output().is_ok();
    if !there {
        println!("skipped: there is no C compiler `cc`");
    }
    there
}

impl Built {
    /// A folder with the driver that keeps the order of streams; `None` without a compiler.
    pub(crate) fn new() -> Option<Self> {
        if !compiler() {
            return None;
        }
        let built = Self { folder: tempfile::tempdir().unwrap() };
        // Like the real library, it calls its own functions directly.
        let library = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-lpthread"];
        built.compile("libcuda.so.1", &["fake/ordered.c"], &library);
        Some(built)
    }

    /// Compiles sources below `tests` into `output`.
    pub(crate) fn compile(&self, output: &str, sources: &[&str], arguments: &[&str]) {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", output]);
        command.args(sources.iter().map(|source| tests.join(source))).args(arguments).current_dir(&self.folder);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program that finds this driver and no Headway.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.folder.path()).current_dir(&self.folder);
        for variable in ["LD_PRELOAD", "LD_AUDIT", VARIABLE, FIRST_VARIABLE] {
            command.env_remove(variable);
        }
        command
    }
}

/// The library, which Cargo builds beside the test programs.
pub(crate) fn preload() -> PathBuf {
    let programs = env::current_exe().unwrap().parent().unwrap().to_owned();
    let library = programs.join("libheadway_preload.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// Makes a guest of a program.
pub(crate) fn as_guest(command: &mut Command, options: &str) {
    // The library passes every call on where it does not know an option, and a test would see nothing.
    options.parse::<GuestOptions>().unwrap();
    command.env("LD_PRELOAD", preload()).env(VARIABLE, options);
}

/// How a program ended and what it printed.
pub(crate) fn seen(output: &Output) -> (String, String) {
    (output.status.to_string(), String::from_utf8_lossy(&output.stdout).into_owned())
}
