//! Rules by example; all small cases (`explore`); worst waits (`waits`); long random runs (`random`).

mod explore;
mod random;
mod rules;
mod waits;

use super::*;

/// Queue sizes and how far to explore.
#[derive(Clone, Copy, Debug)]
struct Scope {
    /// CPUs `m`.
    m: u32,
    /// Tokens `k`, one per GPU.
    k: u32,
    /// Longest FIFO `L`; 0 = no limit.
    length: u32,
    /// Most requests in FIFOs `F`; 0 = no limit.
    queued: u32,
    /// Most open requests.
    open: usize,
}

impl Scope {
    const fn new(m: u32, k: u32, length: u32, queued: u32, open: usize) -> Self {
        Self { m, k, length, queued, open }
    }

    fn allocator(self) -> TokenAllocator {
        let mode = if self.queued == 0 {
            TokenMode::Fifo
        } else {
            TokenMode::Relaxed(self.length.max(self.m.div_ceil(self.k)))
        };
        let parameters = TokenParameters { cpus: self.m, per_gpu: 1, mode, affinity: false };
        let gpus: Vec<GpuId> = (0..self.k).map(GpuId).collect();
        let distances = Distances::uniform(gpus.len());
        let mut allocator = TokenAllocator::new(parameters, gpus, distances, 1_000).unwrap();
        if self.queued > 0 {
            allocator.sizes.queued_max = Some(self.queued);
            allocator.sizes.length_max = Some(self.length);
            allocator.sizes.donation = self.queued >= self.m;
        }
        allocator
    }
}

/// The key of the request at `rank` of its state; a new one at the odd numbers between.
fn key(deadline: u64, task: usize) -> JobPriority {
    let job = JobId { task: TaskId(u32::try_from(task).unwrap()), job: 0 };
    JobPriority { deadline: Nanos(deadline), release: Nanos::ZERO, job }
}

fn request(key: JobPriority, gpus: u32) -> TokenRequest {
    TokenRequest { key, client: ClientId(u64::from(key.job.task.0)), estimates: vec![Nanos(1); gpus as usize] }
}

/// A state up to the names of requests and FIFOs: requests are numbered by urgency, FIFOs sorted.
///
/// Each FIFO: members (128 added if virtually released), then `END`; then donors with donees, `END`, the queue.
/// `mark` adds a byte behind the head of each FIFO, so that searches can carry times along.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Snapshot(Vec<u8>);

const END: u8 = 255;

impl Snapshot {
    /// The snapshot, and the task of each rank.
    fn of(allocator: &TokenAllocator, mark: impl Fn(TaskId) -> Option<u8>) -> (Self, Vec<TaskId>) {
        let mut keys: Vec<JobPriority> = allocator.requests.values().map(|request| request.key).collect();
        keys.sort_unstable();
        let tasks: Vec<TaskId> = keys.iter().map(|key| key.job.task).collect();
        let rank = |task: TaskId| u8::try_from(tasks.iter().position(|other| *other == task).unwrap()).unwrap();
        let mut fifos: Vec<Vec<u8>> = Vec::new();
        for fifo in &allocator.fifos {
            let mut bytes = Vec::new();
            for (place, task) in fifo.members.iter().enumerate() {
                let released = if allocator.requests[task].virtually_released { 128 } else { 0 };
                bytes.push(rank(*task) | released);
                bytes.extend(Some(*task).filter(|_| place == 0).and_then(&mark));
            }
            bytes.push(END);
            fifos.push(bytes);
        }
        fifos.sort_unstable();
        let mut bytes = fifos.concat();
        for task in &tasks {
            if let Place::Donor(donee) = allocator.requests[task].place {
                bytes.extend([rank(*task), rank(donee)]);
            }
        }
        bytes.push(END);
        bytes
            .extend(tasks.iter().filter(|task| allocator.requests[task].place == Place::Queue).map(|task| rank(*task)));
        (Self(bytes), tasks)
    }

    /// An allocator in this state, with task and deadline `2 * rank + 2`; and the marks, by FIFO.
    fn rebuild(&self, scope: Scope, marked: bool) -> (TokenAllocator, Vec<u8>) {
        let mut allocator = scope.allocator();
        let mut bytes = self.0.iter().copied();
        let mut marks = vec![0; scope.k as usize];
        let add = |allocator: &mut TokenAllocator, byte: u8, place: Place, granted: bool| {
            let (rank, virtually_released) = (usize::from(byte & 127), byte & 128 != 0);
            let key = key(2 * rank as u64 + 2, rank);
            let TokenRequest { client, estimates, .. } = request(key, scope.k);
            let granted = granted.then_some(Nanos::ZERO);
            let request =
                Request { key, client, estimates, place, donor: None, granted, boost: key, virtually_released };
            allocator.requests.insert(key.job.task, request);
            if !virtually_released {
                allocator.order.insert(key);
            }
            key
        };
        for (x, mark) in marks.iter_mut().enumerate() {
            let mut head = true;
            while let Some(byte) = bytes.next().filter(|byte| *byte != END) {
                let key = add(&mut allocator, byte, Place::Fifo(x), head);
                allocator.fifos[x].members.push_back(key.job.task);
                if head && marked {
                    *mark = bytes.next().unwrap();
                }
                head = false;
            }
        }
        while let Some(donor) = bytes.next().filter(|byte| *byte != END) {
            let donee = TaskId(u32::from(bytes.next().unwrap()));
            let key = add(&mut allocator, donor, Place::Donor(donee), false);
            allocator.donors.insert(key);
            allocator.requests.get_mut(&donee).unwrap().donor = Some(key.job.task);
        }
        for byte in bytes {
            let key = add(&mut allocator, byte, Place::Queue, false);
            allocator.queue.insert(key);
        }
        allocator.update_boosts();
        (allocator, marks)
    }
}

/// Whether the larger scopes are asked for: `HEADWAY_EXPLORE=1 cargo test --release -p headway-core --lib token`.
fn large() -> bool {
    std::env::var_os("HEADWAY_EXPLORE").is_some()
}
