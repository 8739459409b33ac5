//! Records the commit that results quote as their provenance.

use std::process::Command;

fn main() {
    if let Some(commit) = packaged() {
        println!("cargo::rustc-env=HEADWAY_COMMIT={commit}");
        return;
    }
    let commit = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok();
    let commit = commit.filter(|out| out.status.success()).and_then(|out| String::from_utf8(out.stdout).ok());
    println!("cargo::rustc-env=HEADWAY_COMMIT={}", commit.as_deref().map_or("unknown", str::trim));
    // The log of HEAD changes with every commit and checkout.
    println!("cargo::rerun-if-changed=../../.git/logs/HEAD");
    println!("cargo::rerun-if-changed=build.rs");
}

/// The commit that `cargo package` wrote down: a crate from a registry lies in no repository, or in one that is not ours.
fn packaged() -> Option<String> {
    let text = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let hash = text.split("\"sha1\"").nth(1)?.split('"').nth(1)?;
    hash.get(..12).map(str::to_owned)
}
