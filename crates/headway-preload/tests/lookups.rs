//! Every lookup by which programs find driver functions: which functions they get, what their copies become, and what is said of lookups
//! that are not seen.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::LazyLock;

use headway_core::files::guest::VARIABLE;
use headway_core::files::guest_log;
use support::{Built, as_guest, preload, seen};

static BUILT: LazyLock<Option<Built>> = LazyLock::new(|| {
    let built = Built::new()?;
    built.compile("shapes", &["lookups/shapes.c"], &["-ldl"]);
    built.compile("batches", &["lookups/batches.c"], &["-ldl"]);
    built.compile("swap", &["lookups/swap.c"], &["-ldl"]);
    built.compile("opens", &["lookups/opens.c"], &["-rdynamic", "-ldl", "-lpthread"]);
    let library = ["-shared", "-fPIC", "-ldl"];
    built.compile("plugin.so", &["lookups/plugin.c"], &library);
    built.compile("interposer.so", &["lookups/interposer.c"], &library);
    Some(built)
});

const FAST: &str = "aside=never,fast=always,no-cache,verify,alone";
const CHUNKS: &str = "aside=never,fast=always,no-cache,chunk=1048576,stats,verify,alone";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn opens(how: &str, command: impl FnOnce(&mut Command)) -> Option<Output> {
    let built = BUILT.as_ref()?;
    let mut program = built.program(built.path("opens"));
    program.arg(how).arg(built.path("plugin.so")).arg("true");
    command(&mut program);
    Some(program.output().unwrap())
}

/// Whether the copies of the library that was opened reached the driver as they were made.
fn reached(output: &Output) -> bool {
    let text = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("names: 1 0 0\n") && text.contains("helper: 0\n"), "{text}");
    let calls = text.lines().find_map(|line| line.strip_prefix("the driver's own calls: ")).unwrap();
    assert!(["0", "2"].contains(&calls), "{text}");
    calls == "2"
}

#[test]
fn every_function_that_copies_gives_the_same_bytes_by_every_version_of_the_resolver() {
    let Some(built) = BUILT.as_ref() else { return };
    for lookup in ["dlsym", "dlsymt", "12000", "12000t", "12080", "12080t", "13000", "13000t"] {
        let plain = built.program(built.path("shapes")).arg(lookup).output().unwrap();
        assert!(plain.status.success(), "{lookup}: {plain:?}");
        let mut guest = built.program(built.path("shapes"));
        as_guest(guest.arg(lookup), CHUNKS);
        let guest = guest.output().unwrap();
        assert!(guest.status.success(), "{lookup}: {guest:?}");
        // What was refused is refused; what reached the driver is another matter.
        let answers = |output: &Output| -> Vec<String> {
            text(&output.stdout).lines().filter(|line| !line.starts_with("cu")).map(str::to_owned).collect()
        };
        assert_eq!(answers(&guest), answers(&plain), "{lookup}");
        let errors = text(&guest.stderr);
        assert!(!errors.contains("WRONG"), "{lookup}: {errors}");
        for counted in ["within a GPU", "between GPUs", "in rows with gaps"] {
            assert!(errors.contains(counted), "{lookup}: {counted}: {errors}");
        }
        // Batches are known from CUDA 12.8 on.
        assert_eq!(errors.contains("in batches"), lookup[..5] != *"12000", "{lookup}: {errors}");
    }
}

#[test]
fn copies_with_attributes_are_made_as_others_are_whatever_their_number() {
    let Some(built) = BUILT.as_ref() else { return };
    let run = |options: Option<&str>, version: &str| {
        let mut program = built.program(built.path("batches"));
        if let Some(options) = options {
            as_guest(&mut program, options);
        }
        let output = program.env("FAKE_VERSION", version).output().unwrap();
        assert!(output.status.success(), "{options:?} {version}: {output:?}");
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(!err.contains("WRONG"), "{options:?} {version}: {err}");
        let number = |name: &str| {
            let found = out.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok());
            found.unwrap_or_else(|| panic!("{name}: {out}"))
        };
        let names = [
            "alone reached:",
            "mixed reached:",
            "small reached:",
            "small words:",
            "hinted corrupted:",
            "busy reached:",
        ];
        (names.map(number), err)
    };
    const ALL: &str = "aside=never,fast=always,no-cache,chunk=1048576,stats,alone";
    for version in ["12080", "13000", "13020"] {
        // With attributes there are two more copies alone, and one more with the hint.
        let more = u32::from(version == "13020");
        let (plain, _) = run(None, version);
        assert_eq!(plain, [2 + 2 * more, 6, 300, 0, 2 + more, 1], "{version}");
        let (guest, err) = run(Some(ALL), version);
        // Of the mixed ones those that are small reach the driver; small ones get a word after every 16, and the stream that was busy
        // is left to the driver.
        assert_eq!(guest, [0, 3, 300, 19, 0, 1], "{version}");
        assert!(err.contains("in batches, queued") && err.contains("NVIDIA bug 6718200"), "{err}");
        assert_eq!(err.contains("with attributes, queued"), more == 1, "{err}");
        let (aside, _) = run(Some("aside=always,no-cache,alone"), version);
        assert_eq!(aside[..3], [2 + 2 * more, 3, 300], "a kernel makes the small ones; {version}");
    }
}

#[test]
fn a_stream_is_bulk_by_what_is_under_way_on_it_however_small_its_copies_are() {
    let Some(built) = BUILT.as_ref() else { return };
    let swap = |options: &str, block: &str, blocks: &str| {
        let mut program = built.program(built.path("swap"));
        as_guest(program.args([block, blocks]), options);
        let output = program.output().unwrap();
        assert!(output.status.success(), "{options} {block}: {output:?}");
        text(&output.stdout)
    };
    // 64 MiB. A word ends each chunk of 4 MiB, of which small copies take 96 KiB more than their bytes. The results go aside while the swap
    // is under way, and its blocks never.
    for (block, blocks, words) in
        [("64", "1024", 40..=41), ("256", "256", 23..=24), ("2048", "32", 16..=16), ("4096", "16", 16..=16)]
    {
        for (options, aside) in [("aside=auto,no-cache,alone", 4), ("aside=never,no-cache,chunk=4194304,alone", 0)] {
            let told = swap(options, block, blocks);
            let turn = format!("blocks aside 0, results aside {aside}, when idle 0, words ");
            let counts: Vec<u32> =
                told.lines().map(|line| line.strip_prefix(&turn).unwrap_or(&told).parse().unwrap()).collect();
            assert!(counts.len() == 3 && counts.iter().all(|count| words.contains(count)), "{block} {options}: {told}");
        }
    }
    // Less than a chunk is no bulk.
    let told = swap("aside=auto,no-cache,alone", "256", "10");
    assert_eq!(told.lines().next(), Some("blocks aside 0, results aside 0, when idle 0, words 0"), "{told}");
}

#[test]
fn a_batch_out_of_the_gpu_lets_others_in_after_each_piece() {
    let Some(built) = BUILT.as_ref() else { return };
    for (lookup, name) in [("12080", "cuMemcpyBatchAsync"), ("13000", "cuMemcpyBatchAsync_v2")] {
        let batches = |options: &str| {
            let mut guest = built.program(built.path("shapes"));
            as_guest(guest.arg(lookup), options);
            let text = text(&guest.output().unwrap().stdout);
            text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok()).unwrap_or(0)
        };
        // Six copies each time; of CUDA 12.8 there is a second batch, which the driver refuses at the fifth.
        let refused = if lookup == "12080" { 4 } else { 0 };
        assert_eq!(batches(FAST), 6 + refused, "{lookup}");
        assert_eq!(batches(CHUNKS), refused, "{lookup}");
    }
}

#[test]
fn a_driver_of_an_unknown_version_is_left_alone() {
    let plain = opens("plain", |_| {});
    let Some(guest) = opens("plain", |program| as_guest(program.env("FAKE_VERSION", "14000"), FAST)) else { return };
    assert!(reached(&guest) && reached(&plain.unwrap()));
    assert!(text(&guest.stderr).contains("the driver is for CUDA 14.0"), "{guest:?}");
}

#[test]
fn libraries_that_a_program_opens_are_seen_also_in_threads_and_when_they_are_closed() {
    for how in ["plain", "thread", "closes"] {
        let Some(plain) = opens(how, |_| {}) else { return };
        assert!(reached(&plain), "{how}");
        assert!(!reached(&opens(how, |program| as_guest(program, FAST)).unwrap()), "{how}");
    }
}

#[test]
fn libraries_that_look_into_themselves_first_are_seen_by_audit_and_named_without_it() {
    for (how, says) in [
        ("deepbind", "plugin.so looks 2 of the driver's functions for copies up by itself"),
        ("namespace", "the driver's library is in a linker namespace of its own"),
    ] {
        let Some(guest) = opens(how, |program| as_guest(program, FAST)) else { return };
        assert!(reached(&guest), "{how}");
        assert!(text(&guest.stderr).contains(says), "{how}: {guest:?}");
        let audited = opens(how, |program| as_guest(program.env("LD_AUDIT", preload()), FAST)).unwrap();
        assert!(!reached(&audited), "{how}");
        assert!(!text(&audited.stderr).contains("not seen"), "{how}: {audited:?}");
    }
    // What needs no audit works with it.
    let Some(audited) = opens("plain", |program| as_guest(program.env("LD_AUDIT", preload()), FAST)) else { return };
    assert!(!reached(&audited));
}

#[test]
fn another_interposer_works_in_front_and_behind() {
    let Some(built) = BUILT.as_ref() else { return };
    let (ours, other) = (preload().display().to_string(), built.path("interposer.so").display().to_string());
    let counted = |output: &Output| -> u32 {
        let errors = text(&output.stderr);
        let line =
            errors.lines().find_map(|line| line.strip_prefix("interposer: ")).unwrap_or_else(|| panic!("{errors}"));
        line.parse().unwrap()
    };
    let run = |libraries: &str| {
        opens("plain", |program| {
            as_guest(program, FAST);
            program.env("LD_PRELOAD", libraries).env("INTERPOSER_SAYS", "1");
        })
        .unwrap()
    };
    let alone = counted(
        &opens("plain", |program| {
            program.env("LD_PRELOAD", &other).env("INTERPOSER_SAYS", "1");
        })
        .unwrap(),
    );
    let behind = run(&format!("{ours}:{other}"));
    assert!(!reached(&behind));
    assert!(counted(&behind) >= alone, "it sees what the program asks, and what Headway does: {behind:?}");
    // One in front that goes to the C library hides what is behind it: nothing breaks, and it is said.
    let front = run(&format!("{other}:{ours}"));
    assert!(reached(&front));
    assert!(counted(&front) >= alone, "{front:?}");
    assert!(text(&front.stderr).contains("functions for copies up by itself"), "{front:?}");
}

#[test]
fn two_copies_of_the_library_in_one_program_serve_it() {
    let (first, second) = (preload(), tempfile::tempdir().unwrap());
    let second = second.path().join("libheadway_preload.so");
    std::fs::copy(&first, &second).unwrap();
    for how in ["plain", "thread", "closes"] {
        let run = |program: &mut Command| {
            as_guest(program, FAST);
            program.env("LD_PRELOAD", format!("{}:{}", first.display(), second.display()));
        };
        let Some(guest) = opens(how, run) else { return };
        assert!(!reached(&guest), "{how}: {guest:?}");
    }
}

#[test]
fn functions_of_others_that_have_the_drivers_names_are_theirs() {
    let Some(built) = BUILT.as_ref() else { return };
    let library = ["-shared", "-fPIC", "-ldl"];
    let sources = ["lookups/others.c"];
    std::fs::create_dir(built.path("front")).unwrap();
    built.compile("front/libcuda.so.1", &sources, &[&library[..], &["-DWRAPS", "-Wl,-soname,libcuda.so.1"]].concat());
    built.compile("beside.so", &sources, &[&library[..], &["-DWRAPS"]].concat());
    built.compile("libnames.so", &sources, &[&library[..], &["-DNAMES"]].concat());
    built.compile("others", &sources, &["-ldl"]);
    built.compile("others-linked", &sources, &["-L.", "-Wl,--no-as-needed", "-lnames", "-ldl"]);
    let driver = built.path("libcuda.so.1");
    // What reached the driver of the copies that Headway is to make, and of those of others.
    let accelerated = "driver: reached 0\n";
    for (program, how, library, seen_as_driver) in [
        ("others", "wrapper", built.path("beside.so"), "wrapper: reached 0\n"),
        ("others", "wrapper", built.path("front/libcuda.so.1"), "wrapper: reached 2\n"),
        ("others", "namespace", driver.clone(), accelerated),
        ("others", "names", built.path("libnames.so"), accelerated),
        ("others-linked", "linked", driver.clone(), ""),
    ] {
        let run = |options: Option<&str>| {
            let mut program = built.program(built.path(program));
            program.arg(how).arg(&library).env("REAL", &driver);
            if let Some(options) = options {
                as_guest(&mut program, options);
            }
            program.output().unwrap()
        };
        let (plain, guest) = (run(None), run(Some(FAST)));
        assert!(plain.status.success(), "{how} {library:?}: {plain:?}");
        assert_eq!(seen(&guest), seen(&plain), "{how} {library:?}: {guest:?}");
        assert!(text(&guest.stderr).contains(seen_as_driver), "{how} {library:?}: {guest:?}");
    }
}

fn tool(name: &str, arguments: &[&str]) -> Option<String> {
    let Ok(output) = Command::new(name).args(arguments).arg(preload()).output() else {
        println!("skipped: there is no `{name}`");
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    Some(text(&output.stdout))
}

#[test]
fn the_library_needs_nothing_but_the_c_library_and_runs_little_when_it_is_loaded() {
    let Some(dynamic) = tool("readelf", &["-dW"]) else { return };
    let needed: Vec<&str> = dynamic
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    let allowed =
        |name: &&str| ["libc.so", "libgcc_s.so", "ld-linux", "libm.so"].iter().any(|known| name.starts_with(known));
    assert!(!needed.is_empty() && needed.iter().all(allowed), "{needed:?}");
    // The C compiler's own function, the one of Rust's standard library that keeps the arguments, and the one for SIGUSR1.
    let size = |tag: &str| {
        let line = dynamic.lines().find(|line| line.contains(tag)).unwrap();
        line.split_whitespace().rev().nth(1).unwrap().parse::<usize>().unwrap()
    };
    assert!(size("(INIT_ARRAYSZ)") <= 24, "{dynamic}");
    let exported = tool("nm", &["-D", "--defined-only"]).unwrap();
    let names: Vec<&str> = exported.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let known = |name: &&str| {
        let audit = ["la_version", "la_objopen", "la_preinit", "la_symbind64", "headway_preload_bound"];
        name.starts_with("cu") || *name == "dlsym" || audit.contains(name)
    };
    assert!(names.contains(&"cuMemcpyBatchAsync_v2_ptsz") && names.iter().all(known), "{names:?}");
}

/// CUDA runtimes of the Python package index, where `cargo xtask ci tools` has put them.
fn wheels() -> Option<PathBuf> {
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().join("wheels");
    let there = target.join("installed.txt").exists();
    if !there {
        println!("skipped: {} has no CUDA runtimes; `cargo xtask ci tools` gets them", target.display());
    }
    there.then_some(target)
}

/// The driver's functions that a runtime holds, and whether each is the driver's own.
fn held(output: &Output) -> Vec<(String, String)> {
    assert!(output.status.success(), "{output:?}");
    let pair = |line: &str| line.split_once(": ").map(|(name, whose)| (name.to_owned(), whose.to_owned()));
    let held: Vec<_> = text(&output.stdout).lines().filter_map(pair).collect();
    assert!(held.len() > 20, "{output:?}");
    held
}

#[test]
fn cuda_runtimes_hold_no_function_of_the_driver_that_headway_replaces() {
    let (Some(built), Some(wheels)) = (BUILT.as_ref(), wheels()) else { return };
    let sources = ["lookups/runtime.c", "lookups/scan.c"];
    built.compile("runtime", &sources, &["-ldl"]);
    let fixed = wheels.join("nvidia/cuda_runtime/lib/libcudart_static.a").display().to_string();
    built.compile("runtime-static", &sources, &["-DSTATIC", &fixed, "-ldl", "-lpthread", "-lrt"]);
    let mut renamed = std::fs::read_dir(wheels.join("torchvision.libs")).unwrap().map(|file| file.unwrap().path());
    let renamed = renamed.find(|path| path.display().to_string().contains("libcudart.")).unwrap();
    let shared = ["nvidia/cuda_runtime/lib/libcudart.so.12", "nvidia/cu13/lib/libcudart.so.13"];
    let mut programs = vec![("runtime-static", None)];
    programs.extend(shared.map(|name| ("runtime", Some(wheels.join(name)))));
    programs.push(("runtime", Some(renamed)));
    for (program, library) in programs {
        let command = || {
            let mut command = built.program(built.path(program));
            command.args(&library);
            command
        };
        let plain = held(&command().output().unwrap());
        let mut guest = command();
        as_guest(&mut guest, FAST);
        let guest = held(&guest.output().unwrap());
        let replaced = |name: &str| {
            [
                "cuMemcpy",
                "cuMemAlloc",
                "cuMemHostAlloc",
                "cuMemFreeHost",
                "cuGetProcAddress",
                "cuCtxDestroy",
                "cuDevicePrimaryCtxRe",
            ]
            .iter()
            .any(|start| name.starts_with(start))
        };
        let expected: Vec<_> = plain
            .iter()
            .map(|(name, whose)| {
                assert_eq!(whose, "own", "{name}");
                (name.clone(), if replaced(name) { "replaced" } else { "own" }.to_owned())
            })
            .collect();
        assert_eq!(guest, expected, "{program} {library:?}");
        let copies = expected.iter().filter(|(name, _)| name.starts_with("cuMemcpy")).count();
        assert!(copies > 20, "{program} {library:?}: {expected:?}");
    }
}

#[test]
fn what_is_said_of_a_library_names_it_once() {
    let Some(guest) = opens("deepbind", |program| as_guest(program, FAST)) else { return };
    assert_eq!(text(&guest.stderr).matches("functions for copies up by itself").count(), 1, "{guest:?}");
    assert_eq!(seen(&guest).0, "exit status: 0");
}

#[test]
fn in_a_program_that_has_more_rights_than_its_caller_no_variable_of_the_caller_counts() {
    let Some(built) = BUILT.as_ref() else { return };
    // The loader ignores LD_PRELOAD and LD_LIBRARY_PATH in such a program: an administrator names the library elsewhere.
    let (library, driver) = (preload().display().to_string(), built.path("").display().to_string());
    let linked = ["-Wl,--no-as-needed", &library, "-ldl", "-Wl,-rpath", &format!("-Wl,{driver}")];
    built.compile("batches-linked", &["lookups/batches.c"], &linked);
    let log = built.path("log-of-more-rights");
    let run = |program: &str| {
        let mut program = built.program(built.path(program));
        program.env(VARIABLE, "aside=never,fast=always,no-cache,stats,alone").env(guest_log::VARIABLE, &log);
        let output = program.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    };
    let usual = run("batches-linked");
    assert!(text(&usual.stderr).contains("in batches, queued") && log.exists(), "{usual:?}");
    std::fs::remove_file(&log).unwrap();
    let program = built.path("batches-linked");
    if std::os::unix::fs::chown(&program, None, Some(1)).is_err() {
        return println!("skipped: only root gives a file to another group");
    }
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o2755)).unwrap();
    let privileged = run("batches-linked");
    assert!(privileged.stderr.is_empty() && !log.exists(), "{privileged:?}");
    assert_eq!(seen(&privileged), seen(&built.program(built.path("batches")).output().unwrap()));
}
