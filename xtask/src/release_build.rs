//! `cargo xtask release-build`: builds what a release has so that every computer with the same Rust and linker gets the same bytes.
//!
//! Rust writes paths of sources into programs, where panics name them. They begin with the folder of the build and of cargo's crates, so both
//! get names that are the same everywhere.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, bail, ensure};

use crate::ci::cargo_command;
use crate::must_succeed;

const PACKAGES: [&str; 3] = ["headway-cli", "headway-preload", "headway-capi"];
const PARTS: [&str; 3] = ["headway", "libheadway_preload.so", "libheadway_capi.so"];
/// What `sha256sum --check` reads.
const SUMS: &str = "SHA256SUMS";

/// Names in place of the folders of the sources and of cargo's crates.
const SOURCES_AS: &str = "/headway";
const CRATES_AS: &str = "/crates";

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder for the programs, the libraries and their checksums
    #[arg(long, value_name = "FOLDER", default_value = "target/release-build/out")]
    out: PathBuf,
    /// Build a second time, elsewhere and with another cargo home, and compare
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::root();
    let folder = crate::target().join("release-build");
    let home = cargo_home()?;
    let built = build(&root, &folder.join("sources"), &home)?;
    let out = root.join(&args.out);
    fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    for part in PARTS {
        let to = out.join(part);
        fs::copy(built.join(part), &to).with_context(|| format!("copy {part} to {}", to.display()))?;
    }
    let sums = Command::new("sha256sum").args(PARTS).current_dir(&out).output().context("start sha256sum")?;
    ensure!(sums.status.success(), "sha256sum failed: {}", sums.status);
    fs::write(out.join(SUMS), &sums.stdout).with_context(|| format!("write {SUMS}"))?;
    print!("{}", String::from_utf8_lossy(&sums.stdout));
    if args.check {
        let elsewhere = env::temp_dir().join(format!("headway-release-build-{}", std::process::id()));
        let compared = build_again(&root, &elsewhere, &home).and_then(|again| compare(&built, &again));
        let removed = fs::remove_dir_all(&elsewhere).with_context(|| format!("remove {}", elsewhere.display()));
        compared.and(removed)?;
        println!("a second build in another folder, with another cargo home, has the same bytes");
    }
    Ok(())
}

fn cargo_home() -> anyhow::Result<PathBuf> {
    let named = env::var_os("CARGO_HOME").map(PathBuf::from);
    named.or_else(|| Some(env::home_dir()?.join(".cargo"))).context("cargo has no home: set $CARGO_HOME")
}

/// Builds below `elsewhere`, where cargo's home has another path but the crates that are here already.
fn build_again(root: &Path, elsewhere: &Path, home: &Path) -> anyhow::Result<PathBuf> {
    let other = elsewhere.join("home");
    fs::create_dir_all(&other).with_context(|| format!("make {}", other.display()))?;
    std::os::unix::fs::symlink(home.join("registry"), other.join("registry")).context("link cargo's crates")?;
    let settings = home.join("config.toml");
    if settings.is_file() {
        fs::copy(&settings, other.join("config.toml")).context("copy cargo's settings")?;
    }
    build(root, &elsewhere.join("another/folder"), &other)
}

/// Builds the commit that is checked out, in a clone at `sources`; where the parts are then.
fn build(root: &Path, sources: &Path, home: &Path) -> anyhow::Result<PathBuf> {
    if sources.exists() {
        fs::remove_dir_all(sources).with_context(|| format!("remove {}", sources.display()))?;
    }
    must_succeed(Command::new("git").args(["clone", "--quiet"]).arg(root).arg(sources))?;
    let cargo = || {
        let mut command = cargo_command();
        command.current_dir(sources).env("CARGO_HOME", home).env("CARGO_TARGET_DIR", sources.join("target"));
        command.env_remove("RUSTFLAGS").env("CARGO_INCREMENTAL", "0");
        command
    };
    must_succeed(cargo().args(["fetch", "--quiet", "--locked"]))?;
    // Where Rust's own sources are installed, panics name them there, and else by the commit of the compiler.
    let compiler = |question: &[&str]| -> anyhow::Result<String> {
        let answer = Command::new("rustc").args(question).current_dir(sources).output().context("start rustc")?;
        Ok(String::from_utf8(answer.stdout).context("read what rustc says")?.trim().to_owned())
    };
    let about = compiler(&["--version", "--verbose"])?;
    let commit = about.lines().find_map(|line| line.strip_prefix("commit-hash: ")).context("rustc names no commit")?;
    let library = Path::new(&compiler(&["--print", "sysroot"])?).join("lib/rustlib/src/rust");
    let mut named = vec![remap(sources, SOURCES_AS), remap(&library, &format!("/rustc/{commit}"))];
    let registries = home.join("registry/src");
    for registry in fs::read_dir(&registries).with_context(|| format!("read {}", registries.display()))? {
        named.push(remap(&registry?.path(), CRATES_AS));
    }
    let mut command = cargo();
    command.args(["build", "--quiet", "--release", "--locked"]).args(PACKAGES.iter().flat_map(|it| ["-p", it]));
    must_succeed(command.env("CARGO_ENCODED_RUSTFLAGS", named.join(OsString::from("\x1f").as_os_str())))?;
    Ok(sources.join("target/release"))
}

fn remap(folder: &Path, name: &str) -> OsString {
    let mut option = OsString::from("--remap-path-prefix=");
    option.push(folder);
    option.push("=");
    option.push(name);
    option
}

fn compare(built: &Path, again: &Path) -> anyhow::Result<()> {
    for part in PARTS {
        let read = |folder: &Path| fs::read(folder.join(part)).with_context(|| format!("read {part}"));
        let (one, two) = (read(built)?, read(again)?);
        if one != two {
            let at = one.iter().zip(&two).take_while(|(one, two)| one == two).count();
            bail!(
                "{part} differs between two builds of one commit, first at byte {at} of {} and {}",
                one.len(),
                two.len()
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_that_differ_are_refused_with_the_first_byte() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for folder in &folders {
            for part in PARTS {
                fs::write(folder.path().join(part), part).unwrap();
            }
        }
        let [one, two] = folders.each_ref().map(|folder| folder.path());
        compare(one, two).unwrap();
        fs::write(two.join(PARTS[1]), format!("{}, and more", PARTS[1])).unwrap();
        let error = compare(one, two).unwrap_err().to_string();
        assert!(error.contains(&format!("first at byte {}", PARTS[1].len())), "{error}");
    }
}
