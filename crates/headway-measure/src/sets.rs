//! Sets of concurrent transfers: what each gets while the others run too.

use std::sync::Arc;

use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos};
use headway_device::buffer::Access;
use headway_device::gpu::{Caching, CpuReach, Gpu, Operation, Queue};
use headway_device::{Buffer, DeviceError};
use headway_os::clock;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use super::sample::rate;
use crate::Error;

/// This much of the last copy of each transfer is compared, at its end.
const COMPARED: usize = 1 << 20;
/// Beyond the time that a set is measured for, it is given up after this long: one that nothing can be fitted without, and any
/// other.
const PATIENCE: [Nanos; 2] = [Nanos(30 * NANOS_PER_SECOND), Nanos(3 * NANOS_PER_SECOND)];

/// A transfer of a set, by positions of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SetTransfer {
    /// Pinned host memory to a GPU.
    H2d(usize),
    /// A GPU to pinned host memory.
    D2h(usize),
    /// The first GPU to the second.
    Peer(usize, usize),
}

impl SetTransfer {
    /// The GPU or GPUs that it uses.
    pub fn gpus(self) -> impl Iterator<Item = usize> {
        let (first, second) = match self {
            Self::H2d(gpu) | Self::D2h(gpu) => (gpu, None),
            Self::Peer(from, to) => (from, Some(to)),
        };
        std::iter::once(first).chain(second)
    }

    /// The GPU whose queues carry it, and the queue: in, out, to peers.
    pub const fn queue(self) -> (usize, usize) {
        match self {
            Self::H2d(gpu) => (gpu, 0),
            Self::D2h(gpu) => (gpu, 1),
            Self::Peer(from, _) => (from, 2),
        }
    }

    /// GPUs and engines that it holds: in, out, to peers, from peers.
    pub fn engines(self) -> impl Iterator<Item = (usize, usize)> + Clone {
        let second = if let Self::Peer(_, to) = self { Some((to, 3)) } else { None };
        std::iter::once(self.queue()).chain(second)
    }

    /// Whose bytes it reads.
    pub const fn source(self) -> usize {
        self.queue().0
    }

    /// The GPU with the arena that it writes to, and which: device memory for copies in, host memory, device memory for peers.
    pub const fn target(self) -> (usize, usize) {
        match self {
            Self::H2d(gpu) => (gpu, 0),
            Self::D2h(gpu) => (gpu, 1),
            Self::Peer(_, to) => (to, 2),
        }
    }
}

/// Copies that follow each other begin at this many different offsets, a page apart: each brings other bytes.
pub const OFFSETS: usize = 61;
/// Bytes of a page: offsets are multiples of it.
pub const PAGE: usize = 4096;
/// Blocks of one batch, at most: a page of every arena is kept for each.
const BLOCKS_MAX: usize = 64;

/// How much memory there is for the copies of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetMemory {
    /// Longest copy.
    pub largest: usize,
    /// What the copies of a batch to one place may take together.
    pub arena: usize,
}

impl SetMemory {
    /// Room for copies of up to `largest` bytes.
    pub const fn of(largest: usize) -> Self {
        Self { largest, arena: 3 * largest + BLOCKS_MAX * PAGE }
    }

    /// The arena without the pages that are kept.
    pub const fn free(self) -> usize {
        self.arena - BLOCKS_MAX * PAGE
    }
}

/// Transfers that run at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Name for keys and messages.
    pub name: String,
    pub members: Vec<SetTransfer>,
}

/// How long and in which pieces a set is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetPace {
    /// Length of one copy.
    pub chunk: usize,
    /// Copies of one transfer that are queued at a time.
    pub in_flight: usize,
    /// How long every transfer runs after all have begun.
    pub time: Nanos,
    /// How often each set is measured.
    pub repeats: u32,
}

/// The rates of one set: per repetition, per member, in bytes per second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates(pub Vec<Vec<u64>>);

/// The sets that tell the capacities of a node apart. Copies to and from the host: every number of GPUs that only take in,
/// only give out and do both; every two GPUs in each direction and in both; of up to four GPUs also every three, and such numbers
/// from the last GPU on, for GPUs differ: two of four H200s of one host gave 70 GB/s out where another pair gave 98. Peers: every
/// pair, both ways, a ring, a ring beside copies in and out. No two members use one engine: a copy engine of an H200 stays with a
/// stream that never runs empty, and the other one waits for seconds.
pub fn sets(gpus: usize, reaches: impl Fn(usize, usize) -> bool) -> Vec<Set> {
    let (mut sets, is_small) = (Vec::<Set>::new(), gpus <= SMALL);
    let mut add = |name: String, mut members: Vec<SetTransfer>| {
        members.sort_unstable_by_key(|member| (member.queue(), member.target()));
        if !sets.iter().any(|set| set.members == members) {
            sets.push(Set { name, members });
        }
    };
    let both = |gpu: usize| [SetTransfer::H2d(gpu), SetTransfer::D2h(gpu)];
    for gpu in 0..gpus {
        add(format!("gpu{gpu} h2d"), vec![SetTransfer::H2d(gpu)]);
        add(format!("gpu{gpu} d2h"), vec![SetTransfer::D2h(gpu)]);
        add(format!("gpu{gpu} both"), both(gpu).to_vec());
    }
    let counts = (0..=gpus).flat_map(|b| (0..=gpus - b).flat_map(move |i| (0..=gpus - b - i).map(move |o| (i, o, b))));
    for (inward, outward, two) in counts.filter(|(i, o, b)| i + o + b > 1) {
        for (from, is_mirrored) in
            [("", false), (" from the last", true)].into_iter().take(if is_small { 2 } else { 1 })
        {
            let gpu = |at: usize| if is_mirrored { gpus - 1 - at } else { at };
            let members =
                (0..two).flat_map(|at| both(gpu(at))).chain((two..two + inward).map(|at| SetTransfer::H2d(gpu(at))));
            let members =
                members.chain((two + inward..two + inward + outward).map(|at| SetTransfer::D2h(gpu(at)))).collect();
            add(format!("{inward} h2d {outward} d2h {two} both{from}"), members);
        }
    }
    for some in some_of(gpus) {
        let named = |word: &str| some.iter().map(|gpu| format!("gpu{gpu} {word}")).collect::<Vec<_>>().join(" ");
        add(named("h2d"), some.iter().copied().map(SetTransfer::H2d).collect());
        add(named("d2h"), some.iter().copied().map(SetTransfer::D2h).collect());
        add(named("both"), some.iter().copied().flat_map(both).collect());
    }
    let pairs = (0..gpus).flat_map(|from| (0..gpus).map(move |to| (from, to)));
    for (from, to) in pairs.filter(|&(from, to)| from != to && reaches(from, to)) {
        add(format!("gpu{from} gpu{to}"), vec![SetTransfer::Peer(from, to)]);
        if from < to && reaches(to, from) {
            add(format!("gpu{from} gpu{to} both"), vec![SetTransfer::Peer(from, to), SetTransfer::Peer(to, from)]);
        }
    }
    let ring: Vec<(usize, usize)> = (0..gpus).map(|gpu| (gpu, (gpu + 1) % gpus)).collect();
    if gpus > 1 && ring.iter().all(|&(from, to)| reaches(from, to)) {
        let ring = || ring.iter().map(|&(from, to)| SetTransfer::Peer(from, to));
        add("ring".to_owned(), ring().collect());
        add("ring and host".to_owned(), ring().chain((0..gpus).flat_map(both)).collect());
    }
    sets
}

/// A node of so many GPUs has more of its sets measured.
const SMALL: usize = 4;

/// Every two of so many GPUs; of few also every three.
fn some_of(gpus: usize) -> impl Iterator<Item = Vec<usize>> {
    let most = if gpus > SMALL { 2 } else { 3 };
    let after = move |first: &[usize]| first.last().map_or(0, |last| last + 1)..gpus;
    let longer = move |some: Vec<usize>| after(&some).map(move |next| [some.as_slice(), &[next]].concat());
    let pairs = (0..gpus).flat_map(move |gpu| longer(vec![gpu]));
    pairs.flat_map(move |pair| {
        std::iter::once(pair.clone()).chain((most > 2).then(|| longer(pair)).into_iter().flatten())
    })
}

/// What transfers of one GPU read and write.
pub struct Stock {
    random: Vec<u8>,
    host: Buffer,
    device: Buffer,
    /// Where copies in, copies out and copies from peers go.
    pub arenas: [Buffer; 3],
}

/// The device's bytes are the host's from this offset on, so that neither is taken for the other.
const SHIFT: usize = PAGE / 2;

impl Stock {
    /// Takes memory of one GPU and of its host.
    pub fn new(gpu: &dyn Gpu, gpu_id: u64, room: SetMemory) -> Result<Self, Error> {
        let one = room.largest + OFFSETS * PAGE;
        let mut random = vec![0; one + SHIFT];
        Pcg64Mcg::seed_from_u64(1 + gpu_id).fill_bytes(&mut random);
        let host = gpu.pinned_buffer(one, Caching::Cached)?;
        host.claim(0..one, Access::Write)?.bytes_mut()?.copy_from_slice(&random[..one]);
        let device = gpu.device_buffer(one, CpuReach::Device)?;
        gpu.copy_in(&mut device.claim(0..one, Access::Write)?, &random[SHIFT..])?;
        let arenas = [
            gpu.device_buffer(room.arena, CpuReach::Device)?,
            gpu.pinned_buffer(room.arena, Caching::Cached)?,
            gpu.device_buffer(room.arena, CpuReach::Device)?,
        ];
        Ok(Self { random, host, device, arenas })
    }

    /// What `member` reads.
    pub const fn source(&self, member: SetTransfer) -> &Buffer {
        if let SetTransfer::H2d(_) = member { &self.host } else { &self.device }
    }

    /// The bytes that are there.
    pub fn bytes(&self, member: SetTransfer) -> &[u8] {
        if let SetTransfer::H2d(_) = member { &self.random } else { &self.random[SHIFT..] }
    }
}

/// One transfer of a set under way.
struct Transfer {
    queue: Box<dyn Queue>,
    from: Buffer,
    to: Buffer,
    next: usize,
    /// When the first counted copy ended, and how many ended after it until when.
    first: Option<Nanos>,
    count: u64,
    last: Nanos,
}

impl Transfer {
    fn turn(&mut self, pace: SetPace, begin: Nanos) -> Result<(), DeviceError> {
        while let Some(done) = self.queue.poll() {
            done.result?;
            let now = clock::now();
            match self.first {
                None if now >= begin => self.first = Some(now),
                None => {}
                Some(_) => (self.count, self.last) = (self.count + 1, now),
            }
        }
        while self.queue.outstanding() < pace.in_flight {
            let at = self.next * pace.chunk;
            let from = self.from.claim(0..pace.chunk, Access::Read)?;
            let to = self.to.claim(at..at + pace.chunk, Access::Write)?;
            self.queue.submit(Operation::Copy { from, to }, 0)?;
            self.next = (self.next + 1) % pace.in_flight;
        }
        Ok(())
    }

    fn has_enough(&self, pace: SetPace) -> bool {
        self.count >= 3 && self.first.is_some_and(|first| self.last >= first + pace.time)
    }
}

/// Runs all transfers of `set` until each has run for long enough, and returns their rates. The bytes that came last are
/// compared.
pub fn run(gpus: &[Arc<dyn Gpu>], stock: &[Stock], set: &Set, pace: SetPace) -> Result<Vec<u64>, Error> {
    let mut transfers = Vec::new();
    for &member in &set.members {
        let queue = gpus[member.queue().0].queue(false)?;
        let (from, (gpu, place)) = (stock[member.source()].source(member).clone(), member.target());
        let to = stock[gpu].arenas[place].clone();
        transfers.push(Transfer { queue, from, to, next: 0, first: None, count: 0, last: Nanos::ZERO });
    }
    // The first copies, which find idle links, are not counted.
    let begin = clock::now() + Nanos(pace.time.0 / 8);
    let patience = PATIENCE[usize::from(set.members.len() > 1)];
    let end = begin + Nanos(pace.time.0 * 2) + patience;
    while !transfers.iter().all(|transfer| transfer.has_enough(pace)) {
        if clock::now() > end {
            let what = format!("the transfers of set `{}`", set.name);
            return Err(DeviceError::Timeout { what, after: patience }.into());
        }
        for transfer in &mut transfers {
            transfer.turn(pace, begin)?;
        }
        std::thread::yield_now();
    }
    let rates = transfers.iter().map(|transfer| {
        let bytes = Bytes(pace.chunk as u64).0.saturating_mul(transfer.count);
        rate(Bytes(bytes), transfer.last - transfer.first.unwrap_or_default())
    });
    let rates = rates.collect();
    // Dropping a queue waits for what it still has.
    drop(transfers);
    compare(gpus, stock, set, pace)?;
    Ok(rates)
}

fn compare(gpus: &[Arc<dyn Gpu>], stock: &[Stock], set: &Set, pace: SetPace) -> Result<(), Error> {
    let bytes = pace.chunk.min(COMPARED);
    let mut landing = vec![0; bytes];
    for &member in &set.members {
        let (gpu, place) = member.target();
        let at = pace.chunk - bytes;
        let mut span = stock[gpu].arenas[place].claim(at..at + bytes, Access::Write)?;
        let zeros = vec![0; bytes];
        match member {
            SetTransfer::D2h(_) => {
                landing.copy_from_slice(span.bytes()?);
                span.bytes_mut()?.fill(0);
            }
            SetTransfer::H2d(_) | SetTransfer::Peer(..) => {
                gpus[gpu].copy_out(&mut landing, &span)?;
                gpus[gpu].copy_in(&mut span, &zeros)?;
            }
        }
        let wanted = &stock[member.source()].bytes(member)[at..at + bytes];
        if let Some(wrong) = landing.iter().zip(wanted).position(|(a, b)| a != b) {
            return Err(Error::WrongCopy { copy: format!("set `{}`", set.name), gpu, at: (at + wrong) as u64 });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_gpu_has_three_sets_and_four_have_every_pair() {
        let names = |gpus, peers: bool| sets(gpus, |_, _| peers).into_iter().map(|set| set.name).collect::<Vec<_>>();
        assert_eq!(names(1, true), ["gpu0 h2d", "gpu0 d2h", "gpu0 both"]);
        // 2 x 3 by themselves; two in, two out, two both; 3 ways to mix, each from either end.
        assert_eq!(names(2, false).len(), 6 + 3 + 3 * 2);
        // 4 x 3 by themselves; 6 pairs, 4 threes and all four in three ways; 22 ways to mix, each from either end; 12 pairs of peers,
        // 6 of them both ways, a ring, the same beside copies of the host.
        assert_eq!(names(4, true).len(), 12 + (6 + 4 + 1) * 3 + 22 * 2 + 12 + 6 + 2);
        // 5 x 3; 10 pairs, a three, a four and all five in three ways; 40 ways to mix.
        assert_eq!(names(5, false).len(), 15 + (10 + 3) * 3 + 40);
    }

    #[test]
    fn no_set_lets_two_transfers_use_one_engine_of_a_gpu_in_one_direction() {
        for set in sets(4, |_, _| true) {
            let mut engines: Vec<_> = set.members.iter().flat_map(|member| member.engines()).collect();
            let all = engines.len();
            engines.sort_unstable();
            engines.dedup();
            assert_eq!(engines.len(), all, "{set:?}");
        }
    }
}
