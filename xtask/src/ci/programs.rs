//! Test programs, built by cargo and run side by side: many tests wait for processes and time limits, and a CPU would be idle.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Deserialize;

/// A program that takes longer hangs, and is killed.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// A program with tests.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// Folder of the crate, in which cargo runs it.
    folder: PathBuf,
    /// Name of the target, such as `it`.
    target: String,
    file: PathBuf,
}

/// A line that `cargo build --message-format=json` prints.
#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds the programs that `cargo test` with these arguments would run.
pub(super) fn build(command: &mut Command) -> anyhow::Result<Vec<Program>> {
    command.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let done = command.stderr(Stdio::inherit()).output().with_context(|| format!("start {command:?}"))?;
    ensure!(done.status.success(), "{command:?} failed: {}", done.status);
    programs(&String::from_utf8_lossy(&done.stdout))
}

fn programs(lines: &str) -> anyhow::Result<Vec<Program>> {
    let mut found = Vec::new();
    for line in lines.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).context("what cargo prints")?;
        let tests = message.reason == "compiler-artifact" && message.profile.is_some_and(|profile| profile.test);
        if let (true, Some(manifest), Some(target), Some(file)) =
            (tests, message.manifest_path, message.target, message.executable)
        {
            let folder = manifest.parent().unwrap_or(&manifest).to_owned();
            found.push(Program { folder, target: target.name, file });
        }
    }
    Ok(found)
}

/// Runs all, as many at a time as there are CPUs and one more. What a program printed is shown whole if it failed, else its summary.
///
/// # Errors
/// Names the programs that failed.
pub(super) fn run(programs: &[Program]) -> anyhow::Result<()> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let at_a_time = thread::available_parallelism().map_or(1, usize::from) + 1;
    thread::scope(|scope| {
        for _ in 0..at_a_time.min(programs.len()) {
            scope.spawn(|| {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    let ended = program.run();
                    let text = program.summary(&ended, start.elapsed());
                    // One write, so that texts of two programs do not mix.
                    let _ = io::stdout().lock().write_all(text.as_bytes());
                    if !ended.is_ok_and(|ended| ended.passed) {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(program.to_string());
                    }
                }
            });
        }
    });
    let mut failed: Vec<_> = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort();
    ensure!(failed.is_empty(), "{} of {} test programs failed: {}", failed.len(), programs.len(), failed.join(", "));
    Ok(())
}

/// How a program ended, and what it printed.
struct Ended {
    passed: bool,
    how: String,
    printed: String,
}

impl Program {
    fn run(&self) -> anyhow::Result<Ended> {
        let printed = self.file.with_extension("printed");
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&printed)?;
        let mut child = Command::new(&self.file)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file.try_clone()?)
            .spawn()
            .with_context(|| format!("start {}", self.file.display()))?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if start.elapsed() > LIMIT {
                child.kill()?;
                child.wait()?;
                break None;
            }
            thread::sleep(Duration::from_millis(20));
        };
        let mut printed = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut printed)?;
        Ok(Ended {
            passed: status.is_some_and(|status| status.success()),
            how: status.map_or_else(|| format!("killed after {} s", LIMIT.as_secs()), |status| status.to_string()),
            printed: String::from_utf8_lossy(&printed).into_owned(),
        })
    }

    fn summary(&self, ended: &anyhow::Result<Ended>, took: Duration) -> String {
        let took = took.as_secs_f64();
        match ended {
            Ok(Ended { passed: true, printed, .. }) => {
                let kept = |line: &&str| line.starts_with("test result: ") || line.starts_with("skipped");
                let lines = printed.lines().filter(kept).fold(String::new(), |text, line| text + "    " + line + "\n");
                format!("ok {took:7.1} s  {self}\n{lines}")
            }
            Ok(Ended { how, printed, .. }) => format!("FAILED {took:.1} s  {self}: {how}\n{printed}\nend of {self}\n"),
            Err(error) => format!("FAILED  {self}: {error:#}\n"),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.folder.file_name().unwrap_or_default().to_string_lossy();
        write!(f, "{name} {}", self.target)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn only_programs_with_tests_are_taken_from_what_cargo_prints() {
        let line = |reason: &str, test: bool, file: &str| {
            format!(
                r#"{{"reason":"{reason}","manifest_path":"/a/b/Cargo.toml","target":{{"name":"it","kind":["test"]}},"profile":{{"test":{test}}},"executable":{file}}}"#
            )
        };
        let lines = [
            line("compiler-artifact", true, "\"/t/it-1\""),
            line("compiler-artifact", false, "\"/t/example\""),
            line("compiler-artifact", true, "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "a warning".to_owned(),
        ];
        let expected = Program { folder: "/a/b".into(), target: "it".to_owned(), file: "/t/it-1".into() };
        assert_eq!(programs(&lines.join("\n")).unwrap(), [expected]);
    }

    /// A script in place of a test program.
    fn script(folder: &Path, name: &str, lines: &str) -> Program {
        let file = folder.join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{lines}\n")).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        Program { folder: folder.to_owned(), target: name.to_owned(), file }
    }

    #[test]
    fn all_run_and_those_that_fail_are_named_and_shown_whole() {
        let folder = tempfile::tempdir().unwrap();
        let good = script(folder.path(), "good", "pwd\necho 'test result: ok.'\necho noise");
        let bad = script(folder.path(), "bad", "echo why\nexit 3");
        let name = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
        let text = good.summary(&good.run(), Duration::from_secs(2));
        assert_eq!(text, format!("ok     2.0 s  {name} good\n    test result: ok.\n"));
        let text = bad.summary(&bad.run(), Duration::ZERO);
        assert!(text.contains("exit status: 3") && text.contains("\nwhy\n"), "{text}");
        let absent =
            Program { folder: folder.path().to_owned(), target: "none".to_owned(), file: folder.path().join("none") };
        let error = run(&[bad, good, absent]).unwrap_err().to_string();
        assert_eq!(error, format!("2 of 3 test programs failed: {name} bad, {name} none"));
        run(&[script(folder.path(), "good", "")]).unwrap();
    }
}
