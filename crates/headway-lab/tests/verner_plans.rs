//! What the stream framework accepts, the general planner accepts, and no window is late in simulation.

#[path = "../../headway-sim/tests/support/mod.rs"]
mod support;

use std::fmt::Write as _;

use self::support::{Null, logged, run_of};
use headway_core::decisions::dispatch::DispatchEvent;
use headway_core::files::machine::{Machine, shipped};
use headway_core::files::workload::parse;
use headway_core::log::RecordBody;
use headway_core::plan::planner::{PlanOptions, plan};
use headway_core::plan::{Outcome, Strategy};
use headway_core::units::Nanos;
use headway_lab::simulation::verner::load::BlockLoad;
use headway_lab::simulation::verner::pools::{KINDS, Reading};
use headway_lab::simulation::verner::{KERNEL, StreamPool, best_split, longest_prefix, site};

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

/// The transfers of `load` as messages and its kernels as demands; `None` for [`Strategy::Generation`], whose steps are one
/// job, and for machines without a memory or the kernel.
///
/// Lock-step moves all blocks of one direction as one message and is planned one message at a time; the other policies
/// have a message per block.
fn workload(name: &str, machine: &Machine, policy: Strategy, load: &BlockLoad) -> Option<String> {
    let host = machine.memories().next().map(|host| machine.endpoints[host.at()].id.as_str())?;
    let gpus: Vec<_> = machine.gpus().collect();
    let id = |gpu: usize| machine.endpoints[gpus[gpu].at()].id.as_str();
    let mut text = format!("name = \"{name}\"\n");
    let block = |gpu: usize, class: usize, inwards: bool| {
        let (from, to) = if inwards { (host, id(gpu)) } else { (id(gpu), host) };
        format!("{{ from = \"{from}\", to = \"{to}\", bytes = \"{} B\" }}", load.blocks[gpu][class].0)
    };
    let mut message = |id: String, period: Nanos, blocks: Vec<String>| {
        let blocks = blocks.join(", ");
        let _ = write!(text, "\n[[message]]\nid = \"{id}\"\nperiod = \"{} ns\"\nblocks = [{blocks}]\n", period.0);
    };
    let classes = load.blocks.first().map_or(0, Vec::len);
    let full = |class: usize| (0..gpus.len()).filter(move |&gpu| load.blocks[gpu][class].0 > 0);
    match policy {
        Strategy::Generation => return None,
        Strategy::Lockstep => {
            for (id, inwards) in [("in", true), ("out", false)] {
                message(id.to_owned(), load.window, full(0).map(|gpu| block(gpu, 0, inwards)).collect());
            }
        }
        _ => {
            for class in 0..classes {
                for gpu in full(class) {
                    for (way, inwards) in [("in", true), ("out", false)] {
                        let id = format!("{}.{way}{class}", id(gpu));
                        message(id, load.cycle(class), vec![block(gpu, class, inwards)]);
                    }
                }
            }
        }
    }
    for class in 0..classes {
        for gpu in full(class) {
            let kernel = machine.kernel(KERNEL, gpus[gpu])?;
            let cost = kernel.cost(load.blocks[gpu][class], load.chains[gpu][class]).0;
            let (id, period) = (id(gpu), load.cycle(class).0);
            let _ = write!(
                text,
                "\n[[demand]]\nid = \"{id}.{KERNEL}{class}\"\nserver = \"{id}.ee\"\ncost = \"{cost} ns\"\nperiod = \"{period} ns\"\n\
                 deadline = \"{period} ns\"\n"
            );
        }
    }
    Some(text)
}
