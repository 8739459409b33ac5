//! What the paper's text says, as questions to a [`TransferStudy`]. Tolerances are ours where the text has none.

use headway_core::models::transfer::{Direction, Method};
use headway_core::units::{Bytes, Nanos};

use super::{
    DIRECTIONS, DMA, GPC, GPC4, HUB, IORW, MEMWND, METHODS, Pair, Single, Stat, Stress, TransferClass, TransferStudy,
    grid,
};

/// One statement of the paper and how it came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementResult {
    /// Its number: A is IV-A (one transfer), B is IV-B (under load), C is IV-C (two transfers), D is III and V.
    pub id: &'static str,
    /// What the paper says.
    pub claim: &'static str,
    /// How it came out.
    pub verdict: StatementVerdict,
    /// The first comparison that failed, or how many held.
    pub evidence: String,
}

/// How a statement came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatementVerdict {
    /// All comparisons hold.
    Holds,
    /// At least one does not.
    Fails,
    /// Something it needs was not measured.
    NotMeasured,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const MICROS: [Method; 3] = [HUB, GPC, GPC4];

/// Which figure of a [`Stat`] is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figure {
    Mean,
    Max,
}
use Figure::{Max, Mean};

/// Comparisons made so far.
struct Check<'a> {
    study: &'a TransferStudy,
    /// What sampling may blur, in percent.
    slack: u64,
    compared: u32,
    missing: u32,
    failed: Option<String>,
    failures: u32,
}

impl Check<'_> {
    fn single(
        &mut self,
        method: Method,
        direction: Direction,
        bytes: Bytes,
        class: TransferClass,
        stress: Stress,
    ) -> Option<Stat> {
        let found = self.study.singles.get(&Single { method, direction, bytes, class, stress }).copied();
        self.missing += u32::from(found.is_none());
        found
    }

    /// A real-time task alone.
    fn alone(&mut self, method: Method, direction: Direction, bytes: Bytes, figure: Figure) -> Option<Nanos> {
        self.single(method, direction, bytes, TransferClass::RealTime, Stress::Alone).map(|stat| of(stat, figure))
    }

    fn pair(&mut self, a: Method, b: Method, direction: Direction, bytes: Bytes, figure: Figure) -> Option<Nanos> {
        let found = self.study.pairs.get(&Pair::new(a, b, direction, bytes)).copied();
        self.missing += u32::from(found.is_none());
        found.map(|stat| of(stat, figure))
    }

    /// Whether a pair that `wanted` accepts has the least makespan; otherwise the pair that has. Pairs of two
    /// microcontrollers, of which the paper says nothing, are left out.
    fn best_pair(
        &mut self,
        (direction, bytes): (Direction, Bytes),
        figure: Figure,
        wanted: impl Fn((Method, Method)) -> bool,
    ) -> Option<Result<(), String>> {
        let micro = |method: Method| matches!(method, Method::Resident(_));
        let pairs = self.study.pairs.iter().filter(|(pair, _)| {
            (pair.direction, pair.bytes) == (direction, bytes) && !(micro(pair.methods.0) && micro(pair.methods.1))
        });
        let times: Vec<_> = pairs.map(|(pair, stat)| (of(*stat, figure), pair.methods)).collect();
        let (best, least) = (times.iter().min(), times.iter().filter(|(_, methods)| wanted(*methods)).min());
        let Some((&(best, methods), &(least, _))) = best.zip(least) else {
            self.missing += 1;
            return None;
        };
        let otherwise =
            || format!("{}: best is {} and {} in {best}", at(direction, bytes), name(methods.0), name(methods.1));
        Some(if self.le(least, best) { Ok(()) } else { Err(otherwise()) })
    }

    fn best(&mut self, point: (Direction, Bytes), figure: Figure, wanted: impl Fn((Method, Method)) -> bool) {
        if let Some(found) = self.best_pair(point, figure, wanted) {
            self.holds(found.is_ok(), || found.err().unwrap_or_default());
        }
    }

    /// `a <= b`, but for the slack.
    fn le(&self, a: Nanos, b: Nanos) -> bool {
        u128::from(a.0) * 100 <= u128::from(b.0) * u128::from(100 + self.slack)
    }

    /// `a < b`, but for the slack.
    fn lt(&self, a: Nanos, b: Nanos) -> bool {
        if self.slack == 0 { a < b } else { self.le(a, b) }
    }

    /// `|a - b|` is at most `percent` of `b`, but for the slack.
    fn within(&self, a: Nanos, b: Nanos, percent: u64) -> bool {
        within(a, b, percent + self.slack)
    }

    fn holds(&mut self, held: bool, otherwise: impl FnOnce() -> String) {
        self.compared += 1;
        self.failures += u32::from(!held);
        if !held && self.failed.is_none() {
            self.failed = Some(otherwise());
        }
    }
}

fn of(stat: Stat, figure: Figure) -> Nanos {
    match figure {
        Mean => stat.mean,
        Max => stat.max,
    }
}

/// `|a - b|` is at most `percent` of `b`.
fn within(a: Nanos, b: Nanos, percent: u64) -> bool {
    u128::from(a.0.abs_diff(b.0)) * 100 <= u128::from(b.0) * u128::from(percent)
}

fn sizes(from: u64, to: u64) -> impl Iterator<Item = Bytes> {
    grid().filter(move |bytes| (from..=to).contains(&bytes.0))
}

/// The paper's name of a method.
#[must_use]
pub fn name(method: Method) -> &'static str {
    match method {
        DMA => "DMA",
        IORW => "IORW",
        MEMWND => "MEMWND",
        HUB => "HUB",
        GPC => "GPC",
        GPC4 => "GPC4",
        _ => "another method",
    }
}

fn at(direction: Direction, bytes: Bytes) -> String {
    let direction = if direction == Direction::H2d { "H2D" } else { "D2H" };
    format!("{direction} {bytes}")
}

/// Asks every question. `slack_percent` is what sampling may blur in a comparison: 0 for a model.
#[must_use]
pub fn statements(study: &TransferStudy, slack_percent: u64) -> Vec<StatementResult> {
    let ask = |id, claim, question: &dyn Fn(&mut Check<'_>)| {
        let mut check = Check { study, slack: slack_percent, compared: 0, missing: 0, failed: None, failures: 0 };
        question(&mut check);
        let (verdict, evidence) = match check.failed {
            Some(text) => (
                StatementVerdict::Fails,
                format!("{} of {} comparisons fail, first {text}", check.failures, check.compared),
            ),
            None if check.missing > 0 || check.compared == 0 => {
                (StatementVerdict::NotMeasured, format!("figures that are missing: {}", check.missing))
            }
            None => (StatementVerdict::Holds, format!("{} comparisons", check.compared)),
        };
        StatementResult { id, claim, verdict, evidence }
    };
    vec![
        ask("A1", "H2D: IORW wins from 16 B to 8 MB, DMA beyond", &|c| crossover(c, Direction::H2d, 8 * MIB, Mean)),
        ask("A2", "D2H: IORW wins to 512 B, DMA beyond", &|c| crossover(c, Direction::D2h, 512, Mean)),
        ask("A3", "no other method is better than both", &|c| nothing_else(c, Mean)),
        ask("A4", "the directions of DMA differ 10 times", &tenfold),
        ask("A5", "GPC4 is slower than GPC and HUB for small data", &parallel_is_slow_for_small),
        ask("A6", "the directions of DMA, IORW, MEMWND differ", &directions_differ),
        ask("A7", "the worst case is near the average, but for DMA H2D; normal and real-time are alike", &worst_case),
        ask("B1", "a real-time task is not slowed by CPU load, DMA even gains", &real_time_under_load),
        ask("B2", "a normal task is slowed by orders of magnitude", &normal_under_load),
        ask("B3", "large DMA of a normal task sustains CPU load", &dma_sustains),
        ask("B4", "memory pressure is negligible", &memory_pressure),
        ask("B5", "many processes and pipes act like CPU load", &pipes),
        ask("C1", "two at once, H2D: IORW and IORW is best, one after the other", &|c| two_in(c, Mean)),
        ask("C2", "D2H: IORW and IORW is not best to 2 MB; a microcontroller overlaps", &|c| two_out(c, Mean)),
        ask("C3", "D2H 16 B to 16 KB: best is a microcontroller and IORW", &|c| {
            best_with_micro(c, IORW, (16, 16 * KIB), Mean);
        }),
        ask("C4", "D2H 16 KB to 2 MB: best is a microcontroller and DMA", &|c| {
            best_with_micro(c, DMA, (32 * KIB, 2 * MIB), Mean);
        }),
        ask("C5", "to 16 KB beside IORW the choice of microcontroller does not matter", &|c| micros_alike(c, Mean)),
        ask("C6", "beside DMA, 16 KB to 2 MB, GPC4 is better than HUB and GPC", &|c| gpc4_better(c, Mean)),
        ask("C7", "the worst cases have the same order: C1 to C6 hold for them", &|c| {
            two_in(c, Max);
            two_out(c, Max);
            best_with_micro(c, IORW, (16, 16 * KIB), Max);
            best_with_micro(c, DMA, (32 * KIB, 2 * MIB), Max);
            micros_alike(c, Max);
            gpc4_better(c, Max);
        }),
        ask("D2", "one transfer: DMA or IORW are the most effective; a microcontroller is useful in pairs", &rule),
    ]
}

fn crossover(c: &mut Check<'_>, direction: Direction, last: u64, figure: Figure) {
    for bytes in grid() {
        let (iorw, dma) = (c.alone(IORW, direction, bytes, figure), c.alone(DMA, direction, bytes, figure));
        let (Some(iorw), Some(dma)) = (iorw, dma) else { continue };
        let held = if bytes.0 <= last { c.le(iorw, dma) } else { c.lt(dma, iorw) };
        c.holds(held, || format!("{}: IORW {iorw}, DMA {dma}", at(direction, bytes)));
    }
}

fn nothing_else(c: &mut Check<'_>, figure: Figure) {
    for (direction, bytes) in points() {
        for method in [MEMWND, HUB, GPC, GPC4] {
            let own = c.alone(method, direction, bytes, figure);
            let best = c.alone(DMA, direction, bytes, figure).zip(c.alone(IORW, direction, bytes, figure));
            let (Some(own), Some((dma, iorw))) = (own, best) else { continue };
            let best = dma.min(iorw);
            c.holds(c.le(best, own), || {
                format!("{}: {} {own}, best of DMA and IORW {best}", at(direction, bytes), name(method))
            });
        }
    }
}

fn points() -> impl Iterator<Item = (Direction, Bytes)> {
    DIRECTIONS.into_iter().flat_map(|direction| grid().map(move |bytes| (direction, bytes)))
}

fn tenfold(c: &mut Check<'_>) {
    for bytes in sizes(16 * MIB, u64::MAX) {
        let both = c.alone(DMA, Direction::H2d, bytes, Mean).zip(c.alone(DMA, Direction::D2h, bytes, Mean));
        let Some((h2d, d2h)) = both else { continue };
        // Which of the two is slower is not stated; we read D2H.
        let held = d2h.0 >= 8 * h2d.0 && d2h.0 <= 12 * h2d.0;
        c.holds(held, || format!("{bytes}: in {h2d}, out {d2h}"));
    }
}

fn parallel_is_slow_for_small(c: &mut Check<'_>) {
    for (direction, bytes) in points().filter(|(_, bytes)| bytes.0 <= 256) {
        for other in [GPC, HUB] {
            let both = c.alone(GPC4, direction, bytes, Mean).zip(c.alone(other, direction, bytes, Mean));
            let Some((gpc4, one)) = both else { continue };
            c.holds(c.lt(one, gpc4), || format!("{}: GPC4 {gpc4}, {} {one}", at(direction, bytes), name(other)));
        }
    }
}

fn directions_differ(c: &mut Check<'_>) {
    for method in [DMA, IORW, MEMWND] {
        let mut differs = false;
        for bytes in grid() {
            let both = c.alone(method, Direction::H2d, bytes, Mean).zip(c.alone(method, Direction::D2h, bytes, Mean));
            let Some((h2d, d2h)) = both else { return };
            differs |= !within(h2d, d2h, 5);
        }
        c.holds(differs, || format!("{}: in and out are within 5 % at every size", name(method)));
    }
}

fn worst_case(c: &mut Check<'_>) {
    let mut dma_in_varies = false;
    for (direction, bytes) in points() {
        for method in METHODS {
            let real_time = c.single(method, direction, bytes, TransferClass::RealTime, Stress::Alone);
            let normal = c.single(method, direction, bytes, TransferClass::Normal, Stress::Alone);
            let (Some(stat), Some(normal)) = (real_time, normal) else { continue };
            c.holds(c.within(normal.mean, stat.mean, 5), || {
                let (real_time, normal) = (stat.mean, normal.mean);
                format!("{} {}: real-time {real_time}, normal {normal}", name(method), at(direction, bytes))
            });
            let near = within(stat.max, stat.mean, 5);
            if method == DMA && direction == Direction::H2d {
                dma_in_varies |= !near;
            } else {
                c.holds(near, || {
                    let (mean, max) = (stat.mean, stat.max);
                    format!("{} {}: average {mean}, worst {max}", name(method), at(direction, bytes))
                });
            }
        }
    }
    if c.missing == 0 {
        c.holds(dma_in_varies, || "DMA H2D: the worst case is within 5 % of the average at every size".into());
    }
    crossover(c, Direction::H2d, 8 * MIB, Max);
    crossover(c, Direction::D2h, 512, Max);
    nothing_else(c, Max);
}

/// Every point of every method with a real-time task alone and one in another situation.
fn compared(
    c: &mut Check<'_>,
    class: TransferClass,
    stress: Stress,
    mut ask: impl FnMut(&mut Check<'_>, Method, String, Stat, Stat),
) {
    for (direction, bytes) in points() {
        for method in METHODS {
            let alone = c.single(method, direction, bytes, TransferClass::RealTime, Stress::Alone);
            let other = c.single(method, direction, bytes, class, stress);
            let (Some(alone), Some(other)) = (alone, other) else { continue };
            ask(c, method, format!("{} {}", name(method), at(direction, bytes)), alone, other);
        }
    }
}

fn real_time_under_load(c: &mut Check<'_>) {
    compared(c, TransferClass::RealTime, Stress::Cpu, |c, method, point, alone, loaded| {
        for figure in [Mean, Max] {
            let (alone, loaded) = (of(alone, figure), of(loaded, figure));
            let held = if method == DMA { c.lt(loaded, alone) } else { c.within(loaded, alone, 5) };
            c.holds(held, || format!("{point}: alone {alone}, loaded {loaded}"));
        }
    });
}

fn normal_under_load(c: &mut Check<'_>) {
    for (direction, bytes) in points() {
        for method in METHODS.into_iter().filter(|method| *method != DMA || bytes.0 <= 4 * KIB) {
            let real_time = c.single(method, direction, bytes, TransferClass::RealTime, Stress::Cpu);
            let normal = c.single(method, direction, bytes, TransferClass::Normal, Stress::Cpu);
            let (Some(real_time), Some(normal)) = (real_time, normal) else { continue };
            for figure in [Mean, Max] {
                let (r, n) = (of(real_time, figure), of(normal, figure));
                let point = || format!("{} {}: real-time {r}, normal {n}", name(method), at(direction, bytes));
                c.holds(c.le(r * 100, n), point);
            }
        }
    }
}

fn dma_sustains(c: &mut Check<'_>) {
    for direction in DIRECTIONS {
        let mut before: Option<(u128, u128)> = None;
        for bytes in grid() {
            let slowdown = |c: &mut Check<'_>, method| {
                let real_time = c.single(method, direction, bytes, TransferClass::RealTime, Stress::Cpu)?.mean.0;
                let normal = c.single(method, direction, bytes, TransferClass::Normal, Stress::Cpu)?.mean.0;
                Some((u128::from(normal), u128::from(real_time)))
            };
            let Some(dma) = slowdown(c, DMA) else { continue };
            let ratio = |(n, r): (u128, u128)| format!("{}.{}", n / r, n * 10 / r % 10);
            if let Some(before) = before {
                let point = || format!("DMA {}: {} after {}", at(direction, bytes), ratio(dma), ratio(before));
                c.holds(dma.0 * before.1 * 100 <= before.0 * dma.1 * u128::from(100 + c.slack), point);
            }
            before = Some(dma);
            if bytes.0 == 64 * MIB {
                c.holds(dma.0 <= 2 * dma.1, || format!("DMA {}: {} times", at(direction, bytes), ratio(dma)));
            }
            if bytes.0 < MIB {
                continue;
            }
            for method in METHODS.into_iter().filter(|method| *method != DMA) {
                let Some(other) = slowdown(c, method) else { continue };
                let held = dma.0 * other.1 <= other.0 * dma.1;
                c.holds(held, || {
                    format!("{}: DMA {}, {} {}", at(direction, bytes), ratio(dma), name(method), ratio(other))
                });
            }
        }
    }
}

fn memory_pressure(c: &mut Check<'_>) {
    compared(c, TransferClass::RealTime, Stress::Memory, |c, _, point, alone, pressed| {
        for figure in [Mean, Max] {
            let (alone, pressed) = (of(alone, figure), of(pressed, figure));
            c.holds(c.within(pressed, alone, 5), || format!("{point}: alone {alone}, under memory pressure {pressed}"));
        }
    });
}

fn pipes(c: &mut Check<'_>) {
    for (direction, bytes) in points() {
        for method in METHODS {
            let load = c.single(method, direction, bytes, TransferClass::RealTime, Stress::Cpu);
            let pipes = c.single(method, direction, bytes, TransferClass::RealTime, Stress::Pipes);
            let (Some(load), Some(pipes)) = (load, pipes) else { continue };
            for figure in [Mean, Max] {
                let (load, pipes) = (of(load, figure), of(pipes, figure));
                let point = || format!("{} {}: CPU load {load}, pipes {pipes}", name(method), at(direction, bytes));
                c.holds(c.within(pipes, load, 10), point);
            }
        }
    }
}

fn two_in(c: &mut Check<'_>, figure: Figure) {
    for bytes in sizes(16, 8 * MIB) {
        c.best((Direction::H2d, bytes), figure, |methods| methods == (IORW, IORW));
        let one = c.alone(IORW, Direction::H2d, bytes, figure);
        let (Some(one), Some(two)) = (one, c.pair(IORW, IORW, Direction::H2d, bytes, figure)) else { continue };
        c.holds(c.within(two, one * 2, 5), || format!("{}: one {one}, two {two}", at(Direction::H2d, bytes)));
    }
}

fn two_out(c: &mut Check<'_>, figure: Figure) {
    for bytes in sizes(16, 8 * MIB) {
        c.best((Direction::D2h, bytes), figure, |methods| methods != (IORW, IORW));
        // Beside another transfer DMA may cost more than alone: what it costs behind IORW, which it does not overlap.
        let behind = c.pair(IORW, DMA, Direction::D2h, bytes, figure).zip(c.alone(IORW, Direction::D2h, bytes, figure));
        for micro in MICROS {
            for other in METHODS.into_iter().filter(|method| !matches!(method, Method::Resident(_))) {
                let own = if other == DMA {
                    behind.map(|(two, iorw)| two.saturating_sub(iorw))
                } else {
                    c.alone(other, Direction::D2h, bytes, figure)
                };
                let both = c.alone(micro, Direction::D2h, bytes, figure).zip(own);
                let (Some((a, b)), Some(two)) = (both, c.pair(micro, other, Direction::D2h, bytes, figure)) else {
                    continue;
                };
                c.holds(c.lt(two, a + b), || {
                    format!("{}: {} {a}, {} {b}, both {two}", at(Direction::D2h, bytes), name(micro), name(other))
                });
            }
        }
    }
}

fn best_with_micro(c: &mut Check<'_>, partner: Method, (from, to): (u64, u64), figure: Figure) {
    for bytes in sizes(from, to) {
        c.best((Direction::D2h, bytes), figure, |(a, b)| {
            (a == partner && MICROS.contains(&b)) || (b == partner && MICROS.contains(&a))
        });
    }
}

fn micros_alike(c: &mut Check<'_>, figure: Figure) {
    for bytes in sizes(16, 16 * KIB) {
        let times: Option<Vec<Nanos>> =
            MICROS.iter().map(|micro| c.pair(*micro, IORW, Direction::D2h, bytes, figure)).collect();
        let (Some(times), Some(iorw)) = (times, c.alone(IORW, Direction::D2h, bytes, figure)) else { continue };
        let (least, most) = (times.iter().min().copied(), times.iter().max().copied());
        let (Some(least), Some(most)) = (least, most) else { continue };
        let held = c.within(most, least, 20) && c.le(iorw, least) && c.within(most, iorw, 50);
        c.holds(held, || format!("{}: {least} to {most}, IORW alone {iorw}", at(Direction::D2h, bytes)));
    }
}

fn gpc4_better(c: &mut Check<'_>, figure: Figure) {
    for bytes in sizes(32 * KIB, 2 * MIB) {
        let pair_and_alone = |c: &mut Check<'_>, method| {
            Some((c.pair(method, DMA, Direction::D2h, bytes, figure)?, c.alone(method, Direction::D2h, bytes, figure)?))
        };
        let (Some(gpc4), Some(hub), Some(gpc)) =
            (pair_and_alone(c, GPC4), pair_and_alone(c, HUB), pair_and_alone(c, GPC))
        else {
            continue;
        };
        let point = || at(Direction::D2h, bytes);
        c.holds(c.lt(gpc4.0, hub.0) && c.lt(gpc4.0, gpc.0), || format!("{}: GPC4 {}, HUB {}", point(), gpc4.0, hub.0));
        for (method, (two, own)) in [(HUB, hub), (GPC, gpc), (GPC4, gpc4)] {
            if method == GPC4 && bytes.0 < 128 * KIB {
                continue;
            }
            c.holds(c.within(two, own, 10), || format!("{}: {} beside DMA {two}, alone {own}", point(), name(method)));
        }
    }
}

fn rule(c: &mut Check<'_>) {
    for (direction, bytes) in points() {
        let costs: Option<Vec<(Nanos, Method)>> =
            METHODS.iter().map(|method| Some((c.alone(*method, direction, bytes, Mean)?, *method))).collect();
        let Some(costs) = costs else { continue };
        let least = |wanted: &dyn Fn(Method) -> bool| costs.iter().filter(|(_, method)| wanted(*method)).min().copied();
        let (Some((rule, _)), Some((best, method))) =
            (least(&|method| method == DMA || method == IORW), least(&|_| true))
        else {
            continue;
        };
        c.holds(c.le(rule, best), || format!("{}: {} alone", at(direction, bytes), name(method)));
    }
    for bytes in sizes(16, 2 * MIB) {
        c.best((Direction::D2h, bytes), Mean, |(a, b)| MICROS.contains(&a) || MICROS.contains(&b));
    }
}
