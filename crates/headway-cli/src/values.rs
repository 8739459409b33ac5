//! Options that more than one command reads, and the folder names that they make.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{ArgMatches, ValueEnum};
use headway::units::Bytes;

/// A size above zero, with a unit.
pub fn some_bytes(text: &str) -> Result<Bytes, String> {
    match text.parse::<Bytes>() {
        Ok(Bytes(0)) => Err("give a size above zero".to_owned()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

/// Parses one of `words`, and lists them in help and errors.
pub fn word<T: Copy + Send + Sync + 'static>(words: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    let known = words.iter().map(|(word, _)| *word);
    PossibleValuesParser::new(known).map(move |text| {
        let found = words.iter().find(|(word, _)| *word == text);
        found.expect("the parser before lets only known words through").1
    })
}

/// A number of things, one at least. A negative number gives the same error as zero.
pub fn count(text: &str) -> Result<usize, &'static str> {
    text.parse().ok().filter(|count| *count > 0).ok_or("give a whole number from 1 on")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendArg {
    /// GPUs if there are some, else the simulation
    Auto,
    /// Virtual time over the machine file
    Sim,
    /// Threads and real memory, throttled to the machine file
    Emu,
    /// On the GPUs
    Cuda,
}

impl From<BackendArg> for headway::run::Backend {
    fn from(backend: BackendArg) -> Self {
        match backend {
            BackendArg::Auto => Self::Auto,
            BackendArg::Sim => Self::Sim,
            BackendArg::Emu => Self::Emu,
            BackendArg::Cuda => Self::Cuda,
        }
    }
}

/// Options that change nothing of what is found.
const SAME: [&str; 5] = ["out", "force", "no_verify", "log_max", "trace_max"];

/// The options given to `command`, as a part of a folder's name, as in `-seed-7`; without those that are `told` in another way.
pub fn label(command: &clap::Command, matches: &ArgMatches, told: &[&str]) -> String {
    let mut label = String::new();
    for arg in command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_global_set()) {
        let id = arg.get_id().as_str();
        let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
        if !is_given || SAME.contains(&id) || told.contains(&id) {
            continue;
        }
        label.push('-');
        label.push_str(&id.replace('_', "-"));
        if arg.get_action().takes_values() {
            for value in matches.get_raw(id).into_iter().flatten() {
                label.push('-');
                label.push_str(&without_space(&value.to_string_lossy()));
            }
        }
    }
    label
}

/// `5 s` and `5s` are the same.
fn without_space(value: &str) -> String {
    if value.starts_with(|first: char| first.is_ascii_digit()) { value.replace(' ', "") } else { value.to_owned() }
}
