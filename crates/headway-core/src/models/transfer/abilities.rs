//! What each method can do and what it takes: one row for each method, which everything that has to know asks.

use super::{Direction, HostMemory, Method};
use crate::units::Bytes;

/// What one method can do and what it takes. What its copies cost is measured, and stands in a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// What happens, for tables.
    pub summary: &'static str,
    /// Between which ends it copies.
    pub directions: &'static [Direction],
    /// The host memory it is for.
    pub memory: &'static [HostMemory],
    /// The host memory it is measured with. CPUs reach pinned memory like any other, so that what only the CPU does needs no
    /// curve of its own for it.
    pub measured: &'static [HostMemory],
    /// The smallest copy it is measured with, and so chosen for.
    pub least: Bytes,
    /// The largest, to the GPU and from it.
    pub most: [Bytes; 2],
    /// The memory of the GPU must have been mapped into the CPU's address space.
    pub window: bool,
    /// The host address is a multiple of this in what is measured.
    pub aligned: u8,
    /// Its small copies do not queue behind bulk, or others are compared with them. They are measured while bulk moves, too.
    pub urgent: bool,
    /// A copy to the GPU returns before its bytes can be seen there.
    pub posted: bool,
    /// What a copy keeps busy.
    pub occupies: Occupies,
    /// What takes its place where it cannot be used: the first of these that can be, else `pageable`.
    pub instead: &'static [Method],
}

/// What a copy keeps busy from its beginning to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupies {
    /// The copy engine of its direction.
    pub engine: bool,
    pub cpu: CpuUse,
    pub multiprocessors: Multiprocessors,
    /// The one small mapping that moves over a GPU's memory.
    pub pager: bool,
    /// Links and engines of GPUs that the copy is not for.
    pub others: bool,
}

/// Which CPUs a copy keeps busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuUse {
    /// None; the waiting thread may sleep or poll.
    Idle,
    /// That of the caller.
    Caller,
    /// Threads of our own that copy through pinned buffers: as many as the tuning says.
    Threads,
    /// The threads of the pool, but none where the host end is pinned.
    ThreadsUnlessPinned,
}

/// Which multiprocessors a copy keeps busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multiprocessors {
    /// No multiprocessor is kept busy.
    Free,
    /// Those of a kernel launched for the copy.
    Launch,
    /// Those of a copier that stays.
    Resident,
}

use Direction::{D2h, H2d, Peer};
use HostMemory::{File, Pinned, Touched, Untouched};

const ANY: &[HostMemory] = &[Pinned, Touched, Untouched, File];
const ORDINARY: &[HostMemory] = &[Touched, Untouched, File];
const ALL_SIZES: [Bytes; 2] = [Bytes(u64::MAX); 2];
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A copy between host and GPU that keeps nothing busy: what rows differ from.
const PLAIN: Abilities = Abilities {
    summary: "",
    directions: &[H2d, D2h],
    memory: ANY,
    measured: &[Touched],
    least: Bytes(0),
    most: ALL_SIZES,
    window: false,
    aligned: 1,
    urgent: false,
    posted: false,
    occupies: Occupies {
        engine: false,
        cpu: CpuUse::Idle,
        multiprocessors: Multiprocessors::Free,
        pager: false,
        others: false,
    },
    instead: &[],
};
const NOTHING: Occupies = PLAIN.occupies;

const PAGEABLE: Abilities = Abilities {
    summary: "the driver's own call",
    urgent: true,
    occupies: Occupies { engine: true, cpu: CpuUse::Caller, ..NOTHING },
    ..PLAIN
};
const DMA: Abilities = Abilities {
    summary: "a copy engine, from or to pinned memory",
    memory: &[Pinned],
    measured: &[Pinned],
    urgent: true,
    occupies: Occupies { engine: true, ..NOTHING },
    instead: &[Method::Pageable],
    ..PLAIN
};
const REGISTER: Abilities = Abilities {
    summary: "`dma`, the memory pinned for this one copy",
    memory: ORDINARY,
    least: Bytes(64 * KIB),
    occupies: Occupies { engine: true, cpu: CpuUse::Caller, ..NOTHING },
    instead: &[Method::Staged],
    ..PLAIN
};
const PINNING: Abilities = Abilities {
    summary: "`dma` of ranges, each pinned while the one before is copied",
    // Pages of files belong to others, too.
    memory: &[Touched, Untouched],
    least: Bytes(4 * MIB),
    occupies: Occupies { engine: true, cpu: CpuUse::Caller, ..NOTHING },
    instead: &[Method::Staged],
    ..PLAIN
};
const PINNED_ONCE: Abilities = Abilities {
    summary: "`dma` of memory that is copied again and again, pinned once (`headway exec --pin-once`)",
    // Pages of files change behind the mapping.
    memory: &[Touched, Untouched],
    // Nothing that is measured repeats a copy of a program's memory.
    measured: &[],
    least: Bytes(MIB),
    occupies: Occupies { engine: true, ..NOTHING },
    instead: &[Method::Staged],
    ..PLAIN
};
const STAGED: Abilities = Abilities {
    summary: "threads copy through pinned buffers while the engine copies",
    least: Bytes(64 * KIB),
    occupies: Occupies { engine: true, cpu: CpuUse::Threads, ..NOTHING },
    instead: &[Method::Pageable],
    ..PLAIN
};
const WINDOW: Abilities = Abilities {
    summary: "the CPU stores into and loads from mapped GPU memory",
    most: [Bytes(16 * MIB), Bytes(256 * KIB)],
    window: true,
    urgent: true,
    posted: true,
    occupies: Occupies { cpu: CpuUse::Caller, ..NOTHING },
    instead: &[Method::Resident(None), Method::Dma],
    ..PLAIN
};
const PAGED_WINDOW: Abilities = Abilities {
    summary: "the same through a small mapping that is moved",
    most: [Bytes(16 * MIB), Bytes(256 * KIB)],
    window: true,
    posted: true,
    occupies: Occupies { cpu: CpuUse::Caller, pager: true, ..NOTHING },
    instead: &[Method::Dma],
    ..PLAIN
};
const RESIDENT: Abilities = Abilities {
    summary: "a kernel that stays on the GPU copies on command",
    measured: &[Pinned, Touched],
    most: [Bytes(16 * MIB); 2],
    urgent: true,
    occupies: Occupies { multiprocessors: Multiprocessors::Resident, ..NOTHING },
    instead: &[Method::Dma],
    ..PLAIN
};
const KERNEL: Abilities = Abilities {
    summary: "a kernel launched for the copy reads or writes pinned memory",
    memory: &[Pinned],
    measured: &[Pinned],
    aligned: 16,
    occupies: Occupies { multiprocessors: Multiprocessors::Launch, ..NOTHING },
    instead: &[Method::Staged],
    ..PLAIN
};
const PEER: Abilities = Abilities {
    summary: "a copy between two GPUs",
    directions: &[Peer],
    memory: &[],
    measured: &[],
    occupies: Occupies { engine: true, ..NOTHING },
    ..PLAIN
};
const MULTIPATH: Abilities = Abilities {
    summary: "one large copy over the links of several GPUs",
    measured: &[Pinned, Touched],
    least: Bytes(4 * MIB),
    occupies: Occupies { engine: true, cpu: CpuUse::ThreadsUnlessPinned, others: true, ..NOTHING },
    instead: &[Method::Dma],
    ..PLAIN
};

impl Method {
    /// The row of this method; its form makes no difference.
    #[must_use]
    pub const fn abilities(self) -> &'static Abilities {
        match self {
            Self::Pageable => &PAGEABLE,
            Self::Dma => &DMA,
            Self::Register => &REGISTER,
            Self::Pinning => &PINNING,
            Self::PinnedOnce => &PINNED_ONCE,
            Self::Staged => &STAGED,
            Self::Window(_) => &WINDOW,
            Self::PagedWindow(_) => &PAGED_WINDOW,
            Self::Resident(_) => &RESIDENT,
            Self::Kernel => &KERNEL,
            Self::Peer => &PEER,
            Self::Multipath => &MULTIPATH,
        }
    }

    /// The driver's own method for a copy of this kind, with which others are compared.
    #[must_use]
    pub const fn of_driver(direction: Direction, memory: HostMemory) -> Self {
        match (direction, memory) {
            (Peer, _) => Self::Peer,
            (H2d | D2h, Pinned) => Self::Dma,
            (H2d | D2h, Touched | Untouched | File) => Self::Pageable,
        }
    }
}

impl Abilities {
    /// Whether the host end must be pinned already.
    #[must_use]
    pub fn needs_pinned(&self) -> bool {
        self.memory == [Pinned]
    }

    /// Whether it copies between GPUs, and nothing else.
    #[must_use]
    pub fn between_gpus(&self) -> bool {
        self.directions == [Peer]
    }

    /// Whether its copies in this direction return before their bytes can be seen.
    #[must_use]
    pub fn is_posted(&self, direction: Direction) -> bool {
        self.posted && direction == H2d
    }

    /// Whether it is measured with copies of `bytes` bytes.
    #[must_use]
    pub fn measures(&self, direction: Direction, bytes: Bytes) -> bool {
        (self.least..=self.most[usize::from(direction != H2d)]).contains(&bytes)
    }
}

impl Occupies {
    /// Whether a copy of memory of this kind goes through pinned buffers of ours, which threads of ours fill or empty.
    #[must_use]
    pub fn staging(&self, memory: HostMemory) -> bool {
        match self.cpu {
            CpuUse::Threads => true,
            CpuUse::ThreadsUnlessPinned => memory != Pinned,
            CpuUse::Idle | CpuUse::Caller => false,
        }
    }

    /// Whether it uses multiprocessors.
    #[must_use]
    pub fn multiprocessor(&self) -> bool {
        self.multiprocessors != Multiprocessors::Free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::transfer::ResidentShape;

    #[test]
    fn what_takes_a_methods_place_copies_the_same_way_and_ends_with_the_driver() {
        for method in Method::ALL {
            let row = method.abilities();
            assert_eq!(row, method.any_form().abilities(), "{method}");
            assert_eq!(
                row.window,
                method.any_form().mapping().is_some() || method.forms().contains(&"vulkan"),
                "{method}"
            );
            assert!(row.least < row.most[0] && row.least < row.most[1] && row.aligned > 0, "{method}");
            assert_eq!(row.memory.is_empty(), row.between_gpus(), "{method}");
            assert!(!row.summary.is_empty() && !row.directions.is_empty(), "{method}");
            assert!(row.measured.iter().all(|memory| row.memory.contains(memory)), "{method}");
            for instead in row.instead {
                assert_eq!(row.directions, instead.abilities().directions, "{method}");
            }
            let mut last = method;
            for _ in 0..Method::ALL.len() {
                last = last.abilities().instead.last().copied().unwrap_or(last);
            }
            assert!(matches!(last, Method::Pageable | Method::Peer), "{method} ends with {last}");
        }
        for (direction, memory) in [(H2d, Pinned), (D2h, Touched), (Peer, Pinned)] {
            let driver = Method::of_driver(direction, memory).abilities();
            assert!(driver.directions.contains(&direction));
            assert!(direction == Peer || driver.memory.contains(&memory));
        }
        assert!(Method::Resident(Some(ResidentShape::Hub)).abilities().measures(H2d, Bytes(16 * MIB)));
        assert!(!Method::Window(None).abilities().measures(D2h, Bytes(MIB)));
    }
}
