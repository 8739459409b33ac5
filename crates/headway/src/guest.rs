//! Unmodified CUDA programs as guests: found, prepared and started by `headway exec`.
//!
//! A guest gets the library `libheadway_preload.so` in front of it (`LD_PRELOAD`), which changes how its copies are queued
//! and nothing that it can observe but time.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{self, Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

pub use headway_core::files::guest::{AsideMode, GuestClass, GuestOptions};
use headway_core::files::guest::{CHUNK_MIN, DEPTH_MAX, FIRST_VARIABLE, VARIABLE};
use headway_core::files::guest_log;
use headway_core::models::transfer::Direction;
use headway_core::models::transfer::arbitration::{ArbitrationAdvice, WAIT_GUESTS, built_in};
use headway_core::units::{Bytes, UnitError};
#[doc(hidden)] // For the library in front of guests.
pub use headway_cuda::{Handle, Nvml, PcieCounters, functions, uuid_text};
#[doc(hidden)] // For the library in front of guests.
pub use headway_os::{
    board,
    descriptor::moved_up,
    environment::{has_more_rights, trusted},
    fork::Home,
    limits::file_bytes_max,
    memory::page_bytes,
    note_the_start, replace_process,
    threads::spawn,
    userfaultfd::{PageLoss, PageWatch, RANGES_MAX, WatchId, WatchRefusal},
};

use crate::Error;
#[doc(hidden)]
pub use crate::error::GuestError;
use crate::error::LIBRARY;

/// A first line of a log is shorter.
const FIRST_LINE_MAX: u64 = 64 << 10;

/// The chunk of bulk copies that a user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChunkChoice {
    /// What [`usual_chunk`] says; whole copies where small ones go aside.
    #[default]
    Auto,
    /// Whole copies.
    Never,
    Bytes(Bytes),
}

/// How much of a program's own memory may be kept page-locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinnedBudget {
    /// A quarter of the node's memory, or of what the control group may use.
    Auto,
    /// So much.
    Bytes(Bytes),
}

impl FromStr for PinnedBudget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            _ if text == "auto" => Ok(Self::Auto),
            Ok(Bytes(0)) => Err("give a size, as in `--pin-once=16GiB`, or leave the option out".into()),
            Ok(bytes) => Ok(Self::Bytes(bytes)),
            Err(error) => Err(format!("{error}; give a size, as in `--pin-once=16GiB`")),
        }
    }
}

impl PinnedBudget {
    /// The budget in bytes; no bound where the system does not say how much memory there is.
    #[must_use]
    pub fn bytes(self) -> Bytes {
        if let Self::Bytes(bytes) = self {
            return bytes;
        }
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        let of_node = read("/proc/meminfo")
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.split_ascii_whitespace().next()?.parse::<u64>().ok())
            .map_or(u64::MAX, |kib| kib << 10);
        let of_group = read("/sys/fs/cgroup/memory.max").trim().parse().unwrap_or(u64::MAX);
        Bytes(of_node.min(of_group) / 4)
    }
}

impl FromStr for ChunkChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "never" => Ok(Self::Never),
            size => size.parse().map(Self::Bytes).map_err(|error: UnitError| {
                format!("{error}; give a size of 64 KiB and more, as in `--yield=4MiB`, or `auto`, or `never`")
            }),
        }
    }
}

impl ChunkChoice {
    /// The chunk of guests of this `class` whose small copies go `aside`, and what it is based on where it was not the user who said it.
    ///
    /// # Errors
    /// Those of [`usual_chunk`].
    pub fn chunk(
        self,
        aside: AsideMode,
        class: GuestClass,
        machine: Option<&str>,
    ) -> Result<(Option<Bytes>, Option<String>), Error> {
        Ok(match self {
            Self::Bytes(bytes) => (Some(bytes), None),
            Self::Auto if aside == AsideMode::Never || class == GuestClass::Bulk => {
                let usual = usual_chunk(machine)?;
                (usual.chunk, Some(usual.why))
            }
            // Small copies that go by a kernel wait for nobody: then whole copies keep their full rate.
            Self::Auto | Self::Never => (None, None),
        })
    }
}

/// The chunk of bulk copies out of a GPU that is best for who copies little beside them, and what says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsualChunk {
    /// `None` = whole copies.
    pub chunk: Option<Bytes>,
    /// For people: what it is based on.
    pub why: String,
}

/// The chunk by what was measured of `machine`, a name or file, else by the built-in figures for the GPUs that NVML names. Of several GPUs
/// the smallest chunk counts. GPUs of which nothing is known get whole copies.
///
/// # Errors
/// What reading the machine gives.
pub fn usual_chunk(machine: Option<&str>) -> Result<UsualChunk, Error> {
    let Some(name) = machine else { return Ok(usual_chunk_of_class()) };
    let machine = crate::machine::open(name)?;
    let asked = machine.profile.arbitration.iter().filter(|((_, direction), _)| *direction == Direction::D2h);
    let found = asked.map(|(_, asked)| (asked.advise(WAIT_GUESTS), format!("measured, `{}`", machine.name)));
    Ok(smallest(found).unwrap_or_else(|| UsualChunk {
        chunk: None,
        why: format!(
            "whole copies: `{}` does not say what lets others in; `headway measure --only arbitration` finds out",
            machine.name
        ),
    }))
}

fn usual_chunk_of_class() -> UsualChunk {
    let names: Vec<String> = Nvml::system()
        .and_then(|nvml| nvml.report())
        .map_or_else(|_| Vec::new(), |report| report.gpus.into_iter().map(|gpu| gpu.name).collect());
    let known = |name: &String| {
        let (known, run) = built_in(name, Direction::D2h)?;
        Some((known.advise(WAIT_GUESTS), format!("built-in figures for {name}, run {run}")))
    };
    smallest(names.iter().filter_map(known)).unwrap_or_else(|| {
        let here = if names.is_empty() { "GPUs here, as no NVIDIA driver was found that names them".to_owned() } else { names.join(", ") };
        UsualChunk {
            chunk: None,
            why: format!(
                "whole copies: nothing is known of what lets others in on {here}; `headway measure` finds out, `--machine FILE` says \
                 what it found"
            ),
        }
    })
}

fn smallest(found: impl Iterator<Item = (ArbitrationAdvice, String)>) -> Option<UsualChunk> {
    let chunks = found.map(|(advice, from)| UsualChunk { chunk: advice.word(), why: format!("{advice} ({from})") });
    chunks.min_by_key(|usual| usual.chunk.map_or(u64::MAX, |chunk| chunk.0))
}

/// The library for guests, beside this program or in the place where it is installed.
fn library() -> Result<PathBuf, GuestError> {
    let program = env::current_exe().ok();
    let folder = program.as_deref().and_then(|program| program.parent());
    let folders = folder.into_iter().flat_map(|folder| ["", "deps", "../lib/headway"].map(|place| folder.join(place)));
    library_in(folders.collect())
}

fn library_in(folders: Vec<PathBuf>) -> Result<PathBuf, GuestError> {
    let found = folders.iter().map(|folder| folder.join(LIBRARY)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let searched: Vec<String> = folders.iter().map(|folder| format!("`{}`", folder.display())).collect();
        GuestError::NoLibrary { searched: searched.join(", ") }
    })
}

/// The absolute path of a log, where the log of an earlier guest is removed. `%p` is left for the guest's processes.
fn prepare_log(asked: &Path) -> Result<PathBuf, GuestError> {
    let error = |source| GuestError::Log { path: asked.to_owned(), source };
    let path = path::absolute(asked).map_err(error)?;
    let folder = path.parent().unwrap_or_else(|| Path::new("/"));
    if !fs::metadata(folder).map_err(error)?.is_dir() {
        return Err(error(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    let Ok(about) = fs::symlink_metadata(&path) else { return Ok(path) };
    if !about.is_file() {
        return Err(GuestError::NoLog { path });
    }
    let mut first = Vec::new();
    let file = File::open(&path).map_err(error)?;
    BufReader::new(file.take(FIRST_LINE_MAX)).read_until(b'\n', &mut first).map_err(error)?;
    if !first.is_empty() && !guest_log::GuestLogStart::begins(&String::from_utf8_lossy(&first)) {
        return Err(GuestError::NoLog { path });
    }
    fs::remove_file(&path).map_err(error)?;
    Ok(path)
}

/// The list of libraries for a guest: `library`, and behind it those of `before`, but for libraries of other installs of Headway. The
/// options are those of the last `headway exec`, and one copy of the library carries them out.
fn preload(library: PathBuf, before: &OsStr) -> OsString {
    let mut list = library.into_os_string();
    for other in before.as_bytes().split(|byte| b" :".contains(byte)).map(OsStr::from_bytes) {
        if !other.is_empty() && Path::new(other).file_name() != Some(OsStr::new(LIBRARY)) {
            list.push(":");
            list.push(other);
        }
    }
    list
}

/// The command that runs `program` as a guest; other libraries of `LD_PRELOAD` stay, behind ours. With `log`, each of its
/// processes that copies writes one. With `stats`, a program that takes the place of this process (`exec`) also says when it ends
/// that it loaded no CUDA driver.
///
/// # Errors
/// `ErrorKind::Guest` if the library is missing, the options cannot be meant, or the log cannot be written.
pub fn command<'a>(
    options: GuestOptions,
    log: Option<&Path>,
    program: &OsStr,
    arguments: impl IntoIterator<Item = &'a OsString>,
) -> Result<Command, Error> {
    let mut command = Command::new(program);
    command.args(arguments).env(FIRST_VARIABLE, std::process::id().to_string());
    let before = env::var_os("LD_PRELOAD").unwrap_or_default();
    for GuestVariable { name, value } in variables(options, log, library, &before)? {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Ok(command)
}

/// What a guest's environment says in one variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestVariable {
    pub name: &'static str,
    /// `None` = the variable must not be there.
    pub value: Option<OsString>,
}

/// The environment of guests that others start, where `LD_PRELOAD` was `before` and the library for guests lies in `folder`.
///
/// # Errors
/// As [`command`].
pub fn environment(
    options: GuestOptions,
    log: Option<&Path>,
    folder: &Path,
    before: &OsStr,
) -> Result<Vec<GuestVariable>, Error> {
    variables(options, log, || library_in(vec![folder.to_owned()]), before)
}

fn variables(
    options: GuestOptions,
    log: Option<&Path>,
    library: impl FnOnce() -> Result<PathBuf, GuestError>,
    before: &OsStr,
) -> Result<Vec<GuestVariable>, Error> {
    if let Some(asked) = options.chunk.filter(|chunk| *chunk < CHUNK_MIN) {
        return Err(GuestError::SmallChunk { asked }.into());
    }
    if let Some(asked) = options.depth.filter(|depth| !(1..=DEPTH_MAX).contains(depth)) {
        return Err(GuestError::Depth { asked }.into());
    }
    if options.pin_once > Bytes(0) && !options.fast {
        return Err(GuestError::PinsWithoutFast.into());
    }
    let library = library()?;
    if library.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        return Err(GuestError::Unspeakable { path: library }.into());
    }
    let log = log.map(prepare_log).transpose()?.map(PathBuf::into_os_string);
    Ok(vec![
        GuestVariable { name: "LD_PRELOAD", value: Some(preload(library, before)) },
        GuestVariable { name: VARIABLE, value: Some(options.to_string().into()) },
        GuestVariable { name: guest_log::VARIABLE, value: log },
    ])
}

/// Bytes of a program that are looked at: its headers are at the beginning.
const HEADERS_MAX: u64 = 64 << 10;

/// Whether `program`, a path or a name in `$PATH`, is statically linked: then no loader reads `LD_PRELOAD`, and nothing of
/// Headway gets into it. `false` where that cannot be seen, and for scripts.
#[must_use]
pub fn is_static(program: &OsStr) -> bool {
    let is_path = program.as_encoded_bytes().contains(&b'/');
    let found = if is_path {
        Some(PathBuf::from(program))
    } else {
        let folders = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
    };
    let mut bytes = Vec::new();
    let read = found.and_then(|path| File::open(path).ok()?.take(HEADERS_MAX).read_to_end(&mut bytes).ok());
    read.is_some() && names_a_loader(&bytes) == Some(false)
}

/// Whether the headers of an ELF file of 64 bits name a loader (`PT_INTERP`); `None` = these are none.
fn names_a_loader(bytes: &[u8]) -> Option<bool> {
    const INTERPRETER: u32 = 3;
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let begin = u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?);
    let (size, count) = (half(54)?, half(56)?);
    for number in 0..usize::from(count) {
        let at = usize::try_from(begin).ok()?.checked_add(number * usize::from(size))?;
        let kind = bytes.get(at..at.checked_add(4)?)?;
        if u32::from_le_bytes(kind.try_into().ok()?) == INTERPRETER {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_a_loader_is_statically_linked() {
        let with = |kinds: &[u32]| {
            let mut elf = vec![0u8; 64 + 56 * kinds.len()];
            elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
            elf[32..40].copy_from_slice(&64u64.to_le_bytes());
            elf[54..56].copy_from_slice(&56u16.to_le_bytes());
            elf[56..58].copy_from_slice(&(kinds.len() as u16).to_le_bytes());
            for (at, kind) in kinds.iter().enumerate() {
                elf[64 + 56 * at..][..4].copy_from_slice(&kind.to_le_bytes());
            }
            elf
        };
        assert_eq!(names_a_loader(&with(&[6, 3, 1])), Some(true));
        assert_eq!(names_a_loader(&with(&[1, 2])), Some(false));
        assert_eq!((names_a_loader(b"#!/bin/sh\n"), names_a_loader(&with(&[1])[..70])), (None, Some(false)));
        assert_eq!(names_a_loader(&with(&[1, 1])[..100]), None, "cut off");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        fs::write(&file, with(&[1])).unwrap();
        assert!(
            is_static(file.as_os_str()) && !is_static(OsStr::new("sh")) && !is_static(OsStr::new("no such program"))
        );
    }

    #[test]
    fn one_library_of_headway_is_put_in_front_of_the_others() {
        let list = |before: &str| preload(PathBuf::from("/new/libheadway_preload.so"), OsStr::new(before));
        assert_eq!(list(""), "/new/libheadway_preload.so");
        assert_eq!(list("/a.so:/old/libheadway_preload.so b.so::"), "/new/libheadway_preload.so:/a.so:b.so");
    }

    #[test]
    fn a_chunk_that_is_no_size_is_refused_with_what_may_be_given() {
        for text in ["3", "4 parsecs", ""] {
            let error = text.parse::<ChunkChoice>().unwrap_err();
            assert!(error.contains("`--yield=4MiB`, or `auto`, or `never`"), "{text}: {error}");
        }
    }

    #[test]
    fn guests_that_others_start_get_the_library_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let ask = || environment(GuestOptions::default(), None, folder.path(), OsStr::new("/a.so"));
        assert!(ask().unwrap_err().to_string().contains("was not found in"));
        fs::write(folder.path().join(LIBRARY), "").unwrap();
        let variables = ask().unwrap();
        let value = variables[0].value.clone().unwrap().into_string().unwrap();
        assert!(value.ends_with("/libheadway_preload.so:/a.so"), "{value}");
        assert_eq!(variables[2], GuestVariable { name: guest_log::VARIABLE, value: None });
    }

    #[test]
    fn tiny_chunks_are_refused_before_anything_is_started() {
        let options = GuestOptions { chunk: Some(Bytes(1024)), ..GuestOptions::default() };
        let error = command(options, None, OsStr::new("true"), []).unwrap_err();
        assert!(error.to_string().contains("64 KiB"), "{error}");
    }

    #[test]
    fn a_depth_is_at_least_one_launch() {
        for (depth, is_good) in [(0, false), (1, true), (DEPTH_MAX, true), (DEPTH_MAX + 1, false)] {
            let options = GuestOptions { depth: Some(depth), ..GuestOptions::default() };
            let made = environment(options, None, Path::new("/nowhere"), OsStr::new(""));
            let error = made.unwrap_err().to_string();
            assert_eq!(error.contains("cannot be meant: it is 1 to 1024 launches"), !is_good, "{depth}: {error}");
        }
    }

    #[test]
    fn the_usual_chunk_is_what_was_measured_and_says_by_what() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.toml");
        let base = "name = \"node\"\n[[memory]]\nid = \"host\"\n[[gpu]]\nid = \"gpu0\"\n[[gpu]]\nid = \"gpu1\"\n";
        let usual = |more: &str| {
            fs::write(&path, format!("{base}{more}")).unwrap();
            usual_chunk(path.to_str()).unwrap()
        };
        let nothing = usual("");
        assert_eq!(nothing.chunk, None);
        assert!(
            nothing.why.contains("`node` does not say") && nothing.why.contains("--only arbitration"),
            "{}",
            nothing.why
        );
        let table = |gpu: u32, chunk: u32| {
            format!(
                "[[arbitration]]\ngpu = \"gpu{gpu}\"\ndirection = \"d2h\"\ntime = \"19 ms\"\n\
                 whole = [1073741824, 1000000, 20, 19000000]\nwords = [[{chunk}, 930000, 100, 70000, 90000]]\n"
            )
        };
        let found = usual(&format!("{}{}", table(0, 4 << 20), table(1, 2 << 20)));
        assert_eq!(found.chunk, Some(Bytes(2 << 20)), "the smallest");
        assert!(found.why.contains("70 us") && found.why.contains("measured, `node`"), "{}", found.why);
        let whole =
            usual("[[arbitration]]\ndirection = \"d2h\"\ntime = \"19 ms\"\nwhole = [1073741824, 1000000, 20, 9000]\n");
        assert!(whole.chunk.is_none() && whole.why.contains("whole copies let small ones in"), "{}", whole.why);
        assert!(usual_chunk(Some("no such machine")).is_err());
    }

    #[test]
    fn only_logs_of_guests_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "{\"kind\":\"guest\"}\n{}").unwrap();
        assert_eq!(prepare_log(&path).unwrap(), path);
        assert!(!path.exists());
        fs::write(&path, "a letter\n").unwrap();
        assert!(matches!(prepare_log(&path), Err(GuestError::NoLog { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"a letter\n");
        assert!(matches!(prepare_log(&folder.path().join("no/log")), Err(GuestError::Log { .. })));
        assert!(matches!(prepare_log(folder.path()), Err(GuestError::NoLog { .. })));
    }
}
