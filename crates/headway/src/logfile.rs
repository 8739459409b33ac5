//! Log files of runs: text, or compressed where they are long and the feature `gzip` is on.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

#[cfg(feature = "gzip")]
use flate2::{Compression, bufread::MultiGzDecoder, write::GzEncoder};
use headway_core::units::Bytes;
use headway_os::input::open_again;
use headway_runtime::outlet::{LOG, OutFile, Outlet, OutputError, PACKED_LOG};
use headway_trace::{LogWriter, RunLog};

use crate::keep::Keep;
use crate::{Error, Failure};

/// Entries of a folder that are looked at for folders of results.
const ENTRIES_MAX: usize = 10_000;
/// First bytes of a compressed file (RFC 1952).
const MAGIC: [u8; 2] = [0x1f, 0x8b];
/// On the log of the main job level 3 is twice as fast as the usual level, for files a sixth larger.
#[cfg(feature = "gzip")]
const LEVEL: u32 = 3;

/// The log that `path` names, or that lies in the folder of results there.
fn find(path: &Path) -> PathBuf {
    if !path.is_dir() {
        return path.to_owned();
    }
    let packed = path.join(PACKED_LOG);
    if packed.exists() { packed } else { path.join(LOG) }
}

/// Opens the log at `path`, or of the folder of results there, compressed or not; returns its path too.
///
/// # Errors
/// `ErrorKind::Io`.
pub(crate) fn open(path: &Path) -> Result<(Box<dyn BufRead>, PathBuf), Error> {
    let log = find(path);
    if path.is_dir() && !log.exists() {
        return Err(Failure::NoRun { folder: path.to_owned(), runs: runs(path) }.into());
    }
    let path = log;
    let error = |source| Failure::Read { path: path.clone(), source };
    let mut file = BufReader::with_capacity(1 << 16, open_again(&path).map_err(error)?);
    let packed = file.fill_buf().map_err(error)?.starts_with(&MAGIC);
    let log: Box<dyn BufRead> = if packed { unpacked(file).map_err(error)? } else { Box::new(file) };
    let log = Box::new(Lines::new(log));
    Ok((log, path))
}

/// The folders of results right inside `folder`, in order, as far as they can be seen.
fn runs(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let inside = entries.take(ENTRIES_MAX).filter_map(|entry| Some(entry.ok()?.path()));
    let mut runs: Vec<PathBuf> = inside.filter(|path| path.is_dir() && find(path).exists()).collect();
    runs.sort();
    runs
}

#[cfg(feature = "gzip")]
#[expect(clippy::unnecessary_wraps, reason = "without the feature it is an error")]
fn unpacked(file: BufReader<File>) -> io::Result<Box<dyn BufRead>> {
    Ok(Box::new(BufReader::new(MultiGzDecoder::new(file))))
}

#[cfg(not(feature = "gzip"))]
fn unpacked(_file: BufReader<File>) -> io::Result<Box<dyn BufRead>> {
    let text = "the log is compressed, and this program was built without `headway`'s feature `gzip`; `gunzip` it";
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}

/// Bytes of a line of a log. The first one has the plan, some hundred bytes for each stream.
const LINE_MAX: u64 = 256 << 20;

/// Ends with an error where a line is longer than any line of a log, before whoever reads it has taken memory for it.
pub(crate) struct Lines<R> {
    input: R,
    /// Bytes since the last end of a line.
    line: u64,
    max: u64,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, line: 0, max: LINE_MAX }
    }
}

impl<R: BufRead> Read for Lines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Lines<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.line > self.max {
            let text = format!("a line is longer than {}, which no line of a log is", Bytes(self.max));
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        self.input.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        // What was read lies in the buffer until it is consumed; an error was reported when it was filled.
        if let Ok(read) = self.input.fill_buf() {
            let read = &read[..bytes.min(read.len())];
            self.line = match read.iter().rposition(|&byte| byte == b'\n') {
                Some(end) => (read.len() - end - 1) as u64,
                None => self.line + read.len() as u64,
            };
        }
        self.input.consume(bytes);
    }
}

/// A log under construction.
pub(crate) enum LogFile {
    Plain(OutFile),
    #[cfg(feature = "gzip")]
    Packed(Box<GzEncoder<OutFile>>),
}

impl LogFile {
    /// Begins a log of `records` records in `outlet`; returns its name inside the results too.
    pub(crate) fn create(outlet: &Outlet, records: usize, keep: &Keep) -> Result<(Self, &'static str), OutputError> {
        #[cfg(feature = "gzip")]
        if records as u64 >= keep.packed_from {
            let encoder = GzEncoder::new(outlet.file(PACKED_LOG)?, Compression::new(LEVEL));
            return Ok((Self::Packed(Box::new(encoder)), PACKED_LOG));
        }
        #[cfg(not(feature = "gzip"))]
        let _ = (records, keep);
        Ok((Self::Plain(outlet.file(LOG)?), LOG))
    }

    /// Bytes on disk so far, but for what is gathered to be compressed.
    fn written(&self) -> u64 {
        match self {
            Self::Plain(file) => file.written(),
            #[cfg(feature = "gzip")]
            Self::Packed(encoder) => encoder.get_ref().written(),
        }
    }

    /// Writes everything out.
    #[cfg_attr(not(feature = "gzip"), expect(unused_variables, reason = "a plain file knows its path"))]
    pub(crate) fn finish(self, path: &Path) -> Result<(), OutputError> {
        let file = match self {
            Self::Plain(file) => file,
            #[cfg(feature = "gzip")]
            Self::Packed(encoder) => {
                encoder.finish().map_err(|source| OutputError::Write { path: path.to_owned(), source })?
            }
        };
        file.finish().map(drop)
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => Write::write(file, bytes),
            #[cfg(feature = "gzip")]
            Self::Packed(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            #[cfg(feature = "gzip")]
            Self::Packed(encoder) => encoder.flush(),
        }
    }
}

/// Writes `log`, up to the size that `keep` allows. Returns its name, and what the file lacks, as a sentence.
pub(crate) fn write(outlet: &Outlet, log: &RunLog, keep: &Keep) -> Result<(&'static str, Option<String>), Error> {
    let records = log.records();
    let (file, name) = LogFile::create(outlet, records.len(), keep)?;
    let path = outlet.place().join(name);
    let error = |source| OutputError::Write { path: path.clone(), source };
    let mut writer = LogWriter::new(file, log.header()).map_err(error)?;
    let mut written = 0;
    for record in records {
        if writer.output().written() >= keep.log.0 {
            break;
        }
        writer.record(record).map_err(error)?;
        written += 1;
    }
    let omitted = (records.len() - written) as u64;
    writer.finish_early(log.incomplete().cloned(), omitted).map_err(error)?.finish(&path)?;
    let left_out = (omitted > 0).then(|| {
        format!(
            "{name} has the first {written} of {} records, as it reached {} (`--log-max`); `headway replay` compares those",
            records.len(),
            keep.log
        )
    });
    Ok((name, left_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_an_error_before_it_is_held() {
        let lines = |text: &'static [u8]| Lines { input: BufReader::with_capacity(4, text), line: 0, max: 10 };
        let mut held = String::new();
        let ended = lines(b"1234567\n12345678\n1").read_to_string(&mut held);
        assert_eq!((ended.unwrap(), held.as_str()), (18, "1234567\n12345678\n1"));
        let mut held = Vec::new();
        let mut endless = Lines { input: BufReader::with_capacity(4, io::repeat(b'x')), line: 0, max: 10 };
        let error = endless.read_until(b'\n', &mut held).unwrap_err();
        assert!(
            error.to_string().contains("a line is longer than 10 B") && held.len() <= 14,
            "{error}: {}",
            held.len()
        );
    }
}
