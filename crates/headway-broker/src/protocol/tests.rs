//! The lease word by itself, step by step.

use std::sync::atomic::{AtomicU64, Ordering};

use super::lease::*;

#[test]
fn a_leased_lock_is_taken_and_given_back_again_and_again() {
    let word = AtomicU64::new(0);
    assert_eq!(acquire(&word, 7), None);
    lend(&word, 1);
    for owner in [7, 8] {
        let mine = acquire(&word, owner).unwrap();
        assert_eq!(acquire(&word, 9), None, "in use");
        assert_eq!(release(&word, mine), Released::Kept);
    }
}

#[test]
fn a_lease_ends_at_once_when_idle_and_at_the_release_when_busy() {
    let word = AtomicU64::new(0);
    lend(&word, 1);
    assert_eq!(revoke(&word), Revoked::Free);
    assert_eq!(acquire(&word, 7), None);
    lend(&word, 2);
    let mine = acquire(&word, 7).unwrap();
    let Revoked::Busy { owner: 7, word: held } = revoke(&word) else { panic!() };
    assert!(!is_returned(&word, held));
    assert_eq!(release(&word, mine), Released::Returned);
    assert!(is_returned(&word, held));
    assert_eq!(acquire(&word, 7), None);
}

#[test]
fn who_was_away_too_long_gives_back_nothing_of_a_later_generation() {
    let word = AtomicU64::new(0);
    let first = grant(&word, 1, 7);
    assert_eq!(granted(&word, 7), Some(first));
    assert_eq!(granted(&word, 8), None);
    take_back(&word, 2);
    let second = grant(&word, 3, 7);
    assert_eq!(release(&word, first), Released::Lost);
    assert!(!is_returned(&word, second));
    assert_eq!(release(&word, second), Released::Returned);
}

#[test]
fn no_value_that_a_client_writes_keeps_the_broker_from_taking_the_lock() {
    for written in [0, 1, 2, 3, 4, 5, 6, 7, u64::MAX, 0xdead_beef_0000_0001] {
        let word = AtomicU64::new(written);
        if let Revoked::Busy { word: held, .. } = revoke(&word) {
            word.store(written ^ 9, Ordering::Relaxed);
            assert!(is_returned(&word, held));
        }
        take_back(&word, 9);
        assert_eq!(acquire(&word, 1), None);
    }
}
