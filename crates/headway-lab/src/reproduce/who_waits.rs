//! How long a small copy waits while a bulk copy runs, by what the bulk copy's stream meets between its pieces.

use std::time::Duration;

use headway::gpus::arbitration::{ArbitrationBed, BulkAndSmall, BulkCopy, BulkStreamGap, Hand, Small};
use headway_core::models::transfer::Direction;
use headway_core::units::Nanos;
use headway_os::clock;

use super::{ExperimentResults, ExperimentSetting, PaperRow, PaperVerdict, RawFigures, raw_figures, silent};
use crate::Error;
use headway::run::Backend;
use headway_measure::child;
use headway_measure::plot::{Figure, PlotLine};
use headway_measure::rival::{self, Rival};
use headway_measure::sample::SampleFigures;

const MIB: usize = 1 << 20;
/// Small copies: what a program reads back of a step.
const TOKEN: usize = 64;
/// The piece of most rows.
const PIECE: usize = 4 * MIB;
/// Blocks of the kernel that makes larger small copies.
const BLOCKS: u32 = 16;
/// A row goes on for so long, or for as many bulk copies.
const TIME_MAX: Duration = Duration::from_secs(6);
/// Samples that a row is to have: fewer have no 99th percentile.
const SAMPLES: usize = 100;
const ROUNDS_MAX: usize = 400;

/// One row: what is beside what.
#[derive(Clone, Debug)]
struct Case {
    what: String,
    bulk: BulkCopy,
    small: Small,
    /// Whether another process makes the small copies.
    is_foreign: bool,
}

/// What a row came to.
struct RowResult {
    case: Case,
    small: SampleFigures,
    bulk: Nanos,
    /// Of the bulk copy's rate when it is whole and alone.
    share: f64,
}

const OUT: Direction = Direction::D2h;
const IN: Direction = Direction::H2d;
const BARRIER: BulkStreamGap = BulkStreamGap::Write { barrier: true };

fn small(direction: Direction) -> Small {
    Small { direction, bytes: TOKEN, hand: Hand::Engine, urgent: false, queued_first: false }
}

fn cases(bulk_bytes: usize, has_priorities: bool) -> Vec<Case> {
    let bulk = |direction, piece, between| BulkCopy { direction, piece, between };
    let whole = |direction| bulk(direction, bulk_bytes, BulkStreamGap::Nothing);
    let case = |what: &str, bulk, small| Case { what: what.to_owned(), bulk, small, is_foreign: false };
    let out = |what: &str, between| case(what, bulk(OUT, PIECE, between), small(OUT));
    let large = |hand| Small { bytes: MIB, hand, ..small(OUT) };
    let kernel = |blocks| Hand::Kernel { blocks };
    let mut all = vec![
        case("whole", whole(OUT), small(OUT)),
        case(
            "whole, the small copy queued first and ready later",
            whole(OUT),
            Small { queued_first: true, ..small(OUT) },
        ),
        out("pieces", BulkStreamGap::Nothing),
        out("pieces in one call", BulkStreamGap::OneCall),
        out("pieces, an event behind each", BulkStreamGap::Event),
        out("pieces, a word written behind each, without a barrier", BulkStreamGap::Write { barrier: false }),
        out("pieces on two streams by turns, with events", BulkStreamGap::OtherStream),
    ];
    if has_priorities {
        all.push(case("whole, priorities", whole(OUT), Small { urgent: true, ..small(OUT) }));
        let urgent = Small { urgent: true, ..small(OUT) };
        all.push(case("pieces, priorities", bulk(OUT, PIECE, BulkStreamGap::Nothing), urgent));
    }
    for mib in [1, 2, 4, 8, 16, 32] {
        let what = format!("pieces of {mib} MiB, a word written behind each, with a barrier");
        all.push(case(&what, bulk(OUT, mib * MIB, BARRIER), small(OUT)));
    }
    all.extend([
        case("whole, the small copy by a kernel", whole(OUT), Small { hand: kernel(1), ..small(OUT) }),
        case("whole, 1 MiB beside it", whole(OUT), large(Hand::Engine)),
        case("pieces with words, 1 MiB beside it", bulk(OUT, PIECE, BARRIER), large(Hand::Engine)),
        case("whole, 1 MiB by a kernel", whole(OUT), large(kernel(BLOCKS))),
        case("whole, in", whole(IN), small(IN)),
        case("pieces, in", bulk(IN, PIECE, BulkStreamGap::Nothing), small(IN)),
        case("whole in, small out", whole(IN), small(OUT)),
        case("whole out, small in", whole(OUT), small(IN)),
    ]);
    let foreign = |what: &str, bulk, small| Case { is_foreign: true, ..case(what, bulk, small) };
    all.extend([
        foreign("whole, another process", whole(OUT), small(OUT)),
        foreign("pieces with words, another process", bulk(OUT, PIECE, BARRIER), small(OUT)),
        foreign("whole, another process by a kernel", whole(OUT), Small { hand: kernel(1), ..small(OUT) }),
    ]);
    all
}

/// Bulk copies with small ones beside them, until there are enough.
fn bulk_with_small(gpu: &mut ArbitrationBed, case: &Case, rounds: usize) -> Result<BulkAndSmall, Error> {
    let (mut bulk, mut small, since) = (Vec::new(), Vec::new(), clock::now());
    while bulk.len() < rounds && (bulk.len() < 2 || clock::now() - since < Nanos(TIME_MAX.as_nanos() as u64)) {
        let one = gpu.bulk_and_small(&case.bulk, &case.small)?;
        bulk.push(one.bulk);
        small.extend(one.small);
    }
    // What comes first sets things up.
    small.drain(..1.min(small.len() - 1));
    bulk.sort_unstable();
    Ok(BulkAndSmall { bulk: bulk[bulk.len() / 2], small })
}

/// Bulk copies, one behind the other, while another process makes small ones.
fn bulk_with_rival(gpu: &mut ArbitrationBed, case: &Case, samples: usize) -> Result<BulkAndSmall, Error> {
    let failed = |source| Error::Load { source };
    let order = rival::order(&case.small, 0, samples);
    let command = child::command(&order).map_err(failed)?;
    let mut rival = Rival::start(command).map_err(failed)?;
    let mut bulk = Vec::new();
    let small = loop {
        bulk.push(gpu.bulk(&case.bulk)?);
        if let Some(small) = rival.heard().map_err(failed)? {
            break small;
        }
    };
    bulk.sort_unstable();
    Ok(BulkAndSmall { bulk: bulk[bulk.len() / 2], small })
}

/// `who-waits`.
pub(super) fn run(setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
    if setting.backend != Backend::Cuda && setting.backend != Backend::Auto {
        return Err(headway::Failure::Options("this experiment asks a GPU's copy engines; use `--backend cuda`").into());
    }
    let (bulk_bytes, rounds) = if setting.quick { (128 * MIB, 10) } else { (1 << 30, ROUNDS_MAX) };
    let samples = if setting.quick { 2 * SAMPLES } else { 20 * SAMPLES };
    let (mut gpu, machine) = headway::gpus::arbitration::open(0, bulk_bytes)?;
    let mut whole = Vec::new();
    for direction in [OUT, IN] {
        let bulk = BulkCopy { direction, piece: bulk_bytes, between: BulkStreamGap::Nothing };
        let mut times = (0..6).map(|_| gpu.bulk(&bulk)).collect::<Result<Vec<_>, _>>()?;
        times.sort_unstable();
        whole.push((direction, times[times.len() / 2]));
    }
    let mut found = Vec::new();
    let mut outcome = ExperimentResults::new("who-waits", "cuda", machine, setting.seed);
    let alone = gpu.small(&small(OUT), samples)?;
    let alone = SampleFigures::of(&alone).ok_or(headway::Failure::Options("no small copy was made"))?;
    for case in cases(bulk_bytes, gpu.has_priorities()) {
        let made = if case.is_foreign {
            bulk_with_rival(&mut gpu, &case, samples)
        } else {
            // A copy that waits for the whole bulk copy gives one sample for each.
            bulk_with_small(&mut gpu, &case, rounds.min(SAMPLES + 10))
        };
        match made {
            Ok(BulkAndSmall { bulk, small }) => {
                let Some(small) = SampleFigures::of(&small) else { continue };
                let alone = whole.iter().find(|(direction, _)| *direction == case.bulk.direction);
                let share = alone.map_or(0.0, |(_, alone)| alone.0 as f64 / bulk.0.max(1) as f64);
                found.push(RowResult { case, small, bulk, share });
            }
            Err(error) => outcome.notes.push(format!("`{}` is left out: {error}", case.what)),
        }
    }
    outcome.notes.insert(0, format!(
        "A bulk copy of {} MiB between the GPU and page-locked memory on one stream, and {TOKEN} B on another one, again and again \
         while it is under way; pieces have {} MiB where no size is given. With nothing beside it the small copy takes {} (p99 {}, n {}). The \
         copies are the driver's own. Not from a paper.",
        bulk_bytes / MIB,
        PIECE / MIB,
        alone.median,
        alone.p99_text(),
        alone.n,
    ));
    outcome.notes.push(listed(&found));
    outcome.rows = verdicts(&found, alone.median);
    outcome.tables.push(table(&found));
    outcome.figures = figures(&found, &outcome);
    Ok(outcome)
}

/// Everything that was measured, as a table for people.
fn listed(found: &[RowResult]) -> String {
    let mut text = "| bulk copy, and what is beside it | small copy, median | p99 | longest | n | rate of bulk copies |\n|---|---|---|---|---|---|".to_owned();
    for RowResult { case, small, share, .. } in found {
        let line = (&case.what, small.median, small.p99_text(), small.max, small.n);
        text.push_str(&format!("\n| {} | {} | {} | {} | {} | {share:.3} |", line.0, line.1, line.2, line.3, line.4));
    }
    text
}

/// Whether these figures confirm what programs may rely on.
fn verdicts(found: &[RowResult], alone: Nanos) -> Vec<PaperRow> {
    let of = |what: &str| found.iter().find(|found| found.case.what == what);
    let is_long = |found: &RowResult| found.small.median.0 * 2 > found.bulk.0;
    let is_short = |found: &RowResult| found.small.median.0 * 10 < found.bulk.0;
    let check = |statement: &str, what: &str, holds: &dyn Fn(&RowResult) -> bool| {
        let found = of(what);
        let figures = |found: &RowResult| {
            format!("{} of {} (p99 {}, n {})", found.small.median, found.bulk, found.small.p99_text(), found.small.n)
        };
        PaperRow {
            what: statement.to_owned(),
            paper: silent("no paper"),
            ours: found.map_or_else(|| "not measured".to_owned(), figures),
            verdict: found.map_or(PaperVerdict::NotComparable, |found| PaperVerdict::own(holds(found))),
            why: "a check of our own: the median of the small copy against the time of the bulk copy beside it".into(),
        }
    };
    let piece =
        of("whole").map_or(Nanos::ZERO, |whole| Nanos(whole.bulk.0 * PIECE as u64 / whole.case.bulk.piece as u64));
    let by_kernel = move |found: &RowResult| found.small.median < piece.saturating_add(alone);
    let words = "pieces of 4 MiB, a word written behind each, with a barrier";
    vec![
        check("a small copy out waits for most of a whole bulk copy out", "whole", &is_long),
        check("it does so with the highest priority, too", "whole, priorities", &is_long),
        check("it does so if the bulk copy is queued in pieces", "pieces", &is_long),
        check("it does so if an event is behind each piece", "pieces, an event behind each", &is_long),
        check(
            "it does so if a word is written behind each piece without a barrier",
            "pieces, a word written behind each, without a barrier",
            &is_long,
        ),
        check("a word behind a barrier lets it in within a tenth of the bulk copy", words, &is_short),
        check("so do pieces on two streams by turns", "pieces on two streams by turns, with events", &is_short),
        check("a kernel makes it in less time than a piece takes", "whole, the small copy by a kernel", &by_kernel),
        check("a small copy in does not wait for a whole bulk copy in", "whole, in", &is_short),
    ]
}

fn table(found: &[RowResult]) -> RawFigures {
    let name = |direction| if direction == IN { "h2d" } else { "d2h" };
    raw_figures!("waits", found, |RowResult { case, small, bulk, share }| Columns {
        case: case.what,
        bulk_direction: name(case.bulk.direction),
        piece_bytes: case.bulk.piece,
        small_direction: name(case.small.direction),
        small_bytes: case.small.bytes,
        n: small.n,
        median_ns: small.median,
        p99_ns: small.p99_ns(),
        max_ns: small.max,
        bulk_ns: bulk,
        bulk_share: format!("{share:.4}"),
    })
}

/// The wait and the price by the length of pieces.
fn figures(found: &[RowResult], outcome: &ExperimentResults) -> Vec<(String, Figure)> {
    let is_swept = |found: &&RowResult| {
        found.case.bulk.between == BARRIER && found.case.small == small(OUT) && !found.case.is_foreign
    };
    let swept: Vec<&RowResult> = found.iter().filter(is_swept).collect();
    let line = |name: &str, of: fn(&RowResult) -> f64| {
        PlotLine::new(name, swept.iter().map(|found| ((found.case.bulk.piece / MIB) as f64, of(found))).collect())
    };
    let waits = vec![
        line("median", |found| found.small.median.0 as f64 / 1e3),
        line("longest", |found| found.small.max.0 as f64 / 1e3),
    ];
    let x = "piece, MiB";
    vec![
        ("waits".into(), Figure::new("wait of a small copy out", outcome.source, [x, "us"], waits)),
        (
            "price".into(),
            Figure::new(
                "rate of the bulk copy",
                outcome.source,
                [x, "of a whole one"],
                vec![line("rate", |found| found.share)],
            ),
        ),
    ]
}
