//! What the stream framework accepts, the general planner accepts, and no window is late in simulation.

#[path = "../../headway-sim/tests/support/mod.rs"]
mod support;

use self::support::{Null, logged, run_of};
use headway_core::decisions::dispatch::DispatchEvent;
use headway_core::files::machine::shipped;
use headway_core::files::workload::parse;
use headway_core::log::RecordBody;
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{Outcome, Strategy};
use headway_lab::simulation::verner::pools::{KINDS, Reading};
use headway_lab::simulation::verner::{StreamPool, best_split, longest_prefix, site, workload};

/// Bits per second that no node of the test carries.
const POOL: u64 = 68_000_000_000;

#[test]
fn the_planner_accepts_what_the_framework_accepts_and_no_window_is_late() {
    for (name, policy, strategy) in [
        ("verner-r1", Strategy::Serial, Strategy::Serial),
        ("verner-r2", Strategy::Lockstep, Strategy::Serial),
        ("verner-r1", Strategy::Lockstep, Strategy::Serial),
        ("verner-r1", Strategy::Partitioned, Strategy::Partitioned),
        ("verner-r1", Strategy::Combined, Strategy::Combined),
        ("verner-r2", Strategy::Combined, Strategy::Combined),
    ] {
        let machine = shipped(name).unwrap();
        let site = site(&machine).unwrap();
        let pool = StreamPool::new(KINDS[11].pool(Reading::Truncate, 0, POOL));
        let border = longest_prefix(&site, policy, &pool, 64).unwrap().streams;
        let split = best_split(&site, policy, &pool, border).unwrap().expect("the border is accepted");
        let text = workload("aes", &machine, policy, &split.load).unwrap();
        let parsed = parse("aes.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}")).value;
        let planned = plan(&machine, &parsed, PlanOptions { strategy: Some(strategy) }).unwrap();
        assert_eq!(planned.verdict.outcome, Outcome::Schedulable, "{name} {policy:?}: {:?}\n{text}", planned.verdict);
        let (outcome, log) = logged(&planned, &machine, &run_of(&planned, 50), &mut Null::full(&planned));
        assert!(outcome.unwrap().finished);
        let late = log.iter().filter(|record| {
            matches!(record.what, RecordBody::Event(DispatchEvent::Late { .. } | DispatchEvent::Overrun { .. }))
        });
        assert_eq!(late.count(), 0, "{name} {policy:?}");
        // One stream in twenty more is too much for the same plan.
        let mut more = split.load.clone();
        more.blocks.iter_mut().flatten().for_each(|block| block.0 += block.0 / 20);
        let text = workload("aes", &machine, policy, &more).unwrap();
        let parsed = parse("aes.toml", &text).unwrap().value;
        let refused = plan(&machine, &parsed, PlanOptions { strategy: Some(strategy) }).unwrap();
        assert_eq!(refused.verdict.outcome, Outcome::NotSchedulable, "{name} {policy:?}");
    }
}
