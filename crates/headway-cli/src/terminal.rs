//! What every command needs of the terminal: results, remarks, progress, interrupts, and the exit status of its answer.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use headway::run::{Incomplete, Progress};
use headway::units::Nanos;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Tables for people
    Text,
    /// One JSON document with a `schema` number
    Json,
}

/// What a command answers; its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandAnswer {
    Yes,
    /// A negative answer.
    No,
    /// Not known.
    Undecided,
    /// None: somebody ended the command early.
    Interrupted,
}

impl CommandAnswer {
    /// Of a benchmark: no if it is behind a target that counts here.
    pub fn of_bench(complete: bool, behind: bool) -> Self {
        match (complete, behind) {
            (false, _) => Self::Interrupted,
            (true, true) => Self::No,
            (true, false) => Self::Yes,
        }
    }

    /// Of a process that this program started beside itself.
    pub fn of_child(could: bool) -> Self {
        if could { Self::Yes } else { Self::No }
    }

    /// The exit status of the program.
    pub fn status(self) -> ExitCode {
        match self {
            Self::Yes => ExitCode::SUCCESS,
            Self::No => ExitCode::from(1),
            Self::Undecided => ExitCode::from(3),
            Self::Interrupted => ExitCode::from(headway::INTERRUPTED_STATUS),
        }
    }

    /// Of a run: yes if everything was in time.
    pub fn of_run(held: bool, incomplete: Option<&Incomplete>) -> Self {
        match incomplete {
            Some(Incomplete::Interrupted) => Self::Interrupted,
            _ if held => Self::Yes,
            _ => Self::No,
        }
    }
}

/// Where and how to print.
pub struct Out {
    pub format: OutputFormat,
    pub quiet: bool,
}

/// Progress is shown for what takes longer than this.
const PATIENCE: Duration = Duration::from_secs(1);

impl Out {
    pub fn print(&self, json: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        let text = match self.format {
            OutputFormat::Json => serde_json::to_string_pretty(json)? + "\n",
            OutputFormat::Text => printable(&text()),
        };
        write_out(text.as_bytes())
    }

    pub fn note(&self, note: &str) {
        if !self.quiet {
            say(&format!("note: {}", printable(note)));
        }
    }

    /// Says how long a command will take, where that is worth a word.
    pub fn foresee(&self, estimate: Nanos) {
        const WORTH_A_WORD: Nanos = Nanos(10_000_000_000);
        if estimate >= WORTH_A_WORD {
            // More digits would say more than an estimate knows.
            let tens = Nanos(estimate.0.div_ceil(WORTH_A_WORD.0).saturating_mul(WORTH_A_WORD.0));
            self.note(&format!(
                "takes about {tens} on a quiet host with one GPU; more with several GPUs or on a busy host"
            ));
        }
    }

    pub fn warn(&self, warning: &str) {
        if !self.quiet {
            say(&format!("warning: {}", printable(warning)));
        }
    }
}

/// A line on standard error. One that cannot be written is no reason to fail: nobody is left to be told.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A text without characters by which a name could command a terminal.
pub fn printable(text: &str) -> String {
    let is_harmless = |letter: char| !letter.is_control() || letter == '\n';
    text.chars()
        .map(|letter| if is_harmless(letter) { letter.to_string() } else { letter.escape_default().to_string() })
        .collect()
}

pub fn write_out(text: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        // A reader that has seen enough closes the pipe: that is no failure, and the answer stays the answer.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to the standard output"),
    }
}

/// A flag that becomes true when the user or the system asks for the end; `left` is what stays behind where that cannot be had.
pub fn interrupt(out: &Out, left: &str) -> Arc<AtomicBool> {
    headway::stop_when_told().unwrap_or_else(|error| {
        out.warn(&format!("an interrupt will leave {left} behind: {error}"));
        Arc::default()
    })
}

/// A progress bar on stderr that appears only when something takes long.
pub struct Bar {
    enabled: bool,
    started: Instant,
    bar: Option<(&'static str, ProgressBar)>,
}

impl Bar {
    pub fn new(enabled: bool) -> Self {
        Self { enabled, started: Instant::now(), bar: None }
    }

    pub fn show(&mut self, progress: Progress) {
        if !self.enabled || (self.started.elapsed() < PATIENCE && io::stderr().is_terminal()) {
            return;
        }
        if self.bar.as_ref().is_none_or(|(phase, _)| *phase != progress.phase) {
            self.finish();
            if !io::stderr().is_terminal() {
                // A log gets a line for each phase.
                say(&format!("{:>6.1} s  {}", self.started.elapsed().as_secs_f64(), progress.phase));
            }
            let bar = ProgressBar::new(progress.total);
            let style = ProgressStyle::with_template("{prefix:>10} {bar:40} {percent:>3} %");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(progress.phase);
            self.bar = Some((progress.phase, bar));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_position(progress.done);
        }
    }

    pub fn finish(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
