//! What all steps of a measurement share: the journal, raw samples, progress, warnings and the wish to stop.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use headway_core::units::Nanos;
use headway_os::clock;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::journal::Journal;
use super::sample::{Effort, SampleFigures, series_below};
use crate::Error;
use headway::run::Progress;

/// One measurement under way.
pub struct Session<'a> {
    journal: Option<Journal>,
    raw: Option<Raw>,
    interrupt: &'a AtomicBool,
    progress: &'a mut dyn FnMut(Progress),
    /// What the user should know at the end.
    pub warnings: Vec<String>,
    phase: Progress,
}

impl<'a> Session<'a> {
    /// A session that keeps what is done in `journal` and every sample in `raw`, where there are such.
    pub fn new(
        journal: Option<Journal>,
        raw: Option<Raw>,
        interrupt: &'a AtomicBool,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Self {
        let phase = Progress { phase: "measuring", done: 0, total: 1 };
        Self { journal, raw, interrupt, progress, warnings: Vec::new(), phase }
    }

    /// Begins a phase of `total` steps.
    pub fn phase(&mut self, phase: &'static str, total: usize) {
        self.phase = Progress { phase, done: 0, total: total as u64 };
        (self.progress)(self.phase);
    }

    /// One step of the phase is done. Ends with [`headway::ErrorKind::Interrupted`] if somebody asked for it.
    pub fn advance(&mut self) -> Result<(), Error> {
        self.phase.done = (self.phase.done + 1).min(self.phase.total);
        (self.progress)(self.phase);
        self.go_on()
    }

    /// Becomes true when somebody asks for the end.
    pub const fn interrupt(&self) -> &AtomicBool {
        self.interrupt
    }

    /// # Errors
    /// [`headway::ErrorKind::Interrupted`] if somebody asked for it.
    pub fn go_on(&self) -> Result<(), Error> {
        if self.interrupt.load(Ordering::Relaxed) { Err(headway::Failure::Interrupted.into()) } else { Ok(()) }
    }

    /// What `work` gives, or what it gave before an interruption, under `key`.
    pub fn step<T: Serialize + DeserializeOwned>(
        &mut self,
        key: &str,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(known) = self.journal.as_ref().and_then(|journal| journal.recall(key)) {
            return Ok(known);
        }
        let value = work(self)?;
        if let Some(journal) = &mut self.journal {
            journal.record(key, &value).map_err(Error::Journal)?;
        }
        Ok(value)
    }

    /// A phase with this one [`Self::step`].
    pub fn only_step<T: Serialize + DeserializeOwned>(
        &mut self,
        phase: &'static str,
        key: &str,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.phase(phase, 1);
        let value = self.step(key, work)?;
        self.advance()?;
        Ok(value)
    }

    /// Times `once` and returns the figures; the samples go to the raw file under `key`.
    pub fn series(
        &mut self,
        key: &str,
        effort: Effort,
        once: impl FnMut(u32) -> Result<Nanos, Error>,
    ) -> Result<SampleFigures, Error> {
        self.series_below(key, effort, Nanos::MAX, once)
    }

    /// [`Session::series`] that ends with its second sample if both are above `limit`.
    pub fn series_below(
        &mut self,
        key: &str,
        effort: Effort,
        limit: Nanos,
        mut once: impl FnMut(u32) -> Result<Nanos, Error>,
    ) -> Result<SampleFigures, Error> {
        let interrupt = self.interrupt;
        let samples = series_below(effort, limit, clock::now, |number| {
            if interrupt.load(Ordering::Relaxed) {
                return Err(headway::Failure::Interrupted.into());
            }
            once(number)
        })?;
        self.keep(key, &samples)?;
        Ok(SampleFigures::of(&samples).expect("an effort asks for at least one sample"))
    }

    /// Puts samples into the raw file under `key`.
    pub fn keep(&mut self, key: &str, samples: &[Nanos]) -> Result<(), Error> {
        self.raw.as_mut().map_or(Ok(()), |raw| raw.write(key, samples))
    }

    /// Ends the session: the journal is not needed any more.
    pub fn finish(self) -> Result<Vec<String>, Error> {
        if let Some(raw) = self.raw {
            raw.finish()?;
        }
        if let Some(journal) = self.journal {
            journal.finish().map_err(Error::Journal)?;
        }
        Ok(self.warnings)
    }
}

/// Every sample, as compressed JSON documents, one a line: `{"key": ..., "at": ..., "ns": [...]}`.
pub struct Raw {
    path: PathBuf,
    file: GzEncoder<File>,
    since: Nanos,
}

#[derive(Serialize)]
struct RawLine<'a> {
    key: &'a str,
    /// When the series ended, since the file was made.
    at: Nanos,
    ns: &'a [Nanos],
}

impl Raw {
    /// A new file at `path`, or if `goes_on` the one that is there, with every whole line that it holds: compressed text that
    /// was cut off in the middle cannot be appended to.
    pub fn open(path: &Path, goes_on: bool) -> Result<Self, Error> {
        let failed = |source| headway::Failure::Write { path: path.to_owned(), source };
        let old = if goes_on { File::open(path).ok() } else { None };
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}", std::process::id()));
        let mut file = GzEncoder::new(File::create(&temporary).map_err(failed)?, Compression::fast());
        if let Some(old) = old {
            let mut old = BufReader::new(MultiGzDecoder::new(BufReader::new(old)));
            let mut line = Vec::new();
            // Whatever ends the file, its end or damage: what came before is whole.
            while old.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
                file.write_all(&line).map_err(failed)?;
                line.clear();
            }
        }
        std::fs::rename(&temporary, path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, since: clock::now() })
    }

    fn write(&mut self, key: &str, samples: &[Nanos]) -> Result<(), Error> {
        let at = clock::now() - self.since;
        let written = serde_json::to_string(&RawLine { key, at, ns: samples })
            .map_err(io::Error::from)
            .and_then(|line| writeln!(self.file, "{line}"));
        Ok(written.map_err(|source| headway::Failure::Write { path: self.path.clone(), source })?)
    }

    fn finish(self) -> Result<(), Error> {
        let Self { path, file, .. } = self;
        Ok(file.finish().map(drop).map_err(|source| headway::Failure::Write { path, source })?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use headway_core::models::transfer::Stamp;

    use super::super::journal::Head;
    use super::*;

    #[test]
    fn a_step_that_is_known_is_not_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let head = Head::new(&Stamp::default(), BTreeMap::new());
        let (stop, mut ignore) = (AtomicBool::new(false), |_| ());
        for (made, expected) in [(1, 1), (2, 1)] {
            let journal = Journal::open(path.clone(), &head).unwrap();
            let mut session = Session::new(Some(journal), None, &stop, &mut ignore);
            assert_eq!(session.step("a", |_| Ok(made)).unwrap(), expected);
        }
    }

    #[test]
    fn an_interrupt_ends_a_series_and_a_phase() {
        let (stop, mut ignore) = (AtomicBool::new(true), |_| ());
        let mut session = Session::new(None, None, &stop, &mut ignore);
        let effort = Effort { warm_up: 0, n_min: 1, n_max: 1, time: Nanos(1) };
        assert!(matches!(
            session.series("a", effort, |_| Ok(Nanos(1))),
            Err(Error::Headway(headway::Failure::Interrupted))
        ));
        assert!(matches!(session.advance(), Err(Error::Headway(headway::Failure::Interrupted))));
    }

    #[test]
    fn raw_samples_can_be_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("raw.jsonl.gz");
        let (stop, mut ignore) = (AtomicBool::new(false), |_| ());
        let mut session = Session::new(None, Some(Raw::open(&path, false).unwrap()), &stop, &mut ignore);
        let effort = Effort { warm_up: 0, n_min: 2, n_max: 2, time: Nanos(1) };
        session.series("a", effort, |number| Ok(Nanos(u64::from(number)))).unwrap();
        session.finish().unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&line["key"], &line["ns"]), (&"a".into(), &vec![0, 1].into()));
        assert!(line["at"].is_u64());
    }

    #[test]
    fn raw_samples_of_before_an_interruption_stay_even_if_the_file_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("raw.jsonl.gz");
        let mut raw = Raw::open(&path, false).unwrap();
        for at in 0..1_000 {
            raw.write("before", &[Nanos(at)]).unwrap();
        }
        raw.finish().unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let mut raw = Raw::open(&path, true).unwrap();
        raw.write("after", &[Nanos(7)]).unwrap();
        raw.finish().unwrap();
        let read = || {
            let mut text = String::new();
            MultiGzDecoder::new(File::open(&path).unwrap()).read_to_string(&mut text).unwrap();
            text
        };
        let text = read();
        let before = text.lines().filter(|line| line.contains("\"before\"")).count();
        assert!(before > 100 && text.lines().last().unwrap().contains("\"after\""), "{before} lines");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        Raw::open(&path, false).unwrap().finish().unwrap();
        assert_eq!(read(), "");
    }
}
