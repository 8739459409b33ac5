//! Improves a partition of the messages into stars by moving members, exchanging them, and merging and dissolving stars.

use super::stars::{Star, Stars};
use super::{LIMITS, Priced, Pricer, Utilisation};
use crate::interconnect::Starved;

/// Sets that the search hands back at most.
const FOUND_MAX: usize = 64;

struct Search<'a, 's, 'p, 'n> {
    stars: &'a mut Stars<'s>,
    pricer: &'p mut Pricer<'n>,
    state: Vec<Star>,
    /// By message, the place of its star in the state, if it is in one.
    homes: Vec<usize>,
    /// Stars and pairs of messages looked at.
    looks: u64,
}

/// The best partition found from `groups` and others met on the way, the least sum first.
///
/// # Errors
/// [`Starved`] when a batch cannot be priced.
pub(super) fn search(
    mut stars: Stars<'_>,
    groups: Vec<Vec<u32>>,
    pricer: &mut Pricer<'_>,
) -> Result<Vec<Vec<Priced>>, Starved> {
    let homes = vec![0; stars.count()];
    let mut search = Search { stars: &mut stars, pricer, state: Vec::new(), homes, looks: 0 };
    search.start(groups)?;
    let mut met = vec![search.state.clone()];
    loop {
        let before = search.sum();
        search.settle(&mut met)?;
        search.dissolve(&mut met)?;
        search.gather(&mut met)?;
        if search.sum() >= before || search.is_spent() {
            break;
        }
    }
    let sum = |state: &[Star]| state.iter().map(|star| star.used).sum::<Utilisation>();
    met.sort_by_key(|state| sum(state));
    met.dedup();
    met.truncate(FOUND_MAX);
    Ok(met.iter().map(|state| stars.priced(state)).collect())
}

impl Search<'_, '_, '_, '_> {
    /// Every group as a star; one that is none falls apart.
    fn start(&mut self, groups: Vec<Vec<u32>>) -> Result<(), Starved> {
        for mut group in groups {
            group.sort_unstable();
            match self.star(&group)? {
                Some(star) => self.put(self.state.len(), star),
                None => {
                    for member in group {
                        if let Some(alone) = self.star(&[member])? {
                            self.put(self.state.len(), alone);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Puts a star into a place of the state, or behind all.
    fn put(&mut self, at: usize, star: Star) {
        star.members.iter().for_each(|&member| self.homes[member as usize] = at);
        match self.state.get_mut(at) {
            Some(place) => *place = star,
            None => self.state.push(star),
        }
    }

    /// Takes a star out; the last one gets its place.
    fn take(&mut self, at: usize) -> Star {
        let taken = self.state.swap_remove(at);
        if let Some(moved) = self.state.get(at) {
            moved.members.iter().for_each(|&member| self.homes[member as usize] = at);
        }
        taken
    }

    fn restore(&mut self, state: Vec<Star>) {
        self.state.clear();
        for star in state {
            self.put(self.state.len(), star);
        }
    }

    fn star(&mut self, members: &[u32]) -> Result<Option<Star>, Starved> {
        self.looks += 1;
        self.stars.star(members, self.pricer)
    }

    fn sum(&self) -> Utilisation {
        self.state.iter().map(|star| star.used).sum()
    }

    fn is_spent(&self) -> bool {
        self.stars.work >= LIMITS.search_max || self.looks >= LIMITS.looks_max
    }

    /// Moves, merges and exchanges until nothing helps.
    fn settle(&mut self, met: &mut Vec<Vec<Star>>) -> Result<(), Starved> {
        loop {
            let improved = self.moves()? || self.merges()? || self.exchanges()?;
            if improved {
                self.note(met);
            }
            if !improved || self.is_spent() {
                return Ok(());
            }
        }
    }

    fn note(&self, met: &mut Vec<Vec<Star>>) {
        if met.len() >= FOUND_MAX {
            met.remove(0);
        }
        met.push(self.state.clone());
    }

    /// Lets every message go where it saves most.
    fn moves(&mut self) -> Result<bool, Starved> {
        let mut improved = false;
        for member in 0..self.stars.count() as u32 {
            if self.is_spent() {
                break;
            }
            improved |= self.relocate(member)?;
        }
        Ok(improved)
    }

    fn home(&self, member: u32) -> usize {
        self.homes[member as usize]
    }

    fn relocate(&mut self, member: u32) -> Result<bool, Starved> {
        let from = self.home(member);
        let rest = without(&self.state[from].members, member);
        let rest = if rest.is_empty() { None } else { self.star(&rest)? };
        if rest.is_none() && self.state[from].members.len() > 1 {
            return Ok(false);
        }
        let freed = self.state[from].used.0 as i128 - rest.as_ref().map_or(0, |star| star.used.0 as i128);
        let mut best: Option<(i128, usize, Star)> = None;
        for to in 0..=self.state.len() {
            if to == from || (to == self.state.len() && rest.is_none()) {
                continue;
            }
            let (joined, paid) = match self.state.get(to) {
                Some(star) => (with(&star.members, member), star.used.0 as i128),
                None => (vec![member], 0),
            };
            let Some(star) = self.star(&joined)? else { continue };
            let saved = freed + paid - star.used.0 as i128;
            if saved > best.as_ref().map_or(0, |best| best.0) {
                best = Some((saved, to, star));
            }
        }
        let Some((_, to, star)) = best else { return Ok(false) };
        self.put(to, star);
        match rest {
            Some(rest) => self.put(from, rest),
            None => drop(self.take(from)),
        }
        Ok(true)
    }

    fn merges(&mut self) -> Result<bool, Starved> {
        let mut best: Option<(i128, usize, usize, Star)> = None;
        for a in 0..self.state.len() {
            for b in a + 1..self.state.len() {
                if self.is_spent() {
                    return Ok(false);
                }
                let mut both = [self.state[a].members.as_slice(), &self.state[b].members].concat();
                both.sort_unstable();
                let Some(star) = self.star(&both)? else { continue };
                let saved = self.state[a].used.0 as i128 + self.state[b].used.0 as i128 - star.used.0 as i128;
                if saved > best.as_ref().map_or(0, |best| best.0) {
                    best = Some((saved, a, b, star));
                }
            }
        }
        let Some((_, a, b, star)) = best else { return Ok(false) };
        self.take(b);
        self.put(a, star);
        Ok(true)
    }

    /// Exchanges two members of different stars where that saves something.
    fn exchanges(&mut self) -> Result<bool, Starved> {
        let mut improved = false;
        for one in 0..self.stars.count() as u32 {
            for other in one + 1..self.stars.count() as u32 {
                if self.is_spent() {
                    return Ok(improved);
                }
                self.looks += 1;
                let (a, b) = (self.home(one), self.home(other));
                if a == b || (self.state[a].members.len() == 1 && self.state[b].members.len() == 1) {
                    continue;
                }
                let first = with(&without(&self.state[a].members, one), other);
                let second = with(&without(&self.state[b].members, other), one);
                let Some((first, second)) = self.star(&first)?.zip(self.star(&second)?) else { continue };
                if first.used.0 + second.used.0 < self.state[a].used.0 + self.state[b].used.0 {
                    self.put(a, first);
                    self.put(b, second);
                    improved = true;
                }
            }
        }
        Ok(improved)
    }

    /// Takes one or two stars apart, lets their members find places again, largest first, and keeps what is better.
    fn dissolve(&mut self, met: &mut Vec<Vec<Star>>) -> Result<(), Starved> {
        'again: loop {
            let firsts: Vec<u32> = self.state.iter().map(|star| star.members[0]).collect();
            for (at, &a) in firsts.iter().enumerate() {
                for &b in &firsts[at..] {
                    if self.is_spent() {
                        return Ok(());
                    }
                    let (before, sum) = (self.state.clone(), self.sum());
                    self.take_apart(a, b)?;
                    self.settle(&mut Vec::new())?;
                    if self.sum() < sum {
                        self.note(met);
                        continue 'again;
                    }
                    self.restore(before);
                }
            }
            return Ok(());
        }
    }

    /// Puts everything that fits the slots of one message into one star, and keeps what is better after settling: messages
    /// on different engines can pay together where each by itself does not.
    fn gather(&mut self, met: &mut Vec<Vec<Star>>) -> Result<(), Starved> {
        for base in 0..self.stars.count() as u32 {
            if self.is_spent() {
                break;
            }
            let members = self.stars.joinable(base);
            let Some(star) = self.star(&members)? else { continue };
            let (before, sum) = (self.state.clone(), self.sum());
            let taken = |member: &u32| members.binary_search(member).is_ok();
            let rests = before.iter().map(|star| star.members.iter().copied().filter(|m| !taken(m)).collect());
            let rests: Vec<Vec<u32>> = rests.filter(|rest: &Vec<u32>| !rest.is_empty()).collect();
            self.state.clear();
            self.start(rests)?;
            self.put(self.state.len(), star);
            self.settle(&mut Vec::new())?;
            if self.sum() < sum {
                self.note(met);
            } else {
                self.restore(before);
            }
        }
        Ok(())
    }

    fn take_apart(&mut self, a: u32, b: u32) -> Result<(), Starved> {
        let mut freed = Vec::new();
        for of in [a, b] {
            // Both may be in one star.
            let at = self.home(of);
            if self.state.get(at).is_some_and(|star| star.members.binary_search(&of).is_ok()) {
                freed.extend(self.take(at).members);
            }
        }
        let mut alone = Vec::new();
        for member in freed {
            alone.extend(self.star(&[member])?);
        }
        alone.sort_by_key(|star| (std::cmp::Reverse(star.used), star.members[0]));
        for star in alone {
            let member = star.members[0];
            self.put(self.state.len(), star);
            self.relocate(member)?;
        }
        Ok(())
    }
}

fn without(members: &[u32], member: u32) -> Vec<u32> {
    members.iter().copied().filter(|&other| other != member).collect()
}

fn with(members: &[u32], member: u32) -> Vec<u32> {
    let mut members = members.to_vec();
    members.insert(members.partition_point(|&other| other < member), member);
    members
}
