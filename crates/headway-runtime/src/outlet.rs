//! Where streams write: one file per stream in a folder that appears only when everything in it is whole.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use headway_core::log::PAGE_MARK;

/// Output that cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The folder cannot be made.
    #[error("cannot create output folder `{path}`")]
    Create { path: PathBuf, source: io::Error },
    /// Something else stands where the result belongs.
    #[error(
        "`{path}` exists and {reason}; nothing is replaced but earlier results: choose another folder with `--out`"
    )]
    InTheWay {
        /// What is there.
        path: PathBuf,
        /// Why it is no earlier result.
        reason: String,
    },
    /// Writing failed; nothing was left behind.
    #[error("cannot write `{path}`")]
    Write {
        /// Where the file would have been.
        path: PathBuf,
        source: io::Error,
    },
    /// The finished folder cannot be put in its place.
    #[error("cannot move the finished results to `{path}`")]
    Publish {
        /// Where they belong.
        path: PathBuf,
        source: io::Error,
    },
}

/// The summary, written last: a folder without it is no result.
pub const MARK: &str = "summary.json";
/// The trace of a run; nobody else's folder has one of that name beside a [`MARK`].
pub const TRACE: &str = "trace.perfetto-trace";
/// Name of the page inside a result.
pub const PAGE: &str = "page.html";

/// In a result of a run that ended early, a text that says so.
pub const INCOMPLETE: &str = "INCOMPLETE.txt";
/// What the names of outputs end with that end early.
pub const PART: &str = ".incomplete";

/// Name of a run's log inside a result, as text.
pub const LOG: &str = "run.jsonl";
/// The same, compressed.
pub const PACKED_LOG: &str = "run.jsonl.gz";

/// All names that a result can have at its top. A folder with any other belongs to somebody, and is never replaced.
pub const NAMES: [&str; 11] = [
    MARK,
    TRACE,
    INCOMPLETE,
    PAGE,
    LOG,
    PACKED_LOG,
    "workload.toml",
    "plan.json",
    "manifest.json",
    "sample.bin",
    "streams",
];
/// Results of runs that ended early are numbered up to this, where others are in their way.
const PARTS_MAX: u32 = 100;

/// A name of a file for `id`, whatever it holds, and another one for every other id.
///
/// Letters, digits, `-`, `_` and `.` stay; each byte of anything else, and a `.` at the beginning, becomes `%` and two
/// hexadecimal digits. So no id leads out of its folder, and the id can be read back.
#[must_use]
pub fn file_name(id: &str) -> String {
    let mut name = String::with_capacity(id.len());
    for (at, c) in id.char_indices() {
        if c.is_alphanumeric() || matches!(c, '-' | '_') || (c == '.' && at > 0) {
            name.push(c);
        } else {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                name.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    name
}

/// A folder under construction beside its final place; dropped unfinished, it vanishes.
#[derive(Debug)]
pub struct Outlet {
    place: PathBuf,
    partial: PathBuf,
    /// Folders above it that did not exist before, the innermost first.
    above: Vec<PathBuf>,
    published: bool,
}

impl Outlet {
    /// Begins a result that will appear at `place`.
    ///
    /// # Errors
    /// [`OutputError::InTheWay`] if something other than an earlier result is there, [`OutputError::Create`].
    pub fn create(place: &Path) -> Result<Self, OutputError> {
        replaceable(place)?;
        let name = place.file_name().map_or_else(|| "out".into(), |name| name.to_string_lossy().into_owned());
        let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        let partial = parent.join(format!(".{name}.partial-{}", std::process::id()));
        let missing = |above: &&Path| !above.as_os_str().is_empty() && above.symlink_metadata().is_err();
        let above = parent.ancestors().take_while(missing).map(Path::to_owned).collect();
        // From here on, dropping it removes what was made, whatever fails.
        let outlet = Self { place: place.to_owned(), partial, above, published: false };
        let error = |source| OutputError::Create { path: place.to_owned(), source };
        fs::create_dir_all(parent).map_err(|source| {
            // The system says that a file "exists" where a folder would be needed.
            let file = parent.ancestors().any(|above| above.is_file());
            error(if file { io::ErrorKind::NotADirectory.into() } else { source })
        })?;
        if outlet.partial.exists() {
            fs::remove_dir_all(&outlet.partial).map_err(error)?;
        }
        fs::create_dir(&outlet.partial).map_err(error)?;
        Ok(outlet)
    }

    /// Begins results of the workload `name`, which never take the place of another workload's.
    ///
    /// # Errors
    /// Those of [`Outlet::create`]; [`OutputError::InTheWay`] if results of a workload of another name are there.
    pub fn create_for(place: &Path, name: &str) -> Result<Self, OutputError> {
        if let Some(other) = workload_of(place, "name").filter(|other| other != name) {
            let reason = format!("holds results of another workload, `{other}`, which stay");
            return Err(OutputError::InTheWay { path: place.to_owned(), reason });
        }
        Self::create(place)
    }

    /// What a user should know before results of the workload with that hash take the place of others: those of a workload that had the same name and
    /// other contents go.
    #[must_use]
    pub fn notice(&self, hash: &str) -> Option<String> {
        workload_of(&self.place, "hash").filter(|other| other != hash)?;
        let place = self.place.display();
        Some(format!(
            "replaces the results in `{place}`, of a workload with the same name and other contents; `--label` or `--out` keeps both"
        ))
    }

    /// Begins a report that will appear at `place`. It takes the place of an earlier report, and never that of a run, whose log it may be made of.
    ///
    /// # Errors
    /// Those of [`Outlet::create`]; [`OutputError::InTheWay`] if the log of a run is there.
    pub fn create_report(place: &Path) -> Result<Self, OutputError> {
        if let Some(log) = [LOG, PACKED_LOG].iter().find(|log| place.join(log).symlink_metadata().is_ok()) {
            let reason = format!("holds `{log}`, the log of a run, which a report would replace");
            return Err(OutputError::InTheWay { path: place.to_owned(), reason });
        }
        Self::create(place)
    }

    /// Where the results will be.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// The path of `name` while the folder is under construction.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.partial.join(name)
    }

    /// Creates a file, with the folders above it. What has been written already is never begun anew.
    ///
    /// # Errors
    /// [`OutputError`]; also if there is a file of that name, as the file system tells names apart.
    pub fn file(&self, name: &str) -> Result<OutFile, OutputError> {
        // Errors name the final place: the one under construction is gone when somebody reads them.
        let path = self.place.join(name);
        let error = |source| OutputError::Write { path: path.clone(), source };
        let partial = self.path(name);
        if let Some(parent) = partial.parent() {
            fs::create_dir_all(parent).map_err(error)?;
        }
        let file = File::create_new(partial).map_err(error)?;
        Ok(OutFile { path, writer: BufWriter::with_capacity(1 << 16, file), bytes: 0 })
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), OutputError> {
        let mut file = self.file(name)?;
        file.write(bytes)?;
        file.finish().map(drop)
    }

    /// Marks an output as one that ends early, and returns its name.
    ///
    /// # Errors
    /// [`OutputError::Write`].
    pub fn mark(&self, name: &str) -> Result<String, OutputError> {
        let marked = format!("{name}{PART}");
        fs::rename(self.path(name), self.path(&marked))
            .map_err(|source| OutputError::Write { path: self.place.join(&marked), source })?;
        Ok(marked)
    }

    /// Puts the folder of a run that ended early in its place, with `why` as its mark. A whole result stays: then the folder
    /// goes beside it, to the place with [`PART`] at its end.
    ///
    /// # Errors
    /// Those of [`Outlet::publish`].
    pub fn publish_incomplete(mut self, why: &str) -> Result<PathBuf, OutputError> {
        self.write(INCOMPLETE, why.as_bytes())?;
        let whole = self.place.join(MARK).is_file() && !self.place.join(INCOMPLETE).exists();
        if whole || replaceable(&self.place).is_err() {
            let sibling = |number: u32| {
                let mut name = self.place.clone().into_os_string();
                name.push(PART);
                if number > 1 {
                    name.push(format!("-{number}"));
                }
                PathBuf::from(name)
            };
            // Hours of work are not given up because somebody has put a file there.
            if let Some(free) = (1..=PARTS_MAX).map(sibling).find(|place| replaceable(place).is_ok()) {
                self.place = free;
            }
        }
        self.publish()
    }

    /// Puts the finished folder in its place, instead of an earlier result.
    ///
    /// # Errors
    /// [`OutputError::Publish`]; an earlier result is then still there.
    pub fn publish(mut self) -> Result<PathBuf, OutputError> {
        let error = |source| OutputError::Publish { path: self.place.clone(), source };
        replaceable(&self.place)?;
        let mut old = self.partial.clone().into_os_string();
        old.push(".old");
        let old = PathBuf::from(old);
        let replaced = self.place.symlink_metadata().is_ok();
        if replaced {
            fs::rename(&self.place, &old).map_err(error)?;
        }
        if let Err(source) = fs::rename(&self.partial, &self.place) {
            if replaced {
                // Nothing better can be done if this fails too; the first error says what happened.
                let _ = fs::rename(&old, &self.place);
            }
            return Err(error(source));
        }
        self.published = true;
        if replaced {
            fs::remove_dir_all(&old).map_err(error)?;
        }
        Ok(self.place.clone())
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        if !self.published {
            // A leftover folder starts with a dot and ends in `.partial-PID`: it cannot be taken for a result.
            let _ = fs::remove_dir_all(&self.partial);
            for folder in &self.above {
                // Somebody else may use it by now; then it is not empty and stays.
                let _ = fs::remove_dir(folder);
            }
        }
    }
}

/// Checks that nothing but an earlier result or an empty folder stands at `place`.
fn replaceable(place: &Path) -> Result<(), OutputError> {
    let in_the_way = |reason: &str| Err(OutputError::InTheWay { path: place.to_owned(), reason: reason.to_owned() });
    let Ok(there) = place.symlink_metadata() else { return Ok(()) };
    if !there.is_dir() {
        return in_the_way("is not a folder");
    }
    let error = |source| OutputError::Create { path: place.to_owned(), source };
    let mut empty = true;
    for entry in fs::read_dir(place).map_err(error)? {
        let name = entry.map_err(error)?.file_name();
        if !NAMES.iter().any(|known| name == *known) {
            return in_the_way(&format!("holds `{}`, which Headway did not write", name.to_string_lossy()));
        }
        empty = false;
    }
    let is_result = place.join(MARK).is_file() && (place.join(TRACE).is_file() || is_page(&place.join(PAGE)));
    if empty || is_result { Ok(()) } else { in_the_way("is not a whole result") }
}

/// `name` or `hash` of the workload whose results are at `place`.
fn workload_of(place: &Path, key: &str) -> Option<String> {
    let summary = fs::read(place.join(MARK)).ok()?;
    let summary: serde_json::Value = serde_json::from_slice(&summary).ok()?;
    summary["workload"][key].as_str().map(str::to_owned)
}

/// Whether Headway wrote the page: what is made of a guest's log has a page and no trace.
fn is_page(path: &Path) -> bool {
    const BEGINNING: u64 = 1 << 10;
    let mut beginning = String::new();
    let is_file = path.symlink_metadata().is_ok_and(|there| there.is_file());
    let read = is_file.then(|| File::open(path).ok()?.take(BEGINNING).read_to_string(&mut beginning).ok());
    read.flatten().is_some() && beginning.contains(PAGE_MARK)
}

/// A file under construction.
#[derive(Debug)]
pub struct OutFile {
    path: PathBuf,
    writer: BufWriter<File>,
    bytes: u64,
}

impl OutFile {
    /// Appends `bytes`.
    ///
    /// # Errors
    /// [`OutputError::Write`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        self.bytes += bytes.len() as u64;
        self.writer.write_all(bytes).map_err(|source| OutputError::Write { path: self.path.clone(), source })
    }

    /// Bytes appended so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.bytes
    }

    /// Writes out what is buffered and returns the size of the file.
    ///
    /// # Errors
    /// [`OutputError::Write`].
    pub fn finish(mut self) -> Result<u64, OutputError> {
        self.writer.flush().map_err(|source| OutputError::Write { path: self.path.clone(), source })?;
        Ok(self.bytes)
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_an_earlier_report_and_no_run() {
        let folder = tempfile::tempdir().unwrap();
        for log in [LOG, PACKED_LOG] {
            let place = folder.path().join(log);
            let outlet = Outlet::create(&place).unwrap();
            for name in [log, TRACE, MARK] {
                outlet.write(name, b"{}").unwrap();
            }
            outlet.publish().unwrap();
            let refused = Outlet::create_report(&place).unwrap_err().to_string();
            assert!(refused.contains(log) && refused.contains("--out"), "{refused}");
            assert!(place.join(log).is_file());
        }
        let place = folder.path().join("report");
        for _ in 0..2 {
            let outlet = Outlet::create_report(&place).unwrap();
            outlet.write(TRACE, b"").unwrap();
            outlet.write(MARK, b"{}").unwrap();
            outlet.publish().unwrap();
        }
    }

    #[test]
    fn results_of_another_workload_are_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("result");
        let run = |name: &str| {
            let outlet = Outlet::create_for(&place, name)?;
            outlet.write(TRACE, b"")?;
            outlet.write(MARK, format!(r#"{{"workload": {{"name": "{name}"}}}}"#).as_bytes())?;
            outlet.publish()
        };
        run("cameras").unwrap();
        run("cameras").unwrap();
        let refused = run("radar").unwrap_err().to_string();
        assert!(
            refused.contains("holds results of another workload, `cameras`, which stay; nothing is replaced"),
            "{refused}"
        );
    }

    #[test]
    fn a_result_appears_whole_and_replaces_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("result");
        for text in ["one", "two"] {
            let outlet = Outlet::create(&place).unwrap();
            outlet.write("streams/data", text.as_bytes()).unwrap();
            outlet.write(TRACE, b"").unwrap();
            outlet.write(MARK, b"{}").unwrap();
            outlet.publish().unwrap();
            assert_eq!(fs::read_to_string(place.join("streams/data")).unwrap(), text);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn every_id_has_a_file_of_its_own_inside_the_folder() {
        let ids = [
            "a", "A", "a/b", "a_b", "a:b", "a%2Fb", "a%b", "../a", "..", ".", "", ".a", "a.", "a\0", "a\n", "a b", "é",
            "e\u{301}", "日本",
        ];
        let names: std::collections::BTreeSet<String> = ids.iter().map(|id| file_name(id)).collect();
        assert_eq!(names.len(), ids.len(), "{names:?}");
        for name in &names {
            assert!(!name.starts_with('.') && !name.contains(['/', '\0', '\n', ' ']), "{name}");
        }
        let read = ["cam-00", "gpu_0.in", "a/b", "../a"].map(file_name);
        assert_eq!(read, ["cam-00", "gpu_0.in", "a%2Fb", "%2E.%2Fa"]);
    }

    #[test]
    fn a_file_that_is_written_is_not_begun_again() {
        let folder = tempfile::tempdir().unwrap();
        let outlet = Outlet::create(&folder.path().join("result")).unwrap();
        outlet.write("streams/a.bin", b"first").unwrap();
        assert!(matches!(outlet.write("streams/a.bin", b"second"), Err(OutputError::Write { .. })));
        assert_eq!(fs::read(outlet.path("streams/a.bin")).unwrap(), b"first");
    }

    #[test]
    fn a_result_that_ended_early_replaces_no_whole_one_and_is_replaced_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("result");
        let begun = |text: &str| {
            let outlet = Outlet::create(&place).unwrap();
            for (name, text) in [("streams/a.bin", text), (TRACE, ""), (MARK, "{}")] {
                outlet.write(name, text.as_bytes()).unwrap();
            }
            outlet
        };
        let early = |text: &str| {
            let outlet = begun(text);
            assert_eq!(outlet.mark("streams/a.bin").unwrap(), "streams/a.bin.incomplete");
            outlet.publish_incomplete("interrupted\n").unwrap()
        };
        let read = |place: &Path, name: &str| fs::read_to_string(place.join(name)).unwrap_or_default();
        // In the place itself if nothing or another part is there.
        for text in ["one", "two"] {
            assert_eq!(early(text), place);
            assert_eq!(read(&place, "streams/a.bin.incomplete"), text);
            assert_eq!(
                (read(&place, "streams/a.bin"), read(&place, INCOMPLETE)),
                (String::new(), "interrupted\n".into())
            );
        }
        assert_eq!(begun("whole").publish().unwrap(), place);
        assert!(!place.join(INCOMPLETE).exists());
        let sibling = folder.path().join("result.incomplete");
        assert_eq!(early("three"), sibling);
        assert_eq!(
            (read(&place, "streams/a.bin"), read(&sibling, "streams/a.bin.incomplete")),
            ("whole".into(), "three".into())
        );
        // Somebody else's file is in the way.
        fs::write(sibling.join("notes"), "mine").unwrap();
        assert_eq!(early("four"), folder.path().join("result.incomplete-2"));
        assert_eq!(read(&sibling, "notes"), "mine");
    }

    #[test]
    fn an_unfinished_result_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        for place in ["result", "deep/below/result"] {
            let outlet = Outlet::create(&folder.path().join(place)).unwrap();
            outlet.write("data", b"half").unwrap();
            drop(outlet);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{place}");
        }
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(matches!(Outlet::create(&folder.path().join("file/below/result")), Err(OutputError::Create { .. })));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn folders_above_that_somebody_else_uses_stay() {
        let folder = tempfile::tempdir().unwrap();
        let outlet = Outlet::create(&folder.path().join("a/b/result")).unwrap();
        fs::write(folder.path().join("a/theirs"), "").unwrap();
        drop(outlet);
        assert!(folder.path().join("a/theirs").exists());
        assert!(!folder.path().join("a/b").exists());
    }

    #[test]
    fn what_is_not_a_result_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.tex"), "years of work").unwrap();
        assert!(matches!(Outlet::create(folder.path()), Err(OutputError::InTheWay { .. })));
        let file = folder.path().join("thesis.tex");
        assert!(matches!(Outlet::create(&file), Err(OutputError::InTheWay { .. })));
        assert_eq!(fs::read_to_string(file).unwrap(), "years of work");
    }

    #[test]
    fn a_result_to_which_somebody_added_a_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("result");
        let finished = |place: &Path| {
            let outlet = Outlet::create(place)?;
            outlet.write(TRACE, b"")?;
            outlet.write(MARK, b"{}")?;
            outlet.publish()
        };
        finished(&place).unwrap();
        fs::write(place.join("notes.txt"), "mine").unwrap();
        let error = finished(&place).unwrap_err();
        assert!(error.to_string().contains("holds `notes.txt`"), "{error}");
        assert_eq!(fs::read_to_string(place.join("notes.txt")).unwrap(), "mine");
    }

    #[test]
    fn what_appears_at_the_place_during_a_run_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("result");
        let outlet = Outlet::create(&place).unwrap();
        fs::write(&place, "theirs").unwrap();
        assert!(matches!(outlet.publish(), Err(OutputError::InTheWay { .. })));
        assert_eq!(fs::read_to_string(&place).unwrap(), "theirs");
    }

    #[test]
    fn a_full_disk_is_an_error_and_not_a_short_file() {
        let path = PathBuf::from("/dev/full");
        let Ok(file) = File::create(&path) else {
            eprintln!("skipped: this system has no /dev/full");
            return;
        };
        let mut full = OutFile { path, writer: BufWriter::new(file), bytes: 0 };
        full.write(&[0; 100]).unwrap();
        assert!(matches!(full.finish(), Err(OutputError::Write { .. })));
    }
}
