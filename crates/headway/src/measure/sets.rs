//! Sets of concurrent transfers: what each gets while the others run too.

use std::sync::Arc;

use headway_core::units::{Bytes, NANOS_PER_SECOND, Nanos};
use headway_device::buffer::Access;
use headway_device::port::{Caching, Lane, Move, Port, Reach};
use headway_device::{Buffer, DeviceError};
use headway_os::clock;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use super::sample::rate;
use super::session::Session;
use crate::Error;

/// Beyond the time that a set is measured for, it is given up after this long.
const PATIENCE: Nanos = Nanos(30 * NANOS_PER_SECOND);

/// A transfer of a set, by positions of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Member {
    /// Pinned host memory to a GPU.
    H2d(usize),
    /// A GPU to pinned host memory.
    D2h(usize),
    /// The first GPU to the second.
    Peer(usize, usize),
}

/// Transfers that run at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set {
    /// Name for keys and messages.
    pub(crate) name: String,
    /// The transfers.
    pub(crate) members: Vec<Member>,
}

/// How long and in which pieces a set is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Length of one copy.
    pub(crate) chunk: usize,
    /// Copies of one transfer that are queued at a time.
    pub(crate) in_flight: usize,
    /// How long every transfer runs after all have begun.
    pub(crate) time: Nanos,
    /// How often each set is measured.
    pub(crate) repeats: u32,
}

/// The rates of one set: per repetition, per member, in bytes per second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rates(pub(crate) Vec<Vec<u64>>);

/// The sets that tell the capacities of a node apart: each transfer alone; both ways of each GPU; k of n in, out and both
/// ways; every pair of peers, both ways, a ring, and one GPU to several.
pub(crate) fn sets(gpus: usize, reaches: impl Fn(usize, usize) -> bool) -> Vec<Set> {
    let mut sets = Vec::new();
    let mut add = |name: String, members: Vec<Member>| sets.push(Set { name, members });
    for gpu in 0..gpus {
        add(format!("gpu{gpu} h2d"), vec![Member::H2d(gpu)]);
        add(format!("gpu{gpu} d2h"), vec![Member::D2h(gpu)]);
        add(format!("gpu{gpu} both"), vec![Member::H2d(gpu), Member::D2h(gpu)]);
    }
    for k in 2..=gpus {
        add(format!("{k} h2d"), (0..k).map(Member::H2d).collect());
        add(format!("{k} d2h"), (0..k).map(Member::D2h).collect());
        add(format!("{k} both"), (0..k).flat_map(|gpu| [Member::H2d(gpu), Member::D2h(gpu)]).collect());
    }
    let pairs = (0..gpus).flat_map(|from| (0..gpus).map(move |to| (from, to)));
    for (from, to) in pairs.filter(|&(from, to)| from != to && reaches(from, to)) {
        add(format!("gpu{from} gpu{to}"), vec![Member::Peer(from, to)]);
        if from < to && reaches(to, from) {
            add(format!("gpu{from} gpu{to} both"), vec![Member::Peer(from, to), Member::Peer(to, from)]);
        }
    }
    let ring = || (0..gpus).map(|gpu| (gpu, (gpu + 1) % gpus));
    if gpus > 2 && ring().all(|(from, to)| reaches(from, to)) {
        add("ring".to_owned(), ring().map(|(from, to)| Member::Peer(from, to)).collect());
    }
    if gpus > 2 && (1..gpus).all(|to| reaches(0, to)) {
        add("gpu0 to all".to_owned(), (1..gpus).map(|to| Member::Peer(0, to)).collect());
    }
    sets
}

/// Measures `sets` on `ports`, each before it is measured again, so that what changes with time shows as spread.
pub(crate) fn measure(
    session: &mut Session<'_>,
    ports: &[Arc<dyn Port>],
    sets: &[Set],
    pace: Pace,
) -> Result<Vec<Rates>, Error> {
    session.phase("links", sets.len() * pace.repeats as usize);
    let mut stock: Option<Vec<Stock>> = None;
    let mut all = vec![Rates(Vec::new()); sets.len()];
    for repeat in 0..pace.repeats {
        for (set, rates) in sets.iter().zip(&mut all) {
            let found = session.step(&format!("set {} {repeat}", set.name), |_| {
                if stock.is_none() {
                    let numbered = (1..).zip(ports);
                    let made: Result<_, Error> =
                        numbered.map(|(seed, port)| Stock::new(port.as_ref(), seed, pace)).collect();
                    stock = Some(made?);
                }
                let stock = stock.as_ref().expect("made above");
                run(ports, stock, set, pace)
            })?;
            rates.0.push(found);
            session.advance()?;
        }
    }
    Ok(all)
}

/// Measures one set once, with buffers of its own.
pub(crate) fn alone(ports: &[Arc<dyn Port>], set: &Set, pace: Pace) -> Result<Vec<u64>, Error> {
    let stock: Result<Vec<_>, Error> =
        (1..).zip(ports).map(|(seed, port)| Stock::new(port.as_ref(), seed, pace)).collect();
    run(ports, &stock?, set, pace)
}

/// What transfers of one GPU read and write.
struct Stock {
    random: Vec<u8>,
    host_from: Buffer,
    host_to: Buffer,
    device_from: Buffer,
    device_in: Buffer,
    device_peer: Buffer,
}

impl Stock {
    fn new(port: &dyn Port, seed: u64, pace: Pace) -> Result<Self, Error> {
        let (one, all) = (pace.chunk, pace.chunk * pace.in_flight);
        let mut random = vec![0; one];
        Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut random);
        let host_from = port.pinned_buffer(one, Caching::Cached)?;
        host_from.claim(0..one, Access::Write)?.bytes_mut()?.copy_from_slice(&random);
        let device_from = port.device_buffer(one, Reach::Device)?;
        port.copy_in(&mut device_from.claim(0..one, Access::Write)?, &random)?;
        Ok(Self {
            random,
            host_from,
            host_to: port.pinned_buffer(all, Caching::Cached)?,
            device_from,
            device_in: port.device_buffer(all, Reach::Device)?,
            // No set has two transfers from peers to one GPU.
            device_peer: port.device_buffer(all, Reach::Device)?,
        })
    }
}

/// One transfer of a set under way.
struct Transfer {
    lane: Box<dyn Lane>,
    from: Buffer,
    to: Buffer,
    next: usize,
    /// When the first counted copy ended, and how many ended after it until when.
    first: Option<Nanos>,
    count: u64,
    last: Nanos,
}

impl Transfer {
    fn turn(&mut self, pace: Pace, begin: Nanos) -> Result<(), DeviceError> {
        while let Some(done) = self.lane.poll() {
            done.result?;
            let now = clock::now();
            match self.first {
                None if now >= begin => self.first = Some(now),
                None => {}
                Some(_) => (self.count, self.last) = (self.count + 1, now),
            }
        }
        while self.lane.outstanding() < pace.in_flight {
            let at = self.next * pace.chunk;
            let from = self.from.claim(0..pace.chunk, Access::Read)?;
            let to = self.to.claim(at..at + pace.chunk, Access::Write)?;
            self.lane.submit(Move::Copy { from, to }, 0)?;
            self.next = (self.next + 1) % pace.in_flight;
        }
        Ok(())
    }

    fn has_enough(&self, pace: Pace) -> bool {
        self.count >= 3 && self.first.is_some_and(|first| self.last >= first + pace.time)
    }
}

/// Runs all transfers of `set` until each has run for long enough, and returns their rates. The bytes that came last are
/// compared.
fn run(ports: &[Arc<dyn Port>], stock: &[Stock], set: &Set, pace: Pace) -> Result<Vec<u64>, Error> {
    let mut transfers = Vec::new();
    for &member in &set.members {
        let (owner, from, to) = match member {
            Member::H2d(gpu) => (gpu, &stock[gpu].host_from, &stock[gpu].device_in),
            Member::D2h(gpu) => (gpu, &stock[gpu].device_from, &stock[gpu].host_to),
            Member::Peer(from, to) => (from, &stock[from].device_from, &stock[to].device_peer),
        };
        let lane = ports[owner].lane(false)?;
        let (from, to) = (from.clone(), to.clone());
        transfers.push(Transfer { lane, from, to, next: 0, first: None, count: 0, last: Nanos::ZERO });
    }
    // The first copies, which find idle links, are not counted.
    let begin = clock::now() + Nanos(pace.time.0 / 8);
    let end = begin + Nanos(pace.time.0 * 2) + PATIENCE;
    while !transfers.iter().all(|transfer| transfer.has_enough(pace)) {
        if clock::now() > end {
            let what = format!("the transfers of set `{}`", set.name);
            return Err(DeviceError::Timeout { what, after: PATIENCE }.into());
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
    // Dropping a lane waits for what it still has.
    drop(transfers);
    compare(ports, stock, set, pace)?;
    Ok(rates)
}

fn compare(ports: &[Arc<dyn Port>], stock: &[Stock], set: &Set, pace: Pace) -> Result<(), Error> {
    let mut landing = vec![0; pace.chunk];
    for &member in &set.members {
        let (from, gpu) = match member {
            Member::D2h(gpu) => {
                landing.copy_from_slice(stock[gpu].host_to.claim(0..pace.chunk, Access::Read)?.bytes()?);
                stock[gpu].host_to.claim(0..pace.chunk, Access::Write)?.bytes_mut()?.fill(0);
                (gpu, gpu)
            }
            Member::H2d(gpu) | Member::Peer(_, gpu) => {
                let peer = matches!(member, Member::Peer(..));
                let target = if peer { &stock[gpu].device_peer } else { &stock[gpu].device_in };
                ports[gpu].copy_out(&mut landing, &target.claim(0..pace.chunk, Access::Read)?)?;
                let zeros = vec![0; pace.chunk];
                ports[gpu].copy_in(&mut target.claim(0..pace.chunk, Access::Write)?, &zeros)?;
                (if let Member::Peer(from, _) = member { from } else { gpu }, gpu)
            }
        };
        if let Some(at) = landing.iter().zip(&stock[from].random).position(|(a, b)| a != b) {
            return Err(Error::WrongCopy { copy: format!("set `{}`", set.name), gpu, at: at as u64 });
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
        assert_eq!(names(2, false).len(), 2 * 3 + 3);
        // 4 x 3 alone, 3 x 3 of k, 12 pairs, 6 of them both ways, a ring, one to all.
        assert_eq!(names(4, true).len(), 12 + 9 + 12 + 6 + 2);
    }

    #[test]
    fn no_set_lets_two_transfers_use_one_engine_of_a_gpu_in_one_direction() {
        for set in sets(4, |_, _| true).iter().filter(|set| set.name != "gpu0 to all") {
            for (at, member) in set.members.iter().enumerate() {
                assert!(!set.members[..at].contains(member), "{set:?}");
            }
        }
    }
}
