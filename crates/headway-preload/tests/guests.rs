//! Programs that know nothing of Headway, with and without the preloaded library, on a driver without a GPU.
//!
//! The library in C counts what reaches the driver; the guest compares every byte. What passes here says which calls are made
//! and in which order. It says nothing about any GPU.
#![allow(unsafe_code)]

#[path = "guests/learning.rs"]
mod learning;
#[path = "guests/lint.rs"]
mod lint;
#[path = "guests/log.rs"]
mod log;
#[path = "guests/verify.rs"]
mod verify;

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use headway::guest::board::{Behind, Board, BoardGpu, bulk_place};
use headway_core::decisions::engine_line::FlowClass;
use headway_core::decisions::staging::StagingDirection;
use headway_core::files::guest::{AsideMode, GuestClass, GuestOptions, VARIABLE};
use headway_core::units::Bytes;
use tempfile::TempDir;

/// The driver, a guest that looks functions up, and one that is linked with the driver.
struct Built {
    folder: TempDir,
}

static BUILT: LazyLock<Option<Built>> = LazyLock::new(|| {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: there is no C compiler `cc`");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake");
    let compile = |arguments: &[&str], source: &str, output: &str| {
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]).args(["-o", output]).arg(fake.join(source));
        let done = command.args(arguments).current_dir(&folder).output().unwrap();
        assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    // Like the real library, it calls its own functions directly.
    compile(&["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"], "driver.c", "libcuda.so.1");
    compile(&["-shared", "-fPIC"], "../../../headway-cuda/tests/fake/nvml.c", "libnvidia-ml.so.1");
    compile(&["-ldl"], "guest.c", "guest");
    compile(&["-DDIRECT", "-L.", "-l:libcuda.so.1", "-ldl"], "guest.c", "linked-guest");
    Some(Built { folder })
});

/// The library, which Cargo builds beside the test programs.
fn preload() -> PathBuf {
    let programs = env::current_exe().unwrap().parent().unwrap().to_owned();
    let library = programs.join("libheadway_preload.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

/// The command that runs a guest; `None` where there is no compiler.
fn guest(lookup: &str, task: &str, options: Option<GuestOptions>) -> Option<Command> {
    let built = BUILT.as_ref()?;
    let program = if lookup == "linked" { "linked-guest" } else { "guest" };
    let mut command = Command::new(built.folder.path().join(program));
    command.args([lookup, task]).env("LD_LIBRARY_PATH", built.folder.path()).env_remove(VARIABLE);
    if let Some(options) = options {
        command.env("LD_PRELOAD", preload()).env(VARIABLE, options.to_string());
    }
    Some(command)
}

/// Runs a guest; `None` where there is no compiler.
fn run(lookup: &str, task: &str, options: Option<GuestOptions>) -> Option<Output> {
    Some(guest(lookup, task, options)?.output().unwrap())
}

/// What a guest printed: the calls that reached the driver.
fn calls(lookup: &str, task: &str, options: Option<GuestOptions>) -> Option<String> {
    guest_calls(&mut guest(lookup, task, options)?)
}

fn guest_calls(guest: &mut Command) -> Option<String> {
    let output = guest.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{guest:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

const LOOKUPS: [&str; 4] = ["resolver", "old", "dlsym", "linked"];
const NOTHING: GuestOptions = GuestOptions {
    fast: false,
    aside: AsideMode::Never,
    chunk: None,
    class: GuestClass::ByStream,
    stats: false,
    lint: false,
    verify: false,
    alone: true,
    always_fast: false,
    pin_once: Bytes(0),
    depth: None,
    no_cache: true,
};
const ASIDE: GuestOptions = GuestOptions { aside: AsideMode::Auto, ..NOTHING };
const YIELD: GuestOptions = GuestOptions { chunk: Some(Bytes(8 << 20)), ..NOTHING };
/// Whatever the figures say of this machine.
const FAST: GuestOptions = GuestOptions { fast: true, always_fast: true, ..NOTHING };
const BULK: usize = 20 << 20;

#[test]
fn small_copies_beside_a_bulk_copy_are_made_by_a_kernel_in_their_own_stream() {
    for lookup in LOOKUPS {
        let Some(calls) = calls(lookup, "beside", Some(ASIDE)) else { return };
        let kernels: String = (0..4).map(|i| format!("kernel {} by 1 in 22\n", 4096 - i)).collect();
        // The call that waits uses the legacy default stream, by its own handle.
        assert_eq!(calls, format!("out {BULK} in 21\nwrite 21\n{kernels}kernel 4096 by 1 in 1\nwait 1\n"), "{lookup}");
    }
}

#[test]
fn per_thread_default_streams_stay_the_threads_own() {
    let Some(calls) = calls("per-thread", "beside", Some(ASIDE)) else { return };
    assert!(calls.starts_with(&format!("out-ptsz {BULK} in 21\n")), "{calls}");
    assert!(calls.ends_with("kernel 4096 by 1 in 2\nwait 2\n"), "{calls}");
}

#[test]
fn without_a_bulk_copy_every_call_reaches_the_driver_as_it_was_made() {
    for lookup in LOOKUPS {
        for task in ["idle", "done"] {
            let Some(plain) = calls(lookup, task, None) else { return };
            assert_eq!(without_words(&calls(lookup, task, Some(ASIDE)).unwrap()), plain, "{lookup} {task}");
        }
    }
}

/// Bytes of each of the three copies that the guest makes of ordinary memory.
const LARGE: usize = BULK - 4 * 4096 - 77;

/// Bytes that `calls` moved by calls named `name` in streams of Headway.
fn staged(calls: &str, name: &str) -> usize {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let ours = |words: &[String]| words.len() == 4 && words[0] == name && words[3].parse::<usize>().unwrap() >= 100;
    calls.lines().map(words).filter(|words| ours(words)).map(|words| words[1].parse::<usize>().unwrap()).sum()
}

#[test]
fn large_copies_of_ordinary_memory_go_through_pinned_memory_in_streams_of_headway() {
    for lookup in LOOKUPS {
        let Some(calls) = calls(lookup, "large", Some(FAST)) else { return };
        assert_eq!((staged(&calls, "in"), staged(&calls, "out")), (LARGE, 2 * LARGE), "{lookup}: {calls}");
        // Before each, the guest's stream was waited for: the legacy default stream by an event, the other as it is.
        let waits = calls.lines().filter(|line| line.starts_with("wait")).collect::<Vec<_>>();
        assert_eq!(waits, ["wait for an event", "wait 21", "wait for an event"], "{lookup}: {calls}");
        assert!(!calls.contains("waits "), "{lookup}: the driver's own call was made, too: {calls}");
    }
}

#[test]
fn large_copies_that_fail_on_the_way_are_made_by_the_driver_from_the_start() {
    let Some(calls) = calls("dlsym", "large-fails", Some(FAST)) else { return };
    for own in [format!("in-waits {LARGE} in 0"), format!("out {LARGE} in 21"), format!("out-waits {LARGE} in 0")] {
        assert!(calls.lines().any(|line| line == own), "{own}: {calls}");
    }
}

#[test]
fn large_copies_while_a_stream_captures_are_the_drivers() {
    let Some(plain) = calls("resolver", "large-captured", None) else { return };
    assert_eq!(calls("resolver", "large-captured", Some(FAST)).unwrap(), plain);
}

#[test]
fn large_copies_in_a_broken_context_give_the_drivers_answer() {
    let Some(plain) = calls("resolver", "large-broken", None) else { return };
    let ours = calls("resolver", "large-broken", Some(FAST)).unwrap();
    assert_eq!(ours.lines().last(), plain.lines().last());
    assert_eq!(ours.lines().last(), Some("700 700 700"));
}

#[test]
fn what_is_kept_for_a_context_goes_before_it_and_comes_again() {
    let Some(calls) = calls("resolver", "large-released", Some(FAST)) else { return };
    let (_, after) = calls.split_once("released\n").unwrap();
    assert_eq!(staged(after, "out"), LARGE, "{calls}");
}

#[test]
fn large_copies_of_a_forked_child_are_the_drivers() {
    let Some(calls) = calls("resolver", "large-forked", Some(FAST)) else { return };
    let (_, child) = calls.split_once("child\n").unwrap();
    assert_eq!(child, format!("out {LARGE} in 21\n"));
}

#[test]
fn a_bulk_copy_is_queued_in_pieces_with_a_written_word_behind_each() {
    for lookup in LOOKUPS {
        let Some(calls) = calls(lookup, "bulk", Some(YIELD)) else { return };
        let piece = 8 << 20;
        let whole = format!("out {piece} in 21\nwrite 21\n");
        assert_eq!(calls, format!("{whole}{whole}out {} in 21\nwrite 21\n", BULK - 2 * piece), "{lookup}");
    }
}

#[test]
fn a_program_is_of_the_class_that_it_was_given() {
    let class = |class, options| GuestOptions { class, ..options };
    // A normal one's large copies stay whole, and its small ones wait for them.
    let Some(plain) = calls("dlsym", "bulk", None) else { return };
    assert_eq!(calls("dlsym", "bulk", Some(class(GuestClass::Normal, YIELD))).unwrap(), plain);
    assert_eq!(
        calls("dlsym", "beside", Some(class(GuestClass::Normal, ASIDE))).unwrap(),
        calls("dlsym", "beside", None).unwrap()
    );
    // Of a bulk one nothing goes aside, also not where it always would, and large copies are cut.
    let bulk = class(GuestClass::Bulk, GuestOptions { aside: AsideMode::Always, ..YIELD });
    assert!(!calls("dlsym", "beside", Some(bulk)).unwrap().contains("kernel"));
    assert_eq!(calls("dlsym", "bulk", Some(bulk)).unwrap(), calls("dlsym", "bulk", Some(YIELD)).unwrap());
}

#[test]
fn all_copies_of_a_bulk_program_are_told_as_bulk_and_those_of_a_normal_one_never() {
    for (class, is_told) in [(GuestClass::Bulk, FlowClass::Bulk), (GuestClass::Normal, FlowClass::Normal)] {
        let options = GuestOptions { alone: false, class, ..ASIDE };
        let Some(mut guest) = guest("dlsym", "told", Some(options)) else { return };
        let mut guest = guest.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(guest.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let rows = Board::of_user().expect("System V shared memory").read().rows;
        let own: Vec<_> = rows.iter().filter(|row| row.pid == guest.id()).collect();
        assert!(own.len() == 2 && own.iter().all(|row| row.class == is_told), "{own:?}");
        drop(guest.stdin.take());
        assert!(guest.wait().unwrap().success());
    }
}

/// The calls that reached the driver, but for the words behind what is bulk.
fn without_words(calls: &str) -> String {
    calls.replace("write 21\n", "")
}

#[test]
fn nothing_overtakes_within_one_stream() {
    let Some(plain) = calls("resolver", "same-stream", None) else { return };
    assert_eq!(without_words(&calls("resolver", "same-stream", Some(ASIDE)).unwrap()), plain);
}

#[test]
fn captured_copies_are_recorded_as_they_are() {
    let Some(plain) = calls("resolver", "capture", None) else { return };
    let both = GuestOptions { chunk: YIELD.chunk, ..ASIDE };
    assert_eq!(calls("resolver", "capture", Some(both)).unwrap(), plain);
}

#[test]
fn ordinary_memory_is_written_by_way_of_a_pinned_line() {
    let Some(calls) = calls("resolver", "ordinary", Some(ASIDE)) else { return };
    assert!(calls.ends_with("kernel 4096 by 1 in 1\nwait 1\n"), "{calls}");
}

#[test]
fn memory_that_is_page_locked_by_half_is_left_to_the_driver() {
    let Some(plain) = calls("resolver", "half", None) else { return };
    assert_eq!(without_words(&calls("resolver", "half", Some(ASIDE)).unwrap()), plain);
}

#[test]
fn reads_beyond_an_allocation_never_reach_a_kernel() {
    let Some(plain) = run("resolver", "beyond", None) else { return };
    let ours = run("resolver", "beyond", Some(ASIDE)).unwrap();
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!((ours.status, without_words(&text(&ours))), (plain.status, text(&plain)));
    assert!(!text(&ours).contains("kernel"), "{ours:?}");
}

#[test]
fn memory_that_cannot_be_written_ends_the_program_as_it_does_without_headway() {
    let Some(plain) = run("resolver", "read-only", None) else { return };
    let ours = run("resolver", "read-only", Some(ASIDE)).unwrap();
    assert!(plain.status.code().is_none(), "the driver's own copy must end by a signal: {plain:?}");
    assert_eq!(ours.status, plain.status);
}

#[test]
fn an_error_of_the_context_is_the_guests_own() {
    let Some(plain) = calls("resolver", "broken", None) else { return };
    let ours = calls("resolver", "broken", Some(ASIDE)).unwrap();
    assert_eq!(ours.lines().next(), plain.lines().next());
    assert_eq!(ours.lines().next(), Some("status 700"));
}

#[test]
fn a_forked_child_is_left_alone_and_its_parent_goes_on() {
    let Some(calls) = calls("resolver", "fork", Some(ASIDE)) else { return };
    let expected = format!("child:\nout {BULK} in 21\nwrite 21\nout 4096 in 22\nparent:\nkernel 4096 by 1 in 22\n");
    assert_eq!(calls, expected);
}

#[test]
fn a_released_context_is_prepared_again() {
    let Some(calls) = calls("resolver", "release", Some(ASIDE)) else { return };
    // What was known of its bulk copies went with it.
    assert!(calls.ends_with("release\nwrite 101\nout 4096 in 22\n"), "{calls}");
}

#[test]
fn bulk_copies_of_other_guests_count_until_they_should_have_ended() {
    let gpu = own_gpu(1);
    let calls = |options: Option<GuestOptions>| guest_calls(guest("dlsym", "idle", options)?.env("FAKE_GPU", "1"));
    let beside_others = Some(GuestOptions { alone: false, ..ASIDE });
    let Some(plain) = calls(None) else { return };
    // The page is a hint that expires: a neighbour that is busy for hours is not believed.
    announce(&gpu, Duration::from_secs(3600));
    assert_eq!(calls(beside_others).unwrap(), plain);
    announce(&gpu, Duration::from_secs(9));
    let beside = calls(beside_others).unwrap();
    announce(&gpu, Duration::ZERO);
    assert!(beside.starts_with("kernel 4096 by 1 in 22\n"), "{beside}");
    assert_eq!(calls(beside_others).unwrap(), plain);
}

#[test]
fn blocks_go_aside_of_other_guests_until_their_own_stream_is_bulk() {
    let gpu = own_gpu(2);
    announce(&gpu, Duration::from_secs(9));
    let Some(mut guest) = guest("dlsym", "idle-blocks", Some(GuestOptions { alone: false, ..ASIDE })) else { return };
    let calls = guest_calls(guest.env("FAKE_GPU", "2")).unwrap();
    let block = BULK / 5;
    let aside = format!("kernel {block} by 16 in 22\nwrite 22\n").repeat(2);
    let whole = format!("out {block} in 22\nwrite 22\n").repeat(3);
    assert_eq!(calls, aside + &whole);
}

#[test]
fn small_copies_avoid_programs_that_copy_out_of_the_gpu_and_announce_nothing() {
    let beside = |sent: &str, received: &str| {
        let mut guest = guest("dlsym", "idle-beside", Some(GuestOptions { alone: false, ..ASIDE }))?;
        guest_calls(guest.env("FAKE_GPU", "3").env("FAKE_NVML_SENT", sent).env("FAKE_NVML_RECEIVED", received))
    };
    // Bytes a microsecond: 55 GB/s out of the GPU.
    let Some(out) = beside("60010", "1") else { return };
    assert_eq!(out, "aside after some readings\n");
    // The same rate into it, for which the GPU sends requests.
    assert_eq!(beside("5200", "59700").unwrap(), "whole after some readings\n");
}

/// The GPU of a guest that is given this number as `FAKE_GPU`.
fn own_gpu(number: u8) -> BoardGpu {
    let mut uuid = [7; 16];
    uuid[15] = number;
    uuid
}

/// Writes on the user's board, as a guest with a bulk copy on this GPU does, that it ends after this time.
fn announce(gpu: &BoardGpu, after: Duration) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the call to write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let end = if after.is_zero() { 0 } else { now + after.as_nanos() as u64 };
    let board = Board::of_user().expect("System V shared memory");
    let [until, by] = board.bulk(bulk_place(gpu));
    until.store(end, Ordering::Relaxed);
    by.store(std::process::id().into(), Ordering::Relaxed);
}

#[test]
fn guests_tell_each_of_its_own_bytes_and_whose_copies_small_ones_met() {
    let options = GuestOptions { alone: false, ..ASIDE };
    let mut guests = Vec::new();
    for _ in 0..2 {
        let Some(mut guest) = guest("dlsym", "told", Some(options)) else { return };
        let mut guest = guest.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(guest.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "told\n");
        guests.push(guest);
    }
    let rows = Board::of_user().expect("System V shared memory").read().rows;
    for guest in &guests {
        let mut own: Vec<_> = rows.iter().filter(|row| row.pid == guest.id()).collect();
        own.sort_by_key(|row| (row.direction == StagingDirection::Out, row.class));
        assert!(own.iter().all(|row| row.gpu == [7; 16]), "{own:?}");
        let told: Vec<_> =
            own.iter().map(|row| (row.direction, row.class, row.bytes, row.copies, row.behind)).collect();
        let behind = Some(Behind::Own(FlowClass::Bulk));
        assert_eq!(
            told,
            [
                (StagingDirection::In, FlowClass::Bulk, BULK as u64, 1, None),
                (StagingDirection::Out, FlowClass::Normal, 4 * 4096, 4, behind),
                (StagingDirection::Out, FlowClass::Bulk, BULK as u64, 1, None),
            ]
        );
    }
    let pids: Vec<u32> = guests.iter().map(Child::id).collect();
    for mut guest in guests {
        drop(guest.stdin.take());
        assert!(guest.wait().unwrap().success());
    }
    let rows = Board::of_user().unwrap().read().rows;
    assert!(rows.iter().all(|row| !pids.contains(&row.pid)), "they have ended");
    let Some(mut alone) = guest("dlsym", "told", Some(ASIDE)) else { return };
    let mut alone = alone.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(alone.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let rows = Board::of_user().unwrap().read().rows;
    assert!(rows.iter().all(|row| row.pid != alone.id()), "`--alone` tells nothing");
    drop(alone.stdin.take());
    assert!(alone.wait().unwrap().success());
}

#[test]
fn a_full_shared_memory_ends_no_guest() {
    let Some(guest) = guest("dlsym", "idle", Some(GuestOptions { alone: false, ..ASIDE })) else { return };
    let script = "mount -t tmpfs -o size=4k none /dev/shm || exit 77; head -c 8192 /dev/zero > /dev/shm/full 2> /dev/null; \
                  env \"$1\" \"$0\" dlsym idle";
    // Only the guest itself has the library in front of it.
    let preload = format!("LD_PRELOAD={}", preload().display());
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script]).arg(guest.get_program()).arg(preload);
    let others = guest.get_envs().filter(|(name, _)| *name != "LD_PRELOAD");
    command.envs(others.filter_map(|(name, value)| Some((name, value?))));
    let Ok(output) = command.output() else { return println!("skipped: there is no `unshare`") };
    if output.status.code() == Some(77) || String::from_utf8_lossy(&output.stderr).starts_with("unshare: ") {
        return println!("skipped: nothing can be mounted here");
    }
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn always_needs_no_bulk_copy() {
    let always = GuestOptions { aside: AsideMode::Always, ..ASIDE };
    let Some(calls) = calls("dlsym", "idle", Some(always)) else { return };
    assert!(!calls.contains("out"), "{calls}");
}

#[test]
fn statistics_are_printed_at_exit() {
    let stats = GuestOptions { stats: true, ..ASIDE };
    let Some(output) = run("resolver", "beside", Some(stats)) else { return };
    let text = String::from_utf8_lossy(&output.stderr);
    let line = |words: &str| text.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == words);
    assert!(line("out of a GPU, queued <= 4 KiB 4 copies 16378 bytes"), "{text}");
    assert!(line(&format!("out of a GPU, queued larger 1 copies {BULK} bytes")), "{text}");
    assert!(line(&format!("into a GPU, waiting larger 1 copies {BULK} bytes")), "{text}");
    assert!(line("5 copies made by a kernel in their own stream"), "{text}");
}

#[test]
fn a_signal_for_statistics_ends_no_program_that_has_not_loaded_the_driver_yet() {
    let stats = GuestOptions { stats: true, ..ASIDE };
    // The second copy of the library, which the loader asks, must leave the signal to the first.
    for audit in ["", "LD_AUDIT"] {
        let script = format!(
            "kill -USR1 $$; exec env {} '{}' resolver signalled",
            if audit.is_empty() { String::new() } else { format!("{audit}={}", preload().display()) },
            guest("resolver", "", None).map(|guest| guest.get_program().display().to_string()).unwrap_or_default()
        );
        let Some(guest) = guest("resolver", "", Some(stats)) else { return };
        let mut command = Command::new("sh");
        command.args(["-c", &script]).envs(guest.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(text.matches("has copied nothing yet").count(), 1, "{text}");
        // By the signal, and at exit.
        assert_eq!(text.matches("headway: copies of process").count(), 2, "{text}");
    }
}

#[test]
fn a_guest_whose_errors_nobody_reads_ends_as_it_would() {
    let stats = GuestOptions { stats: true, lint: true, ..ASIDE };
    let Some(mut command) = guest("resolver", "signalled", Some(stats)) else { return };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status =
        command.env(VARIABLE, format!("{stats}")).env("HEADWAY_GUEST_LOG", "/proc/no/log").stderr(writer).status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{status:?}");
}

#[test]
fn a_library_that_was_preloaded_by_hand_does_nothing() {
    let Some(built) = BUILT.as_ref() else { return };
    let mut command = Command::new(built.folder.path().join("guest"));
    command.args(["resolver", "beside"]).env("LD_LIBRARY_PATH", built.folder.path()).env("LD_PRELOAD", preload());
    let output = command.env_remove(VARIABLE).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), calls("resolver", "beside", None).unwrap());
}

#[test]
fn programs_that_use_no_gpu_run_as_they_do_without_it() {
    let stats = GuestOptions { stats: true, ..ASIDE };
    let output = Command::new("true").env("LD_PRELOAD", preload()).env(VARIABLE, stats.to_string()).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn who_asks_for_counts_of_a_program_without_a_driver_is_told_once() {
    let command = |options: GuestOptions, script: &str| {
        // A shell that knows its own number, as `headway exec` knows the one that its program keeps.
        let script = format!("export HEADWAY_GUEST_FIRST=$$; export LD_PRELOAD='{}'; {script}", preload().display());
        let output = Command::new("sh").args(["-c", &script]).env(VARIABLE, options.to_string()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.contains("loaded no CUDA driver")).count()
    };
    let stats = GuestOptions { stats: true, ..ASIDE };
    assert_eq!(command(stats, "exec true"), 1);
    assert_eq!(command(stats, "exec bash -c 'true; ls /; true'"), 1, "children are silent");
    assert_eq!(command(stats, "sh -c true; sh -c true"), 0, "the first one was not started with the library");
    assert_eq!(command(ASIDE, "exec true"), 0);
    assert_eq!(command(GuestOptions { lint: true, ..ASIDE }, "exec true"), 1);
    assert_eq!(command(GuestOptions { verify: true, ..ASIDE }, "exec true"), 1);
    let script = format!("export {}=/nowhere/log.jsonl; exec true", headway_core::files::guest_log::VARIABLE);
    assert_eq!(command(ASIDE, &script), 1, "nor was a log written");
}
