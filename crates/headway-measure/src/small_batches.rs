//! Set-ups and submissions as batches meet them. One copy that is repeated by itself finds its thread, its queue and the
//! driver's memory warm: on H200s the calls of mixed batches take half as long again, and their first copy begins up to 1 us
//! later. Small random batches show by how much; of copies between GPUs those in which no copy waits for another GPU's, which
//! take a hand-over by the host more.

use std::collections::BTreeMap;

use headway_core::files::machine::{EngineClass, Machine, RouteId};
use headway_core::interconnect::Network;
use headway_core::interconnect::fit::FitError;
use headway_core::models::transfer::Method;
use headway_core::units::Nanos;

use super::batches::{BatchDraw, BatchTiming, Lazy, Mix, Routes, TrialBlock};
use super::links::median;
use super::session::Session;
use super::sets::{SetMemory, SetTransfer};
use crate::Error;

/// Batches of each of [`MIXES`], and repetitions of each batch.
const BATCHES: usize = 12;
const REPEATS: usize = 5;
/// Batches of copies of one kind.
const MIXES: [Mix; 3] = [Mix::In, Mix::Out, Mix::Peers];
/// Longest block: set-ups are most of the time of shorter ones.
const LARGEST: usize = 1 << 20;
/// Seed of the batches, which no others are drawn with.
const SEED: u64 = 0x7265_6865_6172_7365;

/// A batch and its repetitions.
pub(super) type Ran = (Vec<TrialBlock>, Vec<BatchTiming>);

/// Runs small batches of copies of one kind on GPUs that reach each other as `reaches` says.
pub(super) fn measure(
    session: &mut Session<'_>,
    bed: &mut Lazy<'_>,
    gpus: usize,
    reaches: impl Fn(usize, usize) -> bool,
) -> Result<Vec<Ran>, Error> {
    let any_peers = (0..gpus).any(|from| (0..gpus).any(|to| reaches(from, to)));
    let mixes = &MIXES[..if any_peers { 3 } else { 2 }];
    session.phase("small batches", mixes.len() * BATCHES);
    let mut draw = BatchDraw::new(SEED, gpus, reaches, SetMemory::of(LARGEST.min(bed.room().largest)));
    let mut ran: Vec<Ran> = Vec::new();
    while ran.len() < mixes.len() * BATCHES {
        let batch = draw.batch();
        let mix = Mix::of(&batch);
        let is_open = mixes.contains(&mix)
            && !has_hand_over(&batch)
            && ran.iter().filter(|(other, _)| Mix::of(other) == mix).count() < BATCHES;
        if is_open {
            let took = bed.run(session, &format!("small batches {}", ran.len()), &batch, REPEATS)?;
            ran.push((batch, took));
            session.advance()?;
        }
    }
    Ok(ran)
}

/// Whether some copy waits on an engine for a copy of another queue.
fn has_hand_over(batch: &[TrialBlock]) -> bool {
    let mut owners = BTreeMap::new();
    let held = batch.iter().flat_map(|block| block.member.engines().map(|engine| (engine, block.member.queue())));
    held.into_iter().any(|(engine, queue)| *owners.entry(engine).or_insert(queue) != queue)
}

/// Puts into `machine` what the batches `ran` show: the median call of each kind of copy that was not a batch's first, and the
/// set-up of an idle engine with which predictions are too long as often as too short.
pub(super) fn put(machine: &mut Machine, ran: &[Ran]) -> Result<(), Error> {
    let mut calls: BTreeMap<EngineClass, Vec<u64>> = BTreeMap::new();
    for (batch, took) in ran {
        for (at, block) in batch.iter().enumerate().skip(1) {
            calls.entry(class(block.member)).or_default().extend(took.iter().map(|took| took.calls[at].0));
        }
    }
    for (class, calls) in calls {
        let submit = Nanos(median(calls));
        change(machine, class, |route| route.submit = submit.min(route.setup));
    }
    let mut late: BTreeMap<EngineClass, Vec<i64>> = BTreeMap::new();
    let (routes, network) = (Routes::of(machine), Network::new(machine));
    for (batch, took) in ran {
        let trial = routes.trial(batch, took)?;
        let judged = trial.judge(&network, None).map_err(FitError::from)?;
        late.entry(class(batch[0].member))
            .or_default()
            .push(signed(judged.measured()) - signed(judged.wcet.prediction));
    }
    for (class, late) in late {
        let more = median(late);
        change(machine, class, |route| {
            route.setup = Nanos(route.setup.0.saturating_add_signed(more)).max(route.setup_queued).max(route.submit);
        });
    }
    Ok(())
}

/// Changes the routes of pinned copies of `class`.
fn change(machine: &mut Machine, class: EngineClass, mut to: impl FnMut(&mut headway_core::files::machine::Route)) {
    for at in 0..machine.routes.len() {
        let is_of = machine.class(RouteId(at as u32)) == class;
        if let Some(route) = machine.routes.get_mut(at).filter(|route| is_of && route.method != Method::Pageable) {
            to(route);
        }
    }
}

const fn class(member: SetTransfer) -> EngineClass {
    match member {
        SetTransfer::H2d(_) => EngineClass::H2d,
        SetTransfer::D2h(_) => EngineClass::D2h,
        SetTransfer::Peer(..) => EngineClass::Peer,
    }
}

fn signed(time: Nanos) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use headway_core::files::machine::shipped;

    use super::*;

    /// What batches would take on `truth`, with calls as long as its submissions.
    fn ran(truth: &Machine, batches: usize) -> Vec<Ran> {
        let (routes, network) = (Routes::of(truth), Network::new(truth));
        let mut draw = BatchDraw::new(5, 2, |_, _| true, SetMemory::of(LARGEST));
        let all = std::iter::repeat_with(|| draw.batch());
        let of_one_kind = all.filter(|batch| MIXES.contains(&Mix::of(batch)) && !has_hand_over(batch));
        let run = |batch: Vec<TrialBlock>| {
            let order = routes.order(&batch).expect("the machine has all routes");
            let ends = network.completion(&order).expect("every block has a rate").blocks;
            let calls = order.iter().map(|block| truth.routes[block.route.at()].submit).collect();
            (batch, vec![BatchTiming { ends, calls }])
        };
        of_one_kind.take(batches).map(run).collect()
    }

    #[test]
    fn set_ups_that_a_warm_copy_hides_are_found_again_for_each_kind() {
        let mut truth = shipped("h200-x4").expect("it is shipped").with_gpus(2).expect("it has two");
        for (at, class) in [EngineClass::H2d, EngineClass::D2h, EngineClass::Peer].into_iter().enumerate() {
            change(&mut truth, class, |route| {
                route.setup = Nanos(8_000 + 1_000 * at as u64);
                (route.setup_queued, route.submit) = (Nanos(2_500), Nanos(1_800 + 100 * at as u64));
            });
        }
        let ran = ran(&truth, 60);
        let mut machine = truth.clone();
        for class in [EngineClass::H2d, EngineClass::D2h, EngineClass::Peer] {
            change(&mut machine, class, |route| (route.setup, route.submit) = (Nanos(7_200), Nanos(1_400)));
        }
        put(&mut machine, &ran).expect("every route is there");
        for (found, true_) in machine.routes.iter().zip(&truth.routes).filter(|(r, _)| r.method != Method::Pageable) {
            assert_eq!(found.submit, true_.submit);
            assert!(found.setup.0.abs_diff(true_.setup.0) <= 20, "{found:?} for {true_:?}");
        }
        // The driver's copies of ordinary memory stay as they are.
        let others = |machine: &Machine| {
            let routes = machine.routes.iter().filter(|route| route.method == Method::Pageable);
            routes.map(|route| (route.setup, route.submit)).collect::<Vec<_>>()
        };
        assert_eq!(others(&machine), others(&truth));
    }

    #[test]
    fn only_copies_between_three_gpus_or_more_are_handed_over() {
        let batch =
            |members: &[SetTransfer]| members.iter().map(|&member| TrialBlock { member, bytes: 1 }).collect::<Vec<_>>();
        use SetTransfer::{D2h, H2d, Peer};
        assert!(!has_hand_over(&batch(&[H2d(0), D2h(0), H2d(0), Peer(0, 1), Peer(1, 0), Peer(0, 2), Peer(0, 1)])));
        assert!(has_hand_over(&batch(&[Peer(0, 1), Peer(0, 2), Peer(2, 1)])));
    }

    #[test]
    fn a_negative_correction_leaves_what_a_call_and_a_queued_copy_take() {
        let mut truth = shipped("h200-x4").expect("it is shipped").with_gpus(2).expect("it has two");
        let mut machine = truth.clone();
        for class in [EngineClass::H2d, EngineClass::D2h, EngineClass::Peer] {
            change(&mut truth, class, |route| (route.setup, route.setup_queued) = (Nanos(3_000), Nanos(2_500)));
            change(&mut machine, class, |route| (route.setup, route.setup_queued) = (Nanos(9_000), Nanos(4_000)));
        }
        put(&mut machine, &ran(&truth, 30)).expect("every route is there");
        for route in machine.routes.iter().filter(|route| route.method != Method::Pageable) {
            assert_eq!(route.setup, Nanos(4_000), "{route:?}");
        }
    }
}
