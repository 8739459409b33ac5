//! Who uses an engine next, within one process.
//!
//! A line stands in front of one engine, or of several where some copies take two at once. Each entry is one chunk. Entries are ordered by
//! (absolute deadline, class, sequence); what has no promise has no deadline. The chunks of one party on one engine have a limit, which
//! each entry names. An entry starts when there is room, and nobody before it waits for the same room. A party that is at its limit does not hold
//! up the others.
//!
//! While a promised chunk waits for an engine or is on it, no chunk without a promise starts there. So a promised chunk waits for what had
//! started before it was asked for, and for promised chunks with earlier deadlines. A plan's dispatcher has ordered its own chunks: they
//! start at once, and hold up what has no promise while they are on the engine.
//!
//! A bulk chunk is owed its turn after [`PASSES_MAX`] others went before it. Only what has a deadline still goes first. Bulk copies that wait
//! get the same bytes, whatever their chunks are (start-time fair queueing: P. Goyal, H. M. Vin, H. Cheng, "Start-time fair queuing", 1996,
//! section 2): a chunk's *start tag* is where its copy's chunk before it ended in the line's count of bytes, or where that count stands if the
//! copy fell behind it.

use std::collections::BTreeMap;

use crate::units::{Bytes, Nanos};

/// Chunks of other classes that a bulk chunk lets pass.
pub const PASSES_MAX: u32 = 8;

/// How urgent a flow's copies are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowClass {
    /// Copies of a flow that was admitted.
    Guaranteed,
    /// One copy with a deadline that was admitted when it was asked for.
    Urgent,
    /// No promise, before bulk.
    Normal,
    /// What is left.
    Bulk,
}

/// Whose chunks count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineParty {
    /// Copies by the engine alone.
    Copies,
    /// Copies through pinned buffers.
    Staging,
    /// Copies that were promised to be in time.
    Promised,
    /// Steps of a plan: they do not wait here.
    Planned,
}

impl LineParty {
    /// Whether chunks of others wait while one of these is on the engine.
    const fn is_promise(self) -> bool {
        matches!(self, Self::Promised | Self::Planned)
    }

    /// The class of most of its chunks that others wait for.
    const fn class(self) -> FlowClass {
        if self.is_promise() { FlowClass::Guaranteed } else { FlowClass::Bulk }
    }
}

/// A chunk that wants an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineEntry {
    /// When it must have ended; `None` = nothing was promised.
    pub deadline: Option<Nanos>,
    pub class: FlowClass,
    pub party: LineParty,
    pub engine: u32,
    /// Another engine that it takes at the same time.
    pub second: Option<u32>,
    /// It starts where fewer chunks of its party than this are on its engines.
    pub limit: u32,
    pub bytes: Bytes,
    /// Of bulk: [`LineKey::end_tag`] of the chunk before it of the same copy; 0 = there is none.
    pub after: Bytes,
}

impl LineEntry {
    /// A chunk on engine 0 alone, without a deadline.
    #[must_use]
    pub const fn new(class: FlowClass, party: LineParty, limit: u32) -> Self {
        Self { deadline: None, class, party, engine: 0, second: None, limit, bytes: Bytes(0), after: Bytes(0) }
    }

    /// Where it needs room.
    fn rooms(&self) -> impl Iterator<Item = Room> + use<> {
        let party = self.party;
        [Some(self.engine), self.second].into_iter().flatten().map(move |engine| Room { engine, party })
    }

    fn meets(&self, other: &Self) -> bool {
        self.rooms().any(|room| other.rooms().any(|theirs| room == theirs))
    }
}

/// The place of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineKey {
    /// [`Nanos::MAX`] = none.
    deadline: Nanos,
    class: FlowClass,
    /// Of bulk; else 0.
    start_tag: Bytes,
    sequence: u64,
}

impl LineKey {
    /// Where its chunk of so many bytes ends in the line's count.
    #[must_use]
    pub fn end_tag(&self, bytes: Bytes) -> Bytes {
        Bytes(self.start_tag.0.saturating_add(bytes.0))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Room {
    engine: u32,
    party: LineParty,
}

#[derive(Clone, Copy, Debug)]
struct WaitingEntry {
    entry: LineEntry,
    /// Of bulk: chunks of other classes that went before it and took room that it waits for.
    passes: u32,
}

/// The line; nobody waits in a new one.
#[derive(Clone, Debug, Default)]
pub struct EngineLine {
    waiting: BTreeMap<LineKey, WaitingEntry>,
    /// Chunks on the engines; none has 0.
    running: BTreeMap<Room, u32>,
    /// The largest start tag of a chunk that has started.
    count: Bytes,
    next: u64,
}

impl EngineLine {
    /// `entry` waits from now on.
    pub fn ask(&mut self, entry: LineEntry) -> LineKey {
        let deadline = entry.deadline.unwrap_or(Nanos::MAX);
        let start_tag = if entry.class == FlowClass::Bulk { entry.after.max(self.count) } else { Bytes(0) };
        let key = LineKey { deadline, class: entry.class, start_tag, sequence: self.next };
        self.next += 1;
        self.waiting.insert(key, WaitingEntry { entry, passes: 0 });
        key
    }

    /// The next entry that starts: it is on its engines from now on.
    pub fn poll_start(&mut self) -> Option<LineKey> {
        let promised = self.waiting.iter().filter(|(key, _)| key.deadline < Nanos::MAX);
        let owed = self.waiting.iter().filter(|(_, waiting)| waiting.passes >= PASSES_MAX);
        let mut wanted: Vec<Room> = Vec::new();
        let (&key, _) = promised.chain(owed).chain(&self.waiting).find(|(_, waiting)| {
            let is_free = |room: Room| {
                let is_promised = |it: &Room| it.engine == room.engine && it.party.is_promise();
                let yields = !room.party.is_promise()
                    && (wanted.iter().any(is_promised) || self.running.keys().any(is_promised));
                !yields && !wanted.contains(&room) && self.running_in(room) < waiting.entry.limit.max(1)
            };
            let starts = waiting.entry.rooms().all(is_free);
            wanted.extend(waiting.entry.rooms());
            starts
        })?;
        let WaitingEntry { entry, .. } = self.waiting.remove(&key)?;
        self.run(&entry);
        self.count = self.count.max(key.start_tag);
        if entry.class != FlowClass::Bulk && entry.deadline.is_none() {
            let bulk = self.waiting.values_mut().filter(|waiting| waiting.entry.class == FlowClass::Bulk);
            bulk.filter(|waiting| waiting.entry.meets(&entry)).for_each(|waiting| waiting.passes += 1);
        }
        Some(key)
    }

    /// `entry` is on its engines, without having waited.
    pub fn run(&mut self, entry: &LineEntry) {
        entry.rooms().for_each(|room| *self.running.entry(room).or_default() += 1);
    }

    /// A chunk that had started as `entry` has ended.
    pub fn end(&mut self, entry: &LineEntry) {
        for room in entry.rooms() {
            let running = self.running_in(room);
            assert!(running > 0, "a chunk ends that never started: {entry:?}");
            if running == 1 {
                self.running.remove(&room)
            } else {
                self.running.insert(room, running - 1)
            };
        }
    }

    /// The entry `key` is given up; `false` if it has started.
    pub fn leave(&mut self, key: LineKey) -> bool {
        self.waiting.remove(&key).is_some()
    }

    /// Nobody waits, and nothing runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Chunks of all parties that are on the engine of the waiting entry `key`, or wait for it before that; of two engines the larger number.
    #[must_use]
    pub fn ahead(&self, key: LineKey) -> u64 {
        let Some(WaitingEntry { entry, .. }) = self.waiting.get(&key) else { return 0 };
        let on = |engine: u32| -> u64 {
            let shares = |other: &LineEntry| other.engine == engine || other.second == Some(engine);
            let running = self.running.iter().filter(|(room, _)| room.engine == engine).map(|(_, n)| u64::from(*n));
            let waiting = self.waiting.range(..key).filter(|(_, waiting)| shares(&waiting.entry)).count() as u64;
            running.sum::<u64>() + waiting
        };
        on(entry.engine).max(entry.second.map_or(0, on))
    }

    /// The most urgent class of the chunks that [`Self::ahead`] counts; what is on the engine has that of its party.
    #[must_use]
    pub fn class_ahead(&self, key: LineKey) -> Option<FlowClass> {
        let WaitingEntry { entry, .. } = self.waiting.get(&key)?;
        let on_engine = |room: &Room| entry.rooms().any(|own| own.engine == room.engine);
        let running = self.running.keys().filter(|room| on_engine(room)).map(|room| room.party.class());
        let shares = |other: &LineEntry| other.rooms().any(|room| on_engine(&room));
        let waiting = self.waiting.range(..key).filter(|(_, waiting)| shares(&waiting.entry)).map(|(key, _)| key.class);
        running.chain(waiting).min()
    }

    /// Chunks that are on the engine `engine`, but for those of [`LineParty::Promised`].
    #[must_use]
    pub fn unpromised(&self, engine: u32) -> u32 {
        let of = |room: &Room| room.engine == engine && room.party != LineParty::Promised;
        self.running.iter().filter(|(room, _)| of(room)).map(|(_, n)| n).sum()
    }

    fn running_in(&self, room: Room) -> u32 {
        self.running.get(&room).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(class: FlowClass, limit: u32) -> LineEntry {
        LineEntry::new(class, LineParty::Copies, limit)
    }

    const NORMAL: FlowClass = FlowClass::Normal;
    const BULK: FlowClass = FlowClass::Bulk;

    /// All that start now.
    fn starts(line: &mut EngineLine) -> Vec<LineKey> {
        std::iter::from_fn(|| line.poll_start()).collect()
    }

    #[test]
    fn chunks_start_in_the_order_of_asking_as_far_as_there_is_room() {
        let mut line = EngineLine::default();
        let keys: Vec<LineKey> = (0..4).map(|_| line.ask(entry(NORMAL, 2))).collect();
        assert_eq!(line.ahead(keys[3]), 3);
        assert_eq!(starts(&mut line), keys[..2]);
        assert_eq!(line.ahead(keys[3]), 3);
        line.end(&entry(NORMAL, 2));
        assert_eq!(starts(&mut line), keys[2..3]);
        assert!(line.leave(keys[3]) && !line.leave(keys[2]));
        (0..2).for_each(|_| line.end(&entry(NORMAL, 2)));
        assert!(line.is_idle());
    }

    #[test]
    fn the_most_urgent_class_ahead_counts_what_runs_and_what_waits_on_the_own_engines_only() {
        let mut line = EngineLine::default();
        line.run(&LineEntry { engine: 7, ..LineEntry::new(NORMAL, LineParty::Planned, 1) });
        let first = line.ask(entry(NORMAL, 1));
        assert_eq!(line.class_ahead(first), None, "a step is on another engine");
        let bulk = line.ask(entry(BULK, 1));
        assert_eq!(line.class_ahead(bulk), Some(NORMAL));
        assert_eq!(starts(&mut line), [first]);
        assert_eq!(line.class_ahead(bulk), Some(BULK), "copies of this party are bulk, most of them");
        let both = line.ask(LineEntry { second: Some(7), ..entry(BULK, 1) });
        assert_eq!(line.class_ahead(both), Some(FlowClass::Guaranteed));
    }

    #[test]
    fn deadlines_go_before_classes_and_classes_before_the_order_of_asking() {
        let mut line = EngineLine::default();
        let by = |deadline, class| LineEntry { deadline, ..entry(class, 1) };
        line.run(&entry(NORMAL, 1));
        let asked = [
            by(None, BULK),
            by(None, NORMAL),
            by(Some(Nanos(9)), FlowClass::Urgent),
            by(Some(Nanos(9)), FlowClass::Guaranteed),
            by(Some(Nanos(5)), FlowClass::Urgent),
        ];
        let keys = asked.map(|entry| line.ask(entry));
        let order = [4, 3, 2, 1, 0].map(|at| {
            line.end(&entry(NORMAL, 1));
            (line.poll_start(), Some(keys[at]))
        });
        assert!(order.iter().all(|(started, wanted)| started == wanted), "{order:?}");
    }

    #[test]
    fn a_party_with_a_smaller_limit_waits_for_it_and_nobody_of_its_party_passes() {
        let mut line = EngineLine::default();
        let wide = [(); 2].map(|()| line.ask(entry(NORMAL, 4)));
        assert_eq!(starts(&mut line), wide);
        let (narrow, behind) = (line.ask(entry(NORMAL, 1)), line.ask(entry(NORMAL, 4)));
        let staged = line.ask(LineEntry { party: LineParty::Staging, ..entry(BULK, 1) });
        assert_eq!(starts(&mut line), [staged], "another party has room of its own");
        line.end(&entry(NORMAL, 4));
        assert_eq!(starts(&mut line), []);
        line.end(&entry(NORMAL, 4));
        assert_eq!(starts(&mut line), [narrow, behind]);
    }

    #[test]
    fn copies_between_two_gpus_take_both_engines_at_once() {
        let between = |engine, second| LineEntry { engine, second: Some(second), ..entry(BULK, 1) };
        let mut line = EngineLine::default();
        let asked = [(0, 1), (1, 2), (2, 0), (3, 4)].map(|(from, to)| line.ask(between(from, to)));
        assert_eq!(
            starts(&mut line),
            [asked[0], asked[3]],
            "the second waits, and so does the third, which is behind it"
        );
        assert_eq!(line.ahead(asked[2]), 1, "one on each of its engines");
        line.end(&between(0, 1));
        assert_eq!(starts(&mut line), [asked[1]]);
        line.end(&between(1, 2));
        assert_eq!(starts(&mut line), [asked[2]]);
    }

    #[test]
    fn nothing_without_a_promise_starts_while_a_promised_chunk_waits_or_runs() {
        let mut line = EngineLine::default();
        let by = |deadline| LineEntry {
            deadline: Some(Nanos(deadline)),
            party: LineParty::Promised,
            ..entry(FlowClass::Guaranteed, 1)
        };
        let bulk = line.ask(entry(BULK, 2));
        assert_eq!(starts(&mut line), [bulk]);
        let (late, early) = (line.ask(by(9)), line.ask(by(5)));
        let more = line.ask(entry(BULK, 2));
        let elsewhere = line.ask(LineEntry { engine: 1, ..entry(BULK, 2) });
        assert_eq!(starts(&mut line), [early, elsewhere], "what had started goes on beside it");
        line.end(&entry(BULK, 2));
        assert_eq!(starts(&mut line), []);
        line.end(&by(5));
        assert_eq!(starts(&mut line), [late]);
        line.end(&by(9));
        assert_eq!(starts(&mut line), [more]);
    }

    #[test]
    fn bulk_is_owed_a_turn_after_eight_others_but_not_before_a_deadline() {
        let mut line = EngineLine::default();
        line.run(&entry(NORMAL, 1));
        let bulk = line.ask(entry(BULK, 1));
        for _ in 0..8 {
            let normal = line.ask(entry(NORMAL, 1));
            line.end(&entry(NORMAL, 1));
            assert_eq!(line.poll_start(), Some(normal));
        }
        let promised = line.ask(LineEntry { deadline: Some(Nanos(1)), ..entry(FlowClass::Urgent, 1) });
        line.ask(entry(NORMAL, 1));
        line.end(&entry(NORMAL, 1));
        assert_eq!(line.poll_start(), Some(promised));
        line.end(&entry(NORMAL, 1));
        assert_eq!(line.poll_start(), Some(bulk));
    }

    #[test]
    fn nothing_without_a_promise_starts_beside_a_step_of_a_plan_which_waits_for_nobody() {
        let mut line = EngineLine::default();
        let step = LineEntry::new(FlowClass::Guaranteed, LineParty::Planned, 1);
        line.run(&step);
        line.run(&step);
        let bulk = line.ask(entry(BULK, 2));
        let elsewhere = line.ask(LineEntry { engine: 1, ..entry(BULK, 2) });
        let promised =
            LineEntry { deadline: Some(Nanos(5)), ..LineEntry::new(FlowClass::Guaranteed, LineParty::Promised, 1) };
        let flow = line.ask(promised);
        assert_eq!(starts(&mut line), [flow, elsewhere], "a promise waits for promises only");
        line.end(&promised);
        line.end(&step);
        assert_eq!(starts(&mut line), []);
        line.end(&step);
        assert_eq!(starts(&mut line), [bulk]);
    }

    /// Bulk copies with a chunk in the line each, and what each has moved.
    #[derive(Default)]
    struct BulkCopies {
        line: EngineLine,
        keys: BTreeMap<LineKey, usize>,
        /// Of each: its chunks, the tag of the last one's end, and what was moved.
        chunks: Vec<Bytes>,
        after: Vec<Bytes>,
        moved: Vec<u64>,
    }

    impl BulkCopies {
        fn join(&mut self, chunk: Bytes) {
            self.chunks.push(chunk);
            self.after.push(Bytes(0));
            self.moved.push(0);
            self.ask(self.chunks.len() - 1);
        }

        fn ask(&mut self, of: usize) {
            let (bytes, after) = (self.chunks[of], self.after[of]);
            let key = self.line.ask(LineEntry { bytes, after, ..entry(BULK, 1) });
            self.after[of] = key.end_tag(bytes);
            self.keys.insert(key, of);
        }

        fn run(&mut self, chunks: u32) {
            for _ in 0..chunks {
                let of = self.keys.remove(&self.line.poll_start().expect("one starts")).expect("it waited");
                self.moved[of] += self.chunks[of].0;
                self.ask(of);
                self.line.end(&entry(BULK, 1));
            }
        }
    }

    #[test]
    fn bulk_copies_get_the_same_bytes_whatever_their_chunks_are_and_none_for_the_time_before_they_came() {
        let mut copies = BulkCopies::default();
        copies.join(Bytes(1));
        copies.join(Bytes(4));
        copies.run(500);
        let before = copies.moved.clone();
        assert!(before[0].abs_diff(before[1]) <= 4, "{before:?}");
        copies.join(Bytes(1));
        copies.run(600);
        let moved = [copies.moved[0] - before[0], copies.moved[1] - before[1], copies.moved[2]];
        assert!(moved.iter().all(|bytes| bytes.abs_diff(moved[0]) <= 8), "{moved:?}");
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Ask(LineEntry),
        /// The chunk at this position of those that run ends.
        End(usize),
        /// The entry at this position of those that wait is given up.
        Leave(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let class = prop_oneof![Just(NORMAL), Just(BULK), Just(FlowClass::Urgent)];
        let party = prop_oneof![Just(LineParty::Copies), Just(LineParty::Staging), Just(LineParty::Promised)];
        let engines = (0..3_u32, proptest::option::of(0..3_u32));
        let asked = (class, party, engines, 1..4_u32, proptest::option::of(0..9_u64), 0..99_u64);
        prop_oneof![
            3 => asked.prop_map(|(class, party, (engine, second), limit, deadline, bytes)| {
                let second = second.filter(|second| *second != engine);
                let party = if class == FlowClass::Urgent { LineParty::Promised } else { party };
                let class = if party == LineParty::Promised { FlowClass::Urgent } else { class };
                let deadline = (party == LineParty::Promised).then(|| Nanos(deadline.unwrap_or(9)));
                Step::Ask(LineEntry { deadline, engine, second, bytes: Bytes(bytes), ..LineEntry::new(class, party, limit) })
            }),
            3 => (0..8_usize).prop_map(Step::End),
            1 => (0..8_usize).prop_map(Step::Leave),
        ]
    }

    proptest! {
        #[test]
        fn limits_order_and_turns_hold_and_nobody_is_lost(steps in proptest::collection::vec(any_step(), 1..200)) {
            let mut line = EngineLine::default();
            let (mut waiting, mut running): (Vec<(LineKey, LineEntry, u32)>, Vec<LineEntry>) = (Vec::new(), Vec::new());
            let drains = (0..400).map(|_| Step::End(0));
            for step in steps.into_iter().chain(drains) {
                match step {
                    Step::Ask(entry) => waiting.push((line.ask(entry), entry, 0)),
                    Step::End(at) if at < running.len() => line.end(&running.remove(at)),
                    Step::Leave(at) if at < waiting.len() => prop_assert!(line.leave(waiting.remove(at).0)),
                    Step::End(_) | Step::Leave(_) => {}
                }
                while let Some(key) = line.poll_start() {
                    let at = waiting.iter().position(|(other, ..)| *other == key).expect("it waited");
                    let (_, entry, passes) = waiting.remove(at);
                    let is_owed = passes >= PASSES_MAX;
                    for (other, theirs, _) in waiting.iter().filter(|(_, theirs, _)| theirs.meets(&entry)) {
                        let may_pass = is_owed && theirs.deadline.is_none();
                        prop_assert!(key < *other || may_pass, "{entry:?} passes {theirs:?}");
                    }
                    for room in entry.rooms() {
                        let there = running.iter().filter(|other| other.rooms().any(|its| its == room)).count() as u32;
                        prop_assert!(there < entry.limit, "{entry:?} starts beside {there}");
                    }
                    let shares = |other: &LineEntry| {
                        [Some(other.engine), other.second].into_iter().flatten().any(|engine| {
                            engine == entry.engine || entry.second == Some(engine)
                        })
                    };
                    if entry.deadline.is_none() {
                        let promised = waiting.iter().map(|(_, theirs, _)| theirs).chain(&running);
                        let promised = promised.filter(|theirs| theirs.deadline.is_some() && shares(theirs));
                        prop_assert_eq!(promised.count(), 0, "{:?} starts beside a promise", entry);
                    }
                    if entry.class != BULK && entry.deadline.is_none() {
                        for (_, theirs, passes) in waiting.iter_mut().filter(|(_, theirs, _)| theirs.class == BULK) {
                            *passes += u32::from(theirs.meets(&entry));
                            prop_assert!(*passes <= PASSES_MAX, "{theirs:?} starves");
                        }
                    }
                    running.push(entry);
                }
            }
            prop_assert!(waiting.is_empty() && running.is_empty() && line.is_idle(), "{waiting:?}");
        }
    }
}
