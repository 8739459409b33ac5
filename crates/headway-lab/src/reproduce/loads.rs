//! Load on the CPUs and on host memory while something else is measured, by processes of this program that always end.

use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::simulation::fujii::Stress;
use headway_os::affinity;

use crate::Error;
use crate::child::{self, ChildRole};

/// A load ends after this long even if nobody ends it.
const LIFETIME: Duration = Duration::from_secs(600);
/// Spinning processes for each CPU.
const SPINNERS: usize = 4;
/// Groups, and senders and receivers in each (the usual shape of such a load).
const GROUPS: usize = 10;
const PEERS: usize = 20;
/// Length of one message.
const MESSAGE: usize = 100;
/// Messages in a row to one receiver.
const BURST: usize = 100;

/// Processes that load the machine until this is dropped.
pub(super) struct Loads {
    children: Vec<Child>,
}

impl Loads {
    /// Starts what `stress` asks for; `memory` bounds what a memory eater touches at a time. A `light` load has one spinning
    /// process for each CPU and one group.
    pub(super) fn start(stress: Stress, memory: u64, light: bool) -> Result<Self, Error> {
        let mut loads = Self { children: Vec::new() };
        let cpus = affinity::allowed().map_or(1, |cpus| cpus.len());
        let (count, what) = match stress {
            Stress::Alone => return Ok(loads),
            Stress::Together => {
                for one in [Stress::Cpu, Stress::Memory, Stress::Pipes] {
                    loads.children.append(&mut Self::start(one, memory, light)?.children);
                }
                return Ok(loads);
            }
            Stress::Cpu => (if light { cpus } else { SPINNERS * cpus }, "spin".to_owned()),
            Stress::Memory => (1, format!("memory {memory}")),
            Stress::Pipes => (if light { 1 } else { GROUPS }, "pipes".to_owned()),
        };
        let failed = |source| Error::Load { source };
        for _ in 0..count {
            let mut command = child::command(ChildRole::Load, &what).map_err(failed)?;
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = command.spawn().map_err(failed)?;
            let mut begun = [0];
            // It says a byte when it is at work.
            let heard = child.stdout.take().map(|mut said| said.read_exact(&mut begun));
            loads.children.push(child);
            if !matches!(heard, Some(Ok(()))) {
                return Err(failed(std::io::Error::other("a load process ended before it began")));
            }
        }
        Ok(loads)
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Is a load, until its parent goes or its life ends: `spin`, `memory BYTES` or `pipes`.
pub(crate) fn serve(what: &str) {
    let until = Instant::now() + LIFETIME;
    // The parent's end of the pipe closes with the parent.
    thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let _ = std::io::stdout().write_all(b".").and_then(|()| std::io::stdout().flush());
    match what.split_once(' ') {
        Some(("memory", bytes)) => eat(bytes.parse().unwrap_or(0), until),
        _ if what == "pipes" => chatter(until),
        _ => while Instant::now() < until {},
    }
}

/// Touches fresh pages, at most `bytes` at a time.
fn eat(bytes: usize, until: Instant) {
    while Instant::now() < until {
        let mut memory = vec![0u8; bytes];
        for page in memory.chunks_mut(4096) {
            page[0] = 1;
        }
        std::hint::black_box(&memory);
    }
}

/// One group: every sender writes to every receiver.
fn chatter(until: Instant) {
    let (mut readers, mut writers) = (Vec::new(), Vec::new());
    for _ in 0..PEERS {
        let Ok((reader, writer)) = std::io::pipe() else { return };
        readers.push(reader);
        writers.push(writer);
    }
    let mut threads = Vec::new();
    for _ in 0..PEERS {
        let Ok(mut writers) = writers.iter().map(std::io::PipeWriter::try_clone).collect::<Result<Vec<_>, _>>() else {
            return;
        };
        threads.push(thread::spawn(move || {
            while Instant::now() < until {
                for writer in &mut writers {
                    for _ in 0..BURST {
                        if writer.write_all(&[1; MESSAGE]).is_err() {
                            return;
                        }
                    }
                }
            }
        }));
    }
    drop(writers);
    for mut reader in readers {
        threads.push(thread::spawn(move || while reader.read_exact(&mut [0; MESSAGE]).is_ok() {}));
    }
    for thread in threads {
        let _ = thread.join();
    }
}
