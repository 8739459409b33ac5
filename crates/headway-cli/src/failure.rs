//! How the program prints errors: as text on the standard error, or as a JSON document on the standard output.

use std::io::{self, Write};
use std::process::ExitCode;

use headway::guest::GuestError;
use headway::{Diagnosis, Failure};
use serde::Serialize;

use crate::terminal::{OutputFormat, printable};

/// An error as JSON (docs/files.md).
#[derive(Serialize)]
struct Document {
    schema: u32,
    error: bool,
    kind: &'static str,
    message: String,
    causes: Vec<String>,
    help: Option<String>,
    /// The place in a file that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<Place>,
    status: u8,
}

#[derive(Serialize)]
struct Place {
    file: String,
    line: usize,
    column: usize,
    width: usize,
}

/// The exit status of `exec` where the program was not started, as `env` and `timeout` have it.
pub const NOT_STARTED: u8 = 125;

/// Tells an error with its causes, each once, and picks the exit status: `usual` where nothing else fits. `known` is what a
/// library says of the error.
pub fn report(error: &anyhow::Error, known: Option<&dyn Diagnosis>, format: OutputFormat, usual: u8) -> ExitCode {
    let status = match error.downcast_ref::<headway::Error>().map(headway::Error::failure) {
        // As `env` and `timeout` have it: a guest's own status is not mistaken for one of these.
        Some(Failure::Guest(GuestError::Start { source, .. })) if source.kind() == io::ErrorKind::NotFound => 127,
        Some(Failure::Guest(GuestError::Start { .. })) => 126,
        _ if known.is_some_and(Diagnosis::is_answer) => 1,
        _ if known.is_some_and(|known| known.word() == "interrupted") => headway::INTERRUPTED_STATUS,
        _ => usual,
    };
    let causes = || match known {
        Some(known) => known.causes(),
        None => error.chain().skip(1).map(ToString::to_string).collect(),
    };
    let help = known.and_then(Diagnosis::help);
    if format == OutputFormat::Json {
        let mut document = Document {
            schema: 1,
            error: true,
            kind: known.map_or("other", Diagnosis::word),
            message: error.to_string(),
            causes: causes(),
            help: help.clone(),
            place: None,
            status,
        };
        if let Some(wrong) = known.and_then(Diagnosis::place) {
            // Its text shows the line with a caret; here the place has fields of its own.
            document.message.clone_from(&wrong.message);
            document.help.clone_from(&wrong.help);
            let (file, line, column, width) = (wrong.file.clone(), wrong.line, wrong.column, wrong.width);
            document.place = Some(Place { file, line, column, width });
        }
        if print(&document) {
            return ExitCode::from(status);
        }
        // The standard output takes nothing: what is left is text.
    }
    let mut lines = format!("error: {error}\n");
    for cause in causes() {
        lines.push_str(&format!("  cause: {cause}\n"));
    }
    if let Some(help) = help {
        lines.push_str(&format!("  help: {help}\n"));
    }
    // Nowhere is left to report that stderr is closed.
    let _ = io::stderr().write_all(printable(&lines).as_bytes());
    ExitCode::from(status)
}

/// What the libraries that every program uses say of an error of theirs.
pub fn diagnosis(error: &anyhow::Error) -> Option<&dyn Diagnosis> {
    let of_headway = error.downcast_ref::<headway::Error>().map(|error| error as &dyn Diagnosis);
    of_headway.or_else(|| error.downcast_ref::<headway_measure::Error>().map(|error| error as &dyn Diagnosis))
}

/// Tells what is wrong with the command line: as JSON if its words ask for that.
pub fn misused(error: &clap::Error) -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let pairs = words.windows(2).any(|pair| pair[0] == "--format" && pair[1] == "json");
    if error.use_stderr() && (pairs || words.iter().any(|word| *word == "--format=json")) {
        let text = error.render().to_string();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let message = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let help: Vec<&str> = lines.collect();
        let (kind, causes, help) = ("usage", Vec::new(), Some(help.join("; ")));
        let document = Document { schema: 1, error: true, kind, message, causes, help, place: None, status: 2 };
        if print(&document) {
            return ExitCode::from(2);
        }
    }
    error.exit()
}

/// Whether the document could be written.
fn print(document: &Document) -> bool {
    let Ok(mut text) = serde_json::to_string_pretty(document) else { return false };
    text.push('\n');
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    // A reader that has seen enough closes the pipe.
    written.is_ok() || written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
