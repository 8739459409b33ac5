//! Calls for many copies (`cuMemcpyBatchAsync`) and copies with attributes: what they ask for, and calls for some of their copies.

use std::ffi::{c_int, c_uint, c_void};

use headway_core::files::guest_log::Call;

use crate::base::copy::Copy;
use crate::base::driver::{self, DevicePtr, SUCCESS, Status, Stream};
use crate::observers::{Event, tell};

/// Of more copies in one call none is looked at.
const COUNT_MAX: usize = 1 << 20;

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
    pub(crate) const fn are_known(self) -> bool {
        matches!(self.access, IN_STREAM_ORDER..=IN_ANY_ORDER) && matches!(self.flags, 0 | PREFER_OVERLAP)
    }

    /// With these the driver is reported to corrupt copies of ordinary memory (NVIDIA bug 6718200).
    const fn may_corrupt(self) -> bool {
        self.access == DURING_THE_CALL && self.flags & PREFER_OVERLAP != 0
    }

    /// What the driver is given for a copy: the hint goes where it may corrupt ordinary memory.
    pub(crate) fn for_the_driver(self, copy: Copy) -> Self {
        let Some(driver) = driver::driver().filter(|_| self.may_corrupt()) else { return self };
        let is_ordinary = |address: DevicePtr| driver::is_ordinary(driver, address as *mut c_void, copy.bytes);
        if !is_ordinary(copy.to) && !is_ordinary(copy.from) {
            return self;
        }
        tell(Event::HintDropped);
        Self { flags: self.flags & !PREFER_OVERLAP, ..self }
    }
}

/// One copy of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) copy: Copy,
    attributes: Attributes,
    /// Its place in the caller's lists.
    number: usize,
}

/// The bytes of some copies.
pub(crate) fn bytes_of(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.copy.bytes).fold(0, usize::saturating_add)
}

/// What a call for many copies is given, but for its stream and the place of the first failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lists {
    pub(crate) to: *const DevicePtr,
    pub(crate) from: *const DevicePtr,
    pub(crate) sizes: *const usize,
    pub(crate) count: usize,
    pub(crate) attributes: *const Attributes,
    /// The first copy for which each of the attributes counts.
    pub(crate) first: *const usize,
    pub(crate) kinds: usize,
}

/// A call for many copies.
pub(crate) struct Batch<F> {
    pub(crate) lists: Lists,
    pub(crate) stream: Stream,
    /// Where the caller wants the number of the copy that failed, or null.
    pub(crate) failed: *mut usize,
    /// The driver's own call: makes the copies of the lists that it is given, and says where which of them failed.
    pub(crate) real: F,
}

impl<F: Fn(&Lists, *mut usize) -> Status> Batch<F> {
    /// Its copies; `None` if the driver would refuse the call, or the lists cannot be read.
    ///
    /// # Safety
    /// Lists that are not null have `count` entries; those of attributes and their places have `kinds` entries, unless `kinds` is
    /// larger than `count`.
    pub(crate) unsafe fn pieces(&self) -> Option<Vec<Piece>> {
        let Lists { to, from, sizes, count, attributes, first, kinds } = self.lists;
        let lists = [to.cast(), from.cast(), sizes, attributes.cast(), first];
        let counts = (1..=COUNT_MAX).contains(&count) && (1..=count).contains(&kinds);
        if lists.iter().any(|list| list.is_null()) || !counts {
            return None;
        }
        // SAFETY: by this function's contract, and `kind` is less than `kinds`.
        let first = |kind: usize| unsafe { first.add(kind).read_unaligned() };
        let rise = (1..kinds).all(|kind| first(kind - 1) < first(kind));
        if first(0) != 0 || first(kinds - 1) >= count || !rise {
            return None;
        }
        let mut pieces = Vec::with_capacity(count);
        let mut kind = 0;
        for number in 0..count {
            if kind + 1 < kinds && first(kind + 1) == number {
                kind += 1;
            }
            // SAFETY: `number` is less than `count`, and `kind` less than `kinds`.
            let (to, from, bytes, attributes) = unsafe {
                (
                    to.add(number).read_unaligned(),
                    from.add(number).read_unaligned(),
                    sizes.add(number).read_unaligned(),
                    attributes.add(kind).read_unaligned(),
                )
            };
            if bytes == 0 || !attributes.are_known() {
                return None;
            }
            pieces.push(Piece { copy: Copy::new(Call::Batch, to, from, bytes, self.stream), attributes, number });
        }
        Some(pieces)
    }

    /// The call as it came.
    pub(crate) fn pass_on(&self) -> Status {
        (self.real)(&self.lists, self.failed)
    }

    /// Makes some of its copies by one call of the driver's.
    pub(crate) fn send(&self, pieces: &[Piece]) -> Status {
        if pieces.len() == self.lists.count && !pieces.iter().any(|piece| piece.attributes.may_corrupt()) {
            return self.pass_on();
        }
        let to: Vec<_> = pieces.iter().map(|piece| piece.copy.to).collect();
        let from: Vec<_> = pieces.iter().map(|piece| piece.copy.from).collect();
        let sizes: Vec<_> = pieces.iter().map(|piece| piece.copy.bytes).collect();
        let (mut attributes, mut first) = (Vec::new(), Vec::new());
        for (at, piece) in pieces.iter().enumerate() {
            let own = piece.attributes.for_the_driver(piece.copy);
            if attributes.last() != Some(&own) {
                attributes.push(own);
                first.push(at);
            }
        }
        let lists = Lists {
            to: to.as_ptr(),
            from: from.as_ptr(),
            sizes: sizes.as_ptr(),
            count: to.len(),
            attributes: attributes.as_ptr(),
            first: first.as_ptr(),
            kinds: attributes.len(),
        };
        let mut which = usize::MAX;
        let status = (self.real)(&lists, &raw mut which);
        if status != SUCCESS {
            self.say_failed(pieces.get(which).map_or(which, |piece| piece.number));
        }
        status
    }

    fn say_failed(&self, number: usize) {
        if !self.failed.is_null() {
            // SAFETY: the caller's place, which the driver would have written to.
            unsafe { *self.failed = number };
        }
    }

    /// One of its copies was made by other calls, with this answer.
    pub(crate) fn ended(&self, piece: Piece, status: Status) -> Status {
        if status != SUCCESS {
            self.say_failed(piece.number);
        }
        status
    }
}
