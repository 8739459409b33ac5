//! Claims about deadlines, bounds and responses, from the pages of experiments and runs.

use super::runs::Run;
use super::{Better, Claim, Line, Made, Measure};

pub(super) fn claims(runs: &[Run]) -> Vec<Claim> {
    vec![main_job(runs), streams(runs), batches(runs), trackers(runs)]
}

const fn made(piece: &'static str, gpus: usize) -> Option<Made> {
    Some(Made { piece, gpus })
}

const fn measure(name: &'static str, better: Better, target: Option<f64>, digits: usize) -> Measure {
    Measure { name, better, target, digits }
}

fn line(run: &Run, name: String, samples: String, figures: Vec<Option<f64>>) -> Line {
    Line { run: name, gpu: run.gpu, gpus: run.gpus, commit: run.commit.clone(), samples, figures }
}

/// The number whose digits end just before `after`.
fn before(text: &str, after: &str) -> Option<f64> {
    let (text, _) = text.split_once(after)?;
    let digits: String = text.chars().rev().take_while(|letter| letter.is_ascii_digit() || *letter == '.').collect();
    digits.chars().rev().collect::<String>().parse().ok()
}

/// Cells of the table rows of a page.
fn rows(page: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    lines.map(|line| line.split(" | ").collect())
}

/// `148 584 of 148 584 packets`, with spaces between thousands.
fn packets(page: &str) -> Option<(f64, f64)> {
    let line = page.lines().find(|line| line.contains(" packets, ") && line.contains(" jobs late"))?;
    let (counts, _) = line.trim().split_once(" packets, ")?;
    let (delivered, due) = counts.split_once(" of ")?;
    let number = |text: &str| text.replace(' ', "").parse::<f64>().ok();
    Some((number(delivered)?, number(due)?))
}

fn main_job(runs: &[Run]) -> Claim {
    let of = |run: &Run| {
        let (_, due) = packets(&run.page)?;
        let verdict = run.page.lines().find(|line| line.contains(" deadlines ") && line.contains("[cuda]"))?;
        let missed = if verdict.starts_with("all ") {
            0.0
        } else {
            let digits: String =
                verdict.chars().take_while(|letter| letter.is_ascii_digit() || *letter == ' ').collect();
            digits.replace(' ', "").parse().ok()?
        };
        Some(line(run, run.name.clone(), format!("{due:.0} packets"), vec![Some(missed)]))
    };
    Claim {
        title: "Packets of the main job that missed their deadlines".to_owned(),
        about: "64 streams of `workloads/encrypt.toml`, on machines whose CPUs had little else to do. Every stream is compared with the \
                CPU's result."
            .to_owned(),
        measures: vec![measure("packets missed", Better::Less, Some(0.0), 0)],
        lines: runs.iter().filter(|run| run.name.ends_with("encrypt")).filter_map(of).collect(),
        price: "",
        made: made("encrypt", 1),
    }
}

fn streams(runs: &[Run]) -> Claim {
    let mut lines = Vec::new();
    for run in runs.iter().filter(|run| run.name.contains("verner-aes")) {
        for cells in rows(&run.page) {
            let Some((policy, duration)) = cells[0].split_once(": planned, then run for ") else { continue };
            let Some(ours) = cells.get(2) else { continue };
            let figures = vec![before(ours, " misses"), before(ours, " streams, "), before(ours, " GB/s")];
            lines.push(line(run, format!("{}, {policy}", run.name), duration.to_owned(), figures));
        }
        for row in run.interrupted.iter().filter(|row| row.text("part") == "planned") {
            let name = format!("{}, workload {}, `{}`", run.name, row.text("workload"), row.text("policy"));
            let rate = row.number("bits_per_s").map(|bits| bits / 8e9);
            let figures = vec![row.number("misses"), row.number("streams"), rate];
            let took = row.number("took_ns").unwrap_or_default() / 1e9;
            lines.push(line(run, name, format!("{took:.0} s"), figures));
        }
    }
    Claim {
        title: "Streams encrypted, as many as the planner accepts".to_owned(),
        about: "Each policy takes as many streams as its plan accepts, with deadlines of 20 ms unless the run's page says otherwise, and \
                runs them. `serial` makes one transfer at a time. `2026-11-22-h200x4-verner-aes-60s` leaves room on purpose: 70,000 \
                streams. `-behind` was planned without knowing what disturbs that host, and never caught up. Not counted, as its tables are others: \
                `2026-11-29-h200x2-lateness`, whose two runs with as many streams as were planned missed packets."
            .to_owned(),
        measures: vec![
            measure("packets missed", Better::Less, Some(0.0), 0),
            measure("streams", Better::More, None, 0),
            measure("GB/s", Better::More, None, 2),
        ],
        lines,
        price: "",
        made: made("verner-aes", 2),
    }
}

fn batches(runs: &[Run]) -> Claim {
    let percent = |text: &str| before(text, " % of ");
    let (mut above, mut all) = (0.0, 0.0);
    let mut lines = Vec::new();
    for run in runs.iter().filter(|run| run.name.contains("interconnect")) {
        let cell =
            |start: &str| rows(&run.page).find(|cells| cells[0].starts_with(start)).map(|cells| cells[1].to_owned());
        let Some(exceeded) = cell("the worst-case time is never exceeded") else { continue };
        let (Some(count), Some(total)) = (before(&exceeded, " of "), before(&exceeded, " runs")) else { continue };
        (above, all) = (above + count, all + total);
        let error = |start| cell(start).as_deref().and_then(percent);
        let figures = vec![Some(count), error("median error"), error("95th percentile")];
        lines.push(line(run, run.name.clone(), format!("{total:.0} runs of batches"), figures));
    }
    Claim {
        title: "Batches of concurrent copies: predicted and measured ends".to_owned(),
        about: format!(
            "Random batches between pinned memory and GPUs and between GPUs. In all kept runs together, {above:.0} of {all:.0} runs of \
             batches took longer than their bound. The errors are those of the predicted end of a batch."
        ),
        measures: vec![
            measure("runs above the bound", Better::Less, Some(0.0), 0),
            measure("median error, %", Better::Less, Some(2.0), 2),
            measure("95th percentile of the error, %", Better::Less, Some(6.0), 2),
        ],
        lines,
        price: "",
        made: made("interconnect", 2),
    }
}

fn trackers(runs: &[Run]) -> Claim {
    let mut lines = Vec::new();
    for run in runs.iter().filter(|run| run.name.contains("gpusync")) {
        let row = |start: &str| rows(&run.page).filter(|cells| cells[0].starts_with(start)).collect::<Vec<_>>();
        for (worst, mean) in row("worst response").into_iter().zip(row("mean response")) {
            // Every way without arbitration has its ratio; the least gain counts.
            let ratios = |text: &str| -> Vec<f64> {
                let text = text.split("; the better one").next().unwrap_or_default();
                text.match_indices(" times").filter_map(|(at, _)| before(&text[..at + 6], " times")).collect()
            };
            let gain = ratios(worst[2]).into_iter().reduce(f64::min);
            let loss = ratios(mean[2]).into_iter().reduce(f64::max);
            let load = worst[0].split_once("load ").map_or("not stated", |(_, load)| load);
            let figures = vec![before(worst[2], " %"), gain, loss];
            lines.push(line(run, run.name.clone(), format!("load {load}"), figures));
        }
    }
    Claim {
        title: "Trackers of cameras that share GPUs".to_owned(),
        about: "Processes that track features share GPUs through the broker, and the same processes without arbitration. Responses are in \
                percent of the period. The gain is the worst response of the best way without arbitration over ours. The mean is ours \
                over that of the best way without arbitration."
            .to_owned(),
        measures: vec![
            measure("worst response, %", Better::Less, None, 1),
            measure("gain in the worst response", Better::More, Some(2.0), 2),
            measure("mean, times that without arbitration", Better::Less, Some(1.05), 3),
        ],
        lines,
        price: "",
        made: made("gpusync-gpu", 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_where_it_stands() {
        assert_eq!(before("exceeded in 5 of 1500 runs; by", " of "), Some(5.0));
        assert_eq!(before("10.57 % of 300 batches", " % of "), Some(10.57));
        assert_eq!(before("nothing", " of "), None);
        assert_eq!(
            packets("  148 584 of 148 584 packets, 3 MB; 0 overruns, 0 jobs late"),
            Some((148_584.0, 148_584.0))
        );
    }

    fn run(name: &str, page: &str) -> Run {
        let (name, page, commit) = (name.to_owned(), page.to_owned(), "c".to_owned());
        Run {
            name,
            gpu: "H200",
            gpus: 4,
            commit,
            page,
            rows: Vec::new(),
            interrupted: Vec::new(),
            printed: Default::default(),
        }
    }

    #[test]
    fn an_interrupted_run_counts_with_its_raw_figures() {
        let figures = "workload,policy,part,streams,bits_per_s,took_ns,misses\n\
                       1,partitioned,warm-up,99,8000000000,6000000000,5\n1,partitioned,planned,100,8000000000,60100000000,7\n";
        let interrupted = super::super::runs::table(figures);
        let claim = streams(&[Run { interrupted, ..run("2026-11-26-h200x2-verner-aes", "") }]);
        assert_eq!(claim.lines.len(), 1);
        assert_eq!(claim.lines[0].figures, [Some(7.0), Some(100.0), Some(1.0)]);
        assert_eq!(claim.lines[0].samples, "60 s");
    }

    #[test]
    fn misses_and_excesses_are_counted_in_every_run() {
        let page =
            "| `serial`: planned, then run for 60 s | no deadline missed | 39808 streams, 15.49 GB/s: 4 misses | x |\n";
        let claim = streams(&[run("2026-11-22-h200x4-verner-aes", page)]);
        assert_eq!(claim.lines[0].figures, [Some(4.0), Some(39_808.0), Some(15.49)]);
        let page = "| median error of it | 0.90 % of 300 batches | met |\n| 95th percentile of it | 10.57 % of 300 batches | no |\n\
                    | the worst-case time is never exceeded | exceeded in 1 of 1500 runs; by | no |\n";
        let claim = batches(&[run("a-interconnect", page), run("b-interconnect", page)]);
        assert_eq!(claim.lines[1].figures, [Some(1.0), Some(0.9), Some(10.57)]);
        assert!(claim.about.contains("2 of 3000 runs"), "{}", claim.about);
    }
}
