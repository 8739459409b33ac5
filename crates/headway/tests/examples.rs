//! The examples run on any computer and say what they are meant to say. `cargo test -p headway-gpu` builds them.

use std::process::Command;

/// What the example called `name` prints.
fn said(name: &str) -> String {
    let test = std::env::current_exe().unwrap();
    // Tests lie in `deps`, examples beside that folder.
    let example = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    let help = "`cargo build -p headway-gpu --examples` makes it";
    let done = Command::new(&example).output().unwrap_or_else(|error| panic!("{}: {error}; {help}", example.display()));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn a_copy_brings_every_byte_back() {
    let text = said("copy");
    assert!(text.contains("to the GPU by ") && text.ends_with("every byte is back\n"), "{text}");
}

#[test]
fn a_plan_says_how_many_cameras_fit() {
    let text = said("plan");
    assert!(text.starts_with("two cameras: Schedulable\n") && text.contains(" is used "), "{text}");
    let most: u32 = text.lines().last().and_then(|line| line.strip_prefix("at most: ")).unwrap().parse().unwrap();
    assert!(most > 2, "{text}");
}

#[test]
fn a_run_made_in_code_holds_its_deadlines() {
    let text = said("run");
    assert!(text.starts_with("50 packets, deadlines held: true\n"), "{text}");
}

#[test]
fn a_program_gets_its_own_frames_back_in_time() {
    let text = said("plan_program");
    assert_eq!(text.matches(" is back after ").count(), 10, "{text}");
    assert!(
        text.starts_with("frame 0 is back after ") && text.ends_with("10 frames, deadlines held: true\n"),
        "{text}"
    );
}

#[test]
fn tasks_that_share_learn_how_long_they_wait() {
    let text = said("share");
    assert!(text.starts_with("Yes\n") && text.matches(" waits at most ").count() == 4, "{text}");
}

#[test]
fn examples_are_short() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 40, "{} has {lines} lines", path.display());
    }
}
