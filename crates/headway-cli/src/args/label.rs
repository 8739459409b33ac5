//! Results of a command go to a folder of their own for every set of options, so that none replaces those of another.

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use super::{BenchCommand, Cli, Command};

/// Options that change nothing of what is found.
const SAME: [&str; 5] = ["out", "force", "no_verify", "log_max", "trace_max"];

impl Cli {
    /// Reads the command line; folders that nobody named are named by the options that were given.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let mut words: Vec<_> = std::env::args_os().collect();
        // `headway help run` is `headway run --help`.
        if words.get(1).is_some_and(|word| word == "help") {
            words.remove(1);
            words.push("--help".into());
        }
        let matches = command.try_get_matches_from_mut(words)?;
        let mut cli = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        let (mut command, mut matches) = (&command, &matches);
        while let Some((name, of)) = matches.subcommand() {
            (command, matches) = (command.find_subcommand(name).expect("a command that was read is known"), of);
        }
        let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        match &mut cli.command {
            Command::Run(args) => args.label = label(command, matches, &["backend"]),
            Command::Reproduce(args) => args.label = label(command, matches, &["backend"]),
            Command::Bench { what } if !given("out") => {
                let out = match what {
                    BenchCommand::Transfers(args) => &mut args.out,
                    BenchCommand::Interconnect(args) => &mut args.out,
                    BenchCommand::Broker(args) => &mut args.out,
                    BenchCommand::Combine(args) => &mut args.out,
                };
                out.as_mut_os_string().push(headway_lab::file_name(&label(command, matches, &[])));
            }
            _ => {}
        }
        Ok(cli)
    }
}

/// The options given to `command`, as in `-seed-7`; without those that are `told` in another way.
fn label(command: &clap::Command, matches: &ArgMatches, told: &[&str]) -> String {
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
