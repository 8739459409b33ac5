//! Copy loops: ordinary memory past the cache, and windows, whose every store and load is a transaction on the bus.
//!
//! The widest instructions of the CPU at hand are used: 64-byte lines by AVX-512, else AVX or SSE. Elsewhere than on x86-64
//! the loops are words and correct, not fast.

use std::sync::OnceLock;

use headway_core::models::transfer::Stores;

/// What the streaming instructions move to and from memory in one transaction.
pub const LINE_BYTES: usize = 64;
/// Copies that demote ask for the source so many bytes ahead, beyond the end of a page too, where a core does not by itself: there
/// are few lines that it may wait for at a time.
const AHEAD_BYTES: usize = 1024;
/// They demote a line after so many more.
const DEMOTE_BEHIND: usize = 8;
/// The smallest page of the supported systems.
const PAGE_BYTES: usize = 4096;

/// Copies `from` to `to`. Stores past the cache are visible to every other CPU and device when it returns; so is what would be
/// demoted on a CPU that cannot ([`can_demote`]).
///
/// # Panics
/// When the lengths differ.
pub fn copy(to: &mut [u8], from: &[u8], stores: Stores) {
    copy_as(to, from, stores, can_demote());
}

/// Like [`copy`] on a CPU that can demote lines (`demotes`), or on one that cannot: so each of the two ways can be tested on any
/// CPU. A CPU without the instruction for demoting takes it for one that does nothing.
///
/// # Panics
/// When the lengths differ.
pub fn copy_as(to: &mut [u8], from: &[u8], stores: Stores, demotes: bool) {
    assert_eq!(to.len(), from.len(), "a copy has one length");
    match stores {
        Stores::Plain => to.copy_from_slice(from),
        Stores::Demoted if demotes => copy_demoted(to, from, imp::demote),
        // SAFETY: `to` is exclusively ours and as long as `from`.
        Stores::NonTemporal | Stores::Demoted => unsafe { window_store(to.as_mut_ptr(), from) },
    }
}

/// Stores each line, and demotes the one that was stored a few lines before: by then it is all there, and the core goes on
/// meanwhile. Page by page it took half as long again. `demote` is given the address of each line once it is stored.
fn copy_demoted(to: &mut [u8], from: &[u8], demote: impl Fn(*const u8) + Copy) {
    let (head, lines, tail) = split(to.as_ptr().addr(), to.len());
    to[..head].copy_from_slice(&from[..head]);
    // SAFETY: `to` is exclusively ours and as long as `from`; its middle starts at a line and has `lines` of them.
    unsafe { imp::demoted_lines(to[head..].as_mut_ptr(), from[head..].as_ptr(), lines, demote) };
    to[tail..].copy_from_slice(&from[tail..]);
    each_line(&to[..head], demote);
    each_line(&to[tail..], demote);
}

/// Whether the CPU stores 64 bytes past the cache at a time.
#[must_use]
pub fn stores_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether the CPU moves lines to its shared cache when asked to ([`demote`]).
#[must_use]
pub fn can_demote() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(imp::has_cldemote)
}

/// Asks the CPU to move the lines of `memory` from its own caches to the one that all cores share, where a device finds them
/// sooner (CLDEMOTE). CPUs without it do nothing. The content stays.
pub fn demote(memory: &[u8]) {
    each_line(memory, imp::demote);
}

/// Calls `body` with the address of each line that holds a byte of `memory`.
fn each_line(memory: &[u8], body: impl Fn(*const u8)) {
    if memory.is_empty() {
        return;
    }
    let first = memory.as_ptr().addr() % LINE_BYTES;
    for at in (0..first + memory.len()).step_by(LINE_BYTES) {
        body(memory.as_ptr().wrapping_sub(first).wrapping_add(at));
    }
}

/// Orders ordinary and streaming stores before later stores, through a window or to where a device looks. Without it the CPU may
/// let a store past the caches fall behind the store of a flag.
#[inline]
pub fn store_fence() {
    // The instruction first: a test looks for it at the start of this function.
    imp::store_fence();
    trace::note(trace::StoreStep::Fence);
}

/// Orders everything before it before every later load and store.
#[inline]
fn full_fence() {
    imp::full_fence();
    trace::note(trace::StoreStep::FullFence);
}

/// What the loops do, step by step. The order in which a device sees stores cannot be observed on a CPU, so the tests look at the
/// order in which they are made.
#[cfg(not(test))]
mod trace {
    pub(super) enum StoreStep {
        Ends,
        Lines,
        Fence,
        FullFence,
    }

    #[inline(always)]
    pub(super) fn note(step: StoreStep) {
        // Named here so that the build without tests knows them too.
        let (StoreStep::Ends | StoreStep::Lines | StoreStep::Fence | StoreStep::FullFence) = step;
    }
}

#[cfg(test)]
mod trace {
    use std::cell::RefCell;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum StoreStep {
        /// Bytes of a line that is not whole.
        Ends,
        /// Whole lines.
        Lines,
        /// A store fence.
        Fence,
        /// A full fence.
        FullFence,
    }

    thread_local! {
        static STEPS: RefCell<Vec<StoreStep>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn note(step: StoreStep) {
        STEPS.with_borrow_mut(|steps| steps.push(step));
    }

    /// The steps that `body` takes on this thread.
    pub(super) fn of(body: impl FnOnce()) -> Vec<StoreStep> {
        STEPS.take();
        body();
        STEPS.take()
    }
}

/// Copies from memory that is slow to read through the cache (write-combined), by streaming loads.
///
/// # Panics
/// When the lengths differ.
pub fn copy_streaming(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy has two ends of one length");
    // SAFETY: as many bytes are valid; two slices, one of them exclusive, do not overlap and nobody writes meanwhile.
    unsafe { window_load(from.as_ptr(), to) };
}

/// Stores `from` at `to`: whole lines past the cache, the ends by plain stores of at most 16 bytes; every store is aligned
/// to its size. Ends with a store fence. Touches no other byte.
///
/// # Safety
/// `from.len()` bytes from `to` on are mapped for writing, do not overlap `from`, and nobody else uses them meanwhile.
pub unsafe fn window_store(to: *mut u8, from: &[u8]) {
    let (head, lines, tail) = split(to.addr(), from.len());
    // SAFETY: the three ranges partition that of the caller, who vouches for it; the middle one starts at a line and has
    // `lines` of them.
    unsafe {
        trace::note(trace::StoreStep::Ends);
        imp::store_ends(to, &from[..head]);
        trace::note(trace::StoreStep::Lines);
        imp::store_lines(to.wrapping_add(head), from.as_ptr().wrapping_add(head), lines);
        trace::note(trace::StoreStep::Ends);
        imp::store_ends(to.wrapping_add(tail), &from[tail..]);
    }
    store_fence();
}

/// Loads `to.len()` bytes from `from` by streaming loads of whole lines, of the lines at both ends what is asked for; where the
/// CPU has no such for 32 bytes (AVX2), the ends by aligned loads of at most 16 bytes. Begins with a full fence, so that nothing is
/// read that was there before what this thread has seen. Writes no other byte of `to`'s memory, and what it reads of others'
/// bytes in the lines at the ends goes nowhere.
///
/// # Safety
/// As many bytes from `from` on are mapped for reading, do not overlap `to`, and nobody writes them meanwhile.
pub unsafe fn window_load(from: *const u8, to: &mut [u8]) {
    // A page that appears only when the first bytes of a load are stored has the loads behind them made again.
    present(to);
    let (head, lines, tail) = split(from.addr(), to.len());
    full_fence();
    // SAFETY: as in `window_store`.
    unsafe {
        trace::note(trace::StoreStep::Ends);
        imp::load_ends(from, &mut to[..head]);
        trace::note(trace::StoreStep::Lines);
        imp::load_lines(to.as_mut_ptr().wrapping_add(head), from.wrapping_add(head), lines);
        imp::load_ends(from.wrapping_add(tail), &mut to[tail..]);
    }
}

/// Has the pages of `memory` appear, writable, one by one: a few nanoseconds for a page that is there. The content stays.
#[inline]
pub fn present(memory: &mut [u8]) {
    let first = memory.as_ptr().addr().wrapping_neg() % PAGE_BYTES;
    for at in (first..memory.len()).step_by(PAGE_BYTES).chain((first > 0 && !memory.is_empty()).then_some(0)) {
        imp::rewrite(&mut memory[at]);
    }
}

/// Of `len` bytes from `address` on: those before the first whole line, the whole lines, and where those behind them begin.
#[inline]
fn split(address: usize, len: usize) -> (usize, usize, usize) {
    let head = (address.wrapping_neg() % LINE_BYTES).min(len);
    let lines = (len - head) / LINE_BYTES;
    (head, lines, head + lines * LINE_BYTES)
}

/// The largest power of two, up to 16, that `address` is aligned to and that is not above `left`; `left` is not 0.
#[inline]
fn step(address: usize, left: usize) -> usize {
    1 << (address | 16).trailing_zeros().min(left.ilog2())
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::asm;
    use std::arch::x86_64::{
        __cpuid, __cpuid_count, __m128i, __m256i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_storeu_si128,
        _mm_stream_load_si128, _mm_stream_si128, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_load_si256,
        _mm256_stream_si256, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_load_si512, _mm512_stream_si512,
    };

    use super::{AHEAD_BYTES, DEMOTE_BEHIND, LINE_BYTES, step};

    #[inline]
    pub(super) fn store_fence() {
        // SAFETY: every x86-64 CPU has SSE. The compiler moves no access to memory across it.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) };
    }

    #[inline]
    pub(super) fn full_fence() {
        // SAFETY: every x86-64 CPU has SSE2. The compiler moves no access to memory across it.
        unsafe { asm!("mfence", options(nostack, preserves_flags)) };
    }

    /// CPUID leaf 7: ECX bit 25.
    pub(super) fn has_cldemote() -> bool {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx >> 25 & 1 == 1
    }

    /// Moves the line at `address` to the shared cache. A hint, which can neither fault nor change anything.
    #[inline]
    pub(super) fn demote(address: *const u8) {
        // SAFETY: CPUs that do not know CLDEMOTE take its encoding for one of no operation.
        unsafe { asm!("cldemote [{address}]", address = in(reg) address, options(nostack, preserves_flags)) };
    }

    /// Writes a byte as it is. One instruction: a load first would have a page of zeros appear, and the store another.
    #[inline]
    pub(super) fn rewrite(byte: &mut u8) {
        // SAFETY: the byte is ours and keeps its value.
        unsafe { asm!("or byte ptr [{byte}], 0", byte = in(reg) &raw mut *byte, options(nostack)) };
    }

    /// # Safety
    /// `to` starts at a line; `lines` lines on both sides are valid.
    #[inline]
    pub(super) unsafe fn demoted_lines(to: *mut u8, from: *const u8, lines: usize, demote: impl Fn(*const u8) + Copy) {
        // SAFETY: the caller vouches for the pointers, the CPU for the instructions.
        unsafe {
            if is_x86_feature_detected!("avx512f") {
                demoted_lines_avx512(to, from, lines, demote);
            } else {
                demoted_lines_any(to, from, lines, demote);
            }
        }
    }

    /// # Safety
    /// The caller keeps the promise of [`demoted_lines`], on a CPU with AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn demoted_lines_avx512(
        to: *mut u8,
        from: *const u8,
        lines: usize,
        demote: impl Fn(*const u8) + Copy,
    ) {
        let move_line = |to: *mut u8, from: *const u8| {
            // SAFETY: a line is valid on both sides.
            unsafe { _mm512_storeu_si512(to.cast(), _mm512_loadu_si512(from.cast())) };
        };
        // SAFETY: `lines` lines from the pointers on are valid.
        unsafe { demoting(to, from, lines, move_line, demote) };
    }

    /// # Safety
    /// The caller keeps the promise of [`demoted_lines`].
    pub(super) unsafe fn demoted_lines_any(
        to: *mut u8,
        from: *const u8,
        lines: usize,
        demote: impl Fn(*const u8) + Copy,
    ) {
        // SAFETY: `lines` lines from the pointers on are valid; `move_line` is given one at a time.
        unsafe { demoting(to, from, lines, |to, from| from.copy_to_nonoverlapping(to, LINE_BYTES), demote) }
    }

    /// Moves `lines` lines by `move_line`, asks for what comes, and demotes what is done.
    ///
    /// # Safety
    /// `move_line` may be given any of `lines` lines from the pointers on.
    #[inline(always)]
    unsafe fn demoting(
        to: *mut u8,
        from: *const u8,
        lines: usize,
        move_line: impl Fn(*mut u8, *const u8),
        demote: impl Fn(*const u8),
    ) {
        for line in 0..lines {
            let (to, from) = (to.wrapping_add(line * LINE_BYTES), from.wrapping_add(line * LINE_BYTES));
            // Beyond the source it is a hint without effect.
            // SAFETY: a hint can neither fault nor change anything.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD_BYTES).cast()) };
            move_line(to, from);
            if line >= DEMOTE_BEHIND {
                demote(to.wrapping_sub(DEMOTE_BEHIND * LINE_BYTES));
            }
        }
        for line in lines.saturating_sub(DEMOTE_BEHIND)..lines {
            demote(to.wrapping_add(line * LINE_BYTES));
        }
    }

    /// # Safety
    /// The caller keeps the promise of [`super::window_store`].
    #[inline]
    pub(super) unsafe fn store_ends(to: *mut u8, from: &[u8]) {
        let mut at = 0;
        while at < from.len() {
            let step = step(to.addr() + at, from.len() - at);
            let (target, source) = (to.wrapping_add(at), from[at..at + step].as_ptr());
            // SAFETY: `step` bytes are left on both sides, and `target` is aligned to `step`. Volatile, so that each store
            // stays one store.
            unsafe {
                match step {
                    16 => target.cast::<__m128i>().write_volatile(source.cast::<__m128i>().read_unaligned()),
                    8 => target.cast::<u64>().write_volatile(source.cast::<u64>().read_unaligned()),
                    4 => target.cast::<u32>().write_volatile(source.cast::<u32>().read_unaligned()),
                    2 => target.cast::<u16>().write_volatile(source.cast::<u16>().read_unaligned()),
                    _ => target.write_volatile(*source),
                }
            }
            at += step;
        }
    }

    /// Parts of lines: each line is loaded as whole ones are, as a window answers every load after a microsecond, and several only
    /// for streaming loads at a time; a masked load or store of a part took two answers.
    ///
    /// # Safety
    /// The caller keeps the promise of [`super::window_load`].
    #[inline]
    pub(super) unsafe fn load_ends(from: *const u8, to: &mut [u8]) {
        if !is_x86_feature_detected!("avx2") {
            // SAFETY: the caller vouches for the bytes.
            return unsafe { load_ends_sse(from, to) };
        }
        let mut at = 0;
        while at < to.len() {
            let before = (from.addr() + at) % LINE_BYTES;
            let step = (LINE_BYTES - before).min(to.len() - at);
            let mut line = CacheLine([0; LINE_BYTES]);
            // SAFETY: the line holds a byte that is mapped, so that all of it is, as pages are whole lines; who writes the other
            // bytes meanwhile is not disturbed, and what is read of them is dropped.
            unsafe { load_lines(line.0.as_mut_ptr(), from.wrapping_add(at).wrapping_sub(before), 1) };
            to[at..at + step].copy_from_slice(&line.0[before..before + step]);
            at += step;
        }
    }

    /// A line in the cache.
    #[repr(align(64))]
    struct CacheLine([u8; LINE_BYTES]);

    /// # Safety
    /// The caller keeps the promise of [`super::window_load`].
    #[inline]
    pub(super) unsafe fn load_ends_sse(from: *const u8, to: &mut [u8]) {
        let streaming = is_x86_feature_detected!("sse4.1");
        let mut at = 0;
        while at < to.len() {
            let step = step(from.addr() + at, to.len() - at);
            let (source, target) = (from.wrapping_add(at), to[at..at + step].as_mut_ptr());
            // SAFETY: `step` bytes are left on both sides, and `source` is aligned to `step`. Volatile, so that each load
            // stays one load.
            unsafe {
                match step {
                    16 if streaming => load_16(source, target),
                    16 => target.cast::<__m128i>().write_unaligned(source.cast::<__m128i>().read_volatile()),
                    8 => target.cast::<u64>().write_unaligned(source.cast::<u64>().read_volatile()),
                    4 => target.cast::<u32>().write_unaligned(source.cast::<u32>().read_volatile()),
                    2 => target.cast::<u16>().write_unaligned(source.cast::<u16>().read_volatile()),
                    _ => *target = source.read_volatile(),
                }
            }
            at += step;
        }
    }

    /// # Safety
    /// `from` is aligned to 16; 16 bytes on both sides are valid.
    #[target_feature(enable = "sse4.1")]
    unsafe fn load_16(from: *const u8, to: *mut u8) {
        // SAFETY: the caller vouches for both pointers.
        unsafe { _mm_storeu_si128(to.cast(), _mm_stream_load_si128(from.cast())) }
    }

    /// # Safety
    /// `to` starts at a line; `lines` lines on both sides are valid. A store fence follows.
    #[inline]
    pub(super) unsafe fn store_lines(to: *mut u8, from: *const u8, lines: usize) {
        if lines == 0 {
            return;
        }
        // SAFETY: the caller vouches for the pointers, the CPU for the instructions.
        unsafe {
            if is_x86_feature_detected!("avx512f") {
                store_lines_avx512(to, from, lines);
            } else if is_x86_feature_detected!("avx") {
                store_lines_avx(to, from, lines);
            } else {
                store_lines_sse2(to, from, lines);
            }
        }
    }

    /// # Safety
    /// The caller keeps the promise of [`store_lines`], on a CPU with AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn store_lines_avx512(mut to: *mut u8, mut from: *const u8, lines: usize) {
        // SAFETY: `lines` lines from the pointers on are valid, and each turn takes as many as it moves on.
        unsafe {
            // Four loads before four stores: the loads overlap, and the lines leave in ascending order.
            for _ in 0..lines / 4 {
                let first = _mm512_loadu_si512(from.cast());
                let second = _mm512_loadu_si512(from.add(LINE_BYTES).cast());
                let third = _mm512_loadu_si512(from.add(2 * LINE_BYTES).cast());
                let fourth = _mm512_loadu_si512(from.add(3 * LINE_BYTES).cast());
                _mm512_stream_si512(to.cast(), first);
                _mm512_stream_si512(to.add(LINE_BYTES).cast(), second);
                _mm512_stream_si512(to.add(2 * LINE_BYTES).cast(), third);
                _mm512_stream_si512(to.add(3 * LINE_BYTES).cast(), fourth);
                (to, from) = (to.add(4 * LINE_BYTES), from.add(4 * LINE_BYTES));
            }
            for _ in 0..lines % 4 {
                _mm512_stream_si512(to.cast(), _mm512_loadu_si512(from.cast()));
                (to, from) = (to.add(LINE_BYTES), from.add(LINE_BYTES));
            }
        }
    }

    /// # Safety
    /// The caller keeps the promise of [`store_lines`], on a CPU with AVX.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn store_lines_avx(mut to: *mut u8, mut from: *const u8, lines: usize) {
        for _ in 0..lines {
            // SAFETY: a line is left on both sides.
            unsafe {
                let halves = from.cast::<__m256i>();
                let (low, high) = (_mm256_loadu_si256(halves), _mm256_loadu_si256(halves.add(1)));
                _mm256_stream_si256(to.cast(), low);
                _mm256_stream_si256(to.cast::<__m256i>().add(1), high);
                (to, from) = (to.add(LINE_BYTES), from.add(LINE_BYTES));
            }
        }
    }

    /// # Safety
    /// The caller keeps the promise of [`store_lines`].
    pub(super) unsafe fn store_lines_sse2(mut to: *mut u8, mut from: *const u8, lines: usize) {
        for _ in 0..lines {
            // SAFETY: a line is left on both sides.
            unsafe {
                let parts: [__m128i; 4] = std::array::from_fn(|part| _mm_loadu_si128(from.cast::<__m128i>().add(part)));
                for (part, value) in parts.into_iter().enumerate() {
                    _mm_stream_si128(to.cast::<__m128i>().add(part), value);
                }
                (to, from) = (to.add(LINE_BYTES), from.add(LINE_BYTES));
            }
        }
    }

    /// # Safety
    /// `from` starts at a line; `lines` lines on both sides are valid.
    #[inline]
    pub(super) unsafe fn load_lines(to: *mut u8, from: *const u8, lines: usize) {
        if lines == 0 {
            return;
        }
        // SAFETY: the caller vouches for the pointers, the CPU for the instructions.
        unsafe {
            if is_x86_feature_detected!("avx512f") {
                load_lines_avx512(to, from, lines);
            } else if is_x86_feature_detected!("avx2") {
                load_lines_avx2(to, from, lines);
            } else {
                load_ends_sse(from, std::slice::from_raw_parts_mut(to, lines * LINE_BYTES));
            }
        }
    }

    /// # Safety
    /// The caller keeps the promise of [`load_lines`], on a CPU with AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn load_lines_avx512(mut to: *mut u8, mut from: *const u8, lines: usize) {
        // SAFETY: `lines` lines from the pointers on are valid, and each turn takes as many as it moves on.
        unsafe {
            // As many loads under way as the CPU keeps: a window answers each after a microsecond.
            for _ in 0..lines / 4 {
                let first = _mm512_stream_load_si512(from.cast());
                let second = _mm512_stream_load_si512(from.add(LINE_BYTES).cast());
                let third = _mm512_stream_load_si512(from.add(2 * LINE_BYTES).cast());
                let fourth = _mm512_stream_load_si512(from.add(3 * LINE_BYTES).cast());
                _mm512_storeu_si512(to.cast(), first);
                _mm512_storeu_si512(to.add(LINE_BYTES).cast(), second);
                _mm512_storeu_si512(to.add(2 * LINE_BYTES).cast(), third);
                _mm512_storeu_si512(to.add(3 * LINE_BYTES).cast(), fourth);
                (from, to) = (from.add(4 * LINE_BYTES), to.add(4 * LINE_BYTES));
            }
            for _ in 0..lines % 4 {
                _mm512_storeu_si512(to.cast(), _mm512_stream_load_si512(from.cast()));
                (from, to) = (from.add(LINE_BYTES), to.add(LINE_BYTES));
            }
        }
    }

    /// # Safety
    /// The caller keeps the promise of [`load_lines`], on a CPU with AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn load_lines_avx2(mut to: *mut u8, mut from: *const u8, lines: usize) {
        for _ in 0..lines {
            // SAFETY: a line is left on both sides.
            unsafe {
                // Both halves of a line in a row: the second comes out of the buffer that the first has filled.
                let low = _mm256_stream_load_si256(from.cast());
                let high = _mm256_stream_load_si256(from.cast::<__m256i>().add(1));
                _mm256_storeu_si256(to.cast(), low);
                _mm256_storeu_si256(to.cast::<__m256i>().add(1), high);
                (from, to) = (from.add(LINE_BYTES), to.add(LINE_BYTES));
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use std::sync::atomic::{Ordering, fence};

    use super::{LINE_BYTES, step};

    pub(super) fn store_fence() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn full_fence() {
        fence(Ordering::SeqCst);
    }

    pub(super) const fn has_cldemote() -> bool {
        false
    }

    pub(super) const fn demote(_address: *const u8) {}

    /// # Safety
    /// `lines` lines on both sides are valid.
    pub(super) unsafe fn demoted_lines(to: *mut u8, from: *const u8, lines: usize, demote: impl Fn(*const u8) + Copy) {
        // SAFETY: the caller vouches for both ranges.
        unsafe { from.copy_to_nonoverlapping(to, lines * LINE_BYTES) };
        (0..lines).for_each(|line| demote(to.wrapping_add(line * LINE_BYTES)));
    }

    /// Writes a byte as it is.
    pub(super) fn rewrite(byte: &mut u8) {
        let byte: *mut u8 = byte;
        // SAFETY: the byte is ours; volatile, so that it is written although it stays the same.
        unsafe { byte.write_volatile(byte.read_volatile()) };
    }

    /// # Safety
    /// The caller keeps the promise of [`super::window_store`].
    pub(super) unsafe fn store_ends(to: *mut u8, from: &[u8]) {
        let mut at = 0;
        while at < from.len() {
            let step = step(to.addr() + at, from.len() - at).min(8);
            let (target, source) = (to.wrapping_add(at), from[at..at + step].as_ptr());
            // SAFETY: `step` bytes are left on both sides, and `target` is aligned to `step`.
            unsafe {
                match step {
                    8 => target.cast::<u64>().write_volatile(source.cast::<u64>().read_unaligned()),
                    4 => target.cast::<u32>().write_volatile(source.cast::<u32>().read_unaligned()),
                    2 => target.cast::<u16>().write_volatile(source.cast::<u16>().read_unaligned()),
                    _ => target.write_volatile(*source),
                }
            }
            at += step;
        }
    }

    /// # Safety
    /// The caller keeps the promise of [`super::window_load`].
    pub(super) unsafe fn load_ends(from: *const u8, to: &mut [u8]) {
        let mut at = 0;
        while at < to.len() {
            let step = step(from.addr() + at, to.len() - at).min(8);
            let (source, target) = (from.wrapping_add(at), to[at..at + step].as_mut_ptr());
            // SAFETY: `step` bytes are left on both sides, and `source` is aligned to `step`.
            unsafe {
                match step {
                    8 => target.cast::<u64>().write_unaligned(source.cast::<u64>().read_volatile()),
                    4 => target.cast::<u32>().write_unaligned(source.cast::<u32>().read_volatile()),
                    2 => target.cast::<u16>().write_unaligned(source.cast::<u16>().read_volatile()),
                    _ => *target = source.read_volatile(),
                }
            }
            at += step;
        }
    }

    /// # Safety
    /// `lines` lines on both sides are valid.
    pub(super) unsafe fn store_lines(to: *mut u8, from: *const u8, lines: usize) {
        // SAFETY: the caller vouches for both ranges.
        unsafe { store_ends(to, std::slice::from_raw_parts(from, lines * LINE_BYTES)) }
    }

    /// # Safety
    /// `lines` lines on both sides are valid.
    pub(super) unsafe fn load_lines(to: *mut u8, from: *const u8, lines: usize) {
        // SAFETY: the caller vouches for both ranges.
        unsafe { load_ends(from, std::slice::from_raw_parts_mut(to, lines * LINE_BYTES)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1024;

    /// Memory whose first byte starts a line.
    #[repr(align(64))]
    struct Lines([u8; ROOM]);

    fn noise(seed: usize) -> [u8; ROOM] {
        std::array::from_fn(|at| ((at + seed).wrapping_mul(0x9E37_79B1) >> 7) as u8 | 1)
    }

    /// Calls `body` with every size up to 300 at every place in a line, the other side moving along.
    fn every_case(mut body: impl FnMut(usize, usize, usize)) {
        for size in 0..=300 {
            for at in 0..64 {
                body(size, 64 + at, (size * 7 + at * 3) % 64);
            }
        }
    }

    #[test]
    fn stores_write_their_bytes_and_no_other() {
        every_case(|size, at, from| {
            let source = noise(size);
            for stores in [None, Some(Stores::Plain), Some(Stores::NonTemporal), Some(Stores::Demoted)] {
                let mut memory = Lines([0xA5; ROOM]);
                match stores {
                    // SAFETY: `memory` has these bytes, and nobody else knows of it.
                    None => unsafe { window_store(memory.0.as_mut_ptr().add(at), &source[from..from + size]) },
                    // The path of a CPU that demotes, whatever this one can.
                    Some(stores) => copy_as(&mut memory.0[at..at + size], &source[from..from + size], stores, true),
                }
                let mut expected = [0xA5; ROOM];
                expected[at..at + size].copy_from_slice(&source[from..from + size]);
                assert!(memory.0 == expected, "{size} bytes from {from} to {at}, {stores:?}");
            }
        });
    }

    #[test]
    fn every_line_is_demoted_once_it_is_stored_and_no_other() {
        every_case(|size, at, from| {
            let (source, mut memory) = (noise(size), Lines([0; ROOM]));
            let (base, demoted) = (memory.0.as_ptr().addr(), std::cell::RefCell::new(Vec::new()));
            let (to, from) = (&mut memory.0[at..at + size], &source[from..from + size]);
            // Stands for the instruction, and notes what is in the line at that moment.
            copy_demoted(to, from, |line| {
                let line_at = line.addr() - base;
                // SAFETY: a line that holds a byte of `memory`, which is whole lines; nobody writes it at this moment.
                let content = unsafe { line.cast::<[u8; LINE_BYTES]>().read_volatile() };
                demoted.borrow_mut().push((line_at, content));
            });
            let last = (at + size).next_multiple_of(LINE_BYTES);
            let expected: Vec<usize> = if size == 0 { vec![] } else { (at / 64 * 64..last).step_by(64).collect() };
            let mut demoted = demoted.into_inner();
            demoted.sort_unstable_by_key(|(line, _)| *line);
            let lines: Vec<usize> = demoted.iter().map(|(line, _)| *line).collect();
            assert_eq!(lines, expected, "{size} bytes at {at}");
            for (line, content) in demoted {
                assert_eq!(content, memory.0[line..line + LINE_BYTES], "line {line} of {size} bytes at {at}");
            }
        });
    }

    #[test]
    fn stores_past_the_cache_end_with_a_fence_and_loads_begin_with_one() {
        use trace::StoreStep::{Ends, Fence, FullFence, Lines as Whole};
        let (source, mut memory) = (noise(1), Lines([0; ROOM]));
        // SAFETY: `memory` has these bytes, and nobody else knows of it.
        let stored = trace::of(|| unsafe { window_store(memory.0.as_mut_ptr().add(5), &source[..300]) });
        assert_eq!(stored, [Ends, Whole, Ends, Fence]);
        let past = |stores, demotes| trace::of(|| copy_as(&mut [0; 200], &[1; 200], stores, demotes)).pop();
        assert_eq!(past(Stores::NonTemporal, true), Some(Fence));
        assert_eq!(past(Stores::Demoted, false), Some(Fence));
        // SAFETY: `memory` has these bytes, and nobody writes them.
        let loaded = trace::of(|| unsafe { window_load(memory.0.as_ptr().add(5), &mut [0; 300]) });
        assert_eq!(loaded[..2], [FullFence, Ends]);
    }

    /// Looks at the instructions themselves: what a fence does shows only on a bus.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn fences_are_the_instructions_that_they_are_named_after() {
        const RETURN: u8 = 0xc3;
        const JUMP: u8 = 0xe9;
        let begins_with = |function: fn(), instruction: [u8; 3]| {
            // SAFETY: code is readable, and more of this program's follows a function.
            let code = unsafe { std::slice::from_raw_parts(function as *const u8, 48) };
            let end = code.iter().position(|byte| [RETURN, JUMP].contains(byte)).unwrap_or(code.len());
            code[..end].windows(3).any(|bytes| bytes == instruction)
        };
        assert!(begins_with(store_fence, [0x0f, 0xae, 0xf8]), "no `sfence`");
        assert!(begins_with(full_fence, [0x0f, 0xae, 0xf0]), "no `mfence`");
    }

    #[test]
    fn loads_give_their_bytes_and_write_no_other() {
        every_case(|size, at, to| {
            let memory = Lines(noise(size + at));
            let mut target = [0xA5; ROOM];
            // SAFETY: `memory` has these bytes, and nobody writes them.
            unsafe { window_load(memory.0.as_ptr().add(at), &mut target[to..to + size]) };
            let mut expected = [0xA5; ROOM];
            expected[to..to + size].copy_from_slice(&memory.0[at..at + size]);
            assert!(target == expected, "{size} bytes from {at} to {to}");
        });
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn ends_are_the_same_by_lines_and_by_steps() {
        every_case(|size, at, to| {
            let memory = Lines(noise(size + at));
            let (mut lines, mut stepped) = ([0xA5; ROOM], [0xA5; ROOM]);
            // SAFETY: `memory` has these bytes, and nobody writes them.
            unsafe {
                imp::load_ends(memory.0.as_ptr().add(at), &mut lines[to..to + size]);
                imp::load_ends_sse(memory.0.as_ptr().add(at), &mut stepped[to..to + size]);
            }
            assert!(lines == stepped, "{size} bytes from {at} to {to}");
        });
    }

    #[test]
    fn pages_appear_with_their_content() {
        let page = crate::memory::page_bytes();
        let mut mapping = crate::memory::Mapping::anonymous(16 * page).unwrap();
        mapping[3 * page] = 7;
        // From the middle of the second page to the middle of the fourteenth.
        present(&mut mapping[page + 100..13 * page + 100]);
        assert_eq!(mapping[3 * page], 7);
        let there = |at: usize| !crate::memory::mostly_absent(&mapping[at * page..(at + 1) * page], 1);
        let pages: Vec<usize> = (0..16).filter(|at| there(*at)).collect();
        assert_eq!(pages, (1..=13).collect::<Vec<_>>());
        present(&mut []);
    }

    #[test]
    fn steps_are_aligned_and_within_what_is_left() {
        assert_eq!([step(64, 100), step(65, 100), step(66, 100), step(72, 100), step(64, 7)], [16, 1, 2, 8, 4]);
    }

    #[test]
    #[should_panic(expected = "a copy has one length")]
    fn a_copy_between_different_lengths_panics() {
        copy(&mut [0; 2], &[0; 3], Stores::NonTemporal);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_width_the_cpu_has_moves_the_same_lines() {
        type Loop = unsafe fn(*mut u8, *const u8, usize);
        let mut loops: Vec<Loop> = vec![
            imp::store_lines_sse2,
            // SAFETY: as for the loop itself.
            |to, from, lines| unsafe { imp::demoted_lines_any(to, from, lines, imp::demote) },
        ];
        if is_x86_feature_detected!("avx") {
            loops.push(imp::store_lines_avx);
        }
        if is_x86_feature_detected!("avx2") {
            loops.push(imp::load_lines_avx2);
        }
        if is_x86_feature_detected!("avx512f") {
            loops.push(imp::store_lines_avx512);
            loops.push(imp::load_lines_avx512);
            // SAFETY: as for the loop itself, and the CPU has been asked.
            loops.push(|to, from, lines| unsafe { imp::demoted_lines_avx512(to, from, lines, imp::demote) });
        }
        for lines in 0..=15 {
            for copy in &loops {
                let (source, mut target) = (Lines(noise(lines)), Lines([0; ROOM]));
                // SAFETY: both sides have sixteen lines, of which at most fifteen are used.
                unsafe { copy(target.0.as_mut_ptr(), source.0.as_ptr(), lines) };
                imp::store_fence();
                assert!(target.0[..64 * lines] == source.0[..64 * lines]);
                assert!(target.0[64 * lines..].iter().all(|byte| *byte == 0));
            }
        }
    }
}
