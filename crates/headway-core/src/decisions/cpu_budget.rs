//! How many threads a copy gets where several processes copy at the same time: together no more than there are CPUs, as far as each
//! has its fair part.

/// Threads of a copy that would like `wanted`, on a node of which its process may use `cpus` CPUs, while each of `others` uses so many
/// CPUs of them for copies. One more CPU is for the thread that asked for the copy, which drives the engine. At least 1.
///
/// Who is alone gets what it wants. With others it gets what they leave, or its fair part if that is more: then those others get less
/// with their next copy. So nobody waits, and what all use exceeds the CPUs for the length of a copy at most.
#[must_use]
pub fn threads(wanted: u32, cpus: u32, others: impl IntoIterator<Item = u32>) -> u32 {
    let (mut used, mut parties) = (0u32, 1u32);
    for other in others.into_iter().filter(|other| *other > 0) {
        // A damaged page says anything: nobody counts for more than there is.
        used = used.saturating_add(other.min(cpus));
        parties = parties.saturating_add(1);
    }
    if parties == 1 {
        return wanted.max(1);
    }
    let part = (cpus / parties).max(cpus.saturating_sub(used));
    wanted.min(part.saturating_sub(1)).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_that_fit_get_all_they_want_and_two_that_do_not_get_half_each() {
        assert_eq!(threads(6, 16, []), 6);
        assert_eq!(threads(6, 16, [7]), 6);
        assert_eq!(threads(12, 16, [13]), 7);
        assert_eq!(threads(12, 16, [8]), 7);
        assert_eq!(threads(12, 4, [4, 4, 4, 4]), 1);
    }

    proptest! {
        #[test]
        fn nobody_is_left_without_a_thread_and_nobody_gets_more_than_it_wants(
            wanted in 0u32..2_000, cpus in any::<u32>(), others in proptest::collection::vec(any::<u32>(), 0..80),
        ) {
            let got = threads(wanted, cpus, others);
            prop_assert!((1..=wanted.max(1)).contains(&got));
        }

        /// When each of some processes has begun one copy after the others did, all together fit the CPUs, or each has one thread.
        #[test]
        fn after_a_round_all_together_fit(cpus in 2u32..200, wanted in proptest::collection::vec(1u32..40, 1..20)) {
            let mut using: Vec<u32> = vec![0; wanted.len()];
            for _ in 0..3 {
                for at in 0..wanted.len() {
                    let others: Vec<u32> = using.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, using)| *using).collect();
                    using[at] = threads(wanted[at], cpus, others) + 1;
                }
            }
            let fits = wanted.len() == 1 || using.iter().sum::<u32>() <= cpus.max(2 * wanted.len() as u32);
            prop_assert!(fits, "{using:?} of {cpus}");
        }
    }
}
