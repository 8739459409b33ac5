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
    /// Held while a word is written: words come in the order of their values.
    pub(super) order: Arc<Mutex<()>>,
    stand: Stand,
}

/// How long something has not gone on, as far as was looked.
#[derive(Default)]
struct Stand(Option<(u64, Instant)>);

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
    left: Vec<KnownStream>,
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
    fn free_word(&mut self, read: impl Fn(usize) -> u32) -> Option<usize> {
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

    /// The place of a stream, which is added if there is a word for it.
    pub(super) fn find(&mut self, stream: Stream, thread: u64, read: impl Fn(usize) -> u32) -> Option<usize> {
        let found = self.known.iter().position(|known| known.stream == stream && known.thread == thread);
        if found.is_some() {
            return found;
        }
        let word = self.free_word(&read)?;
        let load = StreamLoad::after(read(word));
        self.known.push(KnownStream { stream, thread, word, load, order: Arc::default(), stand: Stand::default() });
        Some(self.known.len() - 1)
    }

    /// A stream is destroyed, or waits no more: nothing is known of it from now on but its words.
    pub(super) fn forget(&mut self, stream: Stream) {
        for mut gone in self.known.extract_if(.., |known| known.stream == stream) {
            gone.load.ends();
            self.left.push(gone);
        }
    }

    /// Reserves room for one more word of the stream at a place, as far as is known.
    fn reserve(&mut self, at: usize) -> bool {
        let all = self.known.iter().chain(&self.left).map(|stream| stream.load.words()).sum();
        let load = &mut self.known[at].load;
        let has_room = cut::has_room(load.words(), all);
        if has_room {
            load.reserve();
        }
        has_room
    }

    /// Reserves room for one more word of the stream at a place, if there is some now.
    pub(super) fn room(&mut self, at: usize, read: impl Fn(usize) -> u32) -> Room {
        let known = &mut self.known[at];
        // Also where there is room: values that are too far apart cannot be compared.
        let stream_at = read(known.word);
        self.passed += known.load.reached(stream_at) as u64;
        if self.reserve(at) {
            return Room::Reserved;
        }
        for stream in self.known.iter_mut().chain(&mut self.left) {
            self.passed += stream.load.reached(read(stream.word)) as u64;
        }
        if self.reserve(at) {
            return Room::Reserved;
        }
        let all = self.stand.lasts(self.passed);
        let own = self.known[at].stand.lasts(stream_at.into());
        if all.max(own) < STREAM_WAIT_MAX { Room::Soon } else { Room::None }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Queues `bytes` bytes on a stream with a word behind them, if there is room for it; the word and its value.
    fn queue(loads: &mut Loads, stream: Stream, bytes: u64, read: impl Fn(usize) -> u32) -> Option<(usize, u32)> {
        let at = loads.find(stream, 0, &read).unwrap();
        if loads.room(at, &read) != Room::Reserved {
            return None;
        }
        let known = &mut loads.known[at];
        known.load.queue(Bytes(bytes), Bytes(1));
        let value = known.load.word();
        known.load.give_back();
        Some((known.word, value))
    }

    #[test]
    fn a_stream_that_passes_its_words_has_room_however_many_bytes_come() {
        let (mut loads, passed) = (Loads::default(), Cell::new(0));
        for _ in 0..2_000 {
            let (_, value) = queue(&mut loads, 7, 8 << 30, |_| passed.get()).unwrap();
            passed.set(value);
        }
    }

    #[test]
    fn words_of_a_stream_that_is_gone_count_until_they_are_passed() {
        let mut loads = Loads::default();
        let mut last = None;
        while let Some(word) = queue(&mut loads, 7, 4 << 20, |_| 0) {
            last = Some(word);
        }
        loads.forget(7);
        let (word, value) = last.unwrap();
        let count = |loads: &mut Loads, stream, read: fn(usize, usize, u32) -> u32| {
            (0..).take_while(|_| queue(loads, stream, 4 << 20, |at| read(at, word, value)).is_some()).count()
        };
        assert_eq!(count(&mut loads, 8, |_, _, _| 0), 72);
        loads.forget(8);
        assert_eq!(count(&mut loads, 9, |at, word, value| if at == word { value } else { 0 }), 234);
    }

    #[test]
    fn a_word_that_is_reserved_belongs_to_its_stream() {
        let mut loads = Loads::default();
        let at = loads.find(7, 0, |_| 0).unwrap();
        assert!(loads.room(at, |_| 0) == Room::Reserved);
        let word = loads.known[at].word;
        for stream in 8..3_000 {
            loads.find(stream, 0, |_| 0).unwrap();
        }
        let at = loads.find(7, 0, |_| 0).unwrap();
        assert!(loads.known[at].word == word && loads.known[at].load.words() == 1);
        loads.known[at].load.give_back();
        loads.find(3_000, 0, |_| 0).unwrap();
        assert!(loads.known.iter().all(|known| known.stream != 7));
    }
}
