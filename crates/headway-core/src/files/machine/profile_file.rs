//! The part of a machine file that says what copies cost: `[profile]`, `[[curve]]`, `[[staging]]`,
//! `[[arbitration]]`.

use super::EndpointId;
use super::file::Reader;
use crate::files::document::{DocumentTable, Field, narrow};
use crate::files::error::FileError;
use crate::models::transfer::arbitration::{Cut, EngineArbitration, SmallCopyWait};
use crate::models::transfer::{
    BackgroundLoad, Curve, CurveKey, CurvePoint, Direction, HostMemory, Method, PricedTuning, Stamp, Stores, Tuning,
    TuningKey,
};
use crate::units::{Bytes, Nanos, PPM, SIZE_MAX, TIME_MAX};

/// Most GPUs active together, pieces of a request, samples of a point.
const COUNT_MAX: u64 = u32::MAX as u64;
/// Most staging threads of a GPU, and most chunks on an engine.
const THREADS_MAX: u64 = 1_024;
const IN_FLIGHT_MAX: u64 = 64;

const PROFILE: &[&str] = &["source", "driver", "gpus", "pcie", "cpus", "commit", "date"];
const CURVE: &[&str] =
    &["gpu", "gpus", "peer", "method", "via", "direction", "memory", "load", "active", "pieces", "posted", "points"];
const ARBITRATION: &[&str] = &["gpu", "gpus", "direction", "time", "whole", "words", "streams", "process"];
/// A bulk copy's rate beside others, of that alone: a measurement may be off by some percent.
const SHARE_MAX_PPM: u64 = 2 * PPM;
const STAGING: &[&str] =
    &["gpu", "gpus", "direction", "memory", "active", "threads", "buffer", "stores", "in_flight", "prices"];

impl Reader<'_> {
    pub(super) fn profile(&mut self, top: &mut DocumentTable<'_>) -> Result<(), FileError> {
        self.machine.profile.stamp = top.take("profile").map(stamp).transpose()?;
        for table in top.tables("curve", CURVE)? {
            self.curve(table)?;
        }
        for table in top.tables("staging", STAGING)? {
            self.staging(table)?;
        }
        for table in top.tables("arbitration", ARBITRATION)? {
            self.arbitration(table)?;
        }
        Ok(())
    }

    fn curve(&mut self, mut table: DocumentTable<'_>) -> Result<(), FileError> {
        let method = table.require("method", "\"dma\"")?.word(&Method::words())?;
        let method = in_form(&mut table, method)?;
        let direction = direction(&mut table, method)?;
        let peer = self.peer(&mut table, direction)?;
        let gpus = self.gpus_of(&mut table, peer)?;
        let memory = optional_word(&mut table, "memory", HostMemory::WORDS)?.unwrap_or(HostMemory::Pinned);
        let load = optional_word(&mut table, "load", BackgroundLoad::WORDS)?.unwrap_or(BackgroundLoad::Alone);
        let (active, pieces) = (count(&mut table, "active")?, count(&mut table, "pieces")?);
        let posted = posted(&mut table, method, direction)?;
        let curve = points(table.require("points", "[[4096, 1000, 6500, 6900, 9100]]")?)?;
        for gpu in gpus {
            let key = CurveKey { gpu, peer, method, direction, memory, load, active, pieces };
            let profile = &mut self.machine.profile;
            let curves = if posted { &mut profile.posted } else { &mut profile.curves };
            if curves.insert(key, curve.clone()).is_some() {
                let message = format!("`{}` has two curves of {method} {direction} for this situation", self.id(gpu));
                return Err(table.error(message, "give one for each GPU, method and situation"));
            }
        }
        Ok(())
    }

    fn staging(&mut self, mut table: DocumentTable<'_>) -> Result<(), FileError> {
        let field = table.require("direction", "\"h2d\"")?;
        let direction = field.word(Direction::WORDS)?;
        if direction == Direction::Peer {
            let help = "write h2d or d2h".to_owned();
            return Err(field.error("staging is between a host and a GPU", Some(help)));
        }
        let gpus = self.gpus_of(&mut table, None)?;
        let memory = table.take("memory");
        let kind = memory.as_ref().map(|field| field.word(HostMemory::WORDS)).transpose()?;
        if let (Some(field), Some(HostMemory::Pinned)) = (&memory, kind) {
            let help = "write warm, fresh or file".to_owned();
            return Err(field.error("pinned memory needs no staging", Some(help)));
        }
        let active = count(&mut table, "active")?;
        let tuning = Tuning {
            threads: narrow(table.require("threads", "6")?.integer(1, THREADS_MAX)?),
            buffer: table.require("buffer", "\"4 MiB\"")?.size_above_zero("4 MiB")?,
            stores: table.require("stores", "\"plain\"")?.word(Stores::WORDS)?,
            in_flight: narrow(table.require("in_flight", "2")?.integer(1, IN_FLIGHT_MAX)?),
        };
        let prices = table.take("prices").map(prices).transpose()?.unwrap_or_default();
        for gpu in gpus {
            let key = TuningKey { gpu, direction, memory: kind.unwrap_or(HostMemory::Touched), active };
            if !prices.is_empty() {
                self.machine.profile.prices.insert(key, prices.clone());
            }
            if self.machine.profile.tunings.insert(key, tuning).is_some() {
                let message = format!("`{}` has two tunings of staging {direction} for this situation", self.id(gpu));
                return Err(table.error(message, "give one for each GPU and situation"));
            }
        }
        Ok(())
    }

    fn arbitration(&mut self, mut table: DocumentTable<'_>) -> Result<(), FileError> {
        let field = table.require("direction", "\"d2h\"")?;
        let direction = field.word(Direction::WORDS)?;
        if direction == Direction::Peer {
            let help = "write h2d or d2h".to_owned();
            return Err(field.error("only copies to and from the host were asked about", Some(help)));
        }
        let gpus = self.gpus_of(&mut table, None)?;
        let time = table.require("time", "\"19.4 ms\"")?.time()?;
        let whole = cut(table.require("whole", CUT)?)?;
        let words = table.take("words").map_or(Ok(Vec::new()), |field| cuts(field, whole.chunk))?;
        let streams = table.take("streams").map_or(Ok(Vec::new()), |field| cuts(field, whole.chunk))?;
        let process = table.take("process").map(process).transpose()?;
        let found = EngineArbitration { whole, time, words, streams, process };
        for gpu in gpus {
            if self.machine.profile.arbitration.insert((gpu, direction), found.clone()).is_some() {
                let message = format!("`{}` has two tables of who waits for copies {direction}", self.id(gpu));
                return Err(table.error(message, "give one for each GPU and direction"));
            }
        }
        Ok(())
    }

    fn id(&self, end: EndpointId) -> &str {
        &self.machine.endpoints[end.at()].id
    }

    /// The GPUs that a table is for: those it names, or all, without the target of a peer copy.
    fn gpus_of(&self, table: &mut DocumentTable<'_>, peer: Option<EndpointId>) -> Result<Vec<EndpointId>, FileError> {
        let fields = match (table.take("gpu"), table.take("gpus")) {
            (Some(one), Some(_)) => {
                let help = "keep one of them; without either the table is for all GPUs".to_owned();
                return Err(one.key_error("`gpu` and `gpus` are both there", Some(help)));
            }
            (Some(one), None) => vec![one],
            (None, Some(list)) => {
                let help = Some("name GPUs, or leave `gpus` out for all".to_owned());
                let none = list.error("`gpus` names no GPU", help);
                let fields = list.elements("[\"gpu0\"]")?;
                if fields.is_empty() {
                    return Err(none);
                }
                fields
            }
            (None, None) => return Ok(self.machine.gpus().filter(|gpu| Some(*gpu) != peer).collect()),
        };
        let mut gpus = Vec::new();
        for field in fields {
            let gpu = self.gpu(&field)?;
            if Some(gpu) == peer {
                let help = "name two GPUs".to_owned();
                return Err(
                    field.error(format!("a peer copy from `{0}` to `{0}` goes nowhere", self.id(gpu)), Some(help))
                );
            }
            if gpus.contains(&gpu) {
                return Err(field.error(format!("`{}` is named twice", self.id(gpu)), None));
            }
            gpus.push(gpu);
        }
        Ok(gpus)
    }

    fn peer(&self, table: &mut DocumentTable<'_>, direction: Direction) -> Result<Option<EndpointId>, FileError> {
        match (table.take("peer"), direction) {
            (Some(field), Direction::Peer) => self.gpu(&field).map(Some),
            (Some(field), _) => {
                let help = "leave `peer` out, or write `direction = \"peer\"`".to_owned();
                Err(field.key_error(format!("a copy {direction} has no peer"), Some(help)))
            }
            (None, Direction::Peer) => {
                Err(table.error("a curve of peer copies names no target", "add for example `peer = \"gpu1\"`"))
            }
            (None, _) => Ok(None),
        }
    }
}

fn stamp(field: Field<'_>) -> Result<Stamp, FileError> {
    let mut table = field.table("[profile]", PROFILE)?;
    let mut text = |key, example: &str| Ok(table.require(key, example)?.text(example)?.to_owned());
    let (source, driver) = (text("source", "\"cuda\"")?, text("driver", "\"580.159.04\"")?);
    let (cpus, commit) = (text("cpus", "\"0-15\"")?, text("commit", "\"0123abc\"")?);
    let date = text("date", "\"2026-11-21\"")?;
    let mut texts = |key, example: &str| -> Result<Vec<String>, FileError> {
        let fields = table.require(key, example)?.elements(example)?;
        fields.iter().map(|field| field.text(example).map(str::to_owned)).collect()
    };
    let (gpus, pcie) = (texts("gpus", "[\"GPU-01234567\"]")?, texts("pcie", "[\"5.0 x16\"]")?);
    Ok(Stamp { source, driver, gpus, pcie, cpus, commit, date })
}

/// `method` in the form that `via` names, if it is there.
fn in_form(table: &mut DocumentTable<'_>, method: Method) -> Result<Method, FileError> {
    let Some(field) = table.take("via") else { return Ok(method) };
    let mut known: Vec<(&str, &str)> = Vec::new();
    for form in Method::ALL.into_iter().filter_map(Method::form) {
        if !known.contains(&(form, form)) {
            known.push((form, form));
        }
    }
    let form = field.word(&known)?;
    Method::named(method.word(), Some(form)).ok_or_else(|| {
        let help = match method.forms().as_slice() {
            [] => "leave `via` out".to_owned(),
            [one] => format!("its forms are {one}"),
            [some @ .., last] => format!("its forms are {} and {last}", some.join(", ")),
        };
        field.error(format!("`{}` has no form `{form}`", method.word()), Some(help))
    })
}

fn direction(table: &mut DocumentTable<'_>, method: Method) -> Result<Direction, FileError> {
    let field = table.require("direction", "\"h2d\"")?;
    let direction = field.word(Direction::WORDS)?;
    if method.abilities().between_gpus() && direction != Direction::Peer {
        let help = "write `direction = \"peer\"`".to_owned();
        return Err(field.error(format!("method `peer` does not copy {direction}"), Some(help)));
    }
    Ok(direction)
}

fn posted(table: &mut DocumentTable<'_>, method: Method, direction: Direction) -> Result<bool, FileError> {
    let Some(field) = table.take("posted") else { return Ok(false) };
    let posted = field.boolean()?;
    if posted && !method.abilities().is_posted(direction) {
        let help = "leave `posted` out".to_owned();
        return Err(
            field.error(format!("only stores through a window are posted, not {method} {direction}"), Some(help))
        );
    }
    Ok(posted)
}

fn count(table: &mut DocumentTable<'_>, key: &str) -> Result<u32, FileError> {
    table.take(key).map_or(Ok(1), |field| field.integer(1, COUNT_MAX)).map(narrow)
}

fn optional_word<T: Copy>(
    table: &mut DocumentTable<'_>,
    key: &str,
    words: &[(&'static str, T)],
) -> Result<Option<T>, FileError> {
    table.take(key).map(|field| field.word(words)).transpose()
}

/// A bulk copy cut into pieces, and the wait of small copies beside it.
const CUT: &str = "[4194304, 934100, 27333, 80610, 91861, 123994]";
/// `[samples, median, p99, max]` of a wait.
const WAIT: &str = "[2000, 1055181, 1062854, 1080704]";

/// What is wrong with the figures of a wait, should they be wrong.
struct Wrong {
    shape: FileError,
    order: FileError,
}

impl Wrong {
    fn of(field: &Field<'_>, shape: &str) -> Self {
        Self {
            shape: field.error(format!("`{}` is not what stands here", field.excerpt()), Some(shape.to_owned())),
            order: field.error(
                format!("`{}` has median, p99 and max that fall", field.excerpt()),
                Some("p99 is at least the median, max at least p99".to_owned()),
            ),
        }
    }
}

/// `[chunk, share in ppm, samples, median, p99, max]`.
fn cut(field: Field<'_>) -> Result<Cut, FileError> {
    let shape = "a row is [chunk in bytes, rate in ppm of a whole copy's, samples, median, p99, max], times in ns";
    let wrong = Wrong::of(&field, shape);
    let figures = field.elements(CUT)?;
    let [chunk, share, rest @ ..] = figures.as_slice() else { return Err(wrong.shape) };
    let (chunk, share_ppm) = (Bytes(chunk.integer(1, SIZE_MAX.0)?), share.integer(1, SHARE_MAX_PPM)?);
    Ok(Cut { chunk, share_ppm, wait: wait(wrong, rest)? })
}

/// Rows by length of the chunk, all below that of the whole copy.
fn cuts(field: Field<'_>, whole: Bytes) -> Result<Vec<Cut>, FileError> {
    let mut cuts: Vec<Cut> = Vec::new();
    for field in field.elements(&format!("[{CUT}]"))? {
        let long = field.error("the chunk is no part of the whole copy", Some("leave the row out".to_owned()));
        let order = "sort the rows by the length of the chunk".to_owned();
        let order = field.error("the chunk is not longer than the one before it", Some(order));
        let cut = cut(field)?;
        if cut.chunk >= whole {
            return Err(long);
        }
        if cuts.last().is_some_and(|last| last.chunk >= cut.chunk) {
            return Err(order);
        }
        cuts.push(cut);
    }
    Ok(cuts)
}

fn process(field: Field<'_>) -> Result<SmallCopyWait, FileError> {
    let wrong = Wrong::of(&field, "a wait is [samples, median, p99, max], times in ns");
    wait(wrong, &field.elements(WAIT)?)
}

/// `samples, median, p99, max`; p99 and max may be left out together, or max alone.
fn wait(wrong: Wrong, figures: &[Field<'_>]) -> Result<SmallCopyWait, FileError> {
    let [n, median, rest @ ..] = figures else { return Err(wrong.shape) };
    if rest.len() > 2 {
        return Err(wrong.shape);
    }
    let time = |field: &Field<'_>| field.integer(0, TIME_MAX.0).map(Nanos);
    let rest: Vec<Nanos> = rest.iter().map(time).collect::<Result<_, _>>()?;
    let wait = SmallCopyWait {
        n: narrow(n.integer(1, COUNT_MAX)?),
        median: time(median)?,
        p99: rest.first().copied().unwrap_or(Nanos::MAX),
        max: rest.get(1).copied().unwrap_or(Nanos::MAX),
    };
    if wait.median > wait.p99 || wait.p99 > wait.max { Err(wrong.order) } else { Ok(wait) }
}

/// What tunings cost, as `[threads, buffer, stores, in_flight, bytes of a copy, ns, CPU ns]`. Files of earlier versions have none.
fn prices(field: Field<'_>) -> Result<Vec<PricedTuning>, FileError> {
    const SHAPE: &str = "[6, 8388608, \"plain\", 3, 536870912, 10056545, 62000000]";
    let mut prices: Vec<PricedTuning> = Vec::new();
    for field in field.elements(&format!("[{SHAPE}]"))? {
        let shape =
            "a price is [threads, bytes of a buffer, stores, in_flight, bytes of a copy, ns, CPU ns]".to_owned();
        let wrong = field.error(format!("`{}` is not the price of a tuning", field.excerpt()), Some(shape));
        let twice = field.error(format!("`{}` is the second price of this tuning", field.excerpt()), None);
        let figures = field.elements(SHAPE)?;
        let [threads, buffer, stores, in_flight, bytes, time, cpu] = figures.as_slice() else { return Err(wrong) };
        let tuning = Tuning {
            threads: narrow(threads.integer(1, THREADS_MAX)?),
            buffer: Bytes(buffer.integer(1, SIZE_MAX.0)?),
            stores: stores.word(Stores::WORDS)?,
            in_flight: narrow(in_flight.integer(1, IN_FLIGHT_MAX)?),
        };
        let bytes = Bytes(bytes.integer(1, SIZE_MAX.0)?);
        let [time, cpu] = [time, cpu].map(|field| field.integer(1, TIME_MAX.0).map(Nanos));
        if prices.iter().any(|known| known.tuning == tuning) {
            return Err(twice);
        }
        prices.push(PricedTuning { tuning, bytes, time: time?, cpu: cpu? });
    }
    Ok(prices)
}

/// Points as `[bytes, samples, median, p99, max]` with times in ns; p99 and max may be left out together, or max alone.
fn points(mut field: Field<'_>) -> Result<Curve, FileError> {
    const SHAPE: &str = "[4096, 1000, 6500, 6900, 9100]";
    const NO_POINT: &str = "is not a point";
    const POINT: &str = "a point is [bytes, samples, median, p99, max], times in ns; p99 and max may be left out";
    let mut points: Vec<CurvePoint> = Vec::new();
    for mut field in field.take_elements(&format!("[{SHAPE}]"))? {
        let figures = field.take_elements(SHAPE)?;
        // An error finds its line, which takes as long as the file is: it is made only where one is wrong.
        let error =
            |fact: &str, help: &str| field.error(format!("`{}` {fact}", field.excerpt()), Some(help.to_owned()));
        let [bytes, n, median, rest @ ..] = figures.as_slice() else { return Err(error(NO_POINT, POINT)) };
        if rest.len() > 2 {
            return Err(error(NO_POINT, POINT));
        }
        let time = |field: &Field<'_>| field.integer(0, TIME_MAX.0).map(Nanos);
        let rest: Vec<Nanos> = rest.iter().map(time).collect::<Result<_, _>>()?;
        let point = CurvePoint {
            bytes: Bytes(bytes.integer(0, SIZE_MAX.0)?),
            n: narrow(n.integer(0, COUNT_MAX)?),
            median: time(median)?,
            p99: rest.first().copied().unwrap_or(Nanos::MAX),
            max: rest.get(1).copied().unwrap_or(Nanos::MAX),
        };
        if let Some(last) = points.last().filter(|last| last.bytes >= point.bytes) {
            let fact = format!("is not above the {} bytes before it", last.bytes.0);
            return Err(error(&fact, "sort the points by size"));
        }
        if point.median > point.p99 || point.p99 > point.max {
            return Err(error("has median, p99 and max that fall", "p99 is at least the median, max at least p99"));
        }
        points.push(point);
    }
    let none = || field.error("the curve has no points", Some(format!("write for example `points = [{SHAPE}]`")));
    Curve::new(points).ok_or_else(none)
}
