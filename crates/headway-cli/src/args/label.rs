//! Results of a command go to a folder of their own for every set of options, so that none replaces those of another.

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};
use headway_cli::values::label;

use super::{BenchCommand, Cli, Command};

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
            Command::Run(args) => args.label = label(command, matches, &["backend", "metrics"]),
            Command::Bench { what } if !given("out") => {
                let out = match what {
                    BenchCommand::Transfers(args) => &mut args.out,
                    BenchCommand::Flows(args) => &mut args.out,
                };
                out.as_mut_os_string().push(headway_measure::folder::file_name(&label(command, matches, &[])));
            }
            _ => {}
        }
        Ok(cli)
    }
}
