//! Copies with attributes: one (`cuMemcpyWithAttributesAsync`), or many in one call (`cuMemcpyBatchAsync`).
//!
//! Copies of one batch have no order among each other, so any order is one that the program must expect. Large copies of ordinary memory
//! are taken out of a batch and made by several threads. Small ones that would wait at a busy engine are made by a kernel. What is left
//! goes to the driver: as it came, or, where it is bulk on its way into page-locked memory and `--yield` asks for chunks, in smaller
//! batches with a written word behind each. The engine treats a batch as one copy, and others wait for all of it.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint, c_void};

use crate::base::context::{self, Prepared};
use crate::base::driver::{self, DevicePtr, Driver, Relaxed, SUCCESS, Status, Stream};
use crate::base::neighbours;
use crate::calls::lookup;
use crate::decide::{self, BULK_MIN, Out};
use crate::observers::stats::{self, Kind, Outcome};

/// Of more copies in one call none is looked at.
const COUNT_MAX: usize = 1 << 20;
/// Of more copies in one call none is made by a kernel: each costs a launch.
const ASIDE_COUNT_MAX: usize = 32;
/// Physical memory of a GPU comes in granules of this size or a multiple of it.
const GRANULE: u64 = 2 << 20;

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    access: c_uint,
    hints: [(c_uint, c_int); 2],
    flags: c_uint,
}

/// `CU_MEMCPY_SRC_ACCESS_ORDER_`: sources are read in the order of the stream, before the call returns, or whenever the driver likes.
const IN_STREAM_ORDER: c_uint = 1;
const DURING_THE_CALL: c_uint = 2;
const IN_ANY_ORDER: c_uint = 3;
/// `CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`.
const PREFER_OVERLAP: c_uint = 1;

impl Attributes {
    /// Whether they are known. Headway reads a source in the order of the stream and before the call returns, which all orders allow.
    const fn are_known(self) -> bool {
        matches!(self.access, IN_STREAM_ORDER..=IN_ANY_ORDER) && matches!(self.flags, 0 | PREFER_OVERLAP)
    }

    /// With these the driver is reported to corrupt copies of ordinary memory (NVIDIA bug 6718200).
    const fn may_corrupt(self) -> bool {
        self.access == DURING_THE_CALL && self.flags & PREFER_OVERLAP != 0
    }

    /// What the driver is given for a copy: the hint goes where it may corrupt ordinary memory.
    fn for_the_driver(self, driver: Option<&Driver>, copy: Piece) -> Self {
        let Some(driver) = driver.filter(|_| self.may_corrupt()) else { return self };
        let is_ordinary = |address: DevicePtr| driver::is_ordinary(driver, address as *mut c_void, copy.bytes);
        if !is_ordinary(copy.to) && !is_ordinary(copy.from) {
            return self;
        }
        stats::outcome(Outcome::HintDropped, 1);
        Self { flags: self.flags & !PREFER_OVERLAP, ..self }
    }
}

/// One copy of a call.
#[derive(Clone, Copy, Debug)]
struct Piece {
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    attributes: Attributes,
    /// Its place in the caller's lists.
    number: usize,
}

impl Piece {
    const fn out(self, stream: Stream) -> Out {
        Out { to: self.to as *mut c_void, from: self.from, bytes: self.bytes, stream, waits: false }
    }
}

/// A copy with attributes of its own.
///
/// # Safety
/// As for the driver's call; `real` makes the copy with the attributes that it is given.
pub(crate) unsafe fn copy_one(
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    attributes: *const Attributes,
    stream: Stream,
    real: impl FnOnce(*const Attributes) -> Status,
) -> Status {
    if lookup::is_off() || attributes.is_null() || !decide::looks_at(bytes) {
        return real(attributes);
    }
    // SAFETY: by this function's contract.
    let known = unsafe { attributes.read_unaligned() };
    let piece = Piece { to, from, bytes, attributes: known, number: 0 };
    // The driver refuses the legacy default stream.
    if !known.are_known() || bytes == 0 || stream <= driver::STREAM_PER_THREAD {
        return real(attributes);
    }
    decide::out_of_gpu(piece.out(stream), Kind::Attributes, || {
        let attributes = known.for_the_driver(driver::driver(), piece);
        real(&raw const attributes)
    })
}

/// What a call for many copies was given, but for the place of the first failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) to: *const DevicePtr,
    pub(crate) from: *const DevicePtr,
    pub(crate) sizes: *const usize,
    pub(crate) count: usize,
    pub(crate) attributes: *const Attributes,
    /// The first copy for which each of the attributes counts.
    pub(crate) first: *const usize,
    pub(crate) kinds: usize,
    pub(crate) stream: Stream,
}

impl Batch {
    /// Its copies; `None` if the driver would refuse the call, or the lists cannot be read.
    ///
    /// # Safety
    /// Lists that are not null have `count` entries; those of attributes and their places have `kinds`, unless these are more than the
    /// copies.
    unsafe fn pieces(&self) -> Option<Vec<Piece>> {
        let lists = [self.to.cast(), self.from.cast(), self.sizes, self.attributes.cast(), self.first];
        let counts = (1..=COUNT_MAX).contains(&self.count) && (1..=self.count).contains(&self.kinds);
        if lists.iter().any(|list| list.is_null()) || !counts {
            return None;
        }
        // SAFETY: by this function's contract, and `kind` is less than `kinds`.
        let first = |kind: usize| unsafe { self.first.add(kind).read_unaligned() };
        let rise = (1..self.kinds).all(|kind| first(kind - 1) < first(kind));
        if first(0) != 0 || first(self.kinds - 1) >= self.count || !rise {
            return None;
        }
        let mut pieces = Vec::with_capacity(self.count);
        let mut kind = 0;
        for number in 0..self.count {
            if kind + 1 < self.kinds && first(kind + 1) == number {
                kind += 1;
            }
            // SAFETY: `number` is less than `count`, and `kind` less than `kinds`.
            let piece = unsafe {
                Piece {
                    to: self.to.add(number).read_unaligned(),
                    from: self.from.add(number).read_unaligned(),
                    bytes: self.sizes.add(number).read_unaligned(),
                    attributes: self.attributes.add(kind).read_unaligned(),
                    number,
                }
            };
            if piece.bytes == 0 || !piece.attributes.are_known() {
                return None;
            }
            pieces.push(piece);
        }
        Some(pieces)
    }
}

/// The lists of a call for some copies of a batch.
#[derive(Default)]
struct Lists {
    to: Vec<DevicePtr>,
    from: Vec<DevicePtr>,
    sizes: Vec<usize>,
    attributes: Vec<Attributes>,
    first: Vec<usize>,
}

impl Lists {
    fn of(driver: Option<&Driver>, pieces: &[Piece]) -> Self {
        let mut lists = Self::default();
        for piece in pieces {
            let attributes = piece.attributes.for_the_driver(driver, *piece);
            if lists.attributes.last() != Some(&attributes) {
                lists.attributes.push(attributes);
                lists.first.push(lists.to.len());
            }
            lists.to.push(piece.to);
            lists.from.push(piece.from);
            lists.sizes.push(piece.bytes);
        }
        lists
    }

    fn batch(&self, stream: Stream) -> Batch {
        Batch {
            to: self.to.as_ptr(),
            from: self.from.as_ptr(),
            sizes: self.sizes.as_ptr(),
            count: self.to.len(),
            attributes: self.attributes.as_ptr(),
            first: self.first.as_ptr(),
            kinds: self.attributes.len(),
            stream,
        }
    }
}

/// Many copies in one call; `failed` is where the caller wants the number of the copy that failed, or null.
///
/// # Safety
/// As for the driver's call; `real` makes the copies of the lists that it is given and says where which of them failed.
pub(crate) unsafe fn copy(batch: Batch, failed: *mut usize, real: impl Fn(&Batch, *mut usize) -> Status) -> Status {
    if lookup::is_off() || !decide::looks_at(usize::MAX) {
        return real(&batch, failed);
    }
    // The driver refuses the legacy default stream.
    if batch.stream <= driver::STREAM_PER_THREAD {
        return real(&batch, failed);
    }
    // SAFETY: by this function's contract.
    let Some(mut pieces) = (unsafe { batch.pieces() }) else { return real(&batch, failed) };
    let is_whole = |left: &[Piece]| left.len() == batch.count && !left.iter().any(|left| left.attributes.may_corrupt());
    if let [piece] = pieces[..] {
        return decide::out_of_gpu(piece.out(batch.stream), Kind::Batch, || {
            if is_whole(&pieces) { real(&batch, failed) } else { send(&batch, &pieces, failed, &real) }
        });
    }
    pieces.iter().for_each(|piece| decide::count(Kind::Batch, piece.bytes));
    let Some(driver) = driver::driver() else { return real(&batch, failed) };
    pieces.retain(|piece| !decide::made_fast_of_batch(driver, piece.out(batch.stream)));
    if pieces.len() <= ASIDE_COUNT_MAX {
        pieces.retain(|piece| !decide::made_aside_of_batch(driver, piece.out(batch.stream)));
    }
    if pieces.is_empty() {
        return SUCCESS;
    }
    let bytes = pieces.iter().map(|piece| piece.bytes).fold(0, usize::saturating_add);
    let bulk = decide::options().chunk.filter(|_| bytes >= BULK_MIN);
    if let Some(asked) = bulk
        && let Some(context) = context::current(driver).filter(|context| context.writes_values())
        && all_out(driver, context.device, batch.stream, &pieces)
    {
        return in_parts(
            driver,
            &context,
            &batch,
            &pieces,
            decide::chunk_bytes(asked.0 as usize, bytes),
            failed,
            &real,
        );
    }
    if is_whole(&pieces) { real(&batch, failed) } else { send(&batch, &pieces, failed, &real) }
}

/// Makes some copies of a batch by one call.
fn send(batch: &Batch, pieces: &[Piece], failed: *mut usize, real: &impl Fn(&Batch, *mut usize) -> Status) -> Status {
    let mut which = usize::MAX;
    let status = real(&Lists::of(driver::driver(), pieces).batch(batch.stream), &raw mut which);
    if status != SUCCESS && !failed.is_null() {
        // SAFETY: the caller's place, which the driver would have written to.
        unsafe { *failed = pieces.get(which).map_or(which, |piece| piece.number) };
    }
    status
}

/// Queues bulk copies out of a GPU with a written word after every `part` bytes: there the engine serves other streams, too.
fn in_parts(
    driver: &Driver,
    context: &Prepared,
    batch: &Batch,
    pieces: &[Piece],
    part: usize,
    failed: *mut usize,
    real: &impl Fn(&Batch, *mut usize) -> Status,
) -> Status {
    let bytes = pieces.iter().map(|piece| piece.bytes).fold(0, usize::saturating_add);
    context.enter();
    neighbours::announce(context.place, bytes);
    let (mut status, mut rest) = (SUCCESS, pieces);
    while status == SUCCESS && !rest.is_empty() {
        let mut sum = 0usize;
        let fits = |piece: &&Piece| {
            sum = sum.saturating_add(piece.bytes);
            sum <= part
        };
        let together = rest.iter().take_while(fits).count().max(1);
        let (now, later) = rest.split_at(together);
        rest = later;
        status = match now {
            [alone] => {
                let status = decide::in_chunks(driver, context, alone.out(batch.stream), part);
                if status != SUCCESS && !failed.is_null() {
                    // SAFETY: the caller's place, which the driver would have written to.
                    unsafe { *failed = alone.number };
                }
                status
            }
            _ => {
                let status = send(batch, now, failed, real);
                stats::outcome(Outcome::Chunk, 1);
                context.cut(driver, batch.stream, now.iter().map(|piece| piece.bytes).fold(0, usize::saturating_add));
                status
            }
        };
    }
    context.leave();
    status
}

/// Whether the copies go from this device into page-locked memory, in a stream that captures nothing. Of copies of less than a granule that
/// lie in the same granules the driver is asked about one: it checks each of them itself when it is queued.
fn all_out(driver: &Driver, device: c_int, stream: Stream, pieces: &[Piece]) -> bool {
    let _relaxed = Relaxed::new(driver);
    let (mut sources, mut destinations) = (BTreeSet::new(), BTreeSet::new());
    let all = pieces.iter().all(|piece| {
        let bytes = piece.bytes as u64;
        let is_new = |known: &mut BTreeSet<u64>, address: DevicePtr| {
            let ends = [address, address.saturating_add(bytes - 1)].map(|end| end / GRANULE);
            // Of a size that makes no sense the driver knows that it does.
            bytes >= GRANULE || ends.map(|granule| known.insert(granule)).contains(&true)
        };
        let is_from_here =
            !is_new(&mut sources, piece.from) || driver::on_device(driver, piece.from, piece.bytes, device);
        is_from_here
            && (!is_new(&mut destinations, piece.to)
                || driver::pinned(driver, piece.to as *mut c_void, piece.bytes).is_some())
    });
    all && !driver::captures(driver, stream)
}
