//! A small mapping that is moved over a buffer (Fujii 2013: MEMWND).

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::{LazyLock, Mutex};

use headway_device::buffer::DeviceId;
use headway_device::gpu::Pager;
use headway_device::{Access, Buffer, DeviceError};
use headway_os::copy;

use super::home::Home;
use crate::driver::lock;

/// Bytes of the mapping, as of the paper's; less at the end of a buffer.
pub(crate) const SPAN_BYTES: usize = 4 << 20;

/// The GPUs whose small mapping is taken.
static OWNED: LazyLock<Mutex<HashSet<DeviceId>>> = LazyLock::new(Mutex::default);

/// Where a mapping starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base(pub(crate) NonNull<u8>);
// SAFETY: an address; what it is used for is the matter of its users.
unsafe impl Send for Base {}
// SAFETY: an address; what it is used for is the matter of its users.
unsafe impl Sync for Base {}

/// What a route does to show another part of the memory.
pub(crate) trait Mover: Send {
    /// Maps `bytes` bytes from `at` on, a multiple of [`SPAN_BYTES`], instead of what was mapped before, whether or not it
    /// succeeds. Mapped until the next call, or until it is dropped.
    fn map(&mut self, at: usize, bytes: usize) -> Result<Base, DeviceError>;
}

/// The right to the one small mapping of a GPU.
#[derive(Debug)]
pub(crate) struct Owner(DeviceId);

impl Owner {
    /// Takes it.
    pub(crate) fn new(gpu: DeviceId) -> Result<Self, DeviceError> {
        if lock(&OWNED).insert(gpu) {
            Ok(Self(gpu))
        } else {
            Err(DeviceError::Refused { limit: "small moving mappings of one GPU", max: 1 })
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        lock(&OWNED).remove(&self.0);
    }
}

/// The part of an access that lies within one place of the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Visit {
    /// Where the mapping starts in the buffer.
    place: usize,
    /// Where the access starts in the mapping.
    within: usize,
    /// Where it starts in the caller's bytes.
    from: usize,
    len: usize,
}

/// The places that `len` bytes from `at` on lie in, in order.
fn visits(at: usize, len: usize, span: usize) -> impl Iterator<Item = Visit> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let within = (at + done) % span;
            let visit = Visit { place: at + done - within, within, from: done, len: (span - within).min(len - done) };
            done += visit.len;
            visit
        })
    })
}

/// See the module.
pub(crate) struct Moving {
    // Unmapped before the buffer's memory can be freed, and before another may take its place.
    mover: Box<dyn Mover>,
    buffer: Buffer,
    _owner: Owner,
    home: Home,
    shown: Option<(usize, Base)>,
    moves: u64,
    always: bool,
}

impl Moving {
    pub(crate) fn new(mover: Box<dyn Mover>, buffer: &Buffer, owner: Owner) -> Self {
        let buffer = buffer.clone();
        Self { mover, buffer, _owner: owner, home: Home::here(), shown: None, moves: 0, always: false }
    }

    /// The mapping's start once it shows `place`.
    fn show(&mut self, place: usize) -> Result<*mut u8, DeviceError> {
        if let Some((shown, base)) = self.shown
            && shown == place
            && !self.always
        {
            return Ok(base.0.as_ptr());
        }
        self.shown = None;
        let base = self.mover.map(place, SPAN_BYTES.min(self.buffer.len() - place))?;
        self.moves += 1;
        self.shown = Some((place, base));
        Ok(base.0.as_ptr())
    }

    fn at_home(&self) -> Result<(), DeviceError> {
        if self.home.is_here() {
            return Ok(());
        }
        Err(DeviceError::Invalid { what: "paged access", reason: "the mapping belongs to the parent process".into() })
    }
}

impl Pager for Moving {
    fn span_bytes(&self) -> usize {
        SPAN_BYTES
    }

    fn store(&mut self, at: usize, from: &[u8]) -> Result<(), DeviceError> {
        self.at_home()?;
        let claim = self.buffer.claim(at..at.saturating_add(from.len()), Access::Write)?;
        for visit in visits(at, from.len(), SPAN_BYTES) {
            let base = self.show(visit.place)?;
            // SAFETY: the mapping shows the buffer from `place` on, up to its own end or the buffer's, which `claim` checked;
            // the claim excludes every other use. A store ends with a fence, so the mapping may be moved.
            unsafe { copy::window_store(base.add(visit.within), &from[visit.from..visit.from + visit.len]) };
        }
        drop(claim);
        Ok(())
    }

    fn load(&mut self, at: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        self.at_home()?;
        let claim = self.buffer.claim(at..at.saturating_add(to.len()), Access::Read)?;
        for visit in visits(at, to.len(), SPAN_BYTES) {
            let base = self.show(visit.place)?;
            // SAFETY: as in `store`; nobody writes while the claim lives.
            unsafe { copy::window_load(base.add(visit.within), &mut to[visit.from..visit.from + visit.len]) };
        }
        drop(claim);
        Ok(())
    }

    fn always_move(&mut self, always: bool) {
        self.always = always;
    }

    fn moves(&self) -> u64 {
        self.moves
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headway_core::units::Bytes;
    use headway_device::DeviceLimits;
    use headway_device::buffer::{Budget, HeapMemory};

    use super::*;

    /// What was mapped: where, how much.
    type Log = Arc<Mutex<Vec<(usize, usize)>>>;

    /// A mapping over the buffer's own bytes, with a log of what was mapped.
    struct Plain {
        base: Base,
        log: Log,
        fails: bool,
    }

    impl Mover for Plain {
        fn map(&mut self, at: usize, bytes: usize) -> Result<Base, DeviceError> {
            if std::mem::take(&mut self.fails) {
                return Err(DeviceError::DeviceLost);
            }
            lock(&self.log).push((at, bytes));
            // SAFETY: the pager stays within the buffer.
            Ok(Base(unsafe { self.base.0.add(at) }))
        }
    }

    fn paged(bytes: usize, fails: bool) -> (Moving, Buffer, Log) {
        let limits = DeviceLimits { host_bytes_max: Bytes(64 << 20), ..DeviceLimits::default() };
        let reservation = Budget::new(&limits, Bytes(0)).reserve(1, bytes as u64, 0).unwrap();
        let buffer = Buffer::new(HeapMemory::pageable(bytes).unwrap(), reservation);
        let base = NonNull::new(buffer.claim(0..0, Access::Read).unwrap().as_ptr()).unwrap();
        let log = Log::default();
        let mover = Plain { base: Base(base), log: Arc::clone(&log), fails };
        let owner = Owner::new(DeviceId::new()).unwrap();
        (Moving::new(Box::new(mover), &buffer, owner), buffer, log)
    }

    #[test]
    fn an_access_is_cut_where_the_mapping_ends() {
        let all: Vec<_> = visits(9, 20, 8).collect();
        let expected = [(8, 1, 0, 7), (16, 0, 7, 8), (24, 0, 15, 5)];
        assert_eq!(all, expected.map(|(place, within, from, len)| Visit { place, within, from, len }));
        assert_eq!(visits(16, 8, 8).collect::<Vec<_>>(), [Visit { place: 16, within: 0, from: 0, len: 8 }]);
        assert_eq!(visits(5, 0, 8).count(), 0);
    }

    #[test]
    fn every_byte_arrives_through_the_moving_mapping() {
        let bytes = 2 * SPAN_BYTES + 12345;
        let (mut paged, buffer, log) = paged(bytes, false);
        let from: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        paged.store(0, &from).unwrap();
        let span = SPAN_BYTES;
        assert_eq!(*lock(&log), [(0, span), (span, span), (2 * span, 12345)]);
        assert!(buffer.claim(0..bytes, Access::Read).unwrap().bytes().unwrap() == from);
        let mut to = vec![0; bytes - 7];
        paged.load(7, &mut to).unwrap();
        assert!(to == from[7..]);
        assert_eq!(paged.moves(), 6);
    }

    #[test]
    fn the_mapping_stays_until_something_else_is_touched_unless_told_otherwise() {
        let (mut paged, _buffer, log) = paged(2 * SPAN_BYTES, false);
        paged.store(10, &[1; 100]).unwrap();
        paged.store(SPAN_BYTES - 1, &[1]).unwrap();
        assert_eq!(paged.moves(), 1);
        paged.always_move(true);
        paged.store(10, &[1; 100]).unwrap();
        paged.load(10, &mut [0; 100]).unwrap();
        assert_eq!(paged.moves(), 3);
        paged.always_move(false);
        paged.store(10, &[1; 100]).unwrap();
        assert_eq!((paged.moves(), lock(&log).len()), (3, 3));
    }

    #[test]
    fn a_small_buffer_is_mapped_whole() {
        let (mut paged, _buffer, log) = paged(1000, false);
        paged.store(999, &[1]).unwrap();
        assert_eq!(*lock(&log), [(0, 1000)]);
    }

    #[test]
    fn a_move_that_fails_is_tried_again_at_the_next_access() {
        let (mut paged, _buffer, _log) = paged(1000, true);
        assert_eq!(paged.store(0, &[1]).unwrap_err(), DeviceError::DeviceLost);
        paged.store(0, &[1]).unwrap();
        assert_eq!(paged.moves(), 1);
    }

    #[test]
    fn what_is_outside_or_claimed_is_refused() {
        let (mut paged, buffer, log) = paged(1000, false);
        assert!(matches!(paged.store(999, &[1; 2]), Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(paged.load(usize::MAX, &mut [1; 2]), Err(DeviceError::OutOfRange { .. })));
        let claim = buffer.claim(0..10, Access::Read).unwrap();
        assert!(matches!(paged.store(5, &[1]), Err(DeviceError::Overlap { .. })));
        paged.load(5, &mut [0]).unwrap();
        drop(claim);
        paged.store(5, &[1]).unwrap();
        assert_eq!(lock(&log).len(), 1);
    }

    #[test]
    fn a_gpu_has_one_owner_at_a_time() {
        let gpu = DeviceId::new();
        let first = Owner::new(gpu).unwrap();
        assert!(matches!(Owner::new(gpu), Err(DeviceError::Refused { max: 1, .. })));
        let _other = Owner::new(DeviceId::new()).unwrap();
        drop(first);
        Owner::new(gpu).unwrap();
    }
}
