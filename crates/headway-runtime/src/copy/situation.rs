//! What decides on a method besides the size: what the host memory is like, and what else the GPU carries.

use headway_core::models::transfer::links::Links;
use headway_core::models::transfer::{BackgroundLoad, Direction, HostMemory, WindowMapping};
use headway_core::units::Bytes;
use headway_device::HostKind;
use headway_os::memory;

use super::Copier;
use super::request::{BULK, Host, Request};

/// From this size on the driver is asked now and then whether memory is pinned, which takes up to 0.6 us; the driver's own call, which is
/// chosen for smaller copies of ordinary memory, is as fast from pinned memory without being told.
const ASK: usize = 64 << 10;
/// From this size on pages are looked at where the choice hangs on it; below, in one copy of a few.
const LOOK: usize = 128 << 10;
/// From this size on pages that appear may take as long as the lead over the driver's call.
const FAULTS: usize = 8 << 10;
/// From this size on pages are looked at in every request.
const LOOK_ALWAYS: usize = 2 << 20;

/// What decides besides the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopySituation {
    /// Position of the GPU.
    pub(super) gpu: usize,
    /// Host to GPU or back.
    pub(super) direction: Direction,
    /// The host end.
    pub(super) memory: HostMemory,
    /// What else the GPU carries.
    pub(super) load: BackgroundLoad,
    /// GPUs that copy the same way, this one included.
    pub(super) active: u32,
    /// Whether links of other GPUs would be granted.
    pub(super) granted: bool,
    /// The device end's window.
    pub(super) window: Option<WindowMapping>,
}

impl Copier {
    /// The situation as far as it decides, and whether the copy can be judged by it: pages are mostly not looked at where the
    /// choice is the same whether they are there or not, as in copies of 20 us that takes more than the choice may cost; and a
    /// copy whose pages appear meanwhile is no slower than the driver for taking longer than into pages that are there.
    pub(super) fn situation_of_choice(&self, request: &Request<'_>) -> (Option<CopySituation>, bool) {
        let (bytes, len, pages) = (Bytes(request.len as u64), request.len, &self.gpus[request.gpu].pages);
        let to: &[u8] = match &request.host {
            Host::Out(to) if len < LOOK_ALWAYS => to,
            _ => return (self.situation(request), true),
        };
        if len < LOOK {
            let (absent, known) = pages.of_small(to);
            return (self.situation_with(request, |_| absent), len < FAULTS || (known && !absent));
        }
        if !pages.are_due()
            && let Some(warm) = self.situation_with(request, |_| false)
        {
            let pick = |memory| self.auto.pick(&self.gpus, CopySituation { memory, ..warm }, bytes);
            let (there, absent) = (pick(HostMemory::Touched), pick(HostMemory::Untouched));
            let same = there.method == absent.method && there.tuning == absent.tuning;
            if warm.memory != HostMemory::Touched || same {
                return (Some(warm), warm.memory != HostMemory::Touched);
            }
        }
        (self.situation(request), true)
    }

    /// What decides besides the size; `None` = memory that only the driver knows how to handle.
    pub(super) fn situation(&self, request: &Request<'_>) -> Option<CopySituation> {
        self.situation_with(request, |to| to.len() >= LOOK && memory::mostly_absent(to, samples(to.len())))
    }

    /// The situation with what `is_absent` says of the pages of ordinary memory that is written.
    fn situation_with(&self, request: &Request<'_>, is_absent: impl Fn(&[u8]) -> bool) -> Option<CopySituation> {
        let gpu = &self.gpus[request.gpu];
        let kind = || request.kind(|memory| gpu.kinds.of(memory, || gpu.device.host_kind(memory))).ok();
        let written = |to: &[u8]| if is_absent(to) { HostMemory::Untouched } else { HostMemory::Touched };
        let memory = match &request.host {
            Host::Held(_) => HostMemory::Pinned,
            Host::In(_) if request.len < ASK => HostMemory::Touched,
            Host::Out(to) if request.len < ASK => written(to),
            Host::In(_) => match kind()? {
                HostKind::Pinned => HostMemory::Pinned,
                HostKind::Pageable if self.options.mapped_files => HostMemory::File,
                HostKind::Pageable => HostMemory::Touched,
            },
            Host::Out(to) => match kind()? {
                HostKind::Pinned => HostMemory::Pinned,
                HostKind::Pageable => written(to),
            },
        };
        let at = CopySituation {
            gpu: request.gpu,
            direction: request.direction,
            memory,
            load: self.load(request),
            active: 1,
            granted: false,
            window: request.device.buffer.window(),
        };
        // What is small does not notice other GPUs.
        Some(if request.len < BULK { at } else { self.standing(&self.shares.links(request.direction), at) })
    }

    /// What bulk the GPU carries besides this request.
    fn load(&self, request: &Request<'_>) -> BackgroundLoad {
        let gpu = &self.gpus[request.gpu];
        let (same, opposite) = match request.direction {
            Direction::D2h => (&gpu.d2h, &gpu.h2d),
            Direction::H2d | Direction::Peer => (&gpu.h2d, &gpu.d2h),
        };
        match (same.gate.bulk_copies() > 0, opposite.gate.bulk_copies() > 0) {
            (false, false) => BackgroundLoad::Alone,
            (true, false) => BackgroundLoad::BulkSame,
            (false, true) => BackgroundLoad::BulkOpposite,
            (true, true) => BackgroundLoad::BulkBoth,
        }
    }

    /// `at` as `links` are now.
    pub(super) fn standing(&self, links: &Links, at: CopySituation) -> CopySituation {
        let standing = links.standing(at.gpu, |other| self.reaches(other, at.gpu));
        CopySituation { active: standing.active, granted: standing.grants, ..at }
    }
}

/// Pages to look at in a copy of `bytes` bytes: each takes up to 0.9 us, which is to be little of the request.
pub(super) const fn samples(bytes: usize) -> usize {
    match bytes {
        ..0x20_0000 => 1,
        0x20_0000..0x100_0000 => 3,
        _ => 8,
    }
}
