//! Lines of `taskid,workload,period,wcet`, and the latency targets of MLPerf.

use std::collections::BTreeMap;

use csv::{ReaderBuilder, Trim};
use headway_core::files::workload::ServerDemand;
use headway_core::units::{NANOS_PER_SECOND, Nanos};

use super::write::name;
use super::{Demands, FormatError, excerpt, integer, milliseconds, time};

const TASKS: [&str; 4] = ["taskid", "workload", "period", "wcet"];

/// Reads one task a line, deadline = period.
pub(super) fn read_tasks(text: &str, unit: Nanos) -> Result<Demands, FormatError> {
    let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(text.as_bytes());
    let header = reader.headers()?;
    if !header.iter().map(str::to_lowercase).eq(TASKS) {
        let found = excerpt(&header.iter().collect::<Vec<_>>().join(","));
        return Err(FormatError::Columns { expected: "taskid,workload,period,wcet", found });
    }
    let mut demands = Vec::new();
    for record in reader.records() {
        let record = record?;
        let place = format!("line {}", record.position().map_or(0, csv::Position::line));
        let at = |column: usize| time(&place, integer(&place, &record[column])?, unit);
        let (period, cost) = (at(2)?, at(3)?);
        let id = name(&format!("{}:{}", &record[0], &record[1]));
        demands.push(ServerDemand { id, server: String::new(), start: Nanos::ZERO, cost, period, deadline: period });
    }
    Ok((demands, Vec::new()))
}

/// Reads lines of `model.scenario.key = value` and makes a demand of every model with a latency target for the scenario
/// `Server`: a query each `1 / target_qps`, done within `target_latency` milliseconds.
pub(super) fn read_mlperf(text: &str, cost: Option<Nanos>) -> Result<Demands, FormatError> {
    let mut values: BTreeMap<(&str, &str, &str), (usize, &str)> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let bad = || FormatError::Value {
            place: format!("line {number}"),
            value: excerpt(line),
            expected: "of the form `model.scenario.key = value`",
        };
        let (path, value) = line.split_once('=').ok_or_else(bad)?;
        // A model may have a point in its name, scenario and key have none.
        let (rest, key) = path.trim().rsplit_once('.').ok_or_else(bad)?;
        let (model, scenario) = rest.rsplit_once('.').ok_or_else(bad)?;
        values.insert((model, scenario, key), (number, value.trim()));
    }
    let find = |model: &str, key: &str| {
        let places = [(model, "Server"), (model, "*"), ("*", "Server"), ("*", "*")];
        places.into_iter().find_map(|(model, scenario)| values.get(&(model, scenario, key)).copied())
    };
    let models: Vec<&str> = values
        .keys()
        .filter(|(model, scenario, key)| *model != "*" && *scenario == "Server" && *key == "target_latency")
        .map(|key| key.0)
        .collect();
    if models.is_empty() {
        let (place, what) = ("the file".to_owned(), "line `MODEL.Server.target_latency = MILLISECONDS`");
        return Err(FormatError::Missing { place, what });
    }
    let cost = cost.ok_or(FormatError::Open { what: "what a query costs", flag: "--cost" })?;
    let mut demands = Vec::new();
    for model in models {
        let place = |number: usize| format!("line {number}");
        let missing = |what| FormatError::Missing { place: format!("model `{}`", excerpt(model)), what };
        let (line, latency) = find(model, "target_latency").ok_or_else(|| missing("target_latency"))?;
        let deadline = milliseconds(&place(line), latency)?;
        let (line, rate) = find(model, "target_qps").ok_or_else(|| missing("target_qps"))?;
        let period = period(rate).ok_or_else(|| FormatError::Value {
            place: place(line),
            value: excerpt(rate),
            expected: "a number of queries per second, from 0.000001 to 1000000000",
        })?;
        demands.push(ServerDemand {
            id: name(model),
            server: String::new(),
            start: Nanos::ZERO,
            cost,
            period,
            deadline,
        });
    }
    let notes = vec![
        "MLPerf's arrivals are random with `target_qps` as their mean; the demands have that distance at least"
            .to_owned(),
        "percentiles are left out: every query is to meet its deadline".to_owned(),
        "scenarios other than `Server` have no deadlines and are left out".to_owned(),
    ];
    Ok((demands, notes))
}

/// The time between queries, rounded down.
fn period(rate: &str) -> Option<Nanos> {
    let (whole, fraction) = rate.split_once('.').unwrap_or((rate, ""));
    let digits = |text: &str| text.len() <= 12 && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || whole.is_empty() {
        return None;
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let rate: u128 = format!("{whole}{fraction}").parse().ok()?;
    let period = (u128::from(NANOS_PER_SECOND) * scale).checked_div(rate)?;
    u64::try_from(period).ok().filter(|&p| p > 0 && p <= 1_000_000 * NANOS_PER_SECOND).map(Nanos)
}
