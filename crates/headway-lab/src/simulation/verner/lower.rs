//! An accepted load as a workload file, for the general planner and for runs.

use headway_core::plan::Strategy;
use std::fmt::Write as _;

use super::load::BlockLoad;
use headway_core::files::machine::Machine;
use headway_core::units::Nanos;

use super::border::KERNEL;

/// The transfers of `load` as messages and its kernels as flows; `None` for [`Strategy::Generation`], whose steps are one
/// job, and for machines without a memory or the kernel.
///
/// Lock-step moves all blocks of one direction as one message and is planned one message at a time; the other policies
/// have a message per block.
#[must_use]
pub fn workload(name: &str, machine: &Machine, policy: Strategy, load: &BlockLoad) -> Option<String> {
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
