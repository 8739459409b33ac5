//! Groups of GPUs that may share a limit, from how their rates add up.

use super::{Direction, EndpointId, PPM, Set};

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    In,
    Out,
    Both,
}

impl Class {
    const ALL: [Self; 3] = [Self::In, Self::Out, Self::Both];

    /// Use by a byte in and by a byte out, in ppm.
    pub(super) const fn uses(self) -> [u64; 2] {
        match self {
            Self::In => [PPM, 0],
            Self::Out => [0, PPM],
            Self::Both => [PPM, PPM],
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::In => "read",
            Self::Out => "write",
            Self::Both => "host",
        }
    }

    const fn counts(self, direction: Direction) -> bool {
        matches!((self, direction), (Self::Both, _) | (Self::In, Direction::H2d) | (Self::Out, Direction::D2h))
    }
}

/// A limit of some GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) gpus: Vec<EndpointId>,
    pub(super) class: Class,
    pub(super) rate: u64,
}

impl Group {
    /// Whether it counts the same transfers as `other`.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (self.class, &self.gpus) == (other.class, &other.gpus)
    }
}

/// Ways to group the GPUs of `sets`, each as the limits that it means: all together, halves, neighbours. Rates are what sets
/// inside a group reached at most. `has_write` = a limit of all copies out is known.
pub(super) fn candidates(sets: &[Set], has_write: bool) -> Vec<Vec<Group>> {
    let mut gpus: Vec<EndpointId> = sets.iter().flat_map(|set| &set.transfers).map(|(gpu, _)| *gpu).collect();
    gpus.sort_unstable();
    gpus.dedup();
    let mut found = Vec::new();
    for class in Class::ALL {
        // What both directions of all GPUs share was looked for already.
        let whole = class == Class::In || class == Class::Out && !has_write;
        for partition in partitions(&gpus).into_iter().filter(|parts| parts.len() > 1 || whole) {
            found.push(partition.into_iter().map(|gpus| group(sets, class, gpus)).collect());
        }
    }
    found
}

/// Partitions of `gpus` into parts of equal size, at least two: one part, every two halves of four, contiguous halves and pairs
/// of more.
fn partitions(gpus: &[EndpointId]) -> Vec<Vec<Vec<EndpointId>>> {
    let mut all = Vec::new();
    if gpus.len() > 1 {
        all.push(vec![gpus.to_vec()]);
    }
    if let [a, b, c, d] = *gpus {
        all.extend([[[a, b], [c, d]], [[a, c], [b, d]], [[a, d], [b, c]]].map(|halves| halves.map(Vec::from).to_vec()));
    } else if gpus.len() > 4 {
        for size in [gpus.len() / 2, 2] {
            if gpus.len().is_multiple_of(size) {
                all.push(gpus.chunks(size).map(<[_]>::to_vec).collect());
            }
        }
    }
    all
}

fn group(sets: &[Set], class: Class, gpus: Vec<EndpointId>) -> Group {
    let inside =
        |set: &&Set| set.transfers.iter().all(|(gpu, direction)| gpus.contains(gpu) && class.counts(*direction));
    let total = |set: &Set| set.total(Direction::H2d).saturating_add(set.total(Direction::D2h));
    let rate = sets.iter().filter(inside).map(total).max().unwrap_or(0).max(super::super::RATE_MIN.0);
    Group { gpus, class, rate }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_gpus_are_grouped_in_every_way_into_halves_and_eight_into_neighbours() {
        let gpus = |count: u32| (1..=count).map(EndpointId).collect::<Vec<_>>();
        assert_eq!(partitions(&gpus(1)).len(), 0);
        assert_eq!(partitions(&gpus(2)).len(), 1);
        assert_eq!(partitions(&gpus(4)).len(), 4);
        let sizes: Vec<usize> = partitions(&gpus(8)).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 2, 4]);
        for partition in partitions(&gpus(4)) {
            let mut all: Vec<_> = partition.concat();
            all.sort_unstable();
            assert_eq!(all, gpus(4));
        }
    }
}
