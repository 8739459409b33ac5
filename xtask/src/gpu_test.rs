//! `cargo xtask gpu-test`: packs the tests that need a GPU, and the program, for a machine that has one but no Rust.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

use anyhow::{Context, ensure};

use crate::ci::cargo_command;
use crate::executables;
use crate::tidy::{Package, packages};
use crate::tree::Tree;

/// Folder of the pack, from the root; git ignores it.
const PACK: &str = ".gpu";
/// What a slow line to the GPU machine still carries in seconds.
pub(crate) const PACK_BYTES_MAX: u64 = 64 << 20;
/// Test programs that use a GPU if there is one. Others may need files or tools that the GPU machine does not have.
const GPU_TESTS: &str = "gpu*";
/// What `headway exec` loads into other programs, from beside itself.
pub(crate) const PRELOAD: (&str, &str) = ("headway-preload", "libheadway_preload.so");
/// The crate and the name of the program.
pub(crate) const PROGRAM: (&str, &str) = ("headway-cli", "headway");
/// The experiments of papers: packed with all tests.
const LAB: &str = "headway-lab";
/// Runs the pack; needs nothing but bash and the driver.
const RUN: &str = include_str!("gpu_test/run.sh");
/// Runs the commands of [`PAGES`] on a GPU.
const SMOKE: &str = include_str!("gpu_test/smoke.sh");
/// What the commands of pages are packed with, from the root.
const PAGES: [&str; 3] = ["docs/commands.md", "docs/exec.md", "docs/mps.md"];
pub(crate) const WORKLOADS: &str = "workloads/";
/// How the smoke test is named among the tests.
const SMOKE_NAME: &str = "smoke";

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Crate whose `tests/gpu*.rs` are packed
    #[arg(short, long = "package", default_values = ["headway-cuda", LAB], value_name = "NAME")]
    packages: Vec<String>,
    /// Pack only the tests that the changes since this commit concern, and name them
    #[arg(long, value_name = "BASE")]
    changed: Option<String>,
}

/// A test program that needs a GPU, or the smoke test, and one of the changes that concern it.
#[derive(Debug, PartialEq)]
struct Concerned {
    package: String,
    program: String,
    because: String,
}

/// The GPU tests that depend on one of the `changed` files: through the crates of its package, however far, or as a file that is
/// packed. That a test names nothing of a file does not show that it does not use it, so crates decide and names do not.
fn concerned(tree: &Tree, packages: &[Package], tested: &[String], changed: &[&str]) -> Vec<Concerned> {
    let because = |names: &BTreeSet<&str>| {
        let of_them = |file: &&&str| {
            let owner = packages
                .iter()
                .find(|it| file.strip_prefix(it.folder.as_str()).is_some_and(|rest| rest.starts_with('/')));
            match owner {
                Some(owner) => names.contains(owner.name.as_str()),
                None => matches!(**file, "Cargo.toml" | "Cargo.lock"),
            }
        };
        changed.iter().find(of_them).map(ToString::to_string)
    };
    let mut found = Vec::new();
    for package in packages.iter().filter(|it| tested.contains(&it.name)) {
        let start = format!("{}/tests/gpu", package.folder);
        let program = |path: &str| path.strip_prefix(&start)?.strip_suffix(".rs").map(|rest| format!("gpu{rest}"));
        for program in tree.paths().filter_map(program).filter(|name| !name.contains('/')) {
            if let Some(because) = because(&package.needs(packages, true)) {
                found.push(Concerned { package: package.name.clone(), program, because });
            }
        }
    }
    let programs = packages.iter().filter(|it| [PROGRAM.0, PRELOAD.0].contains(&it.name.as_str()));
    let programs: BTreeSet<&str> = programs.flat_map(|it| it.needs(packages, false)).collect();
    let is_packed =
        |file: &&&str| PAGES.contains(*file) || file.starts_with(WORKLOADS) || file.ends_with("gpu_test/smoke.sh");
    if let Some(because) = because(&programs).or_else(|| changed.iter().find(is_packed).map(ToString::to_string)) {
        found.push(Concerned { package: PROGRAM.0.to_owned(), program: SMOKE_NAME.to_owned(), because });
    }
    found
}

/// The files that differ from `base`, those that git does not know yet included.
fn changed_files(root: &Path, base: &str) -> anyhow::Result<String> {
    let mut all = String::new();
    let new = ["ls-files", "--others", "--exclude-standard"];
    for arguments in [&["diff", "--name-only", base, "--"][..], &new] {
        let done = Command::new("git").args(arguments).current_dir(root).output().context("start git")?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "git {} failed: {said}", arguments.join(" "));
        all += &String::from_utf8(done.stdout).context("git's paths are not UTF-8")?;
    }
    Ok(all)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::root();
    let concerned = match &args.changed {
        Some(base) => {
            let changed = changed_files(&root, base)?;
            let changed: Vec<&str> = changed.lines().collect();
            let found = concerned(&Tree::read(&root)?, &packages(&root)?, &args.packages, &changed);
            for it in &found {
                println!("{} {}: {}", it.package, it.program, it.because);
            }
            if found.is_empty() {
                println!("the {} files changed since `{base}` concern no test on a GPU", changed.len());
                return Ok(());
            }
            Some(found)
        }
        None => None,
    };
    let pack = root.join(PACK);
    let tests_folder = pack.join("tests");
    empty(&tests_folder)?;

    let mut build = cargo_command();
    build.args(["build", "--release", "-p", PROGRAM.0, "-p", PRELOAD.0]);
    let mut packed = vec![PROGRAM.1];
    if concerned.is_none() {
        build.args(["-p", LAB]);
        packed.push(LAB);
    }
    let programs = executables::build(&mut build)?;
    let mut bytes = 0;
    for name in packed {
        let program = programs.iter().find(|it| !it.is_test && it.target == name);
        let program = program.with_context(|| format!("no package builds a program `{name}`"))?;
        bytes += stripped_copy(&program.path, &pack.join(name))?;
        if name == PROGRAM.1 {
            bytes += stripped_copy(&program.path.with_file_name(PRELOAD.1), &pack.join(PRELOAD.1))?;
        }
    }

    let mut arguments = vec!["test", "--release", "--no-run"];
    let mut wanted: BTreeSet<&str> = args.packages.iter().map(String::as_str).collect();
    if let Some(concerned) = &concerned {
        let programs = concerned.iter().filter(|it| it.program != SMOKE_NAME);
        wanted = programs.clone().map(|it| it.package.as_str()).collect();
        arguments.extend(programs.flat_map(|it| ["--test", &it.program]));
    } else {
        arguments.extend(["--test", GPU_TESTS]);
    }
    arguments.extend(wanted.iter().flat_map(|name| ["-p", name]));
    let mut tests = Vec::new();
    if !wanted.is_empty() {
        tests = executables::build(cargo_command().args(arguments))?.into_iter().filter(|it| it.is_test).collect();
    }
    for test in &tests {
        bytes += stripped_copy(&test.path, &tests_folder.join(format!("{}.{}", test.package(), test.target)))?;
    }
    fs::write(pack.join("run.sh"), RUN).context("write run.sh")?;
    let smoke = pack.join("smoke.sh");
    if concerned.is_none_or(|all| all.iter().any(|it| it.program == SMOKE_NAME)) {
        pack_pages(&root, &pack)?;
        fs::write(smoke, SMOKE).context("write smoke.sh")?;
    } else if smoke.exists() {
        fs::remove_file(smoke).context("remove the smoke test of an earlier pack")?;
    }

    ensure!(
        bytes <= PACK_BYTES_MAX,
        "the pack has {} MiB, more than {} MiB; pack fewer crates with `--package`",
        bytes >> 20,
        PACK_BYTES_MAX >> 20
    );
    println!("packed {} test programs and `{}`: {:.1} MiB", tests.len(), PROGRAM.1, bytes as f64 / f64::from(1 << 20));
    println!("carry: {PACK}");
    println!("there: bash {PACK}/run.sh");
    println!("needs: an NVIDIA driver and {} or later; results go to $OUT, or {PACK}/results", glibc());
    Ok(())
}

/// Copies the pages of the smoke test, and the workloads that they name.
fn pack_pages(root: &Path, pack: &Path) -> anyhow::Result<()> {
    let pages = pack.join("pages");
    empty(&pages.join(WORKLOADS))?;
    let copy = |file: &str, to: &Path| fs::copy(root.join(file), to).with_context(|| format!("pack {file}")).map(drop);
    for page in PAGES {
        copy(page, &pages.join(page.trim_start_matches("docs/")))?;
    }
    Tree::read(root)?.paths().filter(|path| path.starts_with(WORKLOADS)).try_for_each(|path| {
        let to = pages.join(path);
        fs::create_dir_all(to.parent().unwrap_or(&pages))?;
        copy(path, &to)
    })
}

/// Copies a program without its symbols, and returns the size of the copy in bytes.
pub(crate) fn stripped_copy(from: &Path, to: &Path) -> anyhow::Result<u64> {
    let status = Command::new("strip").arg("-o").arg(to).arg(from).status().context("start strip; install binutils")?;
    ensure!(status.success(), "strip {} failed: {status}", from.display());
    Ok(fs::metadata(to)?.len())
}

pub(crate) fn empty(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).context(format!("empty {}", folder.display()))
        }
        _ => fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display())),
    }
}

/// Name and version of this machine's C library, which the programs are linked against.
pub(crate) fn glibc() -> String {
    let done = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let name = done.map(|done| String::from_utf8_lossy(&done.stdout).trim().to_owned()).unwrap_or_default();
    if name.is_empty() { "this machine's C library".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The script is run with programs that stand in for the tests.
    #[test]
    fn the_script_runs_every_program_and_reports_failures() {
        let folder = std::env::temp_dir().join(format!("headway-xtask-{}", std::process::id()));
        empty(&folder.join("tests")).unwrap();
        fs::write(folder.join("run.sh"), RUN).unwrap();
        fs::write(folder.join("headway"), "#!/bin/sh\necho \"headway $*\"\n").unwrap();
        fs::write(folder.join("tests/a.good"), "#!/bin/sh\necho \"good $*\"\necho \"skipped a: b\"\n").unwrap();
        fs::write(folder.join("tests/b.bad"), "#!/bin/sh\nexit 101\n").unwrap();
        let script = || {
            let results = folder.join("out");
            Command::new("bash").arg(folder.join("run.sh")).arg("filter").env("OUT", results).output().unwrap()
        };

        let done = script();
        let text = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.status.code(), Some(1), "{text}");
        assert!(text.contains("1 tests were skipped"), "{text}");
        assert!(text.ends_with("1 of 3 programs failed: b.bad\n"), "{text}");
        assert_eq!(fs::read_to_string(folder.join("out/doctor.txt")).unwrap(), "headway doctor\n");
        let log = fs::read_to_string(folder.join("out/a.good.txt")).unwrap();
        assert_eq!(log, "good --nocapture --test-threads=1 filter\nskipped a: b\n");

        fs::remove_file(folder.join("tests/b.bad")).unwrap();
        assert_eq!(script().status.code(), Some(0));
        fs::remove_dir_all(&folder).unwrap();
    }

    /// A script stands in for `headway`: it serves as a broker, and fails where it is told to.
    #[test]
    fn the_smoke_test_runs_what_the_pages_show_and_names_page_and_command() {
        let folder = std::env::temp_dir().join(format!("headway-smoke-{}", std::process::id()));
        pack_pages(&crate::root(), &folder).unwrap();
        fs::write(folder.join("smoke.sh"), SMOKE).unwrap();
        let program = "#!/bin/bash\necho \"$*\" >> $DID\n[[ -z $BAD || \"$*\" != *\"$BAD\"* ]] || { echo no; exit 3; }\n\
                       case $1 in broker) trap 'kill $!; wait $!; exit' TERM; sleep 10000 & echo $! | tee -a $DID.all > $DID.daemon; wait ;;\n\
                       status) kill -0 $(cat $DID.daemon) && echo \"MPS       daemon $(cat $DID.daemon), in /x\" ;; esac; true\n";
        fs::write(folder.join("headway"), program).unwrap();
        assert!(Command::new("chmod").arg("+x").arg(folder.join("headway")).status().unwrap().success());
        let mut smoke = Command::new("bash");
        smoke.arg(folder.join("smoke.sh")).env("DID", folder.join("did")).env("BAD", "exec --log").env("ENDS", "1");
        let done = smoke.output().unwrap();
        let said = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.status.code(), Some(1), "{said}");
        let failed: Vec<&str> = said.lines().filter(|line| line.starts_with("smoke: docs/")).collect();
        let expected =
            "smoke: docs/exec.md: `headway exec --log copies.jsonl -- program`: exit status 3; it printed: no";
        assert_eq!(failed[0], expected, "{said}");
        let left = failed[1..].iter().all(|line| line.contains("SIGKILL") && line.contains("is left over"));
        assert!(left && failed.len() == 4, "the stand-in leaves its daemon behind when it is killed\n{said}");
        let did = fs::read_to_string(folder.join("did")).unwrap();
        for what in
            ["exec --fast --", "exec --yield --", "exec --share 90% --", "broker --mps --socket broker.socket\n"]
        {
            assert!(did.contains(what), "{what}\n{did}");
        }
        for what in ["measure --quick --out node.toml\n", "bench transfers --quick", "run workloads/encrypt.toml\n"] {
            assert!(did.contains(what), "{what}\n{did}");
        }
        let _ = Command::new("sh").args(["-c", "kill $(cat \"$0\")"]).arg(folder.join("did.all")).output();
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_change_concerns_the_tests_of_the_crates_that_depend_on_it() {
        let root = crate::root();
        let (tree, packages) = (Tree::read(&root).unwrap(), packages(&root).unwrap());
        let names = |changed: &str| -> Vec<String> {
            let found = concerned(&tree, &packages, &["headway-cuda".to_owned()], &[changed]);
            found.into_iter().map(|it| format!("{} {}", it.package, it.program)).collect()
        };
        let core = names("crates/headway-core/src/plan.rs");
        for name in ["headway-cuda gpu", "headway-cuda gpu_window", "headway-cli smoke"] {
            assert!(core.contains(&name.to_owned()), "{core:?}");
        }
        assert!(names("crates/headway-broker/src/mps/guardian.rs").contains(&"headway-cli smoke".to_owned()));
        assert_eq!(names("crates/headway-preload/src/lib.rs"), ["headway-cli smoke"]);
        assert_eq!(names("docs/mps.md"), ["headway-cli smoke"]);
        assert!(names("bench/papers.md").is_empty());
    }
}
