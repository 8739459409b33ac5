//! Rules that the paper leaves open: who is split, jitter, sporadic messages, fewer parts, splitting directly.

use super::slots::{cases, parts_from};
use super::*;
use crate::plan::message::{BatchMember, MessageError};

fn times(bytes: u64, period: u64, start: u64) -> Elementary {
    Elementary::periodic("m", RouteId(0), Bytes(bytes), Nanos(period), Nanos(start))
}

fn pair(a: &Elementary, b: &Elementary, counting: Counting) -> Option<(Vec<Elementary>, Batch)> {
    let set = vec![a.clone(), b.clone()];
    let both = combine(&Batch::single(0, a), &Batch::single(1, b), &set, counting)?;
    Some((set, both))
}

fn parts_of(batch: &Batch) -> Vec<u64> {
    batch.members.iter().map(BatchMember::parts_max).collect()
}

#[test]
fn the_message_of_the_longer_period_is_split_whichever_comes_first() {
    for counting in [Counting::Paper, Counting::PhaseAware] {
        let (long, short) = (times(100, 40, 0), times(7, 10, 0));
        let (_, one) = pair(&long, &short, counting).unwrap();
        let (_, other) = pair(&short, &long, counting).unwrap();
        assert_eq!((parts_of(&one), parts_of(&other)), (vec![4, 1], vec![1, 4]));
        assert_eq!(one.grid, other.grid);
        assert_eq!((one.members[0].reserve, one.members[1].reserve), (Bytes(25), Bytes(7)));
    }
}

#[test]
fn equal_periods_combine_whole_if_in_phase_and_not_at_all_otherwise() {
    for counting in [Counting::Paper, Counting::PhaseAware] {
        for (first, second) in [(3, 13), (13, 3), (5, 5)] {
            let (_, both) = pair(&times(9, 10, first), &times(8, 10, second), counting).unwrap();
            assert_eq!(parts_of(&both), [1, 1]);
            assert_eq!(both.grid.start, Nanos(first.min(second)));
        }
        assert_eq!(pair(&times(9, 10, 3), &times(8, 10, 4), counting), None);
    }
    // Between one and two periods of the faster one nothing surely fits by the paper's rules.
    assert_eq!(pair(&times(9, 19, 0), &times(8, 10, 0), Counting::Paper), None);
    assert!(pair(&times(9, 20, 1), &times(8, 10, 0), Counting::Paper).is_some());
}

#[test]
fn a_block_smaller_than_its_slots_takes_a_slot_per_byte_or_granule() {
    let parts = |bytes, granule| {
        let slow = Elementary { granule: Bytes(granule), ..times(bytes, 100, 0) };
        let (_, both) = pair(&slow, &times(1, 10, 0), Counting::Paper).unwrap();
        (both.members[0].parts_max(), both.members[0].reserve.0)
    };
    assert_eq!([parts(1, 1), parts(3, 1), parts(10, 1), parts(11, 1)], [(1, 1), (3, 1), (10, 1), (6, 2)]);
    assert_eq!([parts(16, 16), parts(17, 16), parts(40, 16)], [(1, 16), (2, 16), (3, 16)]);
}

#[test]
fn a_message_released_late_counts_from_its_latest_release_with_what_is_left_of_its_deadline() {
    let late = times(10, 40, 5).with_jitter(Nanos(8)).unwrap();
    assert_eq!((late.start, late.deadline, late.period), (Nanos(13), Nanos(32), Nanos(40)));
    let refused = times(10, 40, 5).with_jitter(Nanos(40));
    assert!(matches!(refused, Err(MessageError::Jitter { jitter: Nanos(40), deadline: Nanos(40), .. })));
    // No case of the paper's definitions: windows of 7 do not hold slots of 10, only the other way round.
    let (late, fast) = (times(9, 10, 0).with_jitter(Nanos(3)).unwrap(), times(1, 10, 0));
    assert_eq!(pair(&late, &fast, Counting::Paper), None);
    let (_, both) = pair(&late, &fast, Counting::PhaseAware).unwrap();
    assert_eq!((both.grid.start, both.grid.window), (Nanos(3), Nanos(7)));
}

/// Every byte of every job is there when its slot begins and arrives by the nominal deadline, however late the release.
#[test]
fn jitter_is_safe_on_either_side_of_a_combining() {
    let mut draw = Draw(71);
    let mut made = 0;
    let count = cases(3_000);
    for _ in 0..count {
        let nominal: Vec<Elementary> = (0..2)
            .map(|_| {
                let period = draw.between(2, 120);
                times(draw.between(1, 60), period, draw.between(0, 100))
            })
            .collect();
        let jitters: Vec<u64> = nominal.iter().map(|of| draw.between(0, of.period.0 / 3)).collect();
        let late: Vec<Elementary> =
            nominal.iter().zip(&jitters).map(|(of, &j)| of.clone().with_jitter(Nanos(j)).unwrap()).collect();
        let counting = draw.pick(&[Counting::Paper, Counting::PhaseAware]);
        let Some((set, batch)) = pair(&late[0], &late[1], counting) else { continue };
        made += 1;
        for member in &batch.members {
            let at = member.elementary as usize;
            for job in 0..20 {
                let (ready, due) = nominal[at].window(job);
                let parts = parts_from(member, &set[at], set[at].window(job).0);
                assert_eq!(parts.iter().map(|part| part.bytes.end - part.bytes.start).sum::<u64>(), set[at].bytes.0);
                for part in parts {
                    let (from, to) = batch.grid.slot(part.slot);
                    assert!(from >= ready + u128::from(jitters[at]) && to <= due, "{nominal:?} {jitters:?} job {job}");
                }
            }
        }
    }
    assert!(made * 5 > count, "{made} of {count}");
}

/// Blocks that come at any time, a period apart at least, are split over slots in their windows; a message without grid
/// gives no slots.
#[test]
fn sporadic_messages_are_split_at_any_phase_and_never_split_others() {
    let mut draw = Draw(72);
    let (mut made, mut jobs) = (0, 0);
    let count = cases(3_000);
    for _ in 0..count {
        let slow = Elementary {
            release: Release::Sporadic,
            deadline: Nanos(draw.between(20, 120)),
            granule: Bytes(draw.pick(&[1, 16])),
            ..times(draw.between(1, 90), 120, draw.between(0, 100))
        };
        let fast = times(3, draw.between(1, 40), draw.between(0, 100));
        let Some((set, batch)) = pair(&slow, &fast, draw.pick(&[Counting::Paper, Counting::PhaseAware])) else {
            continue;
        };
        made += 1;
        let member = &batch.members[0];
        // The grid begins with its first slot: earlier blocks would have to wait for it.
        let mut ready = u128::from(batch.grid.start.0.max(slow.start.0));
        for _ in 0..20 {
            let mut next = 0;
            for part in parts_from(member, &set[0], ready) {
                let (from, to) = batch.grid.slot(part.slot);
                assert!(from >= ready && to <= ready + u128::from(slow.deadline.0), "{slow:?} {fast:?} at {ready}");
                assert!(part.bytes.start == next && part.bytes.end - next <= member.reserve.0);
                next = part.bytes.end;
            }
            assert_eq!(next, slow.bytes.0);
            ready += u128::from(slow.period.0 + draw.between(0, 60));
            jobs += 1;
        }
        let other_way = Elementary { release: Release::Sporadic, ..fast };
        assert_eq!(pair(&Elementary { release: Release::Periodic, ..slow }, &other_way, Counting::PhaseAware), None);
    }
    assert!(made * 5 > count && jobs > made, "{made} of {count}");
}

#[test]
fn splitting_directly_gives_no_fewer_parts_than_splitting_step_by_step() {
    let mut draw = Draw(73);
    let (mut chains, mut more) = (0u64, 0u64);
    let count = cases(3_000);
    for _ in 0..count {
        let mut periods: Vec<u64> = (0..3).map(|_| draw.between(1, 400)).collect();
        periods.sort_unstable_by(|a, b| b.cmp(a));
        let set: Vec<Elementary> = periods.iter().map(|&p| times(1 << 30, p, draw.between(0, 200))).collect();
        let counting = draw.pick(&[Counting::Paper, Counting::PhaseAware]);
        let both = combine(&Batch::single(0, &set[0]), &Batch::single(1, &set[1]), &set, counting);
        let Some(chain) = both.and_then(|both| combine(&both, &Batch::single(2, &set[2]), &set, counting)) else {
            continue;
        };
        let own = set[0].grid();
        let direct = parts_max(&own, Release::Periodic, &set[2].grid(), counting);
        assert!(direct >= chain.members[0].parts_max(), "{set:?} {counting:?}");
        let star = rules::direct(0, &set[0], chain.grid, counting).unwrap();
        assert!(star.reserve <= chain.members[0].reserve);
        chains += 1;
        more += u64::from(direct > chain.members[0].parts_max());
    }
    assert!(chains * 12 > count && more * 10 > chains, "{chains} {more} of {count}");
}

/// What a slot reserves for a message and does not use: `1 - n p2 / p1` of its reserve.
#[test]
fn the_share_of_a_reserve_that_stays_unused_is_what_the_counts_say() {
    let unused = |period, start, counting| {
        let (set, batch) = pair(&times(1 << 20, period, start), &times(1, 10, 0), counting).unwrap();
        let slots = 60_000;
        let carried: u64 = (0..slots)
            .filter_map(|slot| batch.members[0].carried(&set[0], slot))
            .map(|(_, bytes)| bytes.end - bytes.start)
            .sum();
        let reserved = u128::from(batch.members[0].reserve.0) * u128::from(slots);
        1.0 - carried as f64 / reserved as f64
    };
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-3, "{found} {expected}");
    near(unused(40, 0, Counting::Paper), 0.0);
    near(unused(20, 1, Counting::Paper), 1.0 / 2.0);
    near(unused(55, 0, Counting::Paper), 1.0 - 4.0 * 10.0 / 55.0);
    near(unused(29, 0, Counting::Paper), 1.0 - 10.0 / 29.0);
    near(unused(55, 0, Counting::PhaseAware), 1.0 - 5.0 * 10.0 / 55.0);
}
