//! Records the commit that results quote as their provenance.

use std::process::Command;

fn main() {
    let commit = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok();
    let commit = commit.filter(|out| out.status.success()).and_then(|out| String::from_utf8(out.stdout).ok());
    println!("cargo::rustc-env=HEADWAY_COMMIT={}", commit.as_deref().map_or("unknown", str::trim));
    // The log of HEAD changes with every commit and checkout.
    println!("cargo::rerun-if-changed=../../.git/logs/HEAD");
    println!("cargo::rerun-if-changed=build.rs");
}
