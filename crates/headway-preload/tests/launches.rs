//! Launches that `--depth` holds: how many are under way at a time, by the driver's count, and that the program sees nothing of it.

mod support;

use std::process::{Command, Output};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use headway::guest::board::{Board, BoardGpu, KernelActivity};
use headway::share::tasks::now;
use support::{Built, as_guest, preload, seen};

static BUILT: LazyLock<Option<Built>> = LazyLock::new(|| {
    let built = Built::new()?;
    built.compile("launches", &["launches/launches.c"], &["-ldl", "-lpthread"]);
    let linked = ["-DDIRECT", "-L.", "-l:libcuda.so.1", "-ldl", "-lpthread"];
    built.compile("linked-launches", &["launches/launches.c"], &linked);
    Some(built)
});

const LOOKUPS: [&str; 4] = ["dlsym", "resolver", "per-thread", "linked"];
const NOTHING: &str = "aside=never,alone,no-cache";

fn launches(lookup: &str, task: &str, options: Option<&str>) -> Option<Command> {
    let built = BUILT.as_ref()?;
    let mut program = built.program(built.path(if lookup == "linked" { "linked-launches" } else { "launches" }));
    program.args([lookup, task]);
    if let Some(options) = options {
        as_guest(&mut program, options);
    }
    Some(program)
}

fn depth(depth: u32) -> String {
    format!("{NOTHING},depth={depth}")
}

/// How many launches were under way at a time, and what else the program printed.
fn most_under_way(output: &Output) -> (u32, String) {
    let (status, text) = seen(output);
    assert_eq!(status, "exit status: 0", "{output:?}");
    let (rest, most) = text.split_once("most under way: ").unwrap_or_else(|| panic!("{output:?}"));
    (most.trim().parse().unwrap(), rest.to_owned())
}

fn run(lookup: &str, task: &str, options: Option<&str>) -> Option<(u32, String)> {
    Some(most_under_way(&launches(lookup, task, options)?.output().unwrap()))
}

#[test]
fn a_context_never_has_more_launches_under_way_than_its_depth() {
    for lookup in LOOKUPS {
        for task in ["streams", "threads"] {
            let Some((all, plain)) = run(lookup, task, None) else { return };
            assert!(all > 100, "{lookup} {task}: {all}");
            for held in [1, 4, 64] {
                let (most, guest) = run(lookup, task, Some(&depth(held))).unwrap();
                assert_eq!(guest, plain, "{lookup} {task}");
                // Each look at an event lets this driver go on, so that a large depth is hardly reached.
                assert!(if held == 64 { most <= held } else { most == held }, "{lookup} {task} {held}: {most}");
            }
        }
    }
}

#[test]
fn without_a_depth_launches_are_the_drivers_own() {
    for lookup in ["dlsym", "resolver", "per-thread"] {
        let Some(mut guest) = launches(lookup, "streams", Some(NOTHING)) else { return };
        let output = guest.output().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains("functions of the driver: 4"), "{lookup}: {output:?}");
        assert_eq!(most_under_way(&output), run(lookup, "streams", None).unwrap());
        let output = launches(lookup, "streams", Some(&depth(1))).unwrap().output().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains("functions of the driver: 0"), "{lookup}: {output:?}");
    }
    assert_eq!(run("linked", "streams", Some(NOTHING)), run("linked", "streams", None));
}

#[test]
fn launches_that_the_loader_binds_by_audit_are_held_too_and_without_a_depth_are_the_drivers() {
    let audited = |options: &str| {
        let mut guest = launches("dlsym", "streams", Some(options))?;
        Some(most_under_way(&guest.env("LD_AUDIT", preload()).output().unwrap()).0)
    };
    let Some(all) = audited(NOTHING) else { return };
    assert!(all > 100 && audited(&depth(1)) == Some(1), "{all}");
}

#[test]
fn contexts_errors_and_forked_children_are_as_they_are_without_a_depth() {
    for lookup in LOOKUPS {
        for task in ["contexts", "refused", "fork"] {
            let Some((_, plain)) = run(lookup, task, None) else { return };
            for held in [1, 3] {
                let (most, guest) = run(lookup, task, Some(&depth(held))).unwrap();
                assert_eq!(guest, plain, "{lookup} {task}");
                // What a destroyed context left on the legacy default stream is still there for this driver.
                let contexts = if task == "contexts" { 2 } else { 1 };
                assert!((held..=contexts * held).contains(&most), "{lookup} {task} {held}: {most}");
            }
        }
    }
}

#[test]
fn no_launch_begins_while_another_program_has_a_promised_kernel_and_it_does_so_for_a_bounded_time() {
    // A GPU that no other test has.
    let mut gpu: BoardGpu = [7; 16];
    gpu[15] = 9;
    let held = |is_alone: bool| {
        let options = depth(1).replace("alone", if is_alone { "alone,stats" } else { "stats" });
        let output = launches("dlsym", "one", Some(&options))?.env("FAKE_GPU", "9").output().unwrap();
        assert_eq!(most_under_way(&output).0, 1);
        Some(String::from_utf8_lossy(&output.stderr).contains("1 launches were held, the longest for"))
    };
    assert!(Board::of_user().is_some(), "System V shared memory");
    let Some(before) = held(false) else { return };
    assert!(!before);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut kernels = KernelActivity::new(gpu);
            while !over.load(Ordering::Relaxed) {
                kernels.begin(now());
                thread::yield_now();
            }
        });
        // A thread that does not run for long announces nothing meanwhile.
        let is_seen = (0..50).any(|_| held(false) == Some(true));
        let alone = held(true);
        over.store(true, Ordering::Relaxed);
        assert!(is_seen && alone == Some(false), "{is_seen} {alone:?}");
    });
    assert_eq!(held(false), Some(false), "it has ended");
}

#[test]
fn launches_that_wait_for_what_the_program_does_after_them_are_passed_on_in_the_end() {
    // It waits once for the longest time, and not with each launch.
    let Some(mut guest) = launches("dlsym", "waits", Some(&format!("{},stats", depth(2)))) else { return };
    let output = guest.output().unwrap();
    let (most, _) = most_under_way(&output);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(most >= 30 && errors.contains("launches passed on beyond the depth"), "{most} {errors}");
}
