//! Programs whose streams wait for what the same thread does only after its copies: Headway makes none of them hang.
//!
//! The driver loads kernels and page-locks memory only when nothing runs, and its streams hold a limited number of operations, as those of a
//! real one do.

mod support;

use std::sync::LazyLock;

use support::{Built, as_guest, seen};

static BUILT: LazyLock<Option<Built>> = LazyLock::new(|| {
    let built = Built::new()?;
    built.compile("waits", &["waits/waits.c"], &["-ldl", "-lpthread"]);
    Some(built)
});

/// What a program prints: its copies that reached the driver, and words.
fn counts(task: &str, options: Option<&str>) -> Option<String> {
    let built = BUILT.as_ref()?;
    let mut program = built.program(built.path("waits"));
    // The program with most streams queues 2,206 operations itself.
    let holds = if task == "streams" { "3200" } else { "1000" };
    program.arg(task).env("FAKE_KERNELS_FIRST", "1").env("FAKE_QUEUE", holds).env("FAKE_STALL", "20000");
    if let Some(options) = options {
        as_guest(&mut program, options);
    }
    let output = program.output().unwrap();
    let (status, text) = seen(&output);
    assert_eq!(status, "exit status: 0", "{task} {options:?}: {output:?}");
    Some(text)
}

#[test]
fn the_first_copy_may_come_while_a_kernel_waits_for_what_comes_behind_it() {
    for task in ["first", "first-host"] {
        let Some(plain) = counts(task, None) else { return };
        assert_eq!(plain, "copies out 6, words 0, kernel 0\n", "{task}");
        // A word is written as a trial, one behind each of the four chunks, and one behind the driver's own copy of ordinary memory.
        for (options, end) in [
            ("aside=never,fast=always,alone,no-cache", "words 0, kernel 0\n"),
            ("aside=never,chunk=1048576,alone,no-cache", "words 6, kernel 0\n"),
            ("aside=never,chunk=1048576,fast=always,alone,no-cache", "words 5, kernel 0\n"),
            ("aside=always,alone,no-cache", "words 2, kernel 5\n"),
            ("aside=always,fast=always,alone,no-cache", "words 1, kernel 5\n"),
        ] {
            let text = counts(task, Some(options)).unwrap();
            assert!(text.ends_with(end), "{task} {options}: {text}");
        }
    }
}

#[test]
fn a_context_that_was_given_back_and_lives_on_is_not_prepared_at_an_allocation() {
    for options in ["aside=always", "aside=never,chunk=1048576", "aside=never,fast=always"] {
        let Some(text) = counts("released", Some(&format!("{options},alone,no-cache"))) else { return };
        assert!(text.starts_with("copies out 0, "), "{options}: {text}");
    }
}

/// The driver's queue holds 1,000 operations: 384 words at most, with a copy before each, and what the program queues itself. One stream has 288 of them.
#[test]
fn streams_that_stand_still_get_no_more_chunks_than_the_driver_holds() {
    const CHUNKS: &str = "aside=never,chunk=65536,alone,no-cache";
    let Some(plain) = counts("gate", None) else { return };
    assert_eq!(plain, "copies out 4, words 0, kernel 0\n");
    // Of the second copy 32 chunks have room; its rest and the other copies stay whole. One more word was written as a trial.
    assert_eq!(counts("gate", Some(CHUNKS)).unwrap(), "copies out 291, words 289, kernel 0\n");
    let Some(plain) = counts("gate-whole", None) else { return };
    assert_eq!(plain, "copies out 500, words 0, kernel 0\n");
    let whole = counts("gate-whole", Some("aside=auto,chunk=4194304,alone,no-cache")).unwrap();
    assert_eq!(whole, "copies out 500, words 289, kernel 0\n");
    // Two streams have 256 and 64 words. So 48, 12, 3 and 1 are left for the next four of 14, and the stream that goes on gets all of its 64 chunks.
    let beside = counts("beside", Some("aside=never,chunk=262144,alone,no-cache")).unwrap();
    assert_eq!(beside, format!("copies out {}, words {}, kernel 0\n", 384 + 14 + 64, 384 + 64 + 1));
    // There is no word for the last 78 of 1,101 streams. Their copies stay whole, and so do those of all but the first nine.
    let many = counts("streams", Some(CHUNKS)).unwrap();
    assert_eq!(many, format!("copies out {}, words {}, kernel 0\n", 384 + 4 + 1092 + 4, 384 + 1));
    // What the stream has passed takes no room.
    assert_eq!(counts("drained", Some(CHUNKS)).unwrap(), "copies out 1024, words 1025, kernel 0\n");
}

/// Words are counted as long as a stream may write them, and no longer: whoever wrote them in which order, and whether the stream still has a name.
#[test]
fn words_of_streams_that_are_gone_or_shared_by_threads_are_counted() {
    const CHUNKS: &str = "aside=never,chunk=65536,alone,no-cache";
    let Some(plain) = counts("destroyed", None) else { return };
    assert_eq!(plain, "copies out 20, words 0, kernel 0\n");
    // The first five streams have 256, 96, 24, 6 and 2 words.
    assert_eq!(counts("destroyed", Some(CHUNKS)).unwrap(), format!("copies out {}, words 385, kernel 0\n", 384 + 19));
    let all = 8 * 256;
    assert_eq!(counts("shared", Some(CHUNKS)).unwrap(), format!("copies out {all}, words {}, kernel 0\n", all + 1));
}
