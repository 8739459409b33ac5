//! What `--backend emu` imitates, and how results say so.

use headway_core::files::machine::{EngineClass, Machine};
use headway_core::units::Rate;
use headway_device::emu::EmuSpec;

use crate::Error;

/// Machines that are imitated if none is named: the first one with as many GPUs as were asked for.
const USUAL: [&str; 2] = ["h200-x1", "h200-x4"];

/// The machine that the emulated backend imitates: `model`, by default the smallest H200 machine with `gpus` GPUs; only its
/// first `gpus` GPUs.
///
/// # Errors
/// `ErrorKind::Machine`, and what reading `model` gives.
pub fn machine(model: Option<&str>, gpus: Option<usize>) -> Result<Machine, Error> {
    let wanted = gpus.unwrap_or(1);
    let mut machine = crate::machine::open(model.unwrap_or(USUAL[0]))?;
    for name in USUAL {
        if model.is_none() && machine.gpus().count() < wanted {
            machine = crate::machine::open(name)?;
        }
    }
    match gpus {
        Some(gpus) => crate::machine::restrict(&machine, gpus),
        None => Ok(machine),
    }
}

/// What emulated GPUs of `machine` stand for, and what they do not, as a sentence.
pub fn imitates(machine: &Machine) -> String {
    let gpus = machine.gpus().count();
    let plural = if gpus == 1 { "GPU" } else { "GPUs" };
    format!(
        "threads and memory of this computer imitate {gpus} {plural} of machine `{}` ({}): copies at most at {} in and {} out, \
         kernels no faster than in that file; links that GPUs share are not imitated, and no time here says anything about a GPU",
        machine.name,
        machine.hash,
        range(machine, EngineClass::H2d),
        range(machine, EngineClass::D2h),
    )
}

/// The rate at which engines of `class` are held; two where GPUs differ.
fn range(machine: &Machine, class: EngineClass) -> String {
    let rates = || rates(machine, class);
    match (rates().min(), rates().max()) {
        (Some(least), Some(most)) if least == most => least.to_string(),
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => "the rate of this computer".to_owned(),
    }
}

/// The rate at which each GPU's engine of `class` is held.
fn rates(machine: &Machine, class: EngineClass) -> impl Iterator<Item = Rate> {
    let of_gpu = move |gpu| EmuSpec::of_machine(machine, gpu).pace(class).and_then(|pace| pace.rate);
    machine.gpus().filter_map(of_gpu)
}

/// Plans add at most this much to each cost, in parts per million, before they say little about what was measured.
const MARGIN_MAX_PPM: u64 = 500_000;

/// Why plans from `measured` would be of no use, one reason each; `imitated` is the machine that was emulated.
pub fn useless(measured: &Machine, imitated: Option<&Machine>) -> Vec<String> {
    let mut reasons = Vec::new();
    match &measured.calibration {
        None => reasons.push(
            "no batches of concurrent copies were compared with the model, so that plans have no margin and send one copy at \
             a time"
                .to_owned(),
        ),
        Some(found) if found.margin_ppm > MARGIN_MAX_PPM => reasons.push(format!(
            "copies kept so little to the model that plans add {} % to every cost, more than {} %: this computer was busy, \
             or has too few CPUs",
            found.margin_ppm / 10_000,
            MARGIN_MAX_PPM / 10_000
        )),
        Some(_) => {}
    }
    for (class, direction) in [(EngineClass::H2d, "into"), (EngineClass::D2h, "out of")] {
        let Some(imitated) = imitated else { continue };
        let slow = rates(measured, class).zip(rates(imitated, class)).find(|(found, held)| found.0 < held.0 / 2);
        if let Some((found, held)) = slow {
            reasons.push(format!(
                "copies {direction} an emulated GPU reach {found}, less than half of the {held} that machine `{}` has: this \
                 computer copies too slowly, or the sizes measured are too small",
                imitated.name
            ));
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;

    #[test]
    fn as_many_gpus_are_imitated_as_were_asked_for() {
        let named = |gpus| machine(None, gpus).map(|machine| (machine.name.clone(), machine.gpus().count()));
        assert_eq!(named(None).unwrap(), ("h200-x1".to_owned(), 1));
        assert_eq!(named(Some(1)).unwrap(), ("h200-x1".to_owned(), 1));
        for gpus in 2..=4 {
            assert_eq!(named(Some(gpus)).unwrap(), ("h200-x4".to_owned(), gpus));
        }
        assert!(matches!(
            named(Some(5)).map_err(Error::into_failure),
            Err(Failure::TooFewGpus { wanted: 5, available: 4, .. })
        ));
        // Whoever names a machine gets that one.
        assert!(matches!(
            machine(Some("h200-x1"), Some(2)).map_err(Error::into_failure),
            Err(Failure::TooFewGpus { available: 1, .. })
        ));
        assert_eq!(machine(Some("gpusync-8xgtx470"), Some(5)).unwrap().gpus().count(), 5);
    }

    #[test]
    fn what_is_imitated_is_named_with_its_rates() {
        let text = imitates(&machine(None, Some(2)).unwrap());
        for part in ["2 GPUs of machine `h200-x4`", "GB/s in and", "GB/s out", "no time here says anything about a GPU"]
        {
            assert!(text.contains(part), "`{part}` is missing: {text}");
        }
    }

    #[test]
    fn a_file_is_useless_for_plans_without_batches_with_a_huge_margin_or_with_slow_copies() {
        let imitated = machine(None, None).unwrap();
        assert_eq!(useless(&imitated, Some(&imitated)), Vec::<String>::new());
        let mut unchecked = imitated.clone();
        unchecked.calibration = None;
        assert!(useless(&unchecked, None)[0].contains("no batches"));
        let mut wide = imitated.clone();
        wide.calibration.as_mut().unwrap().margin_ppm = 2_400_000;
        assert!(useless(&wide, None)[0].contains("plans add 240 % to every cost"));
        let mut slow = imitated.clone();
        slow.capacities.iter_mut().for_each(|capacity| capacity.rate.0 /= 3);
        let reasons = useless(&slow, Some(&imitated));
        assert!(reasons.len() == 2 && reasons[0].contains("less than half"), "{reasons:?}");
    }
}
