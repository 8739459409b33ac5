//! `--log`: what is in it, and that it disturbs nobody.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use headway_core::files::guest::GuestOptions;
use headway_core::files::guest_log::{
    Became, Call, Copy, DriverReason, GuestLogEnd, GuestLogLine, GuestLogStart, Host, Towards, VARIABLE,
};
use tempfile::TempDir;

use super::{ASIDE, BULK, FAST, LARGE, NOTHING, YIELD, guest, run};

/// A log that was read: every line must be whole.
pub(crate) struct Read {
    start: GuestLogStart,
    pub(crate) lines: Vec<GuestLogLine>,
}

pub(crate) fn read(path: &Path) -> Read {
    parsed(&fs::read_to_string(path).unwrap())
}

fn parsed(text: &str) -> Read {
    assert!(text.ends_with('\n'), "the last line is not whole: {text}");
    let mut lines = text.lines();
    let start = serde_json::from_str(lines.next().unwrap()).unwrap();
    Read { start, lines: lines.map(|line| serde_json::from_str(line).expect(line)).collect() }
}

impl Read {
    fn copies(&self) -> Vec<Copy> {
        let copy = |line: &GuestLogLine| if let GuestLogLine::Copy(copy) = line { Some(*copy) } else { None };
        self.lines.iter().filter_map(copy).collect()
    }

    fn end(&self) -> Option<GuestLogEnd> {
        self.lines.iter().find_map(|line| if let GuestLogLine::End(end) = line { Some(*end) } else { None })
    }
}

/// Runs a guest with a log: what it printed, and the folder with `log`.
pub(crate) fn logged(lookup: &str, task: &str, options: GuestOptions) -> Option<(Output, TempDir)> {
    logged_by(guest(lookup, task, Some(options))?)
}

fn logged_by(mut command: Command) -> Option<(Output, TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let output = command.env(VARIABLE, folder.path().join("log")).output().unwrap();
    Some((output, folder))
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

#[test]
fn every_copy_has_a_line_and_the_driver_sees_the_same_calls() {
    for (options, tasks) in [
        (NOTHING, &["beside", "large-captured"][..]),
        (ASIDE, &["beside", "same-stream", "capture", "half", "broken"]),
        (YIELD, &["bulk"]),
        (FAST, &["large"]),
    ] {
        for task in tasks {
            let Some(plain) = run("resolver", task, Some(options)) else { return };
            let (ours, _folder) = logged("resolver", task, options).unwrap();
            assert_eq!((ours.status, &ours.stderr), (plain.status, &plain.stderr), "{task}");
            // Pieces of large copies come from several threads, whose order differs from run to run.
            if *task != "large" {
                let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
                assert_eq!(text(&ours), text(&plain), "{task}");
            }
        }
    }
}

#[test]
fn a_line_says_what_was_asked_for_and_what_became_of_it() {
    let Some((_, folder)) = logged("resolver", "beside", ASIDE) else { return };
    let log = read(&folder.path().join("log"));
    assert!(log.start.command[0].ends_with("guest") && log.start.command[1..] == ["resolver", "beside"]);
    assert_eq!(log.start.options, ASIDE.to_string());
    let copies = log.copies();
    let row = |copy: &Copy| (copy.call, copy.bytes.0 as usize, copy.stream, copy.became, copy.host, copy.why);
    let aside = |bytes| (Call::OutAsync, bytes, 22, Became::Aside, Host::PageLocked, None);
    let expected = [
        (Call::In, BULK, 1, Became::PassedOn, Host::NotAsked, Some(DriverReason::NoOption)),
        (Call::OutAsync, BULK, 21, Became::PassedOn, Host::NotAsked, Some(DriverReason::Whole)),
        aside(4096),
        aside(4095),
        aside(4094),
        aside(4093),
        (Call::Out, 4096, 1, Became::Aside, Host::PageLocked, None),
    ];
    assert_eq!(copies.iter().map(row).collect::<Vec<_>>(), expected);
    assert!(copies.iter().all(|copy| copy.status == 0 && copy.thread == log.start.pid && copy.of == 1));
    assert!(copies.is_sorted_by_key(|copy| copy.at));
    assert_eq!(log.end().map(|end| (end.lost, end.full)), Some((0, false)));
}

#[test]
fn large_copies_name_the_memory_and_who_made_them() {
    let Some((_, folder)) = logged("resolver", "large", FAST) else { return };
    let copies = read(&folder.path().join("log")).copies();
    let large: Vec<_> = copies.iter().filter(|copy| copy.bytes.0 as usize == LARGE).collect();
    assert_eq!(large.len(), 3);
    assert!(large.iter().all(|copy| copy.became == Became::Fast && copy.host == Host::Ordinary), "{large:?}");
    assert_eq!(large.iter().map(|copy| copy.direction).collect::<Vec<_>>(), [Towards::In, Towards::Out, Towards::Out]);
    let (_, folder) = logged("resolver", "large-fails", FAST).unwrap();
    let failed =
        read(&folder.path().join("log")).copies().into_iter().filter(|copy| copy.why == Some(DriverReason::Failed));
    assert_eq!(failed.count(), 3);
}

#[test]
fn a_status_of_the_driver_is_in_the_line() {
    let Some((_, folder)) = logged("resolver", "broken", ASIDE) else { return };
    let last = *read(&folder.path().join("log")).copies().last().unwrap();
    assert_eq!((last.status, last.became), (700, Became::PassedOn));
}

#[test]
fn small_quick_copies_beyond_the_first_are_counted() {
    let Some((output, folder)) = logged("resolver", "many", NOTHING) else { return };
    assert!(output.status.success(), "{output:?}");
    let log = read(&folder.path().join("log"));
    let counted = |line: &GuestLogLine| {
        if let GuestLogLine::Counted(counted) = line { (counted.copies, counted.bytes.0) } else { (0, 0) }
    };
    let (copies, bytes) = log.lines.iter().map(counted).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let small = log.copies().iter().filter(|copy| copy.bytes.0 == 8).count() as u64;
    assert_eq!(copies + small, 70_000);
    assert_eq!(bytes, 8 * copies);
    assert!((65_000..66_500).contains(&small), "{small}");
    assert!(log.copies().iter().any(|copy| copy.of == 64));
}

#[test]
fn a_guest_that_is_killed_leaves_whole_lines() {
    let Some((output, folder)) = logged("resolver", "killed", NOTHING) else { return };
    assert!(output.status.code().is_none());
    let log = read(&folder.path().join("log"));
    assert_eq!((log.copies().len(), log.end()), (3, None));
}

#[test]
fn a_forked_child_writes_nothing_and_a_further_process_has_its_own_log() {
    let Some((output, folder)) = logged("resolver", "fork", NOTHING) else { return };
    assert!(output.status.success(), "{output:?}");
    assert_eq!(names(&folder), ["log"]);
    // Both processes copy the small block out; the child's is not in the log.
    assert_eq!(read(&folder.path().join("log")).copies().len(), 3);

    let (output, folder) = logged("resolver", "twice", NOTHING).unwrap();
    assert!(output.status.success(), "{output:?}");
    let [first, second] = names(&folder).try_into().unwrap();
    let (log, other) = (read(&folder.path().join(&first)), read(&folder.path().join(&second)));
    assert_eq!((first.as_str(), second), ("log", format!("log.{}", other.start.pid)));
    assert_ne!(log.start.pid, other.start.pid);
    assert!(log.end().is_some() && other.end().is_some());
}

#[test]
fn the_process_may_be_part_of_the_name() {
    let Some(mut command) = guest("resolver", "idle", Some(NOTHING)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = command.env(VARIABLE, folder.path().join("%p.of.%p")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let [name] = names(&folder).try_into().unwrap();
    let pid = read(&folder.path().join(&name)).start.pid;
    assert_eq!(name, format!("{pid}.of.{pid}"));
}

#[test]
fn a_program_that_closes_all_files_gets_no_line_into_its_own() {
    let Some((output, folder)) = logged("resolver", "closes", NOTHING) else { return };
    assert!(output.status.success(), "{output:?}");
    assert_eq!(read(&folder.path().join("log")).copies().len(), 2);
}

#[test]
fn a_log_that_may_not_grow_ends_no_program() {
    let Some(mut command) = guest("resolver", "beside", Some(NOTHING)) else { return };
    // SAFETY: the call is one that may be made between `fork` and `exec`.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 1000, rlim_max: 1000 };
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
            Ok(())
        });
    }
    let (output, folder) = logged_by(command).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(fs::metadata(folder.path().join("log")).unwrap().len() <= 1000);
    read(&folder.path().join("log"));
}

#[test]
fn a_full_disk_costs_lines_and_leaves_whole_ones() {
    let Some(guest) = guest("resolver", "many", Some(NOTHING)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().display().to_string();
    let mut command = Command::new("unshare");
    let script =
        "mount -t tmpfs -o size=16k none \"$1\" || exit 77; \"$0\" resolver many > /dev/null || exit 1; cat \"$1\"/log";
    command.args(["-rm", "sh", "-c", script]).arg(guest.get_program()).arg(&disk);
    command.envs(guest.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let Ok(output) = command.env(VARIABLE, folder.path().join("log")).output() else { return };
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || text.starts_with("unshare: ") {
        println!("skipped: this user may not mount a small disk");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!((8_000..=16_384).contains(&text.len()), "{}", text.len());
    assert!(parsed(&text).copies().len() > 20);
}

#[test]
fn a_log_that_cannot_be_created_is_said_and_ends_no_program() {
    let Some(mut command) = guest("resolver", "beside", Some(NOTHING)) else { return };
    let output = command.env(VARIABLE, "/proc/no/log").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot create the log `/proc/no/log`"), "{output:?}");
}
