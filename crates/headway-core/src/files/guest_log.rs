//! The event log of a guest (`headway exec --log FILE`): which copies a program made, and what became of each.
//!
//! The preloaded library writes it, one [`GuestLogLine`] of JSON a line; `headway report` reads it. A guest that is killed leaves a log
//! without [`GuestLogLine::End`].

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Nanos};

/// Version of the log's JSON form.
pub const SCHEMA: u32 = 1;
/// What the first line calls such a log.
pub const KIND: &str = "guest";
/// The environment variable with the log's path, which may hold characters that the options may not.
pub const VARIABLE: &str = "HEADWAY_GUEST_LOG";
/// From this size on a copy is bulk: it holds the engine for 40 us and more on PCIe 5.
pub const BULK_MIN: u64 = 2 << 20;
/// Upper ends of the classes of sizes, with their names; the last has none.
pub const SIZES: [(u64, &str); 5] = [
    (4 << 10, "<= 4 KiB"),
    (64 << 10, "<= 64 KiB"),
    (1 << 20, "<= 1 MiB"),
    (16 << 20, "<= 16 MiB"),
    (u64::MAX, "larger"),
];

/// The position in [`SIZES`] of a copy's class.
#[must_use]
pub fn size_class(bytes: u64) -> usize {
    SIZES.iter().position(|(end, _)| bytes <= *end).unwrap_or(SIZES.len() - 1)
}

/// The driver's function that the program called; its forms for per-thread streams count as the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Call {
    /// Into a GPU; the call waits.
    #[serde(rename = "cuMemcpyHtoD")]
    In,
    /// Into a GPU, in the order of a stream.
    #[serde(rename = "cuMemcpyHtoDAsync")]
    InAsync,
    /// Out of a GPU; the call waits.
    #[serde(rename = "cuMemcpyDtoH")]
    Out,
    /// Out of a GPU, in the order of a stream.
    #[serde(rename = "cuMemcpyDtoHAsync")]
    OutAsync,
    /// Whatever the addresses say; the call waits where the driver does.
    #[serde(rename = "cuMemcpy")]
    Any,
    /// Whatever the addresses say, in the order of a stream.
    #[serde(rename = "cuMemcpyAsync")]
    AnyAsync,
    /// One of the copies of a call, in the order of a stream.
    #[serde(rename = "cuMemcpyBatchAsync")]
    Batch,
    /// With attributes of its own, in the order of a stream.
    #[serde(rename = "cuMemcpyWithAttributesAsync")]
    Attributes,
}

impl Call {
    /// The driver's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::In => "cuMemcpyHtoD",
            Self::InAsync => "cuMemcpyHtoDAsync",
            Self::Out => "cuMemcpyDtoH",
            Self::OutAsync => "cuMemcpyDtoHAsync",
            Self::Any => "cuMemcpy",
            Self::AnyAsync => "cuMemcpyAsync",
            Self::Batch => "cuMemcpyBatchAsync",
            Self::Attributes => "cuMemcpyWithAttributesAsync",
        }
    }

    /// Whether the call returns only when the bytes are there.
    #[must_use]
    pub const fn waits(self) -> bool {
        matches!(self, Self::In | Self::Out | Self::Any)
    }
}

/// Where a copy went, as far as the library knows without asking the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Towards {
    /// Into a GPU.
    In,
    /// Out of a GPU.
    Out,
    /// The call goes by the addresses, and nobody asked the driver about them.
    #[default]
    Unknown,
}

/// The host's end of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Host {
    /// Memory that the driver does not know (pageable).
    Ordinary,
    /// Page-locked memory.
    PageLocked,
    /// Memory that the driver knows: page-locked as a whole or in part, or managed.
    KnownToDriver,
    /// Nothing that was done with the copy depended on it.
    #[default]
    NotAsked,
}

/// Who made a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Became {
    /// Several threads, through page-locked memory.
    Fast,
    /// The engine, from or to memory of the program's own that Headway keeps page-locked.
    PinnedOnce,
    /// A kernel in the copy's own stream.
    Aside,
    /// The driver, in chunks.
    #[serde(alias = "pieces")]
    Chunks,
    /// The driver, as the program asked for it.
    #[default]
    PassedOn,
}

impl Became {
    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::PinnedOnce => "pinned once",
            Self::Aside => "aside",
            Self::Chunks => "chunks",
            Self::PassedOn => "passed on",
        }
    }
}

/// Why the driver made a copy as the program asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverReason {
    /// No option that is on concerns copies of this call and size.
    NoOption,
    /// Nothing was known to be on the engine that the copy would wait for.
    EngineFree,
    /// The stream was recording a graph.
    Capture,
    /// The host's end is known to the driver already.
    NotOrdinary,
    /// The context is not a device's primary one, or the GPU could not be prepared.
    Context,
    /// The GPU's end is not plain memory of the current GPU.
    NotOnGpu,
    /// The memory is of a kind that this method does not take, or the copy is too large for it.
    OtherMemory,
    /// All page-locked lines were in use.
    NoLine,
    /// The driver did not take the kernel.
    NotLaunched,
    /// A bulk copy that is not cut into chunks.
    Whole,
    /// Another method began and failed; the driver made the copy from the start.
    Failed,
    /// The driver's own call is the fastest known, or tried to see whether it is.
    DriverFastest,
    /// The stream had work to do, and a copy by several threads would have had to wait for that where the driver need not.
    StreamBusy,
    /// The calling thread had too little of its stack left for another method.
    SmallStack,
}

impl DriverReason {
    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoOption => "no option concerns copies of this call and size",
            Self::EngineFree => "nothing was known to be on the engine",
            Self::Capture => "the stream was recording a graph",
            Self::NotOrdinary => "the driver knows the host's memory: it is page-locked or managed",
            Self::Context => "the context is not the device's primary one, or could not be prepared",
            Self::NotOnGpu => "the GPU's end is not plain memory of the current GPU",
            Self::OtherMemory => "the memory is neither page-locked nor ordinary, or the copy is too large for a line",
            Self::NoLine => "all page-locked lines were in use",
            Self::NotLaunched => "the driver did not take the kernel",
            Self::Whole => "bulk copies are not cut into chunks, or not of this memory",
            Self::DriverFastest => "the driver's own call is the fastest method known, or was tried",
            Self::StreamBusy => "the stream was busy, and the driver need not wait for it before the call returns",
            Self::SmallStack => "the calling thread had too little stack left for another method",
            Self::Failed => "another method failed, and the driver made the copy from the start",
        }
    }
}

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestLogStart {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Always `guest`.
    pub kind: String,
    /// Version of Headway.
    pub version: String,
    pub pid: u32,
    /// Its program and arguments, cut after 1,024 bytes.
    pub command: Vec<String>,
    /// Options of the guest, as `headway exec` gives them to the library.
    pub options: String,
    /// When the log began, in nanoseconds since 1970.
    pub began_unix: Nanos,
}

/// One call that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// When the program called, after the log began.
    pub at: Nanos,
    /// Time in the call, by the host's clock. For calls that wait it is the whole copy.
    pub took: Nanos,
    /// The thread, by the kernel's number.
    pub thread: u32,
    pub call: Call,
    /// Which method, where that is known.
    pub direction: Towards,
    pub bytes: Bytes,
    /// The stream's handle; 1 is the legacy default stream, 2 the thread's own.
    pub stream: u64,
    /// The host's end.
    pub host: Host,
    /// Who made it.
    pub became: Became,
    /// Why the driver did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<DriverReason>,
    /// What the call returned; 0 is success.
    pub status: i32,
    /// How many copies of its class this line is a sample of; 1 = every such copy has a line.
    pub of: u64,
}

/// Small quick copies that have no line of their own, summed up by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedCopies {
    pub call: Call,
    /// Position of the class of sizes.
    pub class: usize,
    /// Who made them.
    pub became: Became,
    /// How many since the line before of this class.
    pub copies: u64,
    pub bytes: Bytes,
    /// Their time in calls.
    pub took: Nanos,
    pub longest: Nanos,
}

/// A way in which copies lose time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Problem {
    /// Large copies of memory that is not page-locked.
    Ordinary,
    /// Many copies of a few bytes.
    Tiny,
    /// Small results for which the program waits again and again.
    Blocking,
    /// The same memory, not page-locked, copied again and again.
    Repeated,
}

/// What `--lint` found at one place of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LintFinding {
    /// What loses time.
    pub problem: Problem,
    /// Library, function and offset of the first caller that belongs neither to CUDA nor to Headway.
    pub site: String,
    pub call: Call,
    /// Copies that were found there.
    pub copies: u64,
    pub bytes: Bytes,
    /// Their time in calls.
    pub took: Nanos,
    /// How much shorter that time would have been by figures of the same run; `None` = nothing in the run says it.
    pub gain: Option<Nanos>,
}

/// An accelerated copy that gave other bytes than the driver's (`--verify`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub call: Call,
    /// Who made the copy.
    pub became: Became,
    /// Size of the copy.
    pub bytes: Bytes,
    /// Where the first byte differs.
    pub offset: Bytes,
}

/// What `--verify` did until the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyCounts {
    /// Accelerated copies that were compared with the driver's.
    pub compared: u64,
    /// Of these, those that differed.
    pub different: u64,
    /// Accelerated copies that could not be compared.
    pub not_compared: u64,
}

/// The last line of a program that came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestLogEnd {
    /// When, after the log began.
    pub at: Nanos,
    /// Lines that could not be written, because the disk was full or the log was closed.
    pub lost: u64,
    /// Whether the log had reached its greatest size, so that later copies were only counted.
    pub full: bool,
}

/// A line behind the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestLogLine {
    Copy(Copy),
    /// Copies without lines.
    Counted(CountedCopies),
    /// Lines that could not be written just before this one.
    Lost(u64),
    /// What `--lint` found at one place, at the end.
    Finding(LintFinding),
    /// A copy that was wrong.
    Difference(Difference),
    /// What was compared, at the end.
    Verified(VerifyCounts),
    End(GuestLogEnd),
}

impl GuestLogStart {
    /// Whether a text is the first line of such a log.
    #[must_use]
    pub fn begins(line: &str) -> bool {
        #[derive(Deserialize)]
        struct Probe {
            kind: String,
        }
        serde_json::from_str::<Probe>(line).is_ok_and(|probe| probe.kind == KIND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_one_line_that_reads_the_same() {
        let copy = Copy {
            at: Nanos(5),
            took: Nanos(6),
            thread: 7,
            call: Call::OutAsync,
            direction: Towards::Out,
            bytes: Bytes(8),
            stream: 1,
            host: Host::PageLocked,
            became: Became::PassedOn,
            why: Some(DriverReason::EngineFree),
            status: 0,
            of: 64,
        };
        let text = serde_json::to_string(&GuestLogLine::Copy(copy)).unwrap();
        assert!(text.contains(r#""call":"cuMemcpyDtoHAsync""#) && !text.contains('\n'), "{text}");
        assert_eq!(serde_json::from_str::<GuestLogLine>(&text).unwrap(), GuestLogLine::Copy(copy));
        assert!(!GuestLogStart::begins(&text));
    }

    #[test]
    fn classes_of_sizes_begin_behind_the_end_of_the_one_before() {
        assert_eq!([0, 4096, 4097, 1 << 20, u64::MAX].map(size_class), [0, 0, 1, 2, 4]);
    }
}
