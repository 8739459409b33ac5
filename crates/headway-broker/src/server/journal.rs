//! What the broker remembers: always a small record of tokens and their holders; with a log, also every input and decision.
//!
//! No error of a file ends the broker. If it cannot write, it reports this once, shows it in the status, and tries again every
//! second. When a write succeeds it writes a snapshot, so that only the lines in between are missing. With
//! [`ServerOptions::must_remember`](super::ServerOptions::must_remember) the broker grants nothing meanwhile.

mod log;
mod record;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use headway_core::decisions::broker::log::{BrokerLogLine, BrokerLogStart, Fed, StartReason};
use headway_core::decisions::broker::{Action, Book, Input, KnownProcess, Roster, UserAccount};
use headway_core::decisions::engine_lock::LockId;
use headway_core::decisions::sharing::{ArbiterMemory, ClusterId, JobId, TokenId};
use headway_core::units::Nanos;
use headway_os::event;

use self::log::Log;
use self::record::Record;
pub(super) use self::record::{HELD, is_beginning_of_state};
use super::ServerOptions;
use crate::error::ServerError;
use crate::status::MemoryStatus;

/// Between two attempts to write again.
const RETRY: Nanos = Nanos(1_000_000_000);

/// Told what a user must know and what no status can wait for.
#[derive(Clone)]
pub struct Tell(Arc<dyn Fn(&str) + Send + Sync>);

impl Tell {
    /// Tells by `tell`; called in the broker's thread.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(super) fn say(&self, text: &str) {
        (self.0)(text);
    }
}

impl fmt::Debug for Tell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tell")
    }
}

/// A disk that is full or broken, for tests: asked before every write to one of the broker's files, which fails with the number
/// of the error that this gives. Half of what was to be written is written then, as on a disk that fills up.
#[derive(Clone)]
pub struct DiskFaults(Arc<Ask>);

type Ask = dyn Fn(&Path) -> Option<i32> + Send + Sync;

impl DiskFaults {
    /// Asks `ask`.
    pub fn new(ask: impl Fn(&Path) -> Option<i32> + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }
}

impl fmt::Debug for DiskFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faults")
    }
}

/// Whether a write to the file at `path` may be made.
fn allowed(faults: Option<&DiskFaults>, path: &Path) -> io::Result<()> {
    match faults.and_then(|faults| (faults.0)(path)) {
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Ok(()),
    }
}

/// Why nothing can be written, since when.
struct Trouble {
    what: String,
    retry_at: Nanos,
    /// Lines that the log lacks.
    lines: u64,
}

/// What is known of the broker before this one.
pub(super) struct Before {
    pub(super) roster: Roster,
    /// What its arbiter knew, by the log.
    pub(super) memory: Option<ArbiterMemory>,
}

pub(super) struct Journal {
    log: Option<Log>,
    record: Record,
    epoch: u64,
    must_remember: bool,
    tell: Option<Tell>,
    trouble: Option<Trouble>,
    /// Lines that could not be written, of troubles that are over.
    missing: u64,
    gaps: u64,
}

impl Journal {
    /// Reads what the broker before left. Nothing is written to the log yet.
    ///
    /// # Errors
    /// [`ServerError`] for places where nothing can be written for another reason than that a disk is full or broken; for
    /// those too if the broker must remember.
    pub(super) fn open(options: &ServerOptions, epoch: u64, now: Nanos) -> Result<(Self, Before), ServerError> {
        let (record, roster, trouble) = Record::open(&options.socket, options.faults.clone(), options.must_remember)?;
        let memory = options.log.as_deref().filter(|_| !roster.clients.is_empty());
        let memory = memory.and_then(|path| log::memory(path, &options.arbiter, now));
        let log = options.log.as_deref().map(|path| Log::new(path, options)).transpose()?;
        let mut this = Self {
            log,
            record,
            epoch,
            must_remember: options.must_remember,
            tell: options.tell.clone(),
            trouble: None,
            missing: 0,
            gaps: 0,
        };
        if let Some(what) = trouble {
            this.fail(now, what);
        }
        Ok((this, Before { roster, memory }))
    }

    /// Begins the log of this start.
    ///
    /// # Errors
    /// Those of [`Journal::open`].
    pub(super) fn begin(&mut self, now: Nanos, book: &Book) -> Result<(), ServerError> {
        let first = self.snapshot(now, book, StartReason::Started, 0);
        let Some(log) = &mut self.log else { return Ok(()) };
        match log.open(&first) {
            Ok(()) => Ok(()),
            Err(source) if is_passing(&source) && !self.must_remember => {
                let what = format!("cannot write the log `{}`: {source}", log.path().display());
                self.fail(now, what);
                Ok(())
            }
            Err(source) => Err(ServerError::Log { path: log.path().to_owned(), source }),
        }
    }

    fn snapshot(&self, now: Nanos, book: &Book, why: StartReason, missing: u64) -> Vec<u8> {
        line(&BrokerLogLine::Broker(Box::new(BrokerLogStart {
            missing,
            ..BrokerLogStart::of(book, self.epoch, now, why)
        })))
    }

    /// Writes an input and what was decided about it, the last `decided` actions that the book has, before the server acts and answers.
    pub(super) fn fed(&mut self, now: Nanos, input: &Input, book: &Book, decided: usize) {
        let actions = || book.actions().iter().skip(book.actions().len() - decided);
        if changes_holders(input) {
            self.hold(now, book);
        }
        let told = actions().filter_map(|action| match action {
            Action::Run { job, locks, .. } => Some((*job, locks.as_slice())),
            _ => None,
        });
        for (job, locks) in told.chain(book.withheld_engines()) {
            self.engines(now, locks, job);
        }
        if let Input::LeasesEnded { in_use, .. } = input {
            for held in in_use {
                if let Some(job) = book.user_by_lease(*held) {
                    self.engines(now, &[held.lock], job);
                }
            }
        }
        if self.log.is_some() {
            self.note(
                now,
                &BrokerLogLine::Fed(Fed { now, input: input.clone(), actions: actions().cloned().collect() }),
            );
            self.keep_size(now, book);
        }
    }

    /// Begins another file of the log where the present one is full, whichever lines filled it.
    pub(super) fn keep_size(&mut self, now: Nanos, book: &Book) {
        if self.trouble.is_none() && self.log.as_ref().is_some_and(Log::is_full) {
            self.rotate(now, book);
        }
    }

    fn hold(&mut self, now: Nanos, book: &Book) {
        if let Err(error) = self.record.hold(&book.holders(), book.is_recovering()) {
            let what = self.record.describe(&error);
            self.fail(now, what);
        }
    }

    /// Records that a job gets engines, before the broker answers the job.
    fn engines(&mut self, now: Nanos, locks: &[LockId], job: JobId) {
        let written = locks.iter().try_for_each(|lock| self.record.lock(*lock, job));
        if let Err(error) = written {
            let what = self.record.describe(&error);
            self.fail(now, what);
        }
    }

    fn note(&mut self, now: Nanos, what: &BrokerLogLine) {
        let Some(log) = &mut self.log else { return };
        if let Some(trouble) = &mut self.trouble {
            trouble.lines += 1;
            return;
        }
        if let Err(error) = log.append(&line(what)) {
            let what = format!("cannot write the log `{}`: {error}", log.path().display());
            self.fail(now, what);
            if let Some(trouble) = &mut self.trouble {
                trouble.lines += 1;
            }
        }
    }

    fn rotate(&mut self, now: Nanos, book: &Book) {
        let first = self.snapshot(now, book, StartReason::Rotated, 0);
        let Some(log) = &mut self.log else { return };
        let had = log.obstacle().is_some();
        match log.rotate(&first) {
            Ok(()) => {
                if let Some(obstacle) = log.obstacle().filter(|_| !had) {
                    let text = format!(
                        "cannot keep full files of the log: `{}` is no file of the broker's; move it away. Until then each one that \
                         is full is dropped",
                        obstacle.display()
                    );
                    self.tell(&text);
                }
            }
            // The present file is whole, and is written on, but not for ever.
            Err(error) => {
                let (path, is_over) = (log.path().display(), log.is_over());
                let text = format!("cannot begin another file of the log `{path}`: {error}");
                log.postpone_rotation();
                if is_over {
                    self.fail(now, text);
                } else {
                    self.tell(&format!("{text}; it grows on for a while"));
                }
            }
        }
    }

    /// Has the next broker know whom to wait for.
    pub(super) fn serve(&mut self, now: Nanos, served: impl Iterator<Item = KnownProcess>, users: Vec<UserAccount>) {
        if let Err(error) = self.record.serve(served.collect(), users) {
            let what = self.record.describe(&error);
            self.fail(now, what);
        }
    }

    fn tell(&self, text: &str) {
        event!(WARN, "headway::broker", "record or log", what = text);
        if let Some(tell) = &self.tell {
            (tell.0)(text);
        }
    }

    fn fail(&mut self, now: Nanos, what: String) {
        if self.trouble.is_some() {
            return;
        }
        self.gaps += 1;
        let then = if self.must_remember {
            "nobody is granted anything until that works again"
        } else {
            "the broker goes on, and a broker started after it would not know what happens until that works again"
        };
        self.tell(&format!("{what}; {then}"));
        self.trouble = Some(Trouble { what, retry_at: now.saturating_add(RETRY), lines: 0 });
    }

    /// When to call [`Journal::mend`]; `None` = all is well.
    pub(super) fn retry_at(&self) -> Option<Nanos> {
        self.trouble.as_ref().map(|trouble| trouble.retry_at)
    }

    /// Whether grants are to be kept back.
    pub(super) fn forbids_grants(&self) -> bool {
        self.must_remember && self.trouble.is_some()
    }

    /// Tries to write again, with a snapshot in place of what is missing; whether all is well now.
    pub(super) fn mend(&mut self, now: Nanos, book: &Book) -> bool {
        let Some(trouble) = &mut self.trouble else { return true };
        if now < trouble.retry_at {
            return false;
        }
        trouble.retry_at = now.saturating_add(RETRY);
        let lines = trouble.lines;
        if self.record.rewrite().is_err() {
            return false;
        }
        let first = self.snapshot(now, book, StartReason::Gap, lines);
        // A file that failed may be broken for good: then another one.
        if let Some(log) = &mut self.log
            && let Err(error) = log.open(&first).or_else(|_| log.rotate(&first))
            && (!log::is_no_room(&error) || log.begin_again(&first).is_err())
        {
            return false;
        }
        self.trouble = None;
        self.hold(now, book);
        if self.trouble.is_some() {
            return false;
        }
        self.missing = self.missing.saturating_add(lines);
        let log = if self.log.is_some() {
            format!(", a snapshot is in the log, {lines} lines before it are missing")
        } else {
            String::new()
        };
        self.tell(&format!("what happens is written down again{log}"));
        true
    }

    pub(super) fn status(&self, withheld: usize) -> MemoryStatus {
        let lines = self.trouble.as_ref().map_or(0, |trouble| trouble.lines);
        MemoryStatus {
            log: self.log.as_ref().map(|log| log.path().display().to_string()),
            must_remember: self.must_remember,
            trouble: self.trouble.as_ref().map(|trouble| trouble.what.clone()),
            obstacle: self.log.as_ref().and_then(Log::obstacle).map(|path| path.display().to_string()),
            gaps: self.gaps,
            missing: self.missing.saturating_add(lines),
            withheld: withheld as u64,
        }
    }

    pub(super) const fn has_log(&self) -> bool {
        self.log.is_some()
    }
}

/// Tokens by cluster with the jobs that hold them.
type Holders = BTreeMap<(ClusterId, TokenId), JobId>;

/// A line as bytes, with its end.
fn line(line: &BrokerLogLine) -> Vec<u8> {
    let mut text = serde_json::to_vec(line).expect("lines are plain data without maps, which always have a JSON form");
    text.push(b'\n');
    text
}

/// Inputs after which other jobs may hold tokens.
const fn changes_holders(input: &Input) -> bool {
    !matches!(
        input,
        Input::Register { .. }
            | Input::Withdraw { .. }
            | Input::Fault { .. }
            | Input::Acquire { .. }
            | Input::Returned { .. }
            | Input::Used { .. }
            | Input::Late { .. }
            | Input::Written
    )
}

/// Whether an error may go away by itself, or when a user tidies up: disks that are full or fail.
pub(super) fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge | ReadOnlyFilesystem)
        || error.raw_os_error() == Some(EIO)
}

/// `EIO` of Linux: the disk failed.
const EIO: i32 = 5;
