//! A choice as a table for people (specification of transfers, 3.2).

use serde::Serialize;

use headway_core::files::machine::Machine;
use headway_core::models::index::EndpointId;
use headway_core::models::transfer::{
    Candidate, CostFigures, MethodChoice, MethodRequest, MethodVerdict, Price, Profile, TAIL_SAMPLES,
};

/// A choice laid out: one row per method, the chosen one first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// What was asked, as `4 KiB d2h gpu0, memory pinned, load bulk-same, 1 active GPU, objective p99`.
    pub question: String,
    /// Name of the machine whose figures these are.
    pub machine: String,
    /// Where the figures come from: the profile's source and date, or `default`.
    pub profile: String,
    pub rows: Vec<MethodRow>,
    /// What decided and what was assumed.
    pub why: Vec<String>,
}

/// A method and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MethodRow {
    /// The method's word.
    pub method: &'static str,
    /// The form's word, or nothing.
    #[serde(rename = "via")]
    pub form: &'static str,
    /// Predicted figures; `None` = not measured. Fewer than [`TAIL_SAMPLES`] copies have no 99th percentile: their longest one is
    /// the maximum.
    #[serde(flatten)]
    pub figures: CostFigures,
    /// What it keeps busy.
    #[serde(flatten)]
    pub price: Price,
    /// `chosen`, or `rejected: ` and the reason.
    pub verdict: String,
}

/// Lays out `choice`, which was made for `request` on `machine`.
#[must_use]
pub(super) fn lay_out(machine: &Machine, request: &MethodRequest, choice: &MethodChoice) -> Explanation {
    let row = |candidate: &Candidate| MethodRow {
        method: candidate.method.word(),
        form: candidate.method.form().unwrap_or(""),
        figures: CostFigures {
            p99: candidate.figures.p99.filter(|_| !(1..TAIL_SAMPLES).contains(&candidate.figures.n)),
            ..candidate.figures
        },
        price: candidate.price,
        verdict: match candidate.verdict {
            MethodVerdict::Chosen => "chosen".to_owned(),
            MethodVerdict::Rejected(reason) => format!("rejected: {reason}"),
        },
    };
    Explanation {
        question: question(machine, request),
        machine: machine.name.clone(),
        profile: source(&machine.profile, machine, choice),
        rows: choice.candidates.iter().map(row).collect(),
        why: choice.why.clone(),
    }
}

fn question(machine: &Machine, request: &MethodRequest) -> String {
    let name = |end: EndpointId| machine.endpoints.get(end.at()).map_or("?", |e| e.id.as_str());
    let ends = match request.peer {
        Some(peer) => format!("{} -> {}", name(request.gpu), name(peer)),
        None => name(request.gpu).to_owned(),
    };
    let pieces = if request.pieces > 1 { format!(" in {} pieces", request.pieces) } else { String::new() };
    let gpus = if request.active == 1 { "GPU" } else { "GPUs" };
    format!(
        "{}{pieces} {} {ends}, memory {}, load {}, {} active {gpus}, objective {}",
        request.bytes, request.direction, request.memory, request.load, request.active, request.objective
    )
}

fn source(profile: &Profile, machine: &Machine, choice: &MethodChoice) -> String {
    if choice.why.iter().any(|line| line.starts_with("default")) {
        return "default, not measured".to_owned();
    }
    match &profile.stamp {
        Some(stamp) => format!("{} source {} of {}", machine.hash, stamp.source, stamp.date),
        None => format!("{} without a stamp", machine.hash),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use headway_core::files::machine::parse;
    use headway_core::models::transfer::{
        Available, Direction, HostMemory, Method, MethodRequest, ResidentShape, WindowMapping, choose,
    };
    use headway_core::units::Bytes;

    #[test]
    fn a_choice_becomes_a_question_a_source_and_a_row_for_each_method() {
        let text = include_str!("../../../headway-core/tests/machines/h200-x1.toml");
        let machine = parse("h200-x1", text).expect("it parses");
        let gpu = machine.gpus().next().expect("it has one");
        let methods =
            BTreeSet::from([Method::Window(Some(WindowMapping::Vulkan)), Method::Resident(Some(ResidentShape::Hub))]);
        let available = Available { methods, ..Available::default() };
        let request = MethodRequest::new(gpu, Direction::H2d, HostMemory::Touched, Bytes(4096));
        let explained = lay_out(&machine, &request, &choose(&machine.profile, &request, &available));
        assert_eq!(explained.question, "4 KiB h2d gpu0, memory warm, load alone, 1 active GPU, objective median");
        assert_eq!(explained.profile, "default, not measured");
        let rows: Vec<_> = explained.rows.iter().map(|row| (row.method, row.form, row.verdict.as_str())).collect();
        let missing = "rejected: not usable here; `headway doctor` says why";
        let expected = [
            ("window", "vulkan", "chosen"),
            ("window", "gdrdrv", missing),
            ("window", "dma-buf", missing),
            ("pageable", "", "rejected: slower"),
            ("staged", "", missing),
            ("dma", "", "rejected: needs pinned memory"),
            ("resident", "hub", "rejected: not measured in this situation"),
        ];
        assert_eq!(rows, expected);
        let json = serde_json::to_value(&explained.rows[0]).expect("plain data");
        assert_eq!(json["median"], 2_500);
        assert_eq!(json["max"], serde_json::Value::Null);
    }
}
