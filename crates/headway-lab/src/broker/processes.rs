//! The processes of the benchmark: a broker, and a second client.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fs, io, thread};

use headway_broker::{BrokerServer, Client, OnLoss, TaskShape};
use headway_core::decisions::engine_lock::EngineParameters;
use headway_core::decisions::sharing::{ArbiterParameters, ClusterId, ClusterParameters};
use headway_core::decisions::token::{TokenMode, TokenParameters};
use headway_core::units::{Bytes, Nanos, PPM};
use headway_os::ipc::{Listener, Words};
use headway_os::{clock, environment};

use crate::Error;
use crate::child::{self, ChildRole};

/// Bytes that both clients share.
pub(super) const WORDS: usize = 24;
/// Nothing takes that long, however slow the machine is.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// A broker with this for its longest look never sleeps.
const FOREVER: Nanos = Nanos(1_000_000_000_000);

/// When a broker sleeps that nobody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// As is usual on this machine.
    Usual,
    /// After 200 us, and so that looking costs a quarter of a CPU: usual where CPUs are few.
    Soon,
    Never,
}

impl Rest {
    const WORDS: [(&'static str, Self); 3] = [("usual", Self::Usual), ("soon", Self::Soon), ("never", Self::Never)];

    fn text(self) -> &'static str {
        Self::WORDS.iter().find(|(_, rest)| *rest == self).map_or("usual", |(word, _)| word)
    }

    fn parse(lines: &[&str]) -> Option<Self> {
        let [word] = lines else { return None };
        Self::WORDS.iter().find(|(known, _)| known == word).map(|(_, rest)| *rest)
    }
}

/// A broker in a process of its own, and the folder in which it listens. Both go when this is dropped.
pub(super) struct BrokerProcess {
    folder: PathBuf,
    broker: Child,
    words: Words,
    listener: Listener,
}

/// Starts this program in a role: `broker` or `client`, the folder, and what else the role needs, a line each. It ends with its
/// standard input.
fn spawn(role: &str) -> Result<Child, Error> {
    let mut command = child::command(ChildRole::Broker, role).map_err(Error::Child)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().map_err(Error::Child)
}

impl BrokerProcess {
    /// Starts the broker.
    pub(super) fn start(rest: Rest) -> Result<Self, Error> {
        let folder =
            environment::temporary_folder().join(format!("headway-bench-{}-{}", std::process::id(), clock::now().0));
        let write = |source| headway::Failure::Write { path: folder.clone(), source };
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(write)?;
        let words = Words::create("headway bench", WORDS, 1)?;
        let listener = Listener::bind(&folder.join("words"), 0o600)?;
        let mut broker = spawn(&format!("broker\n{}\n{}", folder.display(), rest.text()))?;
        // It says a byte when it listens.
        let heard = broker.stdout.take().map(|mut said| said.read_exact(&mut [0]));
        let this = Self { folder, broker, words, listener };
        match heard {
            Some(Ok(())) => Ok(this),
            _ => Err(Error::Child(io::Error::other("the broker ended before it listened"))),
        }
    }

    pub(super) fn connect(&self) -> Result<Client, Error> {
        Ok(Client::connect(&self.folder.join("broker"), "bench", OnLoss::Fail).map_err(headway::Failure::Client)?)
    }

    /// Words that the second client has too.
    pub(super) fn words(&self) -> &Words {
        &self.words
    }

    /// Starts the second client, which contends as `how` says.
    pub(super) fn second(&self, orders: &str) -> Result<Child, Error> {
        let child = spawn(&format!("client\n{}\n{orders}", self.folder.display()))?;
        let until = clock::now().saturating_add(Nanos(PATIENCE.as_nanos() as u64));
        loop {
            if let Some(socket) = self.listener.accept()? {
                socket.send(b"words", &[self.words.as_fd()])?;
                return Ok(child);
            }
            if clock::now() > until {
                return Err(Error::Child(io::Error::other("the second client did not come")));
            }
            thread::yield_now();
        }
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        let _ = self.broker.kill();
        let _ = self.broker.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Is the broker, until the parent ends.
pub(super) fn broker(folder: &Path, orders: &[&str]) -> Option<()> {
    let usual = headway_broker::ServerOptions::new(folder.join("broker"), arbiter());
    let (spin, spin_share_ppm) = match Rest::parse(orders)? {
        Rest::Usual => (usual.spin, usual.spin_share_ppm),
        Rest::Soon => (Nanos(200_000), PPM / 4),
        Rest::Never => (FOREVER, PPM),
    };
    let options = headway_broker::ServerOptions { spin, spin_share_ppm, ..usual };
    let mut server = BrokerServer::bind(options).ok()?;
    io::stdout().write_all(b".").and_then(|()| io::stdout().flush()).ok()?;
    server.run(&AtomicBool::new(false)).ok()
}

/// One GPU with two tokens and engine locks.
fn arbiter() -> ArbiterParameters {
    let tokens = TokenParameters { cpus: 16, per_gpu: 2, mode: TokenMode::WorkConserving, affinity: true };
    let engines = EngineParameters::default();
    ArbiterParameters::new(vec![ClusterParameters::equal(1, tokens)], Some(engines))
}

pub(super) fn shape() -> TaskShape {
    TaskShape {
        name: "bench".to_owned(),
        cluster: ClusterId(0),
        period: Nanos(1),
        deadline: Nanos(1_000_000),
        state: Bytes(0),
        segments: Vec::new(),
        thread: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_a_broker_sleeps_reads_back_as_it_was_written() {
        for rest in [Rest::Usual, Rest::Soon, Rest::Never] {
            assert_eq!(Rest::parse(&[rest.text()]), Some(rest));
        }
        assert_eq!(Rest::parse(&["often"]), None);
        assert_eq!(Rest::parse(&[]), None);
    }
}
