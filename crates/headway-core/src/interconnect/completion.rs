//! When the blocks of a batch end, and in which order they should be submitted.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::{BandwidthShare, LIMITS, Network, Scratch, Starved};
use crate::files::machine::RouteId;
use crate::units::{Bytes, NANOS_PER_SECOND, Nanos, PPM, Rate};

/// One block of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BatchBlock {
    /// The route it takes.
    pub route: RouteId,
    pub bytes: Bytes,
}

/// A stretch of time in which the same blocks move at the same rates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// Start, from the submission of the batch.
    pub from: Nanos,
    /// End, later than `from`.
    pub to: Nanos,
    /// Every block that moves bytes, by its position in the order, and what it gets. A block in its setup is not here.
    pub active: Vec<(usize, BandwidthShare)>,
}

/// What the model predicts for a batch that starts on idle engines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchCompletion {
    /// From submission to the last completion.
    pub finish: Nanos,
    /// Completion of each block, by its position in the order.
    pub blocks: Vec<Nanos>,
    /// Which block moved when, how fast, and limited by what.
    pub intervals: Vec<Interval>,
}

/// Bytes at a rate in B/s for a time in ns are exactly nano-bytes.
const NANO_BYTES: u128 = NANOS_PER_SECOND as u128;

/// Memory of one run over a batch.
#[derive(Debug, Default)]
pub(super) struct Fifos {
    /// Blocks of each engine in submission order, and how many of them have ended.
    queues: Vec<(Vec<usize>, usize)>,
    /// When the thread that submits the batch has come to each block.
    submitted: Vec<Nanos>,
    setup_left: Vec<u64>,
    nano_bytes_left: Vec<u128>,
    /// Blocks that head all their engines, in ascending order.
    heads: Vec<usize>,
    moving: Vec<usize>,
    routes: Vec<RouteId>,
    pub(super) ends: Vec<Nanos>,
}

impl Fifos {
    fn load(&mut self, network: &Network, order: &[BatchBlock]) {
        self.queues.iter_mut().for_each(|queue| {
            queue.0.clear();
            queue.1 = 0;
        });
        self.queues.resize_with(network.engines.max(self.queues.len()), Default::default);
        self.submitted.clear();
        self.setup_left.clear();
        self.nano_bytes_left.clear();
        self.heads.clear();
        let mut submitted = Nanos::ZERO;
        for (at, block) in order.iter().enumerate() {
            let engines = network.engines(block.route);
            let compiled = network.route(block.route);
            self.submitted.push(submitted);
            submitted = submitted.saturating_add(compiled.submit);
            let last = |engine: &u32| self.queues[*engine as usize].0.last().copied();
            let before = engines.iter().filter_map(last).map(|at: usize| network.route(order[at].route).queue);
            let setup = compiled.setup_behind(before);
            self.setup_left.push(setup.0);
            self.nano_bytes_left.push(u128::from(block.bytes.0) * NANO_BYTES);
            for &engine in engines {
                self.queues[engine as usize].0.push(at);
            }
        }
        self.ends.clear();
        self.ends.resize(order.len(), Nanos::ZERO);
        for (at, block) in order.iter().enumerate() {
            if self.heads_all(network, block.route, at) {
                self.heads.push(at);
            }
        }
    }

    fn heads_all(&self, network: &Network, route: RouteId, at: usize) -> bool {
        network.engines(route).iter().all(|&e| {
            let (queue, ended) = &self.queues[e as usize];
            queue.get(*ended) == Some(&at)
        })
    }

    /// Removes the heads that are done at `now`, and lets their successors in; again until none is done.
    fn pop(&mut self, network: &Network, order: &[BatchBlock], now: Nanos) {
        let done = |fifos: &Self, b: usize| {
            fifos.setup_left[b] == 0 && fifos.nano_bytes_left[b] == 0 && fifos.submitted[b] <= now
        };
        while let Some(n) = self.heads.iter().position(|&b| done(self, b)) {
            let block = self.heads.remove(n);
            self.ends[block] = now;
            let engines = network.engines(order[block].route);
            for &engine in engines {
                self.queues[engine as usize].1 += 1;
            }
            for &engine in engines {
                let (queue, ended) = &self.queues[engine as usize];
                let Some(&next) = queue.get(*ended) else { continue };
                if self.heads_all(network, order[next].route, next)
                    && let Err(place) = self.heads.binary_search(&next)
                {
                    self.heads.insert(place, next);
                }
            }
        }
    }
}

impl Network {
    /// Completion times of the blocks of `order`, submitted together in that order to idle engines.
    ///
    /// Engines are first-in first-out and serve one block at a time; a block that needs two engines moves when it heads
    /// both. The first block of an engine pays its route's `setup`, the others `setup_queued`, but a block that waits for another
    /// queue than its own (a peer copy into a GPU that another one copies to) `setup` again; no block begins before all
    /// those ahead of it in the order were submitted, which takes `submit` each. Times are rounded up at the
    /// end of each block, by less than 1 ns, and nowhere else. A time beyond [`Nanos::MAX`] is [`Nanos::MAX`].
    ///
    /// # Errors
    /// [`Starved`] when some block would get no rate.
    pub fn completion(&self, order: &[BatchBlock]) -> Result<BatchCompletion, Starved> {
        let (mut fifos, mut intervals) = (Fifos::default(), Vec::new());
        let finish = self.run(order, &mut fifos, &mut Scratch::new(), Some(&mut intervals))?;
        Ok(BatchCompletion { finish, blocks: fifos.ends, intervals })
    }

    /// The end of the last block; the ends of all are left in `fifos`.
    pub(super) fn run(
        &self,
        order: &[BatchBlock],
        fifos: &mut Fifos,
        scratch: &mut Scratch,
        mut intervals: Option<&mut Vec<Interval>>,
    ) -> Result<Nanos, Starved> {
        fifos.load(self, order);
        let mut now = Nanos::ZERO;
        loop {
            fifos.pop(self, order, now);
            if fifos.heads.is_empty() {
                return Ok(now);
            }
            fifos.moving.clear();
            fifos.routes.clear();
            let mut step = u128::MAX;
            for &block in &fifos.heads {
                let (setup, submitted) = (fifos.setup_left[block], fifos.submitted[block]);
                if submitted > now {
                    step = step.min(u128::from((submitted - now).0));
                } else if setup == 0 {
                    fifos.moving.push(block);
                    fifos.routes.push(order[block].route);
                } else {
                    step = step.min(u128::from(setup));
                }
            }
            let shares = self.allocate(&fifos.routes, scratch)?;
            for (&block, share) in fifos.moving.iter().zip(shares) {
                step = step.min(fifos.nano_bytes_left[block].div_ceil(u128::from(share.rate.0)));
            }
            let until = now.saturating_add(Nanos(u64::try_from(step).unwrap_or(u64::MAX)));
            if let Some(intervals) = intervals.as_deref_mut()
                && !shares.is_empty()
            {
                let active = fifos.moving.iter().copied().zip(shares.iter().copied()).collect();
                intervals.push(Interval { from: now, to: until, active });
            }
            for (&block, share) in fifos.moving.iter().zip(shares) {
                let moved = u128::from(share.rate.0).saturating_mul(step);
                fifos.nano_bytes_left[block] = fifos.nano_bytes_left[block].saturating_sub(moved);
            }
            for &block in &fifos.heads {
                if fifos.setup_left[block] > 0 && fifos.submitted[block] <= now {
                    fifos.setup_left[block] -= u64::try_from(step).unwrap_or(u64::MAX).min(fifos.setup_left[block]);
                }
            }
            now = until;
        }
    }

    /// The order in which `blocks` end first, as positions in `blocks`.
    ///
    /// Up to [`LIMITS`]`.blocks_exhaustive_max` blocks: the best of all orders. More: longest first, then pairwise swaps
    /// as long as they help and at most `orders_max` tries. Of equally good orders the first by block position wins. Neighbours
    /// that share no engine are not exchanged: that could win the time of a submission, no more.
    ///
    /// # Errors
    /// [`Starved`] when some block would get no rate.
    pub fn best_order(&self, blocks: &[BatchBlock]) -> Result<Vec<usize>, Starved> {
        let mut search = Search::new(self, blocks)?;
        if blocks.len() <= LIMITS.blocks_exhaustive_max {
            search.all(&mut Vec::with_capacity(blocks.len()))?;
        } else {
            search.swaps()?;
        }
        Ok(search.best)
    }

    /// The rate of `route` with nothing else on the node.
    pub(super) fn rate_alone(&self, route: RouteId) -> Result<Rate, Starved> {
        let crossings = self.crossings(route).iter();
        let alone = crossings.map(|c| (floor_rate(self.pipes[c.capacity as usize].rate, c.use_ppm), c.capacity)).min();
        match alone {
            None => Err(self.no_capacity(route)),
            Some((0, capacity)) => Err(self.no_share(route, capacity)),
            Some((rate, _)) => Ok(Rate(rate)),
        }
    }

    pub(super) fn share_an_engine(&self, a: RouteId, b: RouteId) -> bool {
        self.engines(a).iter().any(|engine| self.engines(b).contains(engine))
    }
}

/// The rate at which a member with `use_ppm` fills `capacity` bytes per second, rounded down.
pub(super) fn floor_rate(capacity: u64, use_ppm: u64) -> u64 {
    u64::try_from(u128::from(capacity) * u128::from(PPM) / u128::from(use_ppm.max(1))).unwrap_or(u64::MAX)
}

/// A search for the best order of one batch.
struct Search<'a> {
    network: &'a Network,
    blocks: &'a [BatchBlock],
    /// No order ends before this.
    floor: Nanos,
    best: Vec<usize>,
    best_finish: Option<Nanos>,
    tried: usize,
    fifos: Fifos,
    scratch: Scratch,
    order: Vec<BatchBlock>,
}

impl<'a> Search<'a> {
    fn new(network: &'a Network, blocks: &'a [BatchBlock]) -> Result<Self, Starved> {
        let mut busy = vec![Nanos::ZERO; network.engines];
        for block in blocks {
            let compiled = network.route(block.route);
            let setup = compiled.setup.min(compiled.setup_queued);
            let alone = network.rate_alone(block.route)?.0;
            // Rounded down: the ends of an engine's blocks are rounded up one by one, this sum must stay below them.
            let moving = u128::from(block.bytes.0) * NANO_BYTES / u128::from(alone);
            let least = setup.saturating_add(Nanos(u64::try_from(moving).unwrap_or(u64::MAX)));
            for &engine in network.engines(block.route) {
                busy[engine as usize] = busy[engine as usize].saturating_add(least);
            }
        }
        let floor = busy.into_iter().max().unwrap_or_default();
        Ok(Self {
            network,
            blocks,
            floor,
            best: (0..blocks.len()).collect(),
            best_finish: None,
            tried: 0,
            fifos: Fifos::default(),
            scratch: Scratch::new(),
            order: Vec::with_capacity(blocks.len()),
        })
    }

    /// Tries `order`, keeps it when it ends earlier than the best so far, and says whether it did.
    fn attempt(&mut self, order: &[usize]) -> Result<bool, Starved> {
        self.tried += 1;
        self.order.clear();
        self.order.extend(order.iter().map(|&block| self.blocks[block]));
        let finish = self.network.run(&self.order, &mut self.fifos, &mut self.scratch, None)?;
        let better = self.best_finish.is_none_or(|best| finish < best);
        if better {
            self.best_finish = Some(finish);
            self.best.clear();
            self.best.extend_from_slice(order);
        }
        Ok(better)
    }

    fn at_floor(&self) -> bool {
        self.best_finish.is_some_and(|finish| finish <= self.floor)
    }

    /// All continuations of `prefix`, in lexicographic order.
    fn all(&mut self, prefix: &mut Vec<usize>) -> Result<(), Starved> {
        if prefix.len() == self.blocks.len() {
            return self.attempt(prefix).map(|_| ());
        }
        for next in 0..self.blocks.len() {
            if self.at_floor() {
                return Ok(());
            }
            if prefix.contains(&next) || !self.is_canonical(prefix, next) {
                continue;
            }
            prefix.push(next);
            self.all(prefix)?;
            prefix.pop();
        }
        Ok(())
    }

    /// Whether an order that goes on from `prefix` with `next` can be the first of those that behave the same.
    ///
    /// Neighbours that share no engine may change places without any effect, and so may equal blocks.
    fn is_canonical(&self, prefix: &[usize], next: usize) -> bool {
        let (block, earlier) = (self.blocks[next], &self.blocks[..next]);
        let twin_missing = earlier.iter().zip(0..).any(|(&b, at)| b == block && !prefix.contains(&at));
        let swap_helps = prefix
            .last()
            .is_some_and(|&last| next < last && !self.network.share_an_engine(self.blocks[last].route, block.route));
        !twin_missing && !swap_helps
    }

    fn swaps(&mut self) -> Result<(), Starved> {
        let mut alone = Vec::with_capacity(self.blocks.len());
        for block in self.blocks {
            alone.push(self.network.rate_alone(block.route)?.time_for(block.bytes));
        }
        let mut order: Vec<usize> = (0..self.blocks.len()).collect();
        order.sort_by_key(|&block| (Reverse(alone[block]), block));
        self.attempt(&order)?;
        let mut improved = true;
        while improved {
            improved = false;
            for i in 0..order.len() {
                for j in i + 1..order.len() {
                    if self.at_floor() || self.tried >= LIMITS.orders_max {
                        return Ok(());
                    }
                    let (a, b) = (self.blocks[order[i]], self.blocks[order[j]]);
                    if a == b || !self.network.share_an_engine(a.route, b.route) {
                        continue;
                    }
                    order.swap(i, j);
                    if self.attempt(&order)? {
                        improved = true;
                    } else {
                        order.swap(i, j);
                    }
                }
            }
        }
        Ok(())
    }
}
