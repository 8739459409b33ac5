//! Small copies by another process, for what is measured across processes.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use headway::gpus::arbitration::{self, Hand, Small};
use headway_core::models::transfer::Direction;
use headway_core::units::Nanos;

/// It has opened the GPU by then.
const PATIENCE: Duration = Duration::from_secs(60);
/// What it needs none of.
const BULK_BYTES: usize = 4096;

/// The other process. It ends with its standard input.
pub struct Rival {
    child: Child,
    said: Receiver<String>,
}

/// What [`serve`] is to do: `count` small copies on the GPU with the number `gpu`.
#[must_use]
pub fn order(small: &Small, gpu: u32, count: usize) -> String {
    let blocks = if let Hand::Kernel { blocks } = small.hand { blocks } else { 0 };
    format!("{} {} {blocks} {count} {gpu}", u8::from(small.direction == Direction::H2d), small.bytes)
}

impl Rival {
    /// Starts `command`, which calls [`serve`] with an [`order`]: the copies have begun when this returns.
    ///
    /// # Errors
    /// What the system says; an error without a cause where the process cannot open the GPU.
    pub fn start(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let lines = child.stdout.take().map(|output| BufReader::new(output).lines());
        let (tell, said) = channel();
        std::thread::spawn(move || {
            for line in lines.into_iter().flatten().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let rival = Self { child, said };
        let begun = rival.said.recv_timeout(PATIENCE);
        begun.map_err(|_| io::Error::other("the process with the small copies could not open the GPU"))?;
        Ok(rival)
    }

    /// What its copies took, once it has made them all.
    ///
    /// # Errors
    /// An error without a cause where it has ended before.
    pub fn heard(&mut self) -> io::Result<Option<Vec<Nanos>>> {
        match self.said.try_recv() {
            Ok(line) => Ok(Some(line.split_whitespace().filter_map(|word| word.parse().ok().map(Nanos)).collect())),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(io::Error::other("the process with the small copies has ended")),
        }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes small copies as `order` says, in a process of its own; whether it could.
#[must_use]
pub fn serve(order: &str) -> bool {
    let words: Vec<usize> = order.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let &[is_in, bytes, blocks, count, gpu] = words.as_slice() else { return false };
    let direction = if is_in == 1 { Direction::H2d } else { Direction::D2h };
    let hand = match u32::try_from(blocks) {
        Ok(0) | Err(_) => Hand::Engine,
        Ok(blocks) => Hand::Kernel { blocks },
    };
    let small = Small { direction, bytes, hand, urgent: false, queued_first: false };
    let Ok((mut gpu, _)) = arbitration::open(gpu as u32, BULK_BYTES) else { return false };
    println!("begun");
    let Ok(took) = gpu.small(&small, count) else { return false };
    println!("{}", took.iter().map(|time| time.0.to_string()).collect::<Vec<_>>().join(" "));
    // Until the parent has read it, or is gone.
    let _ = io::stdin().read(&mut [0]);
    true
}
