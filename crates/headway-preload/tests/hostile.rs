//! Programs that misuse memory, contexts, threads and limits: as guests they print and end as they do without Headway.
//!
//! The same programs run on a GPU by `bench/guests/roads.sh`.

mod support;

use std::process::Command;
use std::sync::LazyLock;

use headway_core::files::guest_log;
use support::{Built, as_guest, seen};

static BUILT: LazyLock<Option<Built>> = LazyLock::new(|| {
    let built = Built::new()?;
    // Large enough for several pieces and several chunks.
    built.compile("hostile", &["hostile/hostile.c"], &["-DLARGE_MIB=6", "-ldl", "-lpthread"]);
    Some(built)
});

const EVERYTHING: &str = "aside=auto,chunk=1048576,fast=always,no-cache,verify,alone";
const ALWAYS: &str = "aside=always,chunk=65536,fast=always,no-cache,alone";
const PIN_ONCE: &str = "aside=never,fast=always,pin-once=1073741824,stats,no-cache,alone";
const FAST: &str = "aside=never,fast=always,no-cache,alone";

/// Cases that no driver of the tests can decide: this one has no threads of its own, which keep a process whose first thread has ended.
const NOT_HERE: &str = "main-thread-ends";

fn cases() -> Vec<String> {
    let Some(built) = BUILT.as_ref() else { return Vec::new() };
    let output = built.program(built.path("hostile")).arg("--list").output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().filter(|case| *case != NOT_HERE).map(str::to_owned).collect()
}

/// Runs cases plain and as guests, on a driver with these variables.
fn compare<'a>(cases: impl IntoIterator<Item = &'a str>, options: &str, variables: &[(&str, &str)]) {
    let Some(built) = BUILT.as_ref() else { return };
    for case in cases {
        let program = || {
            let mut command: Command = built.program(built.path("hostile"));
            command.arg(case).envs(variables.iter().copied());
            command
        };
        let plain = program().output().unwrap();
        let mut guest = program();
        as_guest(&mut guest, options);
        let guest = guest.output().unwrap();
        let errors = String::from_utf8_lossy(&guest.stderr);
        assert_eq!(seen(&guest), seen(&plain), "{case} with {options}: {errors}");
        assert!(!errors.contains("WRONG"), "{case} with {options}: {errors}");
        // A case that could not do what it is for shows nothing.
        assert!(!seen(&plain).0.ends_with(": 2") && !seen(&plain).0.ends_with(": 3"), "{case}: {plain:?}");
    }
}

fn every_second(first: usize) -> Vec<String> {
    cases().into_iter().skip(first).step_by(2).collect()
}

// Two tests, so that two CPUs share the work.
#[test]
fn one_half_of_the_hostile_programs_is_as_it_is_without_headway() {
    compare(every_second(0).iter().map(String::as_str), EVERYTHING, &[]);
}

#[test]
fn the_other_half_of_the_hostile_programs_is_as_it_is_without_headway() {
    compare(every_second(1).iter().map(String::as_str), EVERYTHING, &[]);
}

#[test]
fn every_small_copy_by_a_kernel_and_small_pieces_change_nothing() {
    let cases = [
        "overwritten",
        "freed",
        "read-only-small",
        "overlapping",
        "registered-half",
        "destroyed",
        "reset",
        "sticky",
        "invalid",
        "null",
        "fork",
        "captured",
        "captured-elsewhere",
        "beside",
        "small-stack",
        "handler-copies",
    ];
    compare(cases, ALWAYS, &[]);
}

#[test]
fn a_driver_that_refuses_to_page_lock_changes_nothing() {
    // Of the program itself 4 KiB are page-locked: nothing is left for Headway, or one of its lines, or a part of its staging.
    for bytes in ["4096", "400000", "3000000"] {
        compare(["overwritten", "invalid", "threads-that-end"], EVERYTHING, &[("FAKE_PIN_MAX", bytes)]);
    }
}

#[test]
fn limits_are_met_as_without_headway_when_only_large_copies_are_made_faster() {
    compare(["few-addresses", "few-files", "few-locked", "few-threads", "truncated-in", "no-access-out"], FAST, &[]);
}

/// Whether this system lets a process watch its own memory; says so if not.
fn can_be_pinned() -> bool {
    let watch = headway::guest::PageWatch::begin(|| ());
    if let Err(error) = &watch {
        println!("skipped: no `userfaultfd` here: {error}");
    }
    watch.is_ok()
}

#[test]
fn memory_that_is_kept_page_locked_and_becomes_other_memory_is_copied_as_it_is() {
    if !can_be_pinned() {
        return;
    }
    let cases = cases();
    let again: Vec<&str> = cases.iter().map(String::as_str).filter(|case| case.starts_with("again-")).collect();
    assert_eq!(again.len(), 17);
    compare(again, PIN_ONCE, &[("FAKE_PINS", "1")]);
}

#[test]
fn hostile_programs_are_as_they_are_without_headway_where_memory_is_kept_page_locked() {
    let cases = [
        "overwritten",
        "freed",
        "unmapped",
        "overlapping",
        "huge",
        "registered-half",
        "reset",
        "destroyed",
        "no-context",
        "sticky",
        "invalid",
        "null",
        "many-threads",
        "fork",
        "captured",
        "captured-elsewhere",
        "beside",
        "few-locked",
        "invalid-batches",
        "small-stack",
        "handler-copies",
        "key-destructor",
        "closed",
    ];
    compare(cases, PIN_ONCE, &[]);
}

#[test]
fn the_cases_of_repeated_copies_are_about_memory_that_is_page_locked() {
    let Some(built) = BUILT.as_ref().filter(|_| can_be_pinned()) else { return };
    for case in ["again-unmapped", "again-moved", "again-waited-for"] {
        let mut guest = built.program(built.path("hostile"));
        as_guest(guest.arg(case).env("FAKE_PINS", "1"), PIN_ONCE);
        let output = guest.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            errors.contains("into a GPU that is kept page-locked") && errors.contains("ranges were page-locked"),
            "{case}: {errors}"
        );
    }
}

#[test]
fn weights_that_come_and_go_for_each_token_are_page_locked_and_the_statistics_say_what_became_of_them() {
    let Some(built) = BUILT.as_ref().filter(|_| can_be_pinned()) else { return };
    let errors = |options: &str, refuses: &str| {
        let mut guest = built.program(built.path("hostile"));
        as_guest(guest.arg("again-offloaded").env("FAKE_PINS", "1").env("FAKE_REFUSES", refuses), options);
        String::from_utf8(guest.output().unwrap().stderr).unwrap()
    };
    let kept = errors(PIN_ONCE, "0");
    // Destinations of the copies out of the GPU were advised to have huge pages, so that each is several mappings.
    assert!(kept.contains("3 ranges were page-locked"), "{kept}");
    let small = errors(&PIN_ONCE.replace("pin-once=1073741824", "pin-once=45000000"), "0");
    assert!(small.contains("1 ranges were page-locked"), "{small}");
    assert!(small.contains("2 ranges not page-locked: the size that `--pin-once` allows is used up"), "{small}");
    let refused = errors(PIN_ONCE, "712");
    assert!(refused.contains("3 ranges not page-locked: the driver refused (CUDA error 712)"), "{refused}");
}

#[test]
fn other_processes_cannot_end_a_guest_by_what_guests_share() {
    compare(["shared-files-cut"], "aside=auto,fast=always,no-cache", &[]);
}

#[test]
fn a_log_keeps_no_child_by_a_bare_clone_waiting_and_raises_no_signal_where_files_may_not_grow() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log").display().to_string();
    compare(["clone-beside-copies", "no-file-may-grow"], FAST, &[(guest_log::VARIABLE, &log)]);
}

#[test]
fn an_unwritable_destination_raises_the_drivers_signal() {
    // The tests above compare: here it is said what is compared.
    let Some(built) = BUILT.as_ref() else { return };
    for (case, signal) in [("read-only", libc::SIGSEGV), ("truncated-out", libc::SIGBUS)] {
        let mut guest = built.program(built.path("hostile"));
        as_guest(guest.arg(case), EVERYTHING);
        let status = guest.output().unwrap().status;
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(signal), "{case}");
    }
}
