//! Where streams read: a file cut into one part per stream, a folder dealt to the streams file by file, or what a program gives.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use headway_core::log::StreamRun;
use headway_core::plan::PlannedStream;
use headway_core::units::{Bytes, Nanos};
use serde::Serialize;

use crate::program::{CallbackFailure, Came, ProgramSource};

/// Files of one folder that may be open at a time.
const FILES_MAX: usize = 4096;

/// Input that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The path cannot be opened or listed.
    #[error("cannot open input `{path}`")]
    Open { path: PathBuf, source: io::Error },
    /// There is nothing to process.
    #[error(
        "input `{path}` is empty; give a file of at least one block of 16 bytes, or leave out `--input` to use a sample"
    )]
    Empty { path: PathBuf },
    /// A folder with too many files.
    #[error("folder `{path}` holds {files} files, more than {max}; pack them into fewer")]
    TooManyFiles {
        path: PathBuf,
        /// Files in it.
        files: usize,
        /// How many may be open.
        max: usize,
    },
    /// The input is shorter than the run.
    #[error(
        "input `{path}` holds {available} bytes, but {duration} of {streams} streams need {needed}; shorten `--duration`, \
         or leave it out to process exactly what is there"
    )]
    TooShort {
        path: PathBuf,
        /// Bytes there.
        available: u64,
        /// Bytes needed.
        needed: u64,
        /// Length of the run.
        duration: Nanos,
        /// Number of streams.
        streams: usize,
    },
    /// The files dealt to one stream are shorter than the run.
    #[error(
        "the files of folder `{path}` that go to stream `{stream}` hold {available} bytes, but {duration} of it need \
         {needed}; shorten `--duration`, or leave it out to process exactly what is there"
    )]
    ShareTooShort {
        path: PathBuf,
        stream: String,
        /// Bytes there.
        available: u64,
        /// Bytes needed.
        needed: u64,
        /// Length of the run.
        duration: Nanos,
    },
    /// Neither a file nor a folder.
    #[error("input `{path}` is neither a file nor a folder; save what it gives to a file first")]
    NotAFile { path: PathBuf },
    /// A file ended before the size it had when the run began.
    #[error("input `{path}` was truncated during the run: {wanted} bytes at offset {offset} are not there any more")]
    Truncated {
        path: PathBuf,
        /// Where reading failed.
        offset: u64,
        /// Bytes wanted there.
        wanted: u64,
    },
    /// Reading failed.
    #[error("cannot read input `{path}` at offset {offset}")]
    Read { path: PathBuf, offset: u64, source: io::Error },
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileSegment {
    /// The file, by position in [`Intake::files`].
    pub file: usize,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// What one stream reads. Where the parts hold fewer bytes than it takes, it reads them again from the first one on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InputShare {
    /// Parts of files, one after the other.
    pub segments: Vec<FileSegment>,
    /// Bytes that the stream takes.
    pub bytes: u64,
    /// Zero bytes added behind them so that the last block is whole.
    pub padding: u64,
}

/// The input of a run. Reading is by position and needs no lock: any thread may read for any stream.
#[derive(Debug, Default)]
pub struct Intake {
    files: Vec<(PathBuf, File)>,
    shares: Vec<InputShare>,
    /// By stream.
    programs: BTreeMap<usize, ProgramSource>,
}

impl Intake {
    /// Opens `path` and shares its bytes among `streams`.
    ///
    /// A file is cut into contiguous parts in stream order, proportional to the streams' rates so that all end together;
    /// the files of a folder, sorted by name, are dealt to the streams in turn. With a `duration` every stream gets
    /// exactly the packets that arrive in it; without, everything is processed. Every part is filled up with zeros to a
    /// multiple of its stream's granule in `granules`.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn open(
        path: &Path,
        streams: &[PlannedStream],
        duration: Option<Nanos>,
        granules: &[u64],
    ) -> Result<Self, InputError> {
        let open_error = |source| InputError::Open { path: path.to_owned(), source };
        let kind = fs::metadata(path).map_err(open_error)?.file_type();
        let folder = kind.is_dir();
        if !folder && !kind.is_file() {
            return Err(InputError::NotAFile { path: path.to_owned() });
        }
        let files = if folder { list(path)? } else { vec![path.to_owned()] };
        let mut opened = Vec::new();
        let mut sizes = Vec::new();
        for file in files {
            let open_error = |source| InputError::Open { path: file.clone(), source };
            let handle = File::open(&file).map_err(open_error)?;
            sizes.push(handle.metadata().map_err(open_error)?.len());
            opened.push((file, handle));
        }
        if sizes.iter().all(|&size| size == 0) {
            return Err(InputError::Empty { path: path.to_owned() });
        }
        let limits: Option<Vec<u64>> = duration.map(|d| streams.iter().map(|s| bytes_within(s, d)).collect());
        let mut shares =
            if folder { deal(&sizes, streams.len()) } else { cut(sizes[0], streams, limits.as_deref(), granules) };
        if let (Some(limits), Some(duration)) = (limits, duration) {
            for ((share, &limit), stream) in shares.iter_mut().zip(&limits).zip(streams) {
                if share.bytes < limit {
                    let path = path.to_owned();
                    return Err(if folder {
                        let (stream, available) = (stream.id.clone(), share.bytes);
                        InputError::ShareTooShort { path, stream, available, needed: limit, duration }
                    } else {
                        let needed = limits.iter().fold(0u64, |sum, &limit| sum.saturating_add(limit));
                        InputError::TooShort { path, available: sizes[0], needed, duration, streams: streams.len() }
                    });
                }
                share.truncate(limit);
            }
        }
        for (share, &granule) in shares.iter_mut().zip(granules) {
            share.padding = share.bytes.next_multiple_of(granule) - share.bytes;
        }
        Ok(Self { files: opened, shares, programs: BTreeMap::new() })
    }

    /// Opens the file at `path`, in which every stream has a part of so many bytes, one behind the other. Each stream reads its
    /// part as often as the packets that arrive in `duration` take.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn open_repeated(
        path: &Path,
        streams: &[PlannedStream],
        duration: Nanos,
        parts: &[u64],
        granules: &[u64],
    ) -> Result<Self, InputError> {
        let open_error = |source| InputError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(open_error)?;
        let available = file.metadata().map_err(open_error)?.len();
        let needed = parts.iter().sum();
        if available < needed {
            let (path, streams) = (path.to_owned(), streams.len());
            return Err(InputError::TooShort { path, available, needed, duration, streams });
        }
        let mut offset = 0;
        let share = |((stream, &part), &granule): ((&PlannedStream, &u64), &u64)| {
            let bytes = bytes_within(stream, duration);
            let segments = if part > 0 { vec![FileSegment { file: 0, offset, bytes: part }] } else { Vec::new() };
            offset += part;
            InputShare { segments, bytes, padding: bytes.next_multiple_of(granule) - bytes }
        };
        let shares = streams.iter().zip(parts).zip(granules).map(share).collect();
        Ok(Self { files: vec![(path.to_owned(), file)], shares, programs: BTreeMap::new() })
    }

    /// Puts a stream that a program gives at position `stream`: those before it are here already. It has `bytes` bytes, filled up with
    /// zeros to a multiple of `granule`.
    pub fn give(&mut self, stream: usize, source: ProgramSource, bytes: u64, granule: u64) {
        let padding = bytes.next_multiple_of(granule) - bytes;
        self.shares.insert(stream, InputShare { segments: Vec::new(), bytes, padding });
        self.programs.insert(stream, source);
    }

    /// What gives the packets of a stream, where a program does.
    #[must_use]
    pub fn program(&self, stream: u32) -> Option<&ProgramSource> {
        self.programs.get(&(stream as usize))
    }

    /// Lets programs be asked for packets. Time zero is at `epoch`, and `came` is called for each packet that comes.
    pub(crate) fn begin(&self, epoch: Option<Nanos>, came: Option<&Came>) {
        self.programs.values().for_each(|source| source.begin(epoch, came.cloned()));
    }

    /// Whether programs give some of the streams.
    pub(crate) fn has_programs(&self) -> bool {
        !self.programs.is_empty()
    }

    /// Whether the packets before `until` of a stream are there.
    pub(crate) fn is_there(&self, stream: u32, until: u64) -> Result<bool, CallbackFailure> {
        self.program(stream).map_or(Ok(true), |source| source.is_there(until))
    }

    /// The files read, in the order that [`FileSegment::file`] counts.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// What each stream reads.
    #[must_use]
    pub fn shares(&self) -> &[InputShare] {
        &self.shares
    }

    /// Packets and bytes of each stream, padding included.
    #[must_use]
    pub fn runs(&self, streams: &[PlannedStream]) -> Vec<StreamRun> {
        let shares = self.shares.iter().zip(streams);
        shares
            .map(|(share, stream)| {
                let bytes = share.bytes + share.padding;
                StreamRun { packets: bytes.div_ceil(stream.packet.0), bytes: Bytes(bytes) }
            })
            .collect()
    }

    /// Reads bytes `[offset, offset + buffer.len())` of a stream; what lies behind its last byte reads as zero.
    ///
    /// # Errors
    /// [`InputError::Truncated`] or [`InputError::Read`].
    pub fn read(&self, stream: usize, mut offset: u64, buffer: &mut [u8]) -> Result<(), InputError> {
        let share = &self.shares[stream];
        if let Some(source) = self.programs.get(&stream) {
            let there = share.bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
            let (data, behind) = buffer.split_at_mut(there);
            behind.fill(0);
            source.read(offset, data);
            return Ok(());
        }
        let held: u64 = share.segments.iter().map(|segment| segment.bytes).sum();
        let there = share.bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let (mut data, behind) = buffer.split_at_mut(there);
        behind.fill(0);
        while !data.is_empty() {
            let at = offset % held;
            let (now, later) = data.split_at_mut(data.len().min((held - at) as usize));
            offset += now.len() as u64;
            self.read_parts(share, at, now)?;
            data = later;
        }
        Ok(())
    }

    /// Reads within the parts of a share.
    fn read_parts(&self, share: &InputShare, mut offset: u64, buffer: &mut [u8]) -> Result<(), InputError> {
        let mut rest = buffer;
        for segment in &share.segments {
            if rest.is_empty() {
                break;
            }
            if offset >= segment.bytes {
                offset -= segment.bytes;
                continue;
            }
            let now = (segment.bytes - offset).min(rest.len() as u64) as usize;
            let (head, tail) = rest.split_at_mut(now);
            self.read_file(segment.file, segment.offset + offset, head)?;
            rest = tail;
            offset = 0;
        }
        Ok(())
    }

    fn read_file(&self, file: usize, offset: u64, buffer: &mut [u8]) -> Result<(), InputError> {
        let (path, handle) = &self.files[file];
        handle.read_exact_at(buffer, offset).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                InputError::Truncated { path: path.clone(), offset, wanted: buffer.len() as u64 }
            }
            _ => InputError::Read { path: path.clone(), offset, source },
        })
    }
}

impl InputShare {
    fn push(&mut self, segment: FileSegment) {
        self.bytes += segment.bytes;
        self.segments.push(segment);
    }

    fn truncate(&mut self, limit: u64) {
        let mut left = limit;
        self.segments.retain_mut(|segment| {
            segment.bytes = segment.bytes.min(left);
            left -= segment.bytes;
            segment.bytes > 0
        });
        self.bytes = limit;
    }
}

/// Bytes of the packets that arrive within `duration`.
#[must_use]
pub fn bytes_within(stream: &PlannedStream, duration: Nanos) -> u64 {
    let packets = duration.saturating_sub(stream.start).0.div_ceil(stream.period.0);
    packets.saturating_mul(stream.packet.0)
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, InputError> {
    let open_error = |source| InputError::Open { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(open_error)? {
        let path = entry.map_err(open_error)?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    match files.len() {
        0 => Err(InputError::Empty { path: folder.to_owned() }),
        n if n > FILES_MAX => Err(InputError::TooManyFiles { path: folder.to_owned(), files: n, max: FILES_MAX }),
        _ => Ok(files),
    }
}

fn deal(sizes: &[u64], streams: usize) -> Vec<InputShare> {
    let mut shares = vec![InputShare::default(); streams];
    for (file, &bytes) in sizes.iter().enumerate() {
        if bytes > 0 {
            shares[file % streams].push(FileSegment { file, offset: 0, bytes });
        }
    }
    shares
}

/// Contiguous parts of one file: by rate, or of exactly the sizes in `limits`; the last stream takes the rest.
fn cut(size: u64, streams: &[PlannedStream], limits: Option<&[u64]>, granules: &[u64]) -> Vec<InputShare> {
    let granule = granules.iter().copied().min().unwrap_or(1);
    // Bytes per second in 2^-20 steps: fine enough that streams of one rate get equal parts.
    let weight = |s: &PlannedStream| u128::from(s.packet.0) * (1_000_000_000u128 << 20) / u128::from(s.period.0);
    let total: u128 = streams.iter().map(weight).sum();
    let blocks = size.div_ceil(granule);
    let mut shares = vec![InputShare::default(); streams.len()];
    let (mut offset, mut weighed) = (0u64, 0u128);
    for (number, stream) in streams.iter().enumerate() {
        weighed += weight(stream);
        let end = match limits {
            Some(limits) => offset.saturating_add(limits[number]).min(size),
            // Cutting at cumulated shares spreads the rounding over all streams instead of leaving it to the last.
            None => ((u128::from(blocks) * weighed / total.max(1)) as u64).saturating_mul(granule).min(size),
        };
        if end > offset {
            shares[number].push(FileSegment { file: 0, offset, bytes: end - offset });
            offset = end;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_core::files::workload::OnMiss;
    use std::io::Write;

    fn stream(packet: u64, period: u64) -> PlannedStream {
        PlannedStream {
            id: format!("s{packet}"),
            packet: Bytes(packet),
            period: Nanos(period),
            deadline: Nanos(period * 10),
            start: Nanos(0),
            on_miss: OnMiss::Finish,
            gpu: Some(0),
            pipeline: 0,
            portion: 0,
        }
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn parts_cover_the_file_and_follow_the_rates() {
        let data: Vec<u8> = (0..1003u32).map(|i| i as u8).collect();
        let input = file(&data);
        let streams = [stream(16, 1000), stream(48, 1000), stream(16, 1000)];
        let intake = Intake::open(input.path(), &streams, None, &[16; 4]).unwrap();
        let sizes: Vec<(u64, u64)> = intake.shares().iter().map(|s| (s.bytes, s.padding)).collect();
        assert_eq!(sizes, [(192, 0), (608, 0), (203, 5)]);
        let mut all = Vec::new();
        for (number, share) in intake.shares().iter().enumerate() {
            let mut bytes = vec![0xAA; share.bytes as usize];
            intake.read(number, 0, &mut bytes).unwrap();
            all.extend(bytes);
        }
        assert_eq!(all, data);
        let mut tail = vec![0xAA; 16];
        intake.read(2, 192, &mut tail).unwrap();
        assert_eq!((&tail[..11], &tail[11..]), (&data[992..], &[0; 5][..]));
    }

    #[test]
    fn a_duration_takes_exactly_its_packets_and_refuses_short_input() {
        let input = file(&[7; 1000]);
        let streams = [stream(16, 1000), stream(32, 500)];
        let intake = Intake::open(input.path(), &streams, Some(Nanos(4000)), &[16; 4]).unwrap();
        assert_eq!(intake.runs(&streams).iter().map(|r| r.packets).collect::<Vec<_>>(), [4, 8]);
        assert_eq!(intake.shares()[1].segments, [FileSegment { file: 0, offset: 64, bytes: 256 }]);
        let error = Intake::open(input.path(), &streams, Some(Nanos(40_000)), &[16; 4]).unwrap_err();
        assert!(matches!(error, InputError::TooShort { available: 1000, needed: 3200, .. }), "{error}");
    }

    #[test]
    fn a_part_that_is_shorter_than_its_stream_is_read_again_and_again() {
        let data: Vec<u8> = (0..80).collect();
        let input = file(&data);
        let streams = [stream(10, 1000), stream(20, 1000)];
        // Ten packets each: 100 bytes from 32, and 200 from 48.
        let intake = Intake::open_repeated(input.path(), &streams, Nanos(10_000), &[32, 48], &[16; 4]).unwrap();
        assert_eq!(intake.runs(&streams).iter().map(|run| run.bytes.0).collect::<Vec<_>>(), [112, 208]);
        let all = |stream: usize, bytes: usize| {
            let mut read = vec![0xAA; bytes];
            intake.read(stream, 0, &mut read).unwrap();
            read
        };
        let expected: Vec<u8> = data[..32].iter().cycle().take(100).copied().chain([0; 12]).collect();
        assert_eq!(all(0, 112), expected);
        let expected: Vec<u8> = data[32..].iter().cycle().take(200).copied().chain([0; 8]).collect();
        assert_eq!(all(1, 208), expected);
        // Any part of it reads the same by itself.
        for (from, to) in [(0, 1), (31, 33), (40, 100), (90, 112), (105, 112)] {
            let mut read = vec![0xAA; to - from];
            intake.read(0, from as u64, &mut read).unwrap();
            assert_eq!(read, all(0, 112)[from..to], "{from} to {to}");
        }
        let error = Intake::open_repeated(input.path(), &streams, Nanos(10_000), &[64, 48], &[16; 4]).unwrap_err();
        assert!(matches!(error, InputError::TooShort { available: 80, needed: 112, .. }), "{error}");
    }

    #[test]
    fn files_of_a_folder_are_dealt_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [("b", vec![2; 20]), ("a", vec![1; 10]), ("c", vec![3; 5])] {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let streams = [stream(16, 1000), stream(16, 1000)];
        let intake = Intake::open(folder.path(), &streams, None, &[16; 4]).unwrap();
        let mut bytes = vec![0xAA; 20];
        intake.read(0, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [[1; 10].as_slice(), &[3; 5], &[0; 5]].concat());
        assert_eq!(intake.shares()[0].padding, 1);
    }

    #[test]
    fn a_folder_too_short_for_a_duration_names_the_stream_that_starves() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), [1; 64]).unwrap();
        fs::write(folder.path().join("b"), [2; 16]).unwrap();
        let streams = [stream(16, 1000), stream(32, 1000)];
        let error = Intake::open(folder.path(), &streams, Some(Nanos(2000)), &[16; 4]).unwrap_err();
        assert!(
            matches!(&error, InputError::ShareTooShort { stream, available: 16, needed: 64, .. } if stream == "s32"),
            "{error}"
        );
    }

    #[test]
    fn empty_missing_and_truncated_inputs_are_errors() {
        let streams = [stream(16, 1000)];
        let device = Path::new("/dev/null");
        assert!(matches!(Intake::open(device, &streams, None, &[16; 4]), Err(InputError::NotAFile { .. })));
        let empty = file(&[]);
        assert!(matches!(Intake::open(empty.path(), &streams, None, &[16; 4]), Err(InputError::Empty { .. })));
        let missing = Path::new("no such file");
        assert!(matches!(Intake::open(missing, &streams, None, &[16; 4]), Err(InputError::Open { .. })));
        let shrinking = file(&[1; 64]);
        let intake = Intake::open(shrinking.path(), &streams, None, &[16; 4]).unwrap();
        shrinking.as_file().set_len(32).unwrap();
        let error = intake.read(0, 32, &mut [0; 16]).unwrap_err();
        assert!(matches!(error, InputError::Truncated { offset: 32, wanted: 16, .. }), "{error}");
    }
}
