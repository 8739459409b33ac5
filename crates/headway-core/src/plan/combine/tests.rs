//! Goldens of the paper, a naive Algorithm 1, and random cases.

mod rules_left_open;
mod slots;

use std::collections::BTreeMap;

use super::greedy::{greedy, greedy_in_groups};
use super::stars::Stars;
use super::*;
use crate::analysis::schedulability;
use crate::files::machine::{Calibration, Machine, RouteId};
use crate::interconnect::Network;
use crate::interconnect::tests::fixtures::*;
use crate::plan::message::{Batch, Elementary, MessageSet, Release};
use crate::units::{Bytes, Nanos};

const MS: u64 = 1_000_000;

fn calibration(margin_ppm: u64, jitter: u64) -> Calibration {
    Calibration {
        sets: 1,
        repeats: 1,
        batches: 0,
        sigma_ppm: 1_000_000,
        margin_ppm,
        jitter: Nanos(jitter),
        median_ppm: 0,
        p95_ppm: 0,
        max_ppm: 0,
        date: String::new(),
        driver: String::new(),
        driver_watch: None,
        chunk_watch: BTreeMap::new(),
    }
}

fn message(route: RouteId, bytes: u64, period: u64, start: u64) -> Elementary {
    Elementary::periodic(format!("m{bytes}"), route, Bytes(bytes), Nanos(period), Nanos(start))
}

/// Four H200 with set-ups.
fn node() -> (Machine, Vec<RouteId>) {
    let mut h = h200();
    for route in &mut h.machine.routes {
        (route.setup, route.setup_queued) = (Nanos(7_200), Nanos(2_400));
    }
    let routes = h.h2d.iter().chain(&h.d2h).copied().collect();
    (h.machine, routes)
}

/// How the periods and starts of random sets are drawn.
#[derive(Clone, Copy, Debug)]
enum Times {
    /// {1, 2, 5, ..., 200} ms, all from 0.
    Together,
    /// {1, 2, 5, ..., 200} ms, with starts of 0 to 19 ms.
    Apart,
    /// Log-uniform over 1 to 200 ms, in ns.
    Any,
}

fn elementary(draw: &mut Draw, routes: &[RouteId], times: Times) -> Elementary {
    let period = match times {
        Times::Together | Times::Apart => draw.pick(&[1, 2, 5, 10, 20, 50, 100, 200]) * MS,
        Times::Any => {
            let octave = draw.between(0, 7);
            (MS << octave) + draw.between(0, (MS << octave) - 1)
        }
    };
    let start = match times {
        Times::Together => 0,
        Times::Apart => draw.between(0, 19) * MS,
        Times::Any => draw.between(0, 200 * MS),
    };
    let bits = draw.between(14, 23);
    let bytes = (1 << bits) + draw.between(0, (1 << bits) - 1);
    message(draw.pick(routes), bytes, period, start)
}

fn random_set(draw: &mut Draw, routes: &[RouteId], times: Times, count: u64) -> MessageSet {
    MessageSet::new((0..count).map(|_| elementary(draw, routes, times)).collect()).unwrap()
}

/// The set with shorter deadlines, granules, sporadic messages, and some messages twice, so that gains are equal.
fn varied(draw: &mut Draw, set: MessageSet) -> MessageSet {
    let mut elementary = set.elementary;
    for at in 0..elementary.len() {
        if draw.chance(30) {
            elementary[at] = elementary[draw.between(0, at as u64) as usize].clone();
        }
        let of = &mut elementary[at];
        if draw.chance(30) {
            of.deadline = Nanos(of.period.0 / 100 * draw.between(20, 100));
        }
        of.granule = Bytes(draw.pick(&[1, 16, 4096]));
        if draw.chance(10) {
            of.release = Release::Sporadic;
        }
    }
    MessageSet::new(elementary).unwrap()
}

#[test]
fn groups_that_are_combined_by_themselves_first_give_steps_of_the_whole_set() {
    let (machine, routes) = node();
    let (network, calibration) = (Network::new(&machine), calibration(20_000, 3_000));
    let mut draw = Draw(41);
    for times in [Times::Together, Times::Apart, Times::Any] {
        let drawn = random_set(&mut draw, &routes, times, 60);
        let set = varied(&mut draw, drawn);
        let mut pricer = Pricer::new(&network, Some(&calibration));
        let steps = greedy_in_groups(&set, &mut pricer, Counting::PhaseAware, None, 12).unwrap();
        assert!(!steps.is_empty(), "{times:?}");
        let mut items: Vec<Option<Batch>> = set.batches.iter().cloned().map(Some).collect();
        let sum = |items: &[Option<Batch>], pricer: &mut Pricer<'_>| -> u128 {
            let used = |batch: &Batch, pricer: &mut Pricer<'_>| {
                Utilisation::of(pricer.price(&batch.blocks(&set.elementary)).unwrap(), batch.grid.period).0
            };
            items.iter().flatten().map(|batch| used(batch, pricer)).sum()
        };
        let mut before = sum(&items, &mut pricer);
        for step in steps {
            let (slow, fast) = (items[step.slow].take().unwrap(), items[step.fast].take().unwrap());
            let both = combine(&slow, &fast, &set.elementary, Counting::PhaseAware).unwrap();
            assert_eq!(pricer.price(&both.blocks(&set.elementary)).unwrap(), step.cost, "{times:?}");
            items.push(Some(both));
            let after = sum(&items, &mut pricer);
            assert!(after < before, "{times:?}");
            before = after;
        }
        // No two of what is left save anything together.
        let batches = items.into_iter().flatten().collect();
        let left = MessageSet { elementary: set.elementary.clone(), batches };
        assert_eq!(greedy(&left, &mut pricer, Counting::PhaseAware, None).unwrap(), []);
    }
}

/// Algorithm 1 with every pair looked at in every step; (slow, fast, cost) by first elementary message.
fn naive(set: &MessageSet, pricer: &mut Pricer<'_>, counting: Counting) -> Vec<(u32, u32, Nanos)> {
    let price = |batch: &Batch, pricer: &mut Pricer<'_>| pricer.price(&batch.blocks(&set.elementary)).unwrap();
    let mut batches: Vec<(Batch, Nanos)> = set.batches.iter().map(|b| (b.clone(), price(b, pricer))).collect();
    let mut steps = Vec::new();
    loop {
        batches.sort_by_key(|(batch, _)| batch.first());
        let mut best: Option<(u128, usize, usize, Batch, Nanos)> = None;
        for i in 0..batches.len() {
            for j in i + 1..batches.len() {
                let (a, b) = (&batches[i].0, &batches[j].0);
                let Some(batch) = combine(a, b, &set.elementary, counting) else { continue };
                let cost = price(&batch, pricer);
                let time = |n: usize| (batches[n].1, batches[n].0.grid.period);
                let (slow, fast) = if time(i).1 >= time(j).1 { (time(i), time(j)) } else { (time(j), time(i)) };
                let Some(rank) = gain(slow, fast, cost) else { continue };
                if best.as_ref().is_none_or(|best| rank > best.0) {
                    best = Some((rank, i, j, batch, cost));
                }
            }
        }
        let Some((_, i, j, batch, cost)) = best else { return steps };
        steps.push((batches[i].0.first(), batches[j].0.first(), cost));
        batches.remove(j);
        batches[i] = (batch, cost);
    }
}

/// The steps of the incremental algorithm in the naive one's terms.
fn incremental(set: &MessageSet, pricer: &mut Pricer<'_>, counting: Counting) -> Vec<(u32, u32, Nanos)> {
    let mut firsts: Vec<u32> = set.batches.iter().map(Batch::first).collect();
    let steps = greedy(set, pricer, counting, None).unwrap();
    let pair = |step: greedy::Combining| {
        let (a, b) = (firsts[step.slow].min(firsts[step.fast]), firsts[step.slow].max(firsts[step.fast]));
        firsts.push(a);
        (a, b, step.cost)
    };
    steps.into_iter().map(pair).collect()
}

#[test]
fn the_incremental_algorithm_makes_the_naive_one_s_steps() {
    let (machine, mut routes) = node();
    routes.extend(h200().peer[0][1..].iter().chain(&h200().peer[1][2..]));
    let network = Network::new(&machine);
    let calibration = calibration(10_000, 5_000);
    let mut draw = Draw(5);
    let mut steps = 0;
    for case in 0..60 {
        let times = draw.pick(&[Times::Together, Times::Apart, Times::Any]);
        let counting = draw.pick(&[Counting::Paper, Counting::PhaseAware]);
        let count = if case % 20 == 0 { 60 } else { draw.between(2, 30) };
        let set = random_set(&mut draw, &routes, times, count);
        let set = if case % 2 == 0 { set } else { varied(&mut draw, set) };
        let mut pricer = Pricer::new(&network, if case % 5 == 0 { None } else { Some(&calibration) });
        let expected = naive(&set, &mut pricer, counting);
        let found = incremental(&set, &mut pricer, counting);
        assert_eq!(found, expected, "case {case}: {times:?} {counting:?} {count}");
        steps += found.len();
    }
    assert!(steps > 200, "{steps}");
}

/// A node of independent links of 1 GB/s without set-ups, one engine each, behind limits of the given routes and rates: a
/// byte takes a nanosecond alone.
fn byte_per_ns(links: usize, limits: &[(&[usize], u64)]) -> (Machine, Vec<RouteId>) {
    let mut b = Builder::new();
    let own: Vec<_> = (0..links).map(|n| b.link(&format!("l{n}"), 1_000_000_000)).collect();
    let shared: Vec<_> = limits.iter().map(|(of, rate)| (*of, b.limit("limit", *rate))).collect();
    let routes = own.iter().enumerate().map(|(n, &link)| {
        let over = shared.iter().filter(|(of, _)| of.contains(&n)).map(|(_, limit)| *limit);
        let uses: Vec<_> = std::iter::once(link).chain(over).collect();
        b.own(&uses)
    });
    let routes = routes.collect();
    (b.0, routes)
}

fn with_mode(mode: CombineEffort, counting: Counting) -> CombineOptions {
    CombineOptions { mode, counting }
}

fn sum_of(transformed: &Transformed) -> f64 {
    transformed.sum().0 as f64 / 2f64.powi(64)
}

#[test]
fn verner_iv_b_example_lowers_the_sum_from_0_2604_to_0_1771() {
    let mut b = Builder::new();
    let links = [0, 1, 2].map(|n| b.link(&format!("l{n}"), 8_000_000_000));
    let [to_1, from_1, to_2] = links.map(|link| b.own(&[link]));
    let network = b.network();
    let calibration = calibration(0, 0);
    let messages = [(to_1, 10, 15), (from_1, 10, 15), (to_2, 15, 20)];
    let messages = messages.map(|(route, mb, ms)| message(route, mb * 1_000_000, ms * MS, 0));
    let set = MessageSet::new(messages.to_vec()).unwrap();
    let mut pricer = Pricer::new(&network, Some(&calibration));
    let pair = combine(&set.batches[0], &set.batches[1], &set.elementary, Counting::Paper).unwrap();
    let sum = |batches: &[&Batch], pricer: &mut Pricer<'_>| {
        let of = |b: &&Batch| pricer.price(&b.blocks(&set.elementary)).unwrap().0 as f64 / b.grid.period.0 as f64;
        batches.iter().map(of).sum::<f64>()
    };
    let singles: Vec<&Batch> = set.batches.iter().collect();
    assert!((sum(&singles, &mut pricer) - 0.260_416).abs() < 1e-5);
    assert!((sum(&[&pair, &set.batches[2]], &mut pricer) - 0.177_083).abs() < 1e-5);
    // The paper's rules find M: 15 ms and 20 ms cannot be combined further.
    let found = transform(&set, &mut pricer, with_mode(CombineEffort::Greedy, Counting::Paper), &mut |_| true).unwrap();
    assert_eq!(found.batches.len(), 2);
    assert!((sum_of(&found) - 0.177_083).abs() < 1e-5);
}

#[test]
fn verner_async_combining_example_gives_20_mb_blocks() {
    let (machine, routes) = byte_per_ns(2, &[]);
    assert_eq!(machine.routes.len(), 2);
    for slow in [50, 55, 59] {
        let messages = vec![message(routes[0], 80_000_000, slow * MS, 3 * MS), message(routes[1], 1, 10 * MS, 0)];
        let set = MessageSet::new(messages).unwrap();
        let both = combine(&set.batches[0], &set.batches[1], &set.elementary, Counting::Paper).unwrap();
        assert_eq!((both.members[0].reserve, both.members[1].reserve), (Bytes(20_000_000), Bytes(1)));
        assert_eq!((both.grid.period, both.grid.start), (Nanos(10 * MS), Nanos(0)));
    }
}

#[test]
fn a_lower_sum_that_fails_the_test_is_not_returned() {
    // (3,1), (10,1.99), (10,1.99); the last two together take 2.65, and then 1 in 3 is not safe any more.
    let (machine, routes) =
        byte_per_ns(3, &[(&[1, 2], 1_500_000_000), (&[0, 1], 1_000_000_000), (&[0, 2], 1_000_000_000)]);
    let network = Network::new(&machine);
    let calibration = calibration(0, 0);
    let mut pricer = Pricer::new(&network, Some(&calibration));
    let block = |n: usize| crate::interconnect::BatchBlock { route: routes[n], bytes: Bytes(1_990_000) };
    assert!(pricer.price(&[block(1), block(2)]).unwrap() > Nanos(2_650_000));
    let messages = [(0, 1_000_000, 3), (1, 1_990_000, 10), (2, 1_990_000, 10)];
    let messages = messages.map(|(n, c, p)| message(routes[n], c, p * MS, 0));
    let set = MessageSet::new(messages.to_vec()).unwrap();
    for mode in [CombineEffort::Greedy, CombineEffort::Search, CombineEffort::Optimal, CombineEffort::Fast] {
        let options = with_mode(mode, Counting::PhaseAware);
        let free = transform(&set, &mut pricer, options, &mut |_| true).unwrap();
        let tested =
            transform(&set, &mut pricer, options, &mut |t| schedulability::jeffay(t).is_schedulable()).unwrap();
        assert!(tested.accepted, "{mode:?}");
        assert!(schedulability::jeffay(&tasks_of(&tested)).is_schedulable());
        assert!(free.sum() < tested.sum() && !schedulability::jeffay(&tasks_of(&free)).is_schedulable(), "{mode:?}");
    }
}

fn tasks_of(found: &Transformed) -> Vec<schedulability::RecurrentTask> {
    found.batches.iter().map(Priced::task).collect()
}

#[test]
fn the_test_s_example_fails_with_four_in_ten() {
    let task = |p, c| schedulability::RecurrentTask::whole(Nanos(c), Nanos(p), Nanos(p));
    assert!(schedulability::jeffay(&[task(3, 1), task(10, 3), task(10, 3)]).is_schedulable());
    assert!(!schedulability::jeffay(&[task(3, 1), task(10, 4)]).is_schedulable());
}

/// Sets on four H200 that the test accepts, most of them only just.
#[test]
fn a_set_that_passes_is_only_replaced_by_one_that_passes_and_uses_less() {
    let (machine, routes) = node();
    let network = Network::new(&machine);
    let calibration = calibration(10_000, 5_000);
    let mut draw = Draw(9);
    let (mut tried, mut held_back, mut lower) = (0, 0, 0);
    while tried < 120 {
        let times = draw.pick(&[Times::Together, Times::Apart, Times::Any]);
        let count = draw.between(2, 9);
        let mut elementary = random_set(&mut draw, &routes, times, count).elementary;
        let asked: u64 = elementary.iter().map(|m| m.bytes.0 * 1_000 / m.period.0).sum();
        let wanted = draw.between(30, 52) * 1_000;
        for of in &mut elementary {
            of.bytes = Bytes(of.bytes.0 * wanted / asked.max(1) + 1); // the links of one GPU nearly full
        }
        let set = MessageSet::new(elementary).unwrap();
        let mut pricer = Pricer::new(&network, Some(&calibration));
        let mut test = |tasks: &[schedulability::RecurrentTask]| schedulability::jeffay(tasks).is_schedulable();
        let none = greedy(&set, &mut pricer, Counting::PhaseAware, Some(&|_| Nanos::ZERO)).unwrap();
        assert!(none.is_empty(), "the guard lets nothing through");
        for mode in [CombineEffort::Greedy, CombineEffort::Search, CombineEffort::Optimal, CombineEffort::Fast] {
            let options = with_mode(mode, Counting::PhaseAware);
            let found = transform(&set, &mut pricer, options, &mut test).unwrap();
            let given: Vec<_> = set
                .batches
                .iter()
                .map(|b| Priced { cost: pricer.price(&b.blocks(&set.elementary)).unwrap(), batch: b.clone() })
                .collect();
            let passes = test(&given.iter().map(Priced::task).collect::<Vec<_>>());
            let tasks: Vec<_> = found.batches.iter().map(Priced::task).collect();
            assert_eq!(found.accepted, test(&tasks), "{mode:?}");
            assert!(found.accepted || !passes, "{mode:?}");
            assert!(!passes || found.sum() <= given.iter().map(Priced::utilisation).sum(), "{mode:?}");
            lower += u32::from(passes && found.sum() < given.iter().map(Priced::utilisation).sum());
            let free = transform(&set, &mut pricer, options, &mut |_| true).unwrap();
            held_back += u32::from(found.accepted && free.sum() < found.sum());
        }
        tried += 1;
    }
    assert!(lower > 50 && held_back > 4, "{lower} {held_back}");
}

#[test]
fn the_sum_of_utilisations_never_rises() {
    let (machine, routes) = node();
    let network = Network::new(&machine);
    let calibration = calibration(10_000, 5_000);
    let mut draw = Draw(21);
    for _ in 0..60 {
        let times = draw.pick(&[Times::Together, Times::Apart, Times::Any]);
        let set = random_set(&mut draw, &routes, times, 40);
        let mut pricer = Pricer::new(&network, Some(&calibration));
        let found = transform(&set, &mut pricer, with_mode(CombineEffort::Greedy, Counting::PhaseAware), &mut |_| true)
            .unwrap();
        // Each of the three terms that change is rounded down to 2^-64; the gain itself was compared exactly.
        assert!(found.sums.windows(2).all(|pair| pair[1].0 < pair[0].0 + 2), "{:?}", found.sums);
        assert_eq!(found.sums.len() - 1, set.batches.len() - found.batches.len());
        assert_eq!(found.kept, KeptSet::Prefix(found.sums.len() - 1));
        assert!(found.sum().0.abs_diff(found.sums.last().unwrap().0) == 0);
        let prices: Vec<Nanos> =
            found.batches.iter().map(|b| pricer.price(&b.batch.blocks(&set.elementary)).unwrap()).collect();
        assert_eq!(prices, found.batches.iter().map(|b| b.cost).collect::<Vec<_>>());
    }
}

/// The least sum by integer programming over all subsets that can be a star.
fn by_integer_programming(stars: &mut Stars<'_>, pricer: &mut Pricer<'_>) -> f64 {
    use microlp::{ComparisonOp, OptimizationDirection, Problem};
    let count = stars.count() as u32;
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let mut holding = vec![Vec::new(); count as usize];
    for subset in 1u32..1 << count {
        let members: Vec<u32> = (0..count).filter(|n| subset >> n & 1 == 1).collect();
        let Some(star) = stars.star(&members, pricer).unwrap() else { continue };
        let chosen = problem.add_binary_var(star.used.0 as f64 / 2f64.powi(64));
        members.iter().for_each(|&n| holding[n as usize].push((chosen, 1.0)));
    }
    for of in &holding {
        problem.add_constraint(of.as_slice(), ComparisonOp::Eq, 1.0);
    }
    problem.solve().unwrap().into_solution().unwrap().objective()
}

#[test]
fn the_optimum_is_that_of_integer_programming_and_below_all_others() {
    let (machine, routes) = node();
    let network = Network::new(&machine);
    let calibration = calibration(10_000, 5_000);
    let mut draw = Draw(33);
    for case in 0..40 {
        let times = draw.pick(&[Times::Together, Times::Apart, Times::Any]);
        let count = draw.between(2, 7);
        let set = random_set(&mut draw, &routes, times, count);
        let mut pricer = Pricer::new(&network, Some(&calibration));
        let mut found = |mode| {
            let options = with_mode(mode, Counting::PhaseAware);
            sum_of(&transform(&set, &mut pricer, options, &mut |_| true).unwrap())
        };
        let [greedy, search, optimal, fast] =
            [CombineEffort::Greedy, CombineEffort::Search, CombineEffort::Optimal, CombineEffort::Fast].map(&mut found);
        let milp = by_integer_programming(&mut Stars::new(&set.elementary, Counting::PhaseAware), &mut pricer);
        assert!((milp - optimal).abs() < 1e-9 * milp.max(1.0), "case {case}: {milp} {optimal}");
        assert!(optimal <= search && search <= greedy && optimal <= fast, "{case}: {optimal} {search} {greedy} {fast}");
    }
}

#[test]
fn too_many_messages_for_the_optimum_are_refused() {
    let (machine, routes) = node();
    let network = Network::new(&machine);
    let set = random_set(&mut Draw(1), &routes, Times::Together, 17);
    let options = with_mode(CombineEffort::Optimal, Counting::PhaseAware);
    let refused = transform(&set, &mut Pricer::new(&network, None), options, &mut |_| true);
    assert_eq!(refused, Err(CombineError::TooMany { messages: 17, max: 16 }));
}

#[test]
fn no_chain_of_combinings_costs_less_than_the_star_of_its_messages() {
    let (machine, routes) = node();
    let network = Network::new(&machine);
    let calibration = calibration(10_000, 5_000);
    let mut draw = Draw(41);
    let mut chains = 0;
    for _ in 0..200 {
        let times = draw.pick(&[Times::Together, Times::Apart, Times::Any]);
        let counting = draw.pick(&[Counting::Paper, Counting::PhaseAware]);
        let set = random_set(&mut draw, &routes, times, 12);
        let mut pricer = Pricer::new(&network, Some(&calibration));
        let found = transform(&set, &mut pricer, with_mode(CombineEffort::Greedy, counting), &mut |_| true).unwrap();
        let mut stars = Stars::new(&set.elementary, counting);
        for priced in &found.batches {
            let members: Vec<u32> = priced.batch.members.iter().map(|m| m.elementary).collect();
            let star = stars.star(&members, &mut pricer).unwrap().unwrap();
            assert!(star.cost <= priced.cost, "{counting:?} {:?}", priced.batch);
            chains += u32::from(priced.batch.members.iter().any(|m| m.levels.len() > 1));
        }
    }
    assert!(chains > 20, "{chains}");
}

#[test]
fn fewer_parts_than_chosen_reserve_more_and_no_number_of_parts_costs_less() {
    let (machine, routes) = node();
    let network = Network::new(&machine);
    let calibration = calibration(10_000, 5_000);
    let mut pricer = Pricer::new(&network, Some(&calibration));
    let mut draw = Draw(51);
    for _ in 0..500 {
        let most = draw.between(1, 60);
        let granule = Bytes(draw.pick(&[1, 16, 4096]));
        let bytes = Bytes(draw.between(1, 200_000));
        let fewest = rules::fewest_parts(bytes, most, granule);
        let reserved = |parts| crate::plan::message::reserve(bytes, parts, granule);
        assert!(fewest <= most && reserved(fewest) == reserved(most));
        assert!(fewest == 1 || reserved(fewest - 1) > reserved(fewest));
        let other = crate::interconnect::BatchBlock { route: routes[1], bytes: Bytes(draw.between(1, 200_000)) };
        let mut cost = |parts| {
            let block = crate::interconnect::BatchBlock { route: routes[0], bytes: reserved(parts) };
            pricer.price(&[block, other]).unwrap()
        };
        let chosen = cost(fewest);
        assert!((1..=most).all(|parts| cost(parts) >= chosen));
    }
}
