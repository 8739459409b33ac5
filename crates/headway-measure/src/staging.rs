//! The search for how `staged` works best: threads, buffer, stores and chunks in flight (specification of transfers, 2.5).

use std::cmp::Reverse;

use headway_core::decisions::staging::SPARE_BUFFERS;
use headway_core::models::transfer::{Stores, Tuning};
use headway_core::units::{Bytes, Nanos, PPM};

/// Threads that are tried.
const THREADS: [u32; 11] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16];
/// Buffers that are tried: all, and those of the first, coarse round.
const BUFFERS: [u64; 7] = [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20];
const COARSE: [u64; 2] = [4 << 20, 8 << 20];
/// Chunks in flight that are tried first.
const IN_FLIGHT: u32 = 3;
/// Tunings that are tried again in the end, and how often.
const FINALISTS: usize = 5;
const FINALS: usize = 2;
/// Tunings this close to the best count as equal to it: 1 %, which is what chance makes of the same one.
const EQUAL_PPM: u64 = 10_000;
/// A tuning that takes more than this many percent of the least time, and more than that many of the time with more threads, has
/// too few of them.
const HOPELESS_PERCENT: u64 = 150;
const SLOWER_PERCENT: u64 = 110;

/// What may be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    /// Most threads.
    pub threads_max: u32,
    /// Most pinned memory.
    pub pinned_max: Bytes,
    /// Length of the copies that are timed.
    pub bytes: Bytes,
    /// Whether the CPU can demote.
    pub demotes: bool,
}

impl Space {
    fn allows(&self, tuning: Tuning) -> bool {
        let pinned = u64::from(tuning.in_flight + SPARE_BUFFERS) * tuning.buffer.0;
        // With fewer chunks than buffers, some would never be used; the smallest buffer is always tried.
        let fits = pinned <= self.pinned_max.0 && (pinned <= self.bytes.0 || tuning.buffer.0 == BUFFERS[0]);
        let can = tuning.stores != Stores::Demoted || self.demotes;
        tuning.threads <= self.threads_max.max(1) && fits && can
    }
}

/// Times tunings by `time`, which is told the least time so far, and returns the best, or `None` if none is allowed: among those
/// within 1 % of the least time the one that [`pick`] takes.
///
/// First numbers of threads, the most first and until they are too few, with each kind of stores and two buffers, three chunks in
/// flight; then around the best of those every buffer, the numbers of threads next to it, and one, two and four chunks in flight;
/// the best of all twice again, of whose times the median counts.
pub(crate) fn search<E>(
    space: Space,
    mut time: impl FnMut(Tuning, Nanos) -> Result<Nanos, E>,
) -> Result<Option<(Tuning, Nanos)>, E> {
    let mut tried: Vec<(Tuning, Nanos)> = Vec::new();
    let mut attempt = |tuning: Tuning, tried: &mut Vec<(Tuning, Nanos)>| -> Result<(), E> {
        if space.allows(tuning) && !tried.iter().any(|(known, _)| *known == tuning) {
            tried.push((tuning, time(tuning, least(tried))?));
        }
        Ok(())
    };
    let tuning =
        |threads: u32, buffer, stores, in_flight: u32| Tuning { threads, buffer: Bytes(buffer), stores, in_flight };
    let allowed = |buffer: &u64| space.allows(tuning(1, *buffer, Stores::Plain, IN_FLIGHT));
    let coarse = COARSE.into_iter().filter(allowed);
    let coarse: Vec<u64> = match BUFFERS.into_iter().rfind(allowed) {
        Some(largest) if largest < COARSE[0] => vec![largest],
        _ => coarse.collect(),
    };
    for threads in THREADS.into_iter().rev() {
        for stores in [Stores::Plain, Stores::NonTemporal, Stores::Demoted] {
            for &buffer in &coarse {
                let tuning = tuning(threads, buffer, stores, IN_FLIGHT);
                if !has_too_few_threads(&tried, tuning) {
                    attempt(tuning, &mut tried)?;
                }
            }
        }
    }
    // Of tunings that take the same time, the one with fewer threads counts as the better.
    tried.sort_by_key(|(tuning, _)| tuning.threads);
    let best = |tried: &[(Tuning, Nanos)]| tried.iter().min_by_key(|(_, time)| *time).map(|(tuning, _)| *tuning);
    let Some(centre) = best(&tried) else { return Ok(None) };
    // What is demoted is at its best in buffers that all fit into the shared cache.
    for stores in [centre.stores, Stores::Demoted] {
        for buffer in BUFFERS {
            attempt(tuning(centre.threads, buffer, stores, IN_FLIGHT), &mut tried)?;
        }
    }
    let centre = best(&tried).unwrap_or(centre);
    let at = THREADS.iter().position(|threads| *threads == centre.threads).unwrap_or(0);
    for threads in &THREADS[at.saturating_sub(2)..(at + 2).min(THREADS.len())] {
        attempt(tuning(*threads, centre.buffer.0, centre.stores, IN_FLIGHT), &mut tried)?;
    }
    let centre = best(&tried).unwrap_or(centre);
    for in_flight in [1, 2, 4] {
        attempt(tuning(centre.threads, centre.buffer.0, centre.stores, in_flight), &mut tried)?;
    }
    // Few copies of each tell the best from the next by chance: the first of them again, in turns.
    tried.sort_by_key(|(_, time)| *time);
    tried.truncate(FINALISTS);
    let mut again = vec![Vec::new(); tried.len()];
    for _ in 0..FINALS {
        for ((tuning, _), times) in tried.iter().zip(&mut again) {
            times.push(time(*tuning, Nanos::MAX)?);
        }
    }
    for ((_, known), mut times) in tried.iter_mut().zip(again) {
        times.push(*known);
        times.sort_unstable();
        *known = times[times.len() / 2];
    }
    Ok(pick(&tried))
}

/// The least time of all, if there is any.
fn least(tried: &[(Tuning, Nanos)]) -> Nanos {
    tried.iter().map(|(_, time)| *time).min().unwrap_or(Nanos::MAX)
}

/// Whether more threads than `tuning` has were too few already, by what was tried with the most threads first.
fn has_too_few_threads(tried: &[(Tuning, Nanos)], tuning: Tuning) -> bool {
    let exceeds = |time: Nanos, percent: u64, of: Nanos| time.0 > of.0.saturating_mul(percent) / 100;
    let mut alike = tried.iter().rev().filter(|(known, _)| Tuning { threads: tuning.threads, ..*known } == tuning);
    let (fewer, more) = (alike.next(), alike.next());
    fewer.zip(more).is_some_and(|(&(_, fewer), &(_, more))| {
        exceeds(fewer, SLOWER_PERCENT, more) && exceeds(fewer, HOPELESS_PERCENT, least(tried))
    })
}

/// Of the tunings that are nearly the best, those with the smallest buffer, which shorter copies fare better with; of these the
/// one with most threads, at most half as many again as the fewest: so many only just keep the engine at work while nothing
/// disturbs them. On two H200s at once eight threads and twelve are alike when copies follow each other, and eight fall behind by
/// a tenth after other work, when buffers have left the caches.
fn pick(tried: &[(Tuning, Nanos)]) -> Option<(Tuning, Nanos)> {
    let least = least(tried);
    let limit = Nanos(least.0.saturating_add((u128::from(least.0) * u128::from(EQUAL_PPM) / u128::from(PPM)) as u64));
    let near = || tried.iter().filter(|(_, time)| *time <= limit);
    let buffer = near().map(|(tuning, _)| tuning.buffer).min()?;
    let alike = || near().filter(|(tuning, _)| tuning.buffer == buffer);
    let fewest = alike().map(|(tuning, _)| tuning.threads).min()?;
    let enough = alike().filter(|(tuning, _)| tuning.threads <= fewest + fewest / 2);
    enough.min_by_key(|(tuning, time)| (Reverse(tuning.threads), *time)).copied()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const SPACE: Space =
        Space { threads_max: 16, pinned_max: Bytes(128 << 20), bytes: Bytes(256 << 20), demotes: true };

    /// Searches with a cost given by a formula; returns the choice and what was tried.
    fn search_with(space: Space, cost: impl Fn(Tuning) -> u64) -> (Option<Tuning>, Vec<Tuning>) {
        let mut tried = Vec::new();
        let Ok(found) = search(space, |tuning, _| {
            tried.push(tuning);
            Ok::<_, Infallible>(Nanos(cost(tuning)))
        });
        (found.map(|(tuning, _)| tuning), tried)
    }

    /// As on one H200, host to device: more threads help up to 5, then no more; 4 MiB is best; non-temporal stores are slow.
    fn h200(tuning: Tuning) -> u64 {
        let rate = (11 * tuning.threads.min(5)).min(52);
        let slow = u64::from(tuning.stores == Stores::NonTemporal) + 1;
        let buffer = 10_000 / u64::from(rate) + 20 * (tuning.buffer.0.max(4 << 20) / (4 << 20));
        buffer * slow + (4 << 20) / tuning.buffer.0.min(4 << 20)
    }

    #[test]
    fn a_few_more_than_the_fewest_threads_and_the_smallest_buffer_near_the_best_are_taken() {
        let (found, tried) = search_with(SPACE, h200);
        let found = found.unwrap();
        assert_eq!((found.threads, found.stores), (6, Stores::Plain));
        assert!(found.buffer <= Bytes(4 << 20), "{found:?}");
        assert!(tried.len() < 90, "{}", tried.len());
    }

    #[test]
    fn what_exceeds_the_pinned_memory_or_the_cpus_is_not_tried() {
        let space = Space { threads_max: 3, pinned_max: Bytes(16 << 20), demotes: false, ..SPACE };
        let (found, tried) = search_with(space, |tuning| 1_000 / u64::from(tuning.threads));
        assert_eq!(found.unwrap().threads, 3);
        for tuning in tried {
            let pinned = u64::from(tuning.in_flight + SPARE_BUFFERS) * tuning.buffer.0;
            assert!(tuning.threads <= 3 && pinned <= 16 << 20 && tuning.stores != Stores::Demoted, "{tuning:?}");
        }
    }

    #[test]
    fn threads_in_reserve_are_half_as_many_again_at_most_and_cost_no_time() {
        let tuning = |threads| Tuning { threads, buffer: Bytes(8 << 20), stores: Stores::Plain, in_flight: 3 };
        let picked = |times: &[(u32, u64)]| {
            let tried: Vec<_> = times.iter().map(|&(threads, time)| (tuning(threads), Nanos(time))).collect();
            pick(&tried).map(|(tuning, _)| tuning.threads)
        };
        assert_eq!(picked(&[(6, 11_000), (8, 10_020), (10, 10_000), (12, 10_010), (16, 10_005)]), Some(12));
        assert_eq!(picked(&[(8, 10_000), (10, 10_101), (12, 10_131)]), Some(8));
        let large = Tuning { buffer: Bytes(16 << 20), ..tuning(12) };
        let found = pick(&[(tuning(10), Nanos(10_050)), (large, Nanos(10_000))]);
        assert_eq!(found, Some((tuning(10), Nanos(10_050))));
        assert_eq!(picked(&[(1, 500), (2, 500)]), Some(1));
        assert_eq!(picked(&[]), None);
    }

    #[test]
    fn fewer_threads_than_too_few_are_not_tried() {
        let fewest = |cost: fn(Tuning) -> u64| {
            let (_, tried) = search_with(SPACE, cost);
            let coarse =
                tried.into_iter().filter(|tuning| tuning.buffer == Bytes(COARSE[0]) && tuning.in_flight == IN_FLIGHT);
            coarse.filter(|tuning| tuning.stores == Stores::Plain).map(|tuning| tuning.threads).min().unwrap()
        };
        // Five threads take 1.8 times what nine do.
        assert_eq!(fewest(|tuning| 9_000 / u64::from(tuning.threads.min(9))), 5);
        // Too many are slow, too; and what is slow with any number says nothing about the number.
        assert_eq!(fewest(|tuning| 1_000 * u64::from(tuning.threads)), 1);
        assert_eq!(fewest(|tuning| if tuning.stores == Stores::Plain { 2_000 } else { 1_000 }), 1);
    }

    #[test]
    fn nothing_is_tried_twice_but_the_best() {
        let (_, tried) = search_with(SPACE, h200);
        let finals = tried.len() - FINALISTS * FINALS;
        for (at, tuning) in tried[..finals].iter().enumerate() {
            assert!(!tried[..at].contains(tuning), "{tuning:?}");
        }
        assert!(tried[finals..].iter().all(|tuning| tried[..finals].contains(tuning)));
        assert!(tried.iter().any(|tuning| tuning.in_flight == 1 && tuning.threads > 1));
    }

    #[test]
    fn the_least_time_so_far_is_told_until_the_best_are_tried_again() {
        let mut times: Vec<Nanos> = Vec::new();
        let mut least_times: Vec<Nanos> = Vec::new();
        let Ok(_) = search(SPACE, |tuning, least| {
            least_times.push(least);
            times.push(Nanos(h200(tuning)));
            Ok::<_, Infallible>(Nanos(h200(tuning)))
        });
        let finals = times.len() - FINALISTS * FINALS;
        for (at, least) in least_times[..finals].iter().enumerate() {
            assert_eq!(*least, times[..at].iter().copied().min().unwrap_or(Nanos::MAX), "{at}");
        }
        assert!(least_times[finals..].iter().all(|least| *least == Nanos::MAX));
    }

    #[test]
    fn small_copies_can_be_searched_too_and_no_memory_gives_none() {
        let small = Space { bytes: Bytes(64 << 10), ..SPACE };
        assert!(search_with(small, |_| 1).0.is_some());
        let none = Space { pinned_max: Bytes(0), ..SPACE };
        assert_eq!(search_with(none, |_| 1).0, None);
    }
}
