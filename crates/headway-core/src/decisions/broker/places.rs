//! Places that users share: tasks, descriptors.
//!
//! With a fixed number of places for each user, a few users take all of them. So what a user may have follows from what is free:
//! it takes another place only where more than twice as many as it has stay free. If some users take all that they may, the next
//! one may have a third of what is left. That shrinks by a third with each user: with few places for many users, the last ones find
//! too little.

/// Whether a user with `own` of `all` places may have another one. `taken` places are taken, by all users together.
pub const fn leaves_room(own: usize, taken: usize, all: usize) -> bool {
    own.saturating_mul(2) < all.saturating_sub(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of so many users gets, one after the other, if each takes all that it may.
    fn greedy(users: usize, most: usize, all: usize) -> Vec<usize> {
        let mut taken = 0;
        let take = |_| {
            let own = (0..most).find(|own| !leaves_room(*own, taken + own, all)).unwrap_or(most);
            taken += own;
            own
        };
        (0..users).map(take).collect()
    }

    #[test]
    fn however_much_others_take_the_next_user_finds_room() {
        let shares = greedy(24, 256, 4_096);
        assert!(shares[..14].iter().all(|share| *share == 256), "{shares:?}");
        assert!(shares.iter().all(|share| *share >= 2), "{shares:?}");
        assert_eq!(greedy(1, 1_000, 47), [16]);
        assert!(!leaves_room(0, 47, 47) && !leaves_room(0, 50, 47));
    }
}
