//! CUDA sources built for the host.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds `tests/host/MAIN` into `folder` without any warning, or says why there is no compiler.
pub(crate) fn host_program(main: &str, defines: &[String], folder: &Path) -> Option<PathBuf> {
    let compiler = env::var_os("CXX").unwrap_or_else(|| "c++".into());
    if let Err(error) = Command::new(&compiler).arg("--version").output() {
        println!("skipped: cannot start {}: {error}", compiler.display());
        return None;
    }
    let program = folder.join("program");
    let done = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-ffp-contract=off"])
        .args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../headway-kernels/tests/host"))
        .args(defines)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host").join(main))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(program)
}
