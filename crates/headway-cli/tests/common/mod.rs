//! Runs the command in a folder of its own, with nothing of the machine it runs on showing through.
#![allow(dead_code, reason = "every test program uses its own part: those of the laboratory, too")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The root of the sources.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A folder with a copy of the workloads that are shipped.
pub(crate) fn place() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    copy_folder(&root().join("workloads"), &place.path().join("workloads"));
    place
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let copy = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &copy);
        } else {
            fs::copy(&path, copy).unwrap();
        }
    }
}

/// The command, to be run in `folder`. It finds no GPU, whatever the machine has.
pub(crate) fn command(folder: &Path) -> Command {
    let mut command = Command::new(crate::PROGRAM);
    command.current_dir(folder).env("COLUMNS", "100").env("HEADWAY_LIBCUDA", folder.join("no libcuda.so.1"));
    command.stdin(Stdio::null());
    command
}

/// Makes a copy of the file `from` that can be run. Another process writes it. If this process did, a child that another thread starts
/// just then would have the file open for writing too, and to run it would fail with `ETXTBSY`.
pub(crate) fn install(from: &Path, to: &Path) {
    let status = Command::new("install").args(["-m", "755"]).args([from, to]).status().unwrap();
    assert!(status.success(), "{status}");
}

/// Has `command` find a script in `folder` in place of NVIDIA's program for MPS, and no other daemon of this computer.
pub(crate) fn fake_mps(command: &mut Command, folder: &Path) {
    let script = folder.join("bin/nvidia-cuda-mps-control");
    if !script.exists() {
        fs::create_dir(script.parent().unwrap()).unwrap();
        install(&root().join("crates/headway-cli/tests/common/fake-mps.sh"), &script);
    }
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).env("FAKE_MPS", "works").env("FAKE_MPS_RECORD", folder.join("record"));
    command.env("CUDA_MPS_PIPE_DIRECTORY", folder.join("usual")).env_remove("CUDA_MPS_LOG_DIRECTORY");
}

/// A copy of `headway`, in this folder, that gives who runs it the rights of another group; `None` if this user cannot make one.
pub(crate) fn with_more_rights(folder: &Path) -> Option<PathBuf> {
    let program = folder.join("headway");
    install(Path::new(crate::PROGRAM), &program);
    if chown(&program, None, Some(1)).is_err() {
        println!("skipped: only root gives a file to another group");
        return None;
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o2755)).unwrap();
    Some(program)
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its exit status; `None` if a signal ended it.
    pub(crate) status: Option<i32>,
    /// Its standard output.
    pub(crate) out: String,
    /// Its standard error.
    pub(crate) err: String,
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Answer {
    /// The standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}\n{self:?}"))
    }

    /// Checks the exit status.
    #[track_caller]
    pub(crate) fn exits(self, status: i32) -> Self {
        assert_eq!(self.status, Some(status), "{self:#?}");
        self
    }
}

/// Runs `headway ARGS` in `folder`.
pub(crate) fn headway(folder: &Path, args: &[&str]) -> Answer {
    command(folder).args(args).output().unwrap().into()
}

/// `bytes` bytes that look random: a 64-bit linear congruential generator, upper byte.
pub(crate) fn random(bytes: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// Everything below `folder`.
pub(crate) fn tree(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(tree(&path));
        }
        found.insert(path);
    }
    found
}

/// The subcommands, from the help.
pub(crate) fn subcommands() -> Vec<String> {
    let help = headway(&root(), &["--help"]).exits(0).out;
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Descriptions that continue on a second line are indented further.
    let first = list.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    let found: Vec<_> = first.map(str::to_owned).collect();
    assert!(found.len() >= 7, "{found:?}");
    found
}

/// Waits until `done`, while `child` runs.
pub(crate) fn wait_until(child: &mut Child, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        assert!(started.elapsed() < Duration::from_secs(300), "nothing happened");
        std::thread::yield_now();
    }
}

/// Sends SIGINT, as Ctrl-C does.
pub(crate) fn interrupt(child: &Child) {
    send(child, "INT");
}

/// Sends the signal with this name.
fn send(child: &Child, signal: &str) {
    let kill = format!("kill -{signal} {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

/// Starts a command in `folder`, sends it the signals once there is a folder under construction in which `file` is, and returns what it
/// said.
pub(crate) fn told_to_end(command: &mut Command, folder: &Path, signals: &[&str], file: &str) -> Answer {
    let mut child = command.current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let is_partial = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains(".partial-") && path.join(file).exists()
    };
    wait_until(&mut child, || tree(folder).iter().any(is_partial));
    signals.iter().for_each(|signal| send(&child, signal));
    child.wait_with_output().unwrap().into()
}

/// Checks the form of an error, and that it says all of `words`.
#[track_caller]
pub(crate) fn is_one_error(answer: &Answer, status: i32, words: &[&str]) {
    assert_eq!((answer.status, answer.out.as_str()), (Some(status), ""), "{answer:#?}");
    assert!(answer.err.starts_with("error: "), "{answer:#?}");
    assert_eq!(answer.err.matches("error:").count(), 1, "{answer:#?}");
    assert!(!answer.err.contains("panicked") && !answer.err.contains(".partial"), "{answer:#?}");
    let lines: Vec<&str> = answer.err.lines().map(|line| line.trim_start_matches("  cause: ")).collect();
    for (number, line) in lines.iter().enumerate() {
        let earlier = lines[..number].iter().any(|other| other.contains(line) && line.len() > 8);
        assert!(!earlier, "said twice: {line}\n{answer:#?}");
    }
    for word in words {
        assert!(answer.err.contains(word), "`{word}` is missing\n{answer:#?}");
    }
}

/// Runs `headway ARGS` in `folder`; it must fail with exactly one error and change nothing there.
#[track_caller]
pub(crate) fn fails(folder: &Path, args: &[&str], status: i32, words: &[&str]) {
    let before = tree(folder);
    is_one_error(&headway(folder, args), status, words);
    assert_eq!(tree(folder), before, "{args:?} left something behind");
}

/// Runs `headway ARGS` where no file may grow beyond `kib` KiB, which fails as a full disk does.
pub(crate) fn on_a_small_disk(folder: &Path, kib: u32, args: &[&str]) -> Answer {
    let script = format!("ulimit -f {kib}; exec \"$0\" \"$@\"");
    let mut bash = Command::new("bash");
    bash.current_dir(folder).args(["-c", &script, crate::PROGRAM]).args(args);
    bash.output().unwrap().into()
}

/// Arguments of every command line in the fenced `sh` blocks of `text` that begins with one of `starts`.
pub(crate) fn commands(text: &str, starts: &[&str]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut shell = false;
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            shell = kind == "sh";
            continue;
        }
        let line = line.split(" # ").next().unwrap().trim();
        let arguments = starts.iter().find_map(|start| line.strip_prefix(start));
        if let Some(arguments) = arguments.filter(|_| shell) {
            found.push(words(arguments));
        }
    }
    found
}

/// The words of a line, where a quoted part is one word.
pub(crate) fn words(line: &str) -> Vec<String> {
    let parts = line.split(['"', '\'']).enumerate();
    let words = parts.flat_map(|(number, part)| match number % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

pub(crate) fn page(name: &str) -> Option<String> {
    let text = fs::read_to_string(root().join(name));
    if text.is_err() {
        eprintln!("skipped: the sources have no {name}");
    }
    text.ok()
}
