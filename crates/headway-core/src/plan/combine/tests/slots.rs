//! Every schedule of a combined set meets every elementary deadline: slots inside windows, every byte once, never more than
//! reserved. The cases are random; `HEADWAY_CASES=100000` looks at that many.

use std::ops::Range;

use super::*;
use crate::interconnect::BatchBlock;
use crate::plan::Carried;
use crate::plan::message::{BatchMember, Level, SlotGrid, cut};

pub(super) fn cases(default: u64) -> u64 {
    std::env::var("HEADWAY_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Bytes of one job of an elementary message that one slot carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotPart {
    pub(super) slot: u64,
    pub(super) bytes: Range<u64>,
}

/// Where the bytes of a block go that is ready at `ready`: parts in the order of slots and bytes. A part without a byte is left
/// out, and a slot that could carry one stays empty.
pub(super) fn parts_from(member: &BatchMember, of: &Elementary, ready: u128) -> Vec<SlotPart> {
    let mut windows = vec![(ready, 0..of.bytes.0)];
    let mut placed = Vec::new();
    for level in &member.levels {
        placed.clear();
        for (ready, bytes) in windows.drain(..) {
            let first = level.grid.first_from(ready);
            let cuts = (0..level.parts).map(|part| (first + part, cut(&bytes, part, level.parts, of.granule)));
            placed.extend(cuts.filter(|(_, bytes)| !bytes.is_empty()));
        }
        windows.extend(placed.iter().map(|(slot, bytes)| (level.grid.slot(*slot).0, bytes.clone())));
    }
    placed.into_iter().map(|(slot, bytes)| SlotPart { slot, bytes }).collect()
}

/// Small numbers, so that every residue occurs.
fn small(draw: &mut Draw, route: RouteId) -> Elementary {
    let longest = draw.pick(&[12, 40, 120, 400]);
    let period = draw.between(1, longest);
    let deadline = if draw.chance(70) { period } else { draw.between(1, period) };
    Elementary {
        name: "m".into(),
        route,
        bytes: Bytes(draw.between(1, 200)),
        period: Nanos(period),
        start: Nanos(draw.between(0, 100)),
        deadline: Nanos(deadline),
        granule: Bytes(draw.pick(&[1, 1, 16])),
        release: Release::Periodic,
    }
}

/// What is wrong with a member of a batch over `grid`, if something is.
fn fault(of: &Elementary, member: &BatchMember, grid: &SlotGrid, jobs: u64) -> Option<String> {
    let earliest = of.start.0;
    for job in 0..jobs {
        let (ready, due) = of.window(job);
        let parts = parts_from(member, of, of.window(job).0);
        let mut next = 0;
        for part in &parts {
            let (from, to) = grid.slot(part.slot);
            if from < ready || to > due {
                return Some(format!("job {job} uses slot {from}..{to} outside {ready}..{due}"));
            }
            if part.bytes.start != next || part.bytes.end - part.bytes.start > member.reserve.0 {
                return Some(format!("job {job}: {part:?} after byte {next}, reserve {}", member.reserve));
            }
            next = part.bytes.end;
            if from < u128::from(grid.start.0) || from < u128::from(earliest) {
                return Some(format!("slot at {from} before the start"));
            }
            if member.carried(of, part.slot) != Some((job, part.bytes.clone())) {
                return Some(format!("slot {} carries {:?}", part.slot, member.carried(of, part.slot)));
            }
        }
        if next != of.bytes.0 {
            return Some(format!("job {job} ends at byte {next} of {}", of.bytes));
        }
        if parts.windows(2).any(|pair| pair[1].slot <= pair[0].slot) {
            return Some(format!("job {job} has two parts in one slot"));
        }
    }
    None
}

/// Bytes that slots carry of a member are each in one job: the inverse map says nothing more than the map.
fn carries_nothing_else(of: &Elementary, member: &BatchMember, slots: u64) -> bool {
    let mut seen: Vec<(u64, Range<u64>)> = (0..slots).filter_map(|slot| member.carried(of, slot)).collect();
    seen.sort_by_key(|(job, bytes)| (*job, bytes.start));
    seen.windows(2).all(|pair| pair[0].0 < pair[1].0 || pair[0].1.end <= pair[1].1.start)
}

/// Where a plan finds other jobs in slots than the map says, if it does.
fn miscounted(of: &Elementary, member: &BatchMember) -> Option<String> {
    let carried = Carried { message: of.clone(), member: member.clone() };
    for cycles in [0, 1, 7, 60] {
        let whole = (0..)
            .take_while(|job| parts_from(member, of, of.window(*job).0).iter().all(|part| part.slot < cycles))
            .count() as u64;
        if carried.jobs_within(cycles) != whole {
            return Some(format!("{} jobs in {cycles} cycles, not {whole}", carried.jobs_within(cycles)));
        }
    }
    let wrong = |slot: &u64| carried.in_cycle(*slot).is_some_and(|(job, _)| carried.job_of(*slot) != Some(job));
    (0..60).find(wrong).map(|slot| format!("slot {slot} is of job {:?}", carried.job_of(slot)))
}

/// Combines random messages, up to `most` of them, in a random tree.
fn chain(draw: &mut Draw, most: u64) -> Option<(Vec<Elementary>, Batch)> {
    let mut set: Vec<Elementary> = (0..draw.between(2, most)).map(|_| small(draw, RouteId(0))).collect();
    if draw.chance(50) {
        set.sort_by_key(|of| std::cmp::Reverse(of.period));
    }
    let counting = draw.pick(&[Counting::Paper, Counting::PhaseAware]);
    let mut batch = Batch::single(0, &set[0]);
    let mut made = 0;
    for (number, of) in (1u32..).zip(&set[1..]) {
        if let Some(both) = combine(&batch, &Batch::single(number, of), &set, counting) {
            batch = both;
            made += 1;
        }
    }
    (made > 0).then_some((set, batch))
}

#[test]
fn slots_lie_in_windows_and_carry_every_byte_once_within_the_reserve() {
    let mut draw = Draw(61);
    let (mut members, mut deep) = (0, 0);
    let count = cases(3_000);
    while members < count {
        let Some((set, batch)) = chain(&mut draw, 5) else { continue };
        for member in &batch.members {
            let of = &set[member.elementary as usize];
            assert_eq!(fault(of, member, &batch.grid, 30), None, "{of:?} {member:?}");
            assert!(carries_nothing_else(of, member, 200), "{of:?} {member:?}");
            assert_eq!(miscounted(of, member), None, "{of:?} {member:?}");
            members += 1;
            deep += u64::from(member.levels.len() > 1);
        }
        let first = batch.members.iter().map(|m| set[m.elementary as usize].start).min().unwrap();
        assert!(batch.grid.start >= first);
    }
    assert!(deep * 50 > count, "{deep} of {count}");
}

#[test]
fn stars_are_as_sound_as_chains() {
    let (machine, routes) = node();
    let network = Network::new(&machine);
    let mut pricer = Pricer::new(&network, None);
    let mut draw = Draw(62);
    let mut made = 0;
    for _ in 0..cases(3_000) {
        let set: Vec<Elementary> = (0..draw.between(2, 5)).map(|_| small(&mut draw, routes[0])).collect();
        let all: Vec<u32> = (0..set.len() as u32).collect();
        let mut stars = Stars::new(&set, draw.pick(&[Counting::Paper, Counting::PhaseAware]));
        let Some(star) = stars.star(&all, &mut pricer).unwrap() else { continue };
        let [priced] = stars.priced(&[star]).try_into().unwrap();
        for member in &priced.batch.members {
            let of = &set[member.elementary as usize];
            assert_eq!(fault(of, member, &priced.batch.grid, 30), None, "{of:?} {member:?}");
        }
        made += 1;
    }
    assert!(made > 50, "{made}");
}

/// Slots of `fast` wholly inside the window of job `job` of `slow`, counted one by one, the grid going on for ever.
fn inside(slow: &SlotGrid, job: i128, fast: &SlotGrid) -> u64 {
    let from = i128::from(slow.start.0) + job * i128::from(slow.period.0);
    let to = from + i128::from(slow.window.0);
    let (p2, a2, d2) = (i128::from(fast.period.0), i128::from(fast.start.0), i128::from(fast.window.0));
    let first = (from - a2).div_euclid(p2) - 1;
    let slots = first..=(to - a2).div_euclid(p2) + 1;
    slots.filter(|k| a2 + k * p2 >= from && a2 + k * p2 + d2 <= to).count() as u64
}

#[test]
fn counts_are_the_least_over_all_windows() {
    let mut draw = Draw(63);
    let (mut more, mut short) = (0, 0);
    for _ in 0..cases(20_000) {
        let [a, b] = [small(&mut draw, RouteId(0)).grid(), small(&mut draw, RouteId(0)).grid()];
        let (slow, fast) = if a.period >= b.period { (a, b) } else { (b, a) };
        let least = (0..i128::from(fast.period.0)).map(|job| inside(&slow, job, &fast)).min().unwrap();
        let aware = parts_max(&slow, Release::Periodic, &fast, Counting::PhaseAware);
        let paper = parts_max(&slow, Release::Periodic, &fast, Counting::Paper);
        assert_eq!(aware, least, "{slow:?} {fast:?}");
        assert!(paper <= aware && parts_max(&slow, Release::Sporadic, &fast, Counting::PhaseAware) <= paper);
        more += u32::from(paper < aware);
        short += u32::from(paper == 0 && aware > 0 && slow.period.0 < 2 * fast.period.0);
    }
    assert!(more > 100 && short > 20, "{more} {short}");
}

#[test]
fn the_paper_s_counts_are_the_paper_s() {
    let grid = |period, start| SlotGrid { start: Nanos(start), period: Nanos(period), window: Nanos(period) };
    let paper = |slow, fast| parts_max(&slow, Release::Periodic, &fast, Counting::Paper);
    let aware = |slow, fast| parts_max(&slow, Release::Periodic, &fast, Counting::PhaseAware);
    assert_eq!(paper(grid(60, 5), grid(20, 25)), 3, "aligned");
    assert_eq!(paper(grid(60, 6), grid(20, 25)), 2, "a multiple, not aligned");
    assert_eq!(paper(grid(55, 0), grid(10, 0)), 4);
    assert_eq!(aware(grid(55, 0), grid(10, 0)), 5);
    assert_eq!(paper(grid(15, 0), grid(10, 0)), 0);
    assert_eq!(aware(grid(15, 0), grid(10, 0)), 1);
    assert_eq!(paper(grid(10, 3), grid(10, 13)), 1, "equal and in phase");
    assert_eq!(paper(grid(10, 3), grid(10, 14)) + aware(grid(10, 3), grid(10, 14)), 0, "equal and out of phase");
    let starts = |a1, a2| rules::joined_grid(&grid(60, a1), &grid(10, a2)).start.0;
    assert_eq!((starts(0, 5), starts(7, 5), starts(0, 25), starts(20, 20)), (5, 5, 5, 20));
}

/// How often a wrong rule makes a member that is unsound.
fn caught(wrong: impl Fn(&SlotGrid, &SlotGrid) -> u64) -> u64 {
    let mut draw = Draw(64);
    let mut caught = 0;
    for _ in 0..3_000 {
        let [mut a, mut b] = [small(&mut draw, RouteId(0)), small(&mut draw, RouteId(0))];
        for of in [&mut a, &mut b] {
            (of.deadline, of.granule, of.bytes) = (of.period, Bytes(1), Bytes(200));
        }
        if draw.chance(50) {
            a.period = Nanos(b.period.0 * draw.between(1, 3));
            a.deadline = a.period;
        }
        let (slow, fast) = if a.period >= b.period { (a, b) } else { (b, a) };
        let parts = wrong(&slow.grid(), &fast.grid());
        if parts == 0 {
            continue;
        }
        let grid = rules::joined_grid(&slow.grid(), &fast.grid());
        let reserve = crate::plan::message::reserve(slow.bytes, parts, slow.granule);
        let member = BatchMember { elementary: 0, levels: vec![Level { grid, parts }], reserve };
        caught += u64::from(fault(&slow, &member, &grid, 30).is_some());
    }
    caught
}

#[test]
fn wrong_rules_are_caught() {
    let right = |slow: &SlotGrid, fast: &SlotGrid| parts_max(slow, Release::Periodic, fast, Counting::PhaseAware);
    assert_eq!(caught(right), 0);
    let one_more = |slow: &SlotGrid, fast: &SlotGrid| match right(slow, fast) {
        0 => 0,
        parts => parts + 1,
    };
    assert!(caught(one_more) > 500);
    let any_phase = |slow: &SlotGrid, fast: &SlotGrid| u64::from(slow.period == fast.period).max(right(slow, fast));
    assert!(caught(any_phase) > 100);
    let unchecked_sync = |slow: &SlotGrid, fast: &SlotGrid| {
        let multiple = slow.period.0.is_multiple_of(fast.period.0);
        if multiple { slow.period.0 / fast.period.0 } else { right(slow, fast) }
    };
    assert!(caught(unchecked_sync) > 300);
}

#[test]
fn parts_cover_a_range_and_split_twice_reserve_no_more_than_once() {
    let mut draw = Draw(65);
    for _ in 0..cases(20_000) {
        let (start, len) = (draw.between(0, 1 << 40), draw.between(0, 5_000));
        let (n, m, g) = (draw.between(1, 40), draw.between(1, 40), Bytes(draw.pick(&[1, 16, 4096])));
        let range = start..start + len;
        let parts: Vec<_> = (0..n).map(|part| cut(&range, part, n, g)).collect();
        assert_eq!((parts[0].start, parts.last().unwrap().end), (range.start, range.end));
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(parts.iter().all(|part| (part.start - start).is_multiple_of(g.0) || part.start == range.end));
        let reserved = |bytes, parts| crate::plan::message::reserve(bytes, parts, g);
        assert!(parts.iter().all(|part| part.end - part.start <= reserved(Bytes(len), n).0));
        assert_eq!(reserved(reserved(Bytes(len), n), m), reserved(Bytes(len), n * m));
    }
}

/// When a job of a batch may be carried out.
#[derive(Clone, Copy, Debug)]
enum Placed {
    AtRelease,
    AtTheEnd,
    Anywhere,
}

/// Random sets transformed in every mode, their jobs placed inside their slots: bytes that are there when their slot begins
/// are all at their destination by every deadline, unchanged.
#[test]
fn transformed_sets_deliver_every_block_in_time_wherever_jobs_run_in_their_slots() {
    let (machine, routes) = node();
    let network = Network::new(&machine);
    let calibration = calibration(10_000, 5_000);
    let mut draw = Draw(66);
    for case in 0..cases(20) {
        let times = draw.pick(&[Times::Together, Times::Apart, Times::Any]);
        let count = draw.between(2, 10);
        let mut set = random_set(&mut draw, &routes, times, count);
        for of in &mut set.elementary {
            of.bytes = Bytes(of.bytes.0 % 2_000 + 1); // real bytes are moved
        }
        set = MessageSet::new(set.elementary).unwrap();
        let mode = draw.pick(&[CombineEffort::Greedy, CombineEffort::Search, CombineEffort::Fast]);
        let mut pricer = Pricer::new(&network, Some(&calibration));
        let found = transform(&set, &mut pricer, with_mode(mode, Counting::PhaseAware), &mut |_| true).unwrap();
        let placed = draw.pick(&[Placed::AtRelease, Placed::AtTheEnd, Placed::Anywhere]);
        let horizon = 400 * u128::from(MS);
        let random = |job: u64, byte: u64| (job.wrapping_mul(31) ^ byte.wrapping_mul(0x9E37_79B9)) as u8;
        let mut arrived: Vec<Vec<Vec<Option<u8>>>> = Vec::new();
        for of in &set.elementary {
            let jobs = (0..).take_while(|&job| of.window(job).1 <= horizon).count();
            arrived.push(vec![vec![None; of.bytes.0 as usize]; jobs]);
        }
        for priced in &found.batches {
            let Priced { batch, cost } = priced;
            for slot in (0..).take_while(|&slot| batch.grid.slot(slot).0 < horizon) {
                let (from, to) = batch.grid.slot(slot);
                let latest = to.saturating_sub(u128::from(cost.0)).max(from);
                let begins = match placed {
                    Placed::AtRelease => from,
                    Placed::AtTheEnd => latest,
                    Placed::Anywhere => from + u128::from(draw.between(0, (latest - from) as u64)),
                };
                for member in &batch.members {
                    let of = &set.elementary[member.elementary as usize];
                    let Some((job, bytes)) = member.carried(of, slot) else { continue };
                    let (ready, due) = of.window(job);
                    assert!(ready <= begins && to <= due, "case {case}");
                    let Some(block) = arrived[member.elementary as usize].get_mut(job as usize) else { continue };
                    for byte in bytes {
                        assert_eq!(block[byte as usize].replace(random(job, byte)), None, "a byte came twice");
                    }
                }
            }
        }
        for (job, block) in arrived.iter().flat_map(|of| of.iter().enumerate()) {
            let whole = block.iter().enumerate().all(|(at, byte)| *byte == Some(random(job as u64, at as u64)));
            assert!(whole, "case {case}, {mode:?}, job {job}");
        }
    }
}

#[test]
fn what_a_slot_really_carries_never_takes_longer_than_its_batch() {
    let (machine, routes) = node();
    let network = Network::new(&machine);
    let calibration = calibration(0, 0);
    let mut draw = Draw(67);
    let mut partial = 0;
    for _ in 0..cases(40) {
        let times = draw.pick(&[Times::Together, Times::Apart, Times::Any]);
        let count = draw.between(2, 14);
        let set = random_set(&mut draw, &routes, times, count);
        let mut pricer = Pricer::new(&network, Some(&calibration));
        let found = transform(&set, &mut pricer, with_mode(CombineEffort::Search, Counting::PhaseAware), &mut |_| true)
            .unwrap();
        for Priced { batch, cost } in &found.batches {
            for slot in 0..20 {
                let block = |member: &BatchMember| {
                    let of = &set.elementary[member.elementary as usize];
                    let (_, bytes) = member.carried(of, slot)?;
                    Some(BatchBlock { route: of.route, bytes: Bytes(bytes.end - bytes.start) })
                };
                let mut blocks: Vec<BatchBlock> = batch.members.iter().filter_map(block).collect();
                blocks.sort_unstable();
                partial += u32::from(blocks.len() < batch.members.len());
                assert!(network.completion(&blocks).unwrap().finish <= *cost);
            }
        }
    }
    assert!(partial > 100, "{partial}");
}
