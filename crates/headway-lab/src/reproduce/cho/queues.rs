//! The paper's queues by number of threads and size of buffers, against the driver and ours.

use headway_core::models::transfer::{Direction, Method};
use headway_core::units::Bytes;
use headway_device::Buffer;
use headway_runtime::copy::How;

use super::fidelity::DoubleQueue;
use super::outcome;
use crate::Error;
use crate::plot::{Figure, Line};
use crate::reproduce::bench::{Bench, gb_per_s, random, same};
use crate::reproduce::{Outcome, Row, Setting, Table, Verdict};

/// How one copy of the sweep is made.
#[derive(Clone, Copy)]
enum By {
    /// The driver's own call.
    Driver,
    /// `copy`, by the profile.
    Ours,
    /// The paper's queues: threads and bytes of a buffer.
    Queues(usize, usize),
}

struct Study {
    bench: Bench,
    data: Vec<u8>,
    host: Vec<u8>,
    there: Buffer,
    repeats: usize,
    lines: Vec<Vec<String>>,
}

impl Study {
    /// GB/s of the median copy; the bytes are compared.
    fn rate(&mut self, (direction, word): (Direction, &str), by: By) -> Result<f64, Error> {
        let (name, n, b) = match by {
            By::Driver => ("pageable", 0, 0),
            By::Ours => ("headway", 0, 0),
            By::Queues(n, b) => ("fidelity", n, b),
        };
        let queue = if n > 0 { Some(DoubleQueue::new(self.bench.gpu()?, n, b)?) } else { None };
        let driver = How::By(Method::Pageable);
        let how = if matches!(by, By::Driver) { driver } else { How::Auto };
        // What must be overwritten does not hold the bytes already.
        let mut clear = vec![0; self.data.len()];
        let (here, there) =
            if direction == Direction::H2d { (&self.data, &mut clear) } else { (&clear, &mut self.data) };
        self.host.copy_from_slice(here);
        self.bench.time(Direction::H2d, &self.there, there, driver)?;
        let mut times = Vec::new();
        for _ in 0..self.repeats {
            times.push(match &queue {
                Some(queue) => queue.copy(direction, &self.there, &mut self.host)?,
                None => self.bench.time(direction, &self.there, &mut self.host, how)?,
            });
        }
        match direction {
            Direction::H2d => self.bench.verify(name, &self.there, &self.data)?,
            _ => same(name, &self.host, &self.data)?,
        }
        times.sort_unstable();
        let median = times[times.len() / 2];
        let rate = gb_per_s(Bytes(self.data.len() as u64), median);
        let situation = [name.to_owned(), word.to_owned(), n.to_string(), b.to_string()];
        self.lines.push(situation.into_iter().chain([median.0.to_string(), format!("{rate:.3}")]).collect());
        Ok(rate)
    }

    fn direction(
        &mut self,
        (direction, word): (Direction, &'static str),
        (threads, buffers): (&[usize], &[usize]),
    ) -> Result<([Row; 2], (String, Figure)), Error> {
        let driver = self.rate((direction, word), By::Driver)?;
        let ours = self.rate((direction, word), By::Ours)?;
        let level = |name: &str, rate| Line::new(name, threads.iter().map(|n| (*n as f64, rate)).collect());
        let mut lines = vec![level("pageable", driver), level("headway", ours)];
        let mut best = (0.0, 0, 0);
        for &b in buffers {
            let mut points = Vec::new();
            for &n in threads {
                let rate = self.rate((direction, word), By::Queues(n, b))?;
                points.push((n as f64, rate));
                if rate > best.0 {
                    best = (rate, n, b);
                }
            }
            lines.push(Line::new(format!("fidelity, {} KiB", b >> 10), points));
        }
        let mib = self.data.len() >> 20;
        let rows = judged(&format!("{word} {mib} MiB"), driver, best, ours);
        let title = format!("{mib} MiB {word}, median");
        let figure = Figure::new(title, self.bench.source, ["threads", "GB/s"], lines);
        Ok((rows, (format!("queues-{word}"), figure)))
    }
}

/// The paper's queues against the driver, with the best `(rate, N, B)` of those tried; and ours against the paper's queues.
fn judged(what: &str, driver: f64, best: (f64, usize, usize), ours: f64) -> [Row; 2] {
    [
        Row {
            what: what.to_owned(),
            paper: "about twice the driver's rate or more; N and B not stated".into(),
            ours: format!(
                "driver {driver:.2}, the paper's queues {:.2} GB/s with the best N and B of those tried (N = {}, B = {} KiB)",
                best.0,
                best.1,
                best.2 >> 10
            ),
            verdict: Verdict::fitted(best.0 >= 2.0 * driver),
        },
        Row {
            what: format!("{what}, `copy` of ours against the paper's queues"),
            paper: "not treated".into(),
            ours: format!("{ours:.2} against {:.2} GB/s: {:.2} times", best.0, ours / best.0),
            verdict: Verdict::own(ours >= best.0),
        },
    ]
}

/// The paper's queues by number of threads and size of buffers, against the driver and ours.
pub(in crate::reproduce) fn queues(setting: &Setting) -> Result<Outcome, Error> {
    let bench = Bench::open(setting)?;
    let bytes = if setting.quick { 1 << 20 } else { 256 << 20 };
    let threads: &[usize] = if setting.quick { &[1, 2] } else { &[1, 2, 4, 8, 12] };
    let buffers: &[usize] = if setting.quick { &[4096] } else { &[256 << 10, 1 << 20, 4 << 20] };
    let mut study = Study {
        there: bench.device(bytes)?,
        bench,
        data: random(setting.seed, bytes),
        host: vec![0; bytes],
        repeats: if setting.quick { 1 } else { 5 },
        lines: Vec::new(),
    };
    let both = [(Direction::H2d, "h2d"), (Direction::D2h, "d2h")];
    let mut made = Vec::new();
    for direction in both {
        made.push(study.direction(direction, (threads, buffers))?);
        let (source, machine) = (study.bench.source, &study.bench.machine);
        setting.keep("cho-queues", source, machine, vec![table(study.lines.clone())]);
    }
    let mut outcome = outcome("cho-queues", &study.bench, setting);
    for (rows, figure) in made {
        outcome.rows.extend(rows);
        outcome.figures.push(figure);
    }
    outcome.tables.push(table(study.lines));
    Ok(outcome)
}

fn table(lines: Vec<Vec<String>>) -> Table {
    let columns = vec!["mode", "direction", "threads", "buffer_bytes", "median_ns", "gb_per_s"];
    Table { name: "queues".into(), columns, lines }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_the_paper_s_queues_and_ours_are_judged() {
        let verdicts = |driver, best, ours| judged("h2d", driver, (best, 4, 1 << 20), ours).map(|row| row.verdict);
        assert_eq!(verdicts(10.0, 20.0, 20.0), [Verdict::Consistent, Verdict::OwnCheck]);
        assert_eq!(verdicts(10.0, 20.0, 19.9), [Verdict::Consistent, Verdict::NotReproduced]);
        assert_eq!(verdicts(10.0, 19.9, 25.0), [Verdict::NotReproduced, Verdict::OwnCheck]);
    }
}
