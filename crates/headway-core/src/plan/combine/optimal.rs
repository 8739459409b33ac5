//! The partition into stars with the least sum of utilisations, by dynamic programming over subsets.

use super::stars::{Star, Stars};
use super::{CombineError, Counting, LIMITS, Priced, Pricer};
use crate::plan::message::Elementary;

/// The optimum of a set of at most [`LIMITS`]`.optimal_max` messages.
///
/// `f(S) = min over T in S that hold the lowest of S of u(T) + f(S \ T)`; `3^n` steps and `2^n` prices.
///
/// # Errors
/// [`CombineError::TooMany`], or what pricing refuses.
pub(super) fn optimal(
    set: &[Elementary],
    pricer: &mut Pricer<'_>,
    counting: Counting,
) -> Result<Vec<Priced>, CombineError> {
    let (messages, max) = (set.len(), LIMITS.optimal_max);
    if messages > max {
        return Err(CombineError::TooMany { messages, max });
    }
    let mut stars = Stars::new(set, counting);
    let subsets = 1usize << messages;
    let mut priced: Vec<Option<Star>> = vec![None; subsets];
    for (subset, star) in priced.iter_mut().enumerate().skip(1) {
        let members: Vec<u32> = (0..messages as u32).filter(|n| subset >> n & 1 == 1).collect();
        *star = stars.star(&members, pricer)?;
    }
    let used: Vec<u128> = priced.iter().map(|star| star.as_ref().map_or(u128::MAX, |star| star.used.0)).collect();
    let mut least = vec![u128::MAX; subsets];
    let mut chosen = vec![0usize; subsets];
    least[0] = 0;
    for subset in 1..subsets {
        let lowest = subset & subset.wrapping_neg();
        let rest = subset ^ lowest;
        let mut of_rest = rest;
        loop {
            let star = of_rest | lowest;
            let sum = used[star].saturating_add(least[subset ^ star]);
            if sum < least[subset] {
                (least[subset], chosen[subset]) = (sum, star);
            }
            if of_rest == 0 {
                break;
            }
            of_rest = (of_rest - 1) & rest;
        }
    }
    let mut left = subsets - 1;
    let mut partition = Vec::new();
    while left > 0 {
        partition.extend(priced[chosen[left]].take());
        left ^= chosen[left];
    }
    Ok(stars.priced(&partition))
}
