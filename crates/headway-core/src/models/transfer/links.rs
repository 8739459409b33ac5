//! The use of each GPU's link to the host, in one direction: which links a long copy may borrow of other GPUs (`multipath`), and how
//! many GPUs it has to share the memory with.
//!
//! The first copy gets the links that are idle. A GPU's own copy comes before one that borrowed its link: the borrower lets
//! go. Copies of several GPUs often start together, one round after the other, and the first of a round would borrow what it had to
//! give back at once, and work as if it were alone. So a GPU that was met in the last copy is expected in the next: it counts as
//! active, and its link is not granted. One copy that meets nobody ends that. No clock: everything counts copies, so that a log of
//! inputs replays.

/// What a copy that is about to begin finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStanding {
    /// GPUs that copy, or are expected to, this one included.
    pub active: u32,
    /// Whether [`Links::begin`] would grant it any link.
    pub grants: bool,
}

/// Which links a copy wants to borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Borrow {
    /// No link of another GPU.
    Nothing,
    /// Up to so many that nobody uses or is expected to use.
    Spare(usize),
    /// Up to so many that nobody uses now: the caller asked for other GPUs' links by name.
    Free(usize),
}

/// One long copy under way.
#[derive(Clone, Debug)]
struct Run {
    id: u64,
    gpu: usize,
    /// Of each GPU, whether it had a copy of its own meanwhile.
    met: Vec<bool>,
    borrowed: Vec<usize>,
}

/// The links of one direction; see the module.
#[derive(Clone, Debug)]
pub struct Links {
    next: u64,
    runs: Vec<Run>,
    /// Of each GPU and each other, whether the last copy of the one met one of the other.
    expected: Vec<Vec<bool>>,
}

impl Links {
    /// Of `gpus` GPUs, of which none copies.
    #[must_use]
    pub fn new(gpus: usize) -> Self {
        Self { next: 0, runs: Vec::new(), expected: vec![vec![false; gpus]; gpus] }
    }

    /// Whether `gpu` has a copy of its own.
    #[must_use]
    pub fn is_busy(&self, gpu: usize) -> bool {
        self.runs.iter().any(|run| run.gpu == gpu)
    }

    /// Whether a copy of another GPU has borrowed the link of `gpu` and has not ended.
    #[must_use]
    pub fn is_lent(&self, gpu: usize) -> bool {
        self.runs.iter().any(|run| run.borrowed.contains(&gpu))
    }

    /// What a copy of `gpu` would find now; `reaches` says over whose links it could go.
    #[must_use]
    pub fn standing(&self, gpu: usize, reaches: impl Fn(usize) -> bool) -> LinkStanding {
        let others = (0..self.expected.len()).filter(|other| *other != gpu);
        let active = others.filter(|other| self.is_busy(*other) || self.expected[gpu][*other]).count();
        let grants = !self.grantable(gpu, Borrow::Spare(1), reaches).is_empty();
        LinkStanding { active: u32::try_from(active).unwrap_or(u32::MAX - 1) + 1, grants }
    }

    /// A long copy of `gpu` begins; its number, and the GPUs whose links it may use besides its own, the ones after it first.
    pub fn begin(&mut self, gpu: usize, borrow: Borrow, reaches: impl Fn(usize) -> bool) -> (u64, Vec<usize>) {
        let borrowed = self.grantable(gpu, borrow, reaches);
        let mut met = vec![false; self.expected.len()];
        for run in self.runs.iter_mut().filter(|run| run.gpu != gpu) {
            run.met[gpu] = true;
            met[run.gpu] = true;
        }
        let id = self.next;
        self.next += 1;
        self.runs.push(Run { id, gpu, met, borrowed: borrowed.clone() });
        (id, borrowed)
    }

    /// The copy `id` has ended, however. One that is not under way changes nothing.
    pub fn end(&mut self, id: u64) {
        let Some(at) = self.runs.iter().position(|run| run.id == id) else { return };
        let run = self.runs.swap_remove(at);
        self.expected[run.gpu] = run.met;
    }

    fn grantable(&self, gpu: usize, borrow: Borrow, reaches: impl Fn(usize) -> bool) -> Vec<usize> {
        let (most, spare) = match borrow {
            Borrow::Nothing => (0, true),
            Borrow::Spare(most) => (most, true),
            Borrow::Free(most) => (most, false),
        };
        let gpus = self.expected.len();
        let others = (1..gpus).map(|step| (gpu + step) % gpus);
        let free = |other: &usize| {
            let expected = spare && self.expected[gpu][*other];
            !expected && !self.is_busy(*other) && !self.is_lent(*other) && reaches(*other)
        };
        others.filter(free).take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(_: usize) -> bool {
        true
    }

    /// A round: copies of `gpus` begin one after the other, then end; what each found and was granted.
    fn round(links: &mut Links, gpus: &[usize]) -> Vec<(u32, Vec<usize>)> {
        let begun = gpus.iter().map(|gpu| {
            let standing = links.standing(*gpu, all);
            let (id, granted) = links.begin(*gpu, Borrow::Spare(3), all);
            assert_eq!(standing.grants, !granted.is_empty());
            (id, (standing.active, granted))
        });
        let begun: Vec<_> = begun.collect();
        begun.iter().for_each(|(id, _)| links.end(*id));
        begun.into_iter().map(|(_, found)| found).collect()
    }

    #[test]
    fn who_comes_first_gets_the_links_and_the_next_finds_it_active() {
        let mut links = Links::new(4);
        assert_eq!(round(&mut links, &[1, 2]), [(1, vec![2, 3, 0]), (2, vec![])]);
        let mut links = Links::new(4);
        let (first, granted) = links.begin(1, Borrow::Spare(2), all);
        assert_eq!(granted, [2, 3]);
        assert!(links.is_lent(2) && !links.is_lent(0) && links.is_busy(1));
        assert_eq!(links.begin(0, Borrow::Spare(3), all).1, [0; 0], "none is left");
        links.end(first);
        assert!(!links.is_lent(2) && !links.is_busy(1));
    }

    #[test]
    fn copies_that_start_together_again_borrow_nothing_and_know_how_many_they_are() {
        let mut links = Links::new(4);
        let first = round(&mut links, &[0, 1, 2, 3]);
        assert_eq!(first[0], (1, vec![1, 2, 3]), "nothing is known before the first");
        for order in [[0, 1, 2, 3], [3, 1, 0, 2]] {
            assert!(round(&mut links, &order).iter().all(|found| *found == (4, vec![])));
        }
    }

    #[test]
    fn one_copy_alone_ends_the_expectation() {
        let mut links = Links::new(2);
        round(&mut links, &[0, 1]);
        assert_eq!(round(&mut links, &[0]), [(2, vec![])]);
        assert_eq!(round(&mut links, &[0]), [(1, vec![1])]);
        assert_eq!(round(&mut links, &[1]), [(2, vec![])], "of the other it is still expected");
    }

    #[test]
    fn who_asks_by_name_gets_what_is_expected_but_not_what_is_used() {
        let mut links = Links::new(3);
        round(&mut links, &[0, 1]);
        let (id, granted) = links.begin(0, Borrow::Free(3), all);
        assert_eq!(granted, [1, 2]);
        links.end(id);
        let (_, granted) = links.begin(2, Borrow::Free(1), |gpu| gpu != 0);
        assert_eq!(granted, [1], "only what is reached");
        assert_eq!(links.begin(0, Borrow::Free(3), all).1, [0; 0]);
    }

    proptest! {
        #[test]
        fn a_link_serves_one_borrower_and_none_whose_gpu_was_busy(
            steps in proptest::collection::vec((0..4_usize, 0..3_usize, 0..4_usize), 0..60),
        ) {
            let mut links = Links::new(4);
            let mut under_way: Vec<(u64, usize, Vec<usize>)> = Vec::new();
            for (gpu, what, most) in steps {
                if what == 0 && !under_way.is_empty() {
                    links.end(under_way.remove(most % under_way.len()).0);
                } else {
                    let borrow = if what == 1 { Borrow::Spare(most) } else { Borrow::Free(most) };
                    let standing = links.standing(gpu, all);
                    let busy: Vec<usize> = under_way.iter().map(|run| run.1).collect();
                    let (id, granted) = links.begin(gpu, borrow, all);
                    prop_assert!(granted.len() <= most && !granted.contains(&gpu));
                    prop_assert!(granted.iter().all(|link| !busy.contains(link)));
                    prop_assert!(granted.iter().all(|link| !under_way.iter().any(|run| run.2.contains(link))));
                    prop_assert!((1..=4).contains(&standing.active));
                    under_way.push((id, gpu, granted));
                }
                for gpu in 0..4 {
                    prop_assert_eq!(links.is_busy(gpu), under_way.iter().any(|run| run.1 == gpu));
                    prop_assert_eq!(links.is_lent(gpu), under_way.iter().any(|run| run.2.contains(&gpu)));
                }
            }
            under_way.iter().for_each(|run| links.end(run.0));
            prop_assert!((0..4).all(|gpu| !links.is_busy(gpu) && !links.is_lent(gpu)));
        }
    }
}
