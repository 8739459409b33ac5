//! What guests learn of copies, and keep for the next one.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use headway_core::files::guest::GuestOptions;

use super::{NOTHING, guest};

/// Copies of ordinary memory go by what is known of them.
const LEARNS: GuestOptions = GuestOptions { fast: true, stats: true, no_cache: false, ..NOTHING };

/// Runs a guest that makes three large copies; its statistics. `None` where there is no compiler.
fn statistics(cache: &Path, options: GuestOptions) -> Option<String> {
    let mut command = guest("resolver", "large", Some(options))?;
    let command = command.env("XDG_CACHE_HOME", cache).env("HOME", cache).env_remove("HEADWAY_CACHE");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    Some(text)
}

fn kept(cache: &Path) -> Vec<PathBuf> {
    let Ok(folder) = fs::read_dir(cache.join("headway")) else { return Vec::new() };
    folder.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn what_a_guest_has_learnt_the_next_one_begins_with() {
    let cache = tempfile::tempdir().unwrap();
    let Some(first) = statistics(cache.path(), LEARNS) else { return };
    assert!(first.contains("chosen by built-in figures (PCIe 4, not measured, CPUs with"), "{first}");
    assert!(first.contains("copies of this program were timed") && !first.contains("kept on"), "{first}");
    let [file] = kept(cache.path()).try_into().unwrap();
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let second = statistics(cache.path(), LEARNS).unwrap();
    assert!(second.contains("copies of earlier programs, kept on 20"), "{second}");
    // A file that makes no sense is named, and replaced.
    fs::write(&file, "{").unwrap();
    let third = statistics(cache.path(), LEARNS).unwrap();
    assert!(third.contains("is ignored: it is damaged"), "{third}");
    assert!(statistics(cache.path(), LEARNS).unwrap().contains("kept on 20"));
}

#[test]
fn without_a_cache_nothing_is_read_or_written() {
    let cache = tempfile::tempdir().unwrap();
    let Some(text) = statistics(cache.path(), GuestOptions { no_cache: true, ..LEARNS }) else { return };
    assert!(text.contains("chosen by built-in figures") && kept(cache.path()).is_empty(), "{text}");
    let mut command = guest("resolver", "large", Some(LEARNS)).unwrap();
    let output = command.env("XDG_CACHE_HOME", cache.path()).env("HEADWAY_CACHE", "off").output().unwrap();
    assert!(output.status.success() && kept(cache.path()).is_empty(), "{output:?}");
}

#[test]
fn a_home_that_cannot_be_written_fails_nothing() {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o500)).unwrap();
    for cache in
        [home.path().to_owned(), home.path().join("missing"), PathBuf::from("/dev/null/x"), PathBuf::from("relative")]
    {
        let Some(text) = statistics(&cache, LEARNS) else { return };
        assert!(text.contains("chosen by built-in figures"), "{text}");
    }
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_guest_that_may_write_no_files_keeps_nothing_and_ends_as_it_would() {
    let cache = tempfile::tempdir().unwrap();
    let Some(mut command) = guest("resolver", "large", Some(LEARNS)) else { return };
    // SAFETY: the call is one that may be made between `fork` and `exec`.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
            Ok(())
        });
    }
    let output = command.env("XDG_CACHE_HOME", cache.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(kept(cache.path()).is_empty());
}

#[test]
fn guests_that_end_at_once_leave_a_whole_file() {
    let cache = tempfile::tempdir().unwrap();
    let start = || Some(guest("resolver", "large", Some(LEARNS))?.env("XDG_CACHE_HOME", cache.path()).spawn().unwrap());
    let Some(first) = start() else { return };
    let all = [Some(first), start(), start(), start()];
    for child in all.into_iter().flatten() {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    assert_eq!(kept(cache.path()).len(), 1);
    assert!(statistics(cache.path(), LEARNS).unwrap().contains("kept on 20"));
}
