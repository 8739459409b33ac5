//! The same batches predicted with parts of the model left out: what each part is worth.

use headway_core::files::machine::{CapacityKind, Machine};
use headway_core::interconnect::{Accuracy, Judged};
use headway_core::units::Nanos;
use serde::Serialize;

use super::{Errors, Ran, judge};
use headway_measure::Error;

/// One form of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Variant {
    /// What is left out.
    pub model: &'static str,
    /// Errors of the last end of each batch.
    pub batches: Errors,
    /// Errors of the end of each block.
    pub blocks: Errors,
}

type Change = fn(&mut Machine);

const CHANGES: &[(&str, Change)] = &[
    ("whole model", |_| ()),
    ("submission takes no time", |machine| machine.routes.iter_mut().for_each(|route| route.submit = Nanos::ZERO)),
    ("no set-up", |machine| {
        for route in &mut machine.routes {
            (route.setup, route.setup_queued, route.submit) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
        }
    }),
    ("links and limits, without measured sets", links_and_limits),
    ("of these: directions of a link do not slow each other", |machine| {
        links_and_limits(machine);
        for capacity in &mut machine.capacities {
            if let CapacityKind::Link { opposite: Some((_, both)), .. } = &mut capacity.kind {
                *both = capacity.rate;
            }
        }
    }),
    ("of these: equal weights", |machine| {
        links_and_limits(machine);
        machine.routes.iter_mut().for_each(|route| route.weight = 1_000);
    }),
    ("of these: no shared limits", |machine| {
        links_and_limits(machine);
        let is_link: Vec<bool> = machine.capacities.iter().map(|c| c.kind != CapacityKind::Limit).collect();
        machine.routes.iter_mut().for_each(|route| route.uses.retain(|(id, _)| is_link[id.at()]));
    }),
];

/// Leaves out the measured sets, which would bring back what a part of the model says.
fn links_and_limits(machine: &mut Machine) {
    machine.sets.clear();
}

/// Every form of the model beside what was measured; the last one takes the blocks one after the other.
pub(super) fn compare(machine: &Machine, ran: &[Ran], whole: &[Judged]) -> Result<Vec<Variant>, Error> {
    let mut variants = Vec::new();
    for (model, change) in CHANGES {
        let mut machine = machine.clone();
        change(&mut machine);
        variants.push(variant(model, &judge(&machine, ran)?));
    }
    let serial: Vec<Judged> = whole
        .iter()
        .map(|judged| {
            let mut judged = judged.clone();
            judged.wcet.prediction = judged.wcet.serial;
            judged.blocks_predicted.clear();
            judged
        })
        .collect();
    variants.push(variant("one block after the other, lowest rates", &serial));
    Ok(variants)
}

fn variant(model: &'static str, judged: &[Judged]) -> Variant {
    let batches = Accuracy::of(judged.iter().map(Judged::error_ppm).collect());
    let blocks = Accuracy::of(judged.iter().flat_map(Judged::block_errors_ppm).collect());
    Variant { model, batches: batches.into(), blocks: blocks.into() }
}
