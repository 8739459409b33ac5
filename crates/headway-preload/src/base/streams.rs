//! What the streams of a context have under way, and which word tells of each.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headway_core::decisions::chooser::STREAM_CHUNK;
use headway_core::decisions::cut::{self, StreamLoad};
use headway_core::units::Bytes;

use crate::base::attention;
use crate::base::driver::Stream;

/// How long a call waits for a stream that does not go on.
const STREAM_WAIT_MAX: Duration = Duration::from_millis(50);
/// Words of streams, each on a cache line of its own behind the lines. Of more streams nothing is known.
pub(super) const WORDS: usize = 1_024;

/// A stream and what was queued on it.
pub(super) struct KnownStream {
    pub(super) stream: Stream,
    /// The thread whose default stream it is, or 0.
    pub(super) thread: u64,
    pub(super) word: usize,
    pub(super) load: StreamLoad,
    /// Held while a value is taken and its word queued, so that words come in the order of their values.
    pub(super) order: Arc<Mutex<()>>,
    pub(super) stand: Stand,
}

/// How long something has not gone on, as far as was looked.
#[derive(Default)]
pub(super) struct Stand(Option<(u64, Instant)>);

impl Stand {
    /// How long it has been at `at`.
    fn lasts(&mut self, at: u64) -> Duration {
        let now = Instant::now();
        match self.0 {
            Some((before, since)) if before == at => now - since,
            _ => {
                self.0 = Some((at, now));
                Duration::ZERO
            }
        }
    }
}

#[derive(Default)]
pub(super) struct Loads {
    pub(super) known: Vec<KnownStream>,
    /// Streams that are gone, and may still write their words.
    pub(super) left: Vec<KnownStream>,
    used: usize,
    /// Words that streams have passed.
    passed: u64,
    stand: Stand,
}

/// Whether a stream has room for one more word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Reserved,
    /// Perhaps soon: the stream goes on.
    Soon,
    None,
}

/// What a copy takes of a chunk: small ones keep the engine longer than their bytes (64 KiB for 2.9 us, H100).
pub(super) fn weight(bytes: usize) -> Bytes {
    const SMALL: usize = 1 << 20;
    const EACH: usize = 96 << 10;
    Bytes(if bytes < SMALL { bytes + EACH } else { bytes } as u64)
}

/// What an engine may be given of one stream between two words.
pub(super) fn chunk() -> Bytes {
    attention::options().chunk.unwrap_or(STREAM_CHUNK)
}

impl Loads {
    /// A word that no stream writes any more, or that of a stream which has nothing under way.
    pub(super) fn free_word(&mut self, read: impl Fn(usize) -> u32) -> Option<usize> {
        if let Some(at) = self.left.iter().position(|left| read(left.word) == left.load.last_word()) {
            return Some(self.left.swap_remove(at).word);
        }
        // The first word is written as a trial.
        if self.used + 1 < WORDS {
            self.used += 1;
            return Some(self.used);
        }
        let idle = self.known.iter().position(|known| known.load.is_over(read(known.word)))?;
        Some(self.known.swap_remove(idle).word)
    }

    /// Reserves room for one more word of the stream that writes `word`, as far as is known.
    fn reserve(&mut self, word: usize) -> bool {
        let all = self.known.iter().chain(&self.left).map(|stream| stream.load.words()).sum();
        let known = self.known.iter_mut().find(|known| known.word == word);
        let found = known.filter(|known| cut::has_room(known.load.words(), all));
        found.map(|known| known.load.reserve()).is_some()
    }

    /// Reserves room if there is some now.
    pub(super) fn room(&mut self, word: usize, read: impl Fn(usize) -> u32) -> Room {
        if self.reserve(word) {
            return Room::Reserved;
        }
        for stream in self.known.iter_mut().chain(&mut self.left) {
            self.passed += stream.load.reached(read(stream.word)) as u64;
        }
        if self.reserve(word) {
            return Room::Reserved;
        }
        let all = self.stand.lasts(self.passed);
        let known = self.known.iter_mut().find(|known| known.word == word);
        let goes_on = known.is_some_and(|known| known.stand.lasts(read(word).into()).max(all) < STREAM_WAIT_MAX);
        if goes_on { Room::Soon } else { Room::None }
    }
}
