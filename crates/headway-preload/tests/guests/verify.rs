//! `--verify`: wrong bytes are found, named and replaced; right ones are left alone.

use headway_core::files::guest::{AsideMode, GuestOptions};
use headway_core::files::guest_log::{Became, Call, Difference, GuestLogLine, VARIABLE, VerifyCounts};

use super::log::{Read, logged, read};
use super::{ASIDE, FAST, LARGE, YIELD, guest};

const VERIFY_FAST: GuestOptions = GuestOptions { verify: true, ..FAST };
const VERIFY_ASIDE: GuestOptions = GuestOptions { verify: true, aside: AsideMode::Always, ..ASIDE };

fn verified(log: &Read) -> (u64, u64, u64) {
    let verified = log
        .lines
        .iter()
        .find_map(|line| if let GuestLogLine::Verified(verified) = line { Some(*verified) } else { None });
    let VerifyCounts { compared, different, not_compared } = verified.unwrap();
    (compared, different, not_compared)
}

fn differences(log: &Read) -> Vec<Difference> {
    let difference =
        |line: &GuestLogLine| if let GuestLogLine::Difference(difference) = line { Some(*difference) } else { None };
    log.lines.iter().filter_map(difference).collect()
}

/// Runs a guest on a driver whose copies for Headway give wrong bytes.
fn corrupted(task: &str, options: GuestOptions) -> Option<(bool, String, Read)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let output =
        guest("resolver", task, Some(options))?.env(VARIABLE, &path).env("FAKE_CORRUPT", "1").output().unwrap();
    Some((output.status.success(), String::from_utf8(output.stderr).unwrap(), read(&path)))
}

#[test]
fn right_copies_are_compared_and_left_alone() {
    let Some((output, folder)) = logged("resolver", "large", VERIFY_FAST) else { return };
    let log = read(&folder.path().join("log"));
    // Two to fill the GPU, and three more.
    assert!(output.status.success(), "{output:?}");
    assert_eq!(verified(&log), (5, 0, 0));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("5 compared with the driver's, 0 differed, 0 could not be compared"), "{text}");
    assert!(!text.contains("WRONG"), "{text}");
}

#[test]
fn wrong_large_copies_are_named_and_mended_both_ways() {
    let Some((fine, _, _)) = corrupted("large", FAST) else { return };
    assert!(!fine, "without --verify the guest gets wrong bytes: otherwise this test shows nothing");
    // The guest compares every byte of what it gets.
    let (fine, text, log) = corrupted("large", VERIFY_FAST).unwrap();
    assert!(fine, "{text}");
    assert_eq!(verified(&log), (5, 5, 0));
    let differences = differences(&log);
    assert_eq!(differences.len(), 5);
    assert!(differences.iter().all(|difference| difference.became == Became::Fast && difference.offset.0 > 0));
    assert_eq!(differences.iter().filter(|difference| difference.call == Call::In).count(), 3);
    assert!(text.contains(&format!("headway: WRONG: cuMemcpyDtoHAsync of {LARGE} bytes between ")), "{text}");
}

#[test]
fn wrong_small_copies_that_wait_are_mended_and_queued_ones_are_counted() {
    let Some((fine, text, log)) = corrupted("ordinary", VERIFY_ASIDE) else { return };
    assert!(fine, "{text}");
    let [difference] = differences(&log).try_into().unwrap();
    assert_eq!((difference.became, difference.offset.0, difference.bytes.0), (Became::Aside, 2048, 4096));
    let (output, folder) = logged("resolver", "beside", VERIFY_ASIDE).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(verified(&read(&folder.path().join("log"))), (1, 0, 4));
}

#[test]
fn queued_pieces_are_counted_as_not_compared() {
    let Some((output, folder)) = logged("resolver", "bulk", GuestOptions { verify: true, ..YIELD }) else { return };
    assert!(output.status.success(), "{output:?}");
    assert_eq!(verified(&read(&folder.path().join("log"))), (0, 0, 1));
}
