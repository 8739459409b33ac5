//! What was learnt of copies, kept in the user's cache folder from one program to the next: one small file for each node.
//!
//! The file is this user's own, or it is not used. It is replaced as a whole, so that a reader finds the old one or the new one. Of
//! many processes the last one to write wins, with what it has not learnt itself taken from the file before.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use headway_core::files::copy_cache::{self, KeptCopies, NodeKey};
use headway_core::models::transfer::learning::{LearntClass, merge};
use headway_os::environment::trusted;
use headway_os::{OPEN_NO_LINK, ipc, limits};

/// A file of this program is far smaller.
const BYTES_MAX: u64 = 256 << 10;

/// Where what is learnt on this node is kept.
pub(super) struct Cache {
    folder: PathBuf,
    key: NodeKey,
}

impl Cache {
    /// In `$XDG_CACHE_HOME/headway`, else in `~/.cache/headway`; `None` where neither is an absolute path.
    pub(super) fn of_user(key: NodeKey) -> Option<Self> {
        let folder = |variable: &str| trusted(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
        Some(Self::at(base.join("headway"), key))
    }

    pub(super) const fn at(folder: PathBuf, key: NodeKey) -> Self {
        Self { folder, key }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(format!("copies-{:016x}.json", self.key.hash()))
    }

    /// What was kept; `None` = nothing yet.
    ///
    /// # Errors
    /// A word on a file that is not used.
    pub(super) fn read(&self) -> Result<Option<KeptCopies>, String> {
        let path = self.path();
        let ignored = |why: &str| format!("`{}` is ignored: {why}", path.display());
        let text = match read_own(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ignored(&error.to_string())),
            Ok(text) => text,
        };
        copy_cache::parse(&text, &self.key).map(Some).map_err(|why| ignored(&why.to_string()))
    }

    /// Keeps `learnt` with what the file says of the rest; where that cannot be done, nothing is kept.
    pub(super) fn keep(&self, learnt: &[LearntClass]) {
        let before = self.read().ok().flatten().map(|kept| kept.classes).unwrap_or_default();
        let saved_unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let text = copy_cache::write(&self.key, &KeptCopies { saved_unix, classes: merge(learnt, &before) });
        let _ = self.replace(text.as_bytes());
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if bytes.len() as u64 > limits::file_bytes_max() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        match DirBuilder::new().mode(0o700).recursive(true).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let about = fs::symlink_metadata(&self.folder)?;
        if !about.is_dir() || about.uid() != ipc::user() || about.mode() & 0o022 != 0 {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let new = self.folder.join(format!(".{:016x}.{}.{number}", self.key.hash(), process::id()));
        let written = (|| {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(OPEN_NO_LINK).open(&new)?;
            file.write_all(bytes)?;
            fs::rename(&new, self.path())
        })();
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }
}

/// The text of a file that is this user's own, and that no other user can write.
fn read_own(path: &Path) -> io::Result<String> {
    let file: File = OpenOptions::new().read(true).custom_flags(OPEN_NO_LINK).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.uid() != ipc::user() || about.mode() & 0o022 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not this user's own"));
    }
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use headway_core::models::transfer::learning::{LearntKind, LearntMethod};
    use headway_core::models::transfer::{Direction, HostMemory};
    use headway_os::fork::holds_in_a_child;

    use super::*;

    fn key(gpu: &str) -> NodeKey {
        NodeKey { gpu: gpu.into(), uuid: Some("GPU-1".into()), driver: "580".into(), cpu: "C".into(), cpus: 16 }
    }

    fn learnt(exponent: u32, ns_per_mib: u64) -> LearntClass {
        let method = LearntMethod { tuning: None, copies: 5, ns_per_mib, cpu_ns_per_mib: ns_per_mib };
        let kind = LearntKind { direction: Direction::D2h, memory: HostMemory::Untouched };
        LearntClass { kind, exponent, methods: vec![method] }
    }

    #[test]
    fn what_is_kept_is_read_again_by_this_user_on_this_node_only() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("a/b/headway"), key("one"));
        assert_eq!(cache.read(), Ok(None));
        cache.keep(&[learnt(20, 7)]);
        let kept = cache.read().unwrap().unwrap();
        assert_eq!((kept.classes.as_slice(), kept.day().len()), (&[learnt(20, 7)][..], 10));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&cache.folder), mode(&cache.path())), (0o700, 0o600));
        assert_eq!(Cache::at(cache.folder.clone(), key("other")).read(), Ok(None));
        // Nothing is left behind.
        assert_eq!(fs::read_dir(&cache.folder).unwrap().count(), 1);
    }

    #[test]
    fn damaged_and_foreign_files_are_ignored_with_a_word_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("headway"), key("one"));
        cache.keep(&[learnt(20, 7)]);
        let good = fs::read_to_string(cache.path()).unwrap();
        let foreign = good.replace("\"one\"", "\"two\"");
        let newer = good.replace("\"schema\":1", "\"schema\":2");
        for text in ["", "{", "[]", "null", &good[..good.len() / 2], &foreign, &newer, &"[".repeat(300_000)] {
            fs::write(cache.path(), text).unwrap();
            let word = cache.read().unwrap_err();
            assert!(word.contains("is ignored: "), "{word}");
            cache.keep(&[learnt(20, 8)]);
            assert_eq!(cache.read().unwrap().unwrap().classes, [learnt(20, 8)]);
        }
        fs::write(cache.path(), [0xff, 0xfe]).unwrap();
        assert!(cache.read().is_err());
        fs::write(cache.path(), &good).unwrap();
        fs::set_permissions(cache.path(), fs::Permissions::from_mode(0o666)).unwrap();
        assert!(cache.read().unwrap_err().contains("own"));
    }

    #[test]
    fn links_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("headway"), key("one"));
        cache.keep(&[learnt(20, 7)]);
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(cache.path(), &elsewhere).unwrap();
        symlink(&elsewhere, cache.path()).unwrap();
        let before = fs::read(&elsewhere).unwrap();
        assert!(cache.read().is_err());
        cache.keep(&[learnt(20, 9)]);
        assert_eq!(fs::read(&elsewhere).unwrap(), before);
        assert!(!fs::symlink_metadata(cache.path()).unwrap().is_symlink(), "the link was replaced, not followed");
        let linked = Cache::at(folder.path().join("linked"), key("one"));
        symlink(folder.path(), &linked.folder).unwrap();
        linked.keep(&[learnt(20, 9)]);
        assert_eq!(linked.read(), Ok(None), "a folder that is a link gets no file");
    }

    #[test]
    fn where_nothing_can_be_written_nothing_is_kept_and_nothing_fails() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("headway"), b"a file").unwrap();
        let cache = Cache::at(folder.path().join("headway"), key("one"));
        cache.keep(&[learnt(20, 7)]);
        assert_eq!(fs::read(folder.path().join("headway")).unwrap(), b"a file");
    }

    #[test]
    fn processes_that_write_at_once_leave_a_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("headway"), key("one"));
        cache.keep(&[learnt(30, 1)]);
        assert!(holds_in_a_child(|| {
            let writers = (0..4u32).map(|writer| {
                std::thread::scope(|scope| {
                    scope.spawn(|| (0..20).for_each(|turn| cache.keep(&[learnt(20 + writer, turn + 1)]))).join().is_ok()
                })
            });
            writers.into_iter().all(|done| done)
        }));
        std::thread::scope(|scope| {
            for writer in 0..4u32 {
                let cache = &cache;
                scope.spawn(move || (0..20).for_each(|turn| cache.keep(&[learnt(24 + writer, turn + 1)])));
            }
            for _ in 0..50 {
                assert!(cache.read().unwrap().is_some());
            }
        });
        let classes = cache.read().unwrap().unwrap().classes;
        // What was there before the race is still there.
        assert!(classes.contains(&learnt(30, 1)) && classes.contains(&learnt(20, 20)), "{classes:?}");
    }
}
