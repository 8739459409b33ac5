//! Where copies that are queued on one CUDA stream are cut, and what the stream has under way.
//!
//! Behind the word that ends a chunk the engine serves other streams (`cuStreamWriteValue32` with its memory barrier). The value of the word
//! counts the bytes that were queued before it. So what a stream has under way is what was queued less what the word says, and no driver
//! is asked.

use std::collections::VecDeque;

use crate::units::Bytes;

/// Words that may be under way on all streams of a context. With a copy before each they take three quarters of the about thousand
/// operations that a queue of the driver holds; several streams share one (`CUDA_DEVICE_MAX_CONNECTIONS`), at worst all. A call that
/// fills the queue blocks, perhaps in the thread that is to let a stream go on.
pub const WORDS_MAX: usize = 384;

/// A stream may have so many times as many words under way as all streams leave free. So a stream that stands still leaves some to others
/// (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
const SHARE: usize = 3;

/// Whether a stream with `own` of all `words` that are under way may write one more.
#[must_use]
pub const fn has_room(own: usize, words: usize) -> bool {
    own < SHARE * WORDS_MAX.saturating_sub(words)
}

/// Unit of the values of words: with 32 bits they tell 4 TiB apart.
const UNIT: u64 = 1 << 10;

/// The copies that were queued on one stream, in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamLoad {
    queued: u64,
    since_word: u64,
    last_word: u32,
    /// Words that were written, without those of which is known that the stream has passed them.
    words: VecDeque<u32>,
    /// Words that will be written: room was found for them.
    reserved: usize,
}

impl StreamLoad {
    /// Whether a word goes before a copy of `bytes` bytes: without it, more than `chunk` bytes would follow each other.
    #[must_use]
    pub const fn ends_before(&self, bytes: Bytes, chunk: Bytes) -> bool {
        self.since_word > 0 && self.since_word.saturating_add(bytes.0) > chunk.0
    }

    /// A copy was queued. Whether a word goes behind it: it ends a chunk.
    pub const fn queue(&mut self, bytes: Bytes, chunk: Bytes) -> bool {
        self.queued = self.queued.wrapping_add(bytes.0);
        self.since_word = self.since_word.saturating_add(bytes.0);
        self.since_word >= chunk.0
    }

    /// The value of the word that is queued next, before any other.
    pub fn word(&mut self) -> u32 {
        self.since_word = 0;
        self.last_word = self.value();
        self.words.push_back(self.last_word);
        self.last_word
    }

    /// There is room for a word that will be written.
    pub const fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// A word for which there was room has been written, or will not be.
    pub const fn give_back(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// The stream is about to be destroyed: nothing more is written on it.
    pub const fn ends(&mut self) {
        self.reserved = 0;
    }

    /// How many words are under way, as far as is known, or will be.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words.len() + self.reserved
    }

    /// The stream has come to `word`; how many words it has passed since it was told so the last time.
    pub fn reached(&mut self, word: u32) -> usize {
        let before = self.words.len();
        while self.words.front().is_some_and(|value| value.wrapping_sub(word).cast_signed() <= 0) {
            self.words.pop_front();
        }
        before - self.words.len()
    }

    /// Whether nothing is under way that is known, where the stream has come to `word`.
    #[must_use]
    pub const fn is_over(&self, word: u32) -> bool {
        self.reserved == 0 && self.last_word == word && self.value() == word
    }

    /// Nothing was queued yet on a stream whose word is `word`.
    #[must_use]
    pub const fn after(word: u32) -> Self {
        Self { queued: word as u64 * UNIT, since_word: 0, last_word: word, words: VecDeque::new(), reserved: 0 }
    }

    /// What was queued since the last word that was written does not count: it was only recorded, or no word could follow it.
    pub fn drop_unwritten(&mut self) {
        self.queued = u64::from(self.last_word) * UNIT;
        self.since_word = 0;
    }

    /// The value that was written last.
    #[must_use]
    pub const fn last_word(&self) -> u32 {
        self.last_word
    }

    const fn value(&self) -> u32 {
        (self.queued / UNIT) as u32
    }

    /// What is under way at most, where the stream has come to `word`, in whole KiB. Up to a chunk may be done already: no word is behind it.
    #[must_use]
    pub const fn under_way(&self, word: u32) -> Bytes {
        Bytes(self.value().wrapping_sub(word) as u64 * UNIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: Bytes = Bytes(4 << 20);

    /// An engine that reaches each word when the bytes before it are done.
    #[derive(Default)]
    struct Engine {
        run: u64,
        longest: u64,
        words: Vec<(u64, u32)>,
        queued: u64,
    }

    impl Engine {
        fn word(&mut self, value: u32) {
            self.words.push((self.queued, value));
            self.run = 0;
        }

        fn copy(&mut self, bytes: u64) {
            self.run += bytes;
            self.queued += bytes;
            self.longest = self.longest.max(self.run);
        }

        /// The word's value when `done` bytes are copied.
        fn at(&self, done: u64) -> u32 {
            self.words.iter().rev().find(|(at, _)| *at <= done).map_or(0, |(_, value)| *value)
        }
    }

    #[test]
    fn no_more_than_a_chunk_follows_without_a_word_and_what_is_under_way_is_known_to_a_chunk() {
        for sizes in [&[64 << 10][..], &[2 << 20], &[4 << 20], &[3 << 20, 100, 2 << 20], &[7, 4_000_000, 1 << 20]] {
            let (mut load, mut engine) = (StreamLoad::default(), Engine::default());
            for bytes in sizes.iter().copied().cycle().take(1_000) {
                if load.ends_before(Bytes(bytes), CHUNK) {
                    engine.word(load.word());
                }
                engine.copy(bytes);
                if load.queue(Bytes(bytes), CHUNK) {
                    engine.word(load.word());
                }
            }
            assert!(engine.longest <= CHUNK.0, "{sizes:?}: {}", engine.longest);
            for done in (0..=engine.queued).step_by((engine.queued / 997) as usize) {
                let (told, is) = (load.under_way(engine.at(done)).0, engine.queued - done);
                assert!(told + UNIT >= is && told <= is + CHUNK.0 + UNIT, "{sizes:?}: {told} for {is}");
            }
            let words = engine.queued / CHUNK.0;
            assert!(
                (words..=2 * words + 1).contains(&(engine.words.len() as u64)),
                "{sizes:?}: {}",
                engine.words.len()
            );
        }
    }

    #[test]
    fn words_are_under_way_until_the_stream_has_passed_them() {
        let mut load = StreamLoad::default();
        let queue = |load: &mut StreamLoad| {
            assert!(load.queue(CHUNK, CHUNK));
            load.word()
        };
        let words: Vec<u32> = (0..5).map(|_| queue(&mut load)).collect();
        // What is recorded meanwhile takes no word away.
        load.queue(CHUNK, CHUNK);
        load.drop_unwritten();
        assert_eq!((load.reached(0), load.words()), (0, 5));
        assert_eq!((load.reached(words[0]), load.words()), (1, 4));
        queue(&mut load);
        assert_eq!((load.reached(words[4]), load.words()), (4, 1));
        load.reserve();
        assert_eq!(load.words(), 2);
        assert_eq!(load.reached(load.last_word()), 1);
        assert!(!load.is_over(load.last_word()));
        load.give_back();
        assert!(load.words() == 0 && load.is_over(load.last_word()));
    }

    #[test]
    fn streams_that_stand_still_leave_room_and_never_take_more_than_there_is() {
        let mut streams: Vec<usize> = Vec::new();
        for _ in 0..1_000 {
            let before: usize = streams.iter().sum();
            let mut own = 0;
            while has_room(own, before + own) {
                own += 1;
            }
            streams.push(own);
        }
        assert_eq!(streams[..6], [288, 72, 18, 5, 1, 0]);
        assert!(streams.iter().sum::<usize>() <= WORDS_MAX);
        // By turns.
        let mut streams = [0; 4];
        for turn in 0..4 * WORDS_MAX {
            if has_room(streams[turn % 4], streams.iter().sum()) {
                streams[turn % 4] += 1;
            }
        }
        assert!(streams.iter().all(|words| (87..=90).contains(words)), "{streams:?}");
    }

    #[test]
    fn a_copy_longer_than_a_chunk_ends_with_a_word_and_values_may_wrap() {
        let before = u32::MAX;
        let mut load = StreamLoad::after(before);
        assert!(load.queue(Bytes(8 << 20), CHUNK));
        let word = load.word();
        assert_eq!((load.under_way(before), load.under_way(word)), (Bytes(8 << 20), Bytes(0)));
        assert_eq!((load.reached(before), load.reached(word)), (0, 1));
        assert!(!load.queue(Bytes(1 << 20), CHUNK));
        load.drop_unwritten();
        assert_eq!(load.under_way(word), Bytes(0));
        // A stream that records: its copies end a chunk, and no word is queued behind them.
        assert!(load.queue(Bytes(5 << 20), CHUNK));
        load.drop_unwritten();
        assert_eq!((load.under_way(word), load.last_word()), (Bytes(0), word));
    }
}
