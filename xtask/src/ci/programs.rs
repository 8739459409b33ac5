//! Test programs, built by cargo and run side by side: many tests wait for processes and time limits, and run alone they leave a CPU idle.

use std::fs::{self, File};
use std::io::{self, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::executables::{self, Executable};

/// A program that takes longer hangs, and is killed.
const LIMIT: Duration = Duration::from_secs(40 * 60);

/// Builds the programs that `cargo test` with these arguments would run; doc tests are not programs.
pub(super) fn build(command: &mut Command) -> anyhow::Result<Vec<Executable>> {
    let mut programs = executables::build(command.arg("--no-run"))?;
    programs.retain(|program| program.is_test);
    Ok(programs)
}

/// Runs all, as many at a time as there are CPUs and one more. What a program printed is shown whole if it failed, else its summary.
///
/// # Errors
/// Names the programs that failed.
pub(super) fn run(programs: &[Executable]) -> anyhow::Result<()> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let at_a_time = thread::available_parallelism().map_or(1, usize::from) + 1;
    thread::scope(|scope| {
        for _ in 0..at_a_time.min(programs.len()) {
            scope.spawn(|| {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    let ended = run_one(program);
                    let text = summary(program, &ended, start.elapsed());
                    // One write, so that texts of two programs do not mix.
                    let _ = io::stdout().lock().write_all(text.as_bytes());
                    if !ended.is_ok_and(|ended| ended.passed()) {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(name(program));
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort();
    ensure!(failed.is_empty(), "{} of {} test programs failed: {}", failed.len(), programs.len(), failed.join(", "));
    Ok(())
}

/// How a program ended, and what it printed.
struct Ended {
    /// `None`: it was killed since it took too long.
    status: Option<ExitStatus>,
    printed: String,
}

impl Ended {
    fn passed(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// Runs a program in the folder of its crate, as cargo does. It shows what tests that pass have printed, too: why they were skipped.
fn run_one(program: &Executable) -> anyhow::Result<Ended> {
    let printed = program.path.with_extension("printed");
    let file = File::create(&printed).with_context(|| format!("create {}", printed.display()))?;
    let mut child = Command::new(&program.path)
        .arg("--show-output")
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("start {}", program.path.display()))?;
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
    Ok(Ended { status, printed: String::from_utf8_lossy(&fs::read(&printed)?).into_owned() })
}

fn summary(program: &Executable, ended: &anyhow::Result<Ended>, took: Duration) -> String {
    let (took, name) = (took.as_secs_f64(), name(program));
    match ended {
        Ok(ended) if ended.passed() => {
            let kept = |line: &&str| line.starts_with("test result: ") || line.starts_with("skipped");
            let lines: String = ended.printed.lines().filter(kept).map(|line| format!("    {line}\n")).collect();
            format!("ok {took:7.1} s  {name}\n{lines}")
        }
        Ok(Ended { status, printed }) => {
            let how = status.map_or_else(|| format!("killed after {} s", LIMIT.as_secs()), |status| status.to_string());
            format!("FAILED {took:.1} s  {name}: {how}\n{printed}\nend of {name}\n")
        }
        Err(error) => format!("FAILED  {name}: {error:#}\n"),
    }
}

fn name(program: &Executable) -> String {
    format!("{} {}", program.package(), program.target)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A script in place of a test program. Another process writes it. If this process did, a child that another thread starts just then
    /// would have the file open for writing too, and to run it would fail with `ETXTBSY`.
    fn script(folder: &Path, name: &str, lines: &str) -> Executable {
        let (text, path) = (folder.join("text"), folder.join(name));
        fs::write(&text, format!("#!/bin/sh\n{lines}\n")).unwrap();
        let status = Command::new("install").args(["-m", "700"]).args([&text, &path]).status().unwrap();
        assert!(status.success());
        Executable { folder: folder.to_owned(), target: name.to_owned(), path, is_test: true }
    }

    #[test]
    fn all_run_and_those_that_fail_are_named_and_shown_whole() {
        let folder = tempfile::tempdir().unwrap();
        let good = script(folder.path(), "good", "pwd\necho 'test result: ok.'\necho noise");
        let bad = script(folder.path(), "bad", "echo why\nexit 3");
        let name = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
        let text = summary(&good, &run_one(&good), Duration::from_secs(2));
        assert_eq!(text, format!("ok     2.0 s  {name} good\n    test result: ok.\n"));
        let text = summary(&bad, &run_one(&bad), Duration::ZERO);
        assert!(text.contains("exit status: 3") && text.contains("\nwhy\n"), "{text}");
        let absent = script(folder.path(), "none", "");
        fs::remove_file(&absent.path).unwrap();
        let error = run(&[bad, good, absent]).unwrap_err().to_string();
        assert_eq!(error, format!("2 of 3 test programs failed: {name} bad, {name} none"));
        run(&[script(folder.path(), "good", "")]).unwrap();
    }
}
