//! The laboratory: experiments of papers, a benchmark of combining, and files for other tools.
#![forbid(unsafe_code)]

mod program;

use std::process::ExitCode;

use headway::Diagnosis;
use headway_cli::terminal::{CommandAnswer, Out};
use headway_cli::{events, failure};

use program::{Command, Lab};

fn main() -> ExitCode {
    let lab = match Lab::read() {
        Ok(lab) => lab,
        Err(error) => return failure::misused(&error),
    };
    if let Err(error) = events::begin() {
        return failure::report(&error, None, lab.format, 2);
    }
    headway::ignore_file_size_signal();
    let out = Out { format: lab.format, quiet: lab.quiet };
    let answer = match &lab.command {
        None => program::experiment(&out, &lab.experiment),
        Some(Command::Combine(args)) => program::combine(&out, args),
        Some(Command::Interconnect(args)) => program::interconnect(&out, args),
        Some(Command::Broker(args)) => program::broker(&out, args),
        Some(Command::Plot(args)) => program::plot(&out, args),
        Some(Command::Import(args)) => program::import(&out, args),
        Some(Command::Export(args)) => program::export(&out, args),
        Some(Command::MeasureChild { order }) => Ok(CommandAnswer::of_child(headway_measure::serve_child(order))),
        Some(Command::LabChild { part, order }) => Ok(CommandAnswer::of_child(headway_lab::serve_child(*part, order))),
    };
    answer.map_or_else(|error| failure::report(&error, diagnosis(&error), lab.format, 2), CommandAnswer::status)
}

/// What a library says of an error of its own.
fn diagnosis(error: &anyhow::Error) -> Option<&dyn Diagnosis> {
    let of_lab = error.downcast_ref::<headway_lab::Error>().map(|error| error as &dyn Diagnosis);
    of_lab.or_else(|| failure::diagnosis(error))
}
