//! Two processes that take one engine in turns, each as soon as it can.

use std::io::{self, Read};
use std::sync::atomic::Ordering;

use headway_broker::Client;
use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::ipc::Words;

use super::processes::{self, BrokerProcess, WORDS};
use super::{EXECUTE, task};
use crate::Error;
use headway_measure::sample::Effort;

// Words that both processes share, a cache line each.
/// When the engine was released last.
const RELEASED: usize = 0;
/// Processes that hold their token.
const READY: usize = 8;
/// A process has enough.
const STOP: usize = 16;

/// One wait for the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// From the request to the release by the other process.
    pub(super) waited: Nanos,
    /// From that release until this process runs with the engine.
    pub(super) handed: Nanos,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Orders {
    /// How long it holds the engine.
    hold: Nanos,
    /// How long it looks for it before it sleeps.
    look: Nanos,
    /// Most waits.
    n_max: u32,
    /// Longest time.
    time: Nanos,
}

impl Orders {
    pub(super) fn parse(lines: &[&str]) -> Option<Self> {
        let number = |at: usize| lines.get(at)?.parse::<u64>().ok();
        let n_max = u32::try_from(number(2)?).ok()?;
        Some(Self { hold: Nanos(number(0)?), look: Nanos(number(1)?), n_max, time: Nanos(number(3)?) })
    }

    fn text(self) -> String {
        format!("{}\n{}\n{}\n{}", self.hold.0, self.look.0, self.n_max, self.time.0)
    }
}

/// The waits of both processes.
pub(super) fn both(broker: &BrokerProcess, hold: Nanos, look: Nanos, effort: Effort) -> Result<Vec<Wait>, Error> {
    let orders = Orders { hold, look, n_max: effort.n_max / 2, time: effort.time };
    let words = broker.words();
    (0..WORDS).for_each(|at| words.long(at).store(0, Ordering::SeqCst));
    let client = broker.connect()?;
    let mut second = broker.second(&orders.text())?;
    let mut waits = contend(&client, words, &orders);
    words.long(STOP).store(1, Ordering::SeqCst);
    if waits.is_err() {
        // It may wait for this process.
        let _ = second.kill();
    }
    let mut text = String::new();
    let read = second.stdout.take().map(|mut said| said.read_to_string(&mut text));
    let ended = second.wait();
    if let Ok(waits) = &mut waits {
        if !ended.map_err(Error::Child)?.success() || !matches!(read, Some(Ok(_))) {
            return Err(Error::Child(io::Error::other("the second client failed")));
        }
        waits.extend(text.lines().filter_map(|line| {
            let (waited, handed) = line.split_once(' ')?;
            Some(Wait { waited: Nanos(waited.parse().ok()?), handed: Nanos(handed.parse().ok()?) })
        }));
    }
    waits
}

/// Takes the engine again and again; notes what it waited for the other process.
pub(super) fn contend(client: &Client, words: &Words, orders: &Orders) -> Result<Vec<Wait>, Error> {
    client.look_for(orders.look);
    let mut task = task(client)?;
    let mut token = task.acquire(clock::now(), 0, Some(processes::PATIENCE)).map_err(headway::Failure::Client)?;
    let [released, ready, stop] = [RELEASED, READY, STOP].map(|at| words.long(at));
    ready.fetch_add(1, Ordering::SeqCst);
    let patience = clock::now().saturating_add(Nanos(processes::PATIENCE.as_nanos() as u64));
    while ready.load(Ordering::SeqCst) < 2 {
        if clock::now() > patience {
            return Err(headway::Failure::Options("the other process did not come").into());
        }
        std::thread::yield_now();
    }
    let until = clock::now().saturating_add(orders.time);
    let mut waits = Vec::with_capacity(orders.n_max as usize);
    while waits.len() < orders.n_max as usize && stop.load(Ordering::Relaxed) == 0 && clock::now() < until {
        let asked = clock::now();
        let engine = token.engine(EXECUTE).map_err(headway::Failure::Client)?;
        let held = clock::now();
        let release = Nanos(released.load(Ordering::Acquire));
        if release > asked {
            waits.push(Wait { waited: release.saturating_sub(asked), handed: held.saturating_sub(release) });
        }
        while clock::now() < held.saturating_add(orders.hold) {
            std::hint::spin_loop();
        }
        released.store(clock::now().0, Ordering::Release);
        drop(engine);
    }
    stop.store(1, Ordering::SeqCst);
    Ok(waits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_read_back_as_they_were_written() {
        let orders = Orders { hold: Nanos(u64::MAX), look: Nanos(3), n_max: 7, time: Nanos(0) };
        let text = orders.text();
        assert_eq!(Orders::parse(&text.lines().collect::<Vec<_>>()), Some(orders));
        assert_eq!(Orders::parse(&["1", "2", "3"]), None);
        assert_eq!(Orders::parse(&["1", "2", "4294967296", "3"]), None);
    }
}
