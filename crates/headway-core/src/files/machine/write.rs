//! A [`Machine`] as the text of a machine file.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use super::{Calibration, CapacityId, CapacityKind, CpuCores, EndpointId, EndpointKind, EngineClass, Machine, RouteId};
use crate::files::document::{self, decimal, quoted};
use crate::models::cpu::{ChunkWatch, DelayStatistics, DriverWatch};
use crate::models::transfer::arbitration::{Cut, EngineArbitration, SmallCopyWait};
use crate::models::transfer::{
    BackgroundLoad, Curve, CurveKey, CurvePoint, Direction, HostMemory, Method, PricedTuning, Stamp, Tuning, TuningKey,
};
use crate::units::Nanos;

/// The machine file of `machine`, `header` as comments before it, one line each.
///
/// Reading it gives the same machine but for its hash. What is usual is left out, and curves that several GPUs have in common
/// are written once. A limit that no route uses is left out, as a file cannot say it.
#[must_use]
pub fn write(machine: &Machine, header: &[&str]) -> String {
    let mut text = Text { machine, out: String::new() };
    for line in header {
        let shown: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        text.line(format!("# {shown}").trim_end());
    }
    text.field("name", quoted(&machine.name));
    if !machine.description.is_empty() {
        text.field("description", quoted(&machine.description));
    }
    text.endpoints();
    text.capacities();
    text.engines();
    text.routes();
    text.sets();
    text.kernels();
    if let Some(cpu) = machine.cpu.as_ref().filter(|cpu| !cpu.assumed) {
        text.cpu(cpu);
    }
    if let Some(calibration) = &machine.calibration {
        text.calibration(calibration);
    }
    if let Some(stamp) = &machine.profile.stamp {
        text.stamp(stamp);
    }
    text.tunings();
    text.curves(&machine.profile.curves, false);
    text.curves(&machine.profile.posted, true);
    text.arbitration();
    text.out
}

/// `machine` with the hash that its file has, which is the second result.
#[must_use]
pub fn with_file(machine: Machine, header: &[&str]) -> (Machine, String) {
    let text = write(&machine, header);
    (Machine { hash: document::hash(&text), ..machine }, text)
}

/// What tells the curves of one GPU apart.
type Shape = (Direction, Method, HostMemory, BackgroundLoad, u32, u32, Option<EndpointId>);

/// Values with the GPUs that have them.
type Shared<T> = Vec<(T, Vec<EndpointId>)>;

struct Text<'a> {
    machine: &'a Machine,
    out: String,
}

impl Text<'_> {
    fn line(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    fn table(&mut self, header: &str) {
        self.line("");
        self.line(header);
    }

    fn field(&mut self, key: &str, value: impl Display) {
        writeln!(self.out, "{key} = {value}").expect("writing to a String does not fail");
    }

    /// The field, unless its value is the usual one.
    fn unusual<T: PartialEq + Copy>(&mut self, key: &str, value: T, usual: T, text: impl Fn(T) -> String) {
        if value != usual {
            self.field(key, text(value));
        }
    }

    fn end(&self, end: EndpointId) -> &str {
        &self.machine.endpoints[end.at()].id
    }

    fn capacity(&self, id: CapacityId) -> &str {
        &self.machine.capacities[id.at()].id
    }

    fn endpoints(&mut self) {
        for endpoint in &self.machine.endpoints {
            self.table(match endpoint.kind {
                EndpointKind::Memory => "[[memory]]",
                EndpointKind::Gpu => "[[gpu]]",
            });
            self.field("id", quoted(&endpoint.id));
            if let Some(numa) = endpoint.numa {
                self.field("numa", numa);
            }
            for (key, text) in [("pci", &endpoint.pci), ("uuid", &endpoint.uuid)] {
                if let Some(text) = text {
                    self.field(key, quoted(text));
                }
            }
        }
    }

    fn capacities(&mut self) {
        for (at, capacity) in (0..).zip(&self.machine.capacities) {
            let uses = self.uses(CapacityId(at));
            let is_limit = capacity.kind == CapacityKind::Limit;
            if is_limit && uses.is_empty() {
                continue;
            }
            self.table(if is_limit { "[[limit]]" } else { "[[link]]" });
            self.field("id", quoted(&capacity.id));
            if let CapacityKind::Link { from, to, .. } = &capacity.kind {
                self.field("from", quoted(from));
                self.field("to", quoted(to));
            }
            self.field("rate", quoted(&capacity.rate.exact()));
            self.unusual("rate_low", capacity.rate_low, capacity.rate, |rate| quoted(&rate.exact()));
            if let CapacityKind::Link { opposite: Some((other, both)), .. } = &capacity.kind {
                self.field("opposite", quoted(self.capacity(*other)));
                self.unusual("rate_both", *both, capacity.rate, |rate| quoted(&rate.exact()));
            }
            if is_limit {
                self.field("use", format!("{{ {} }}", uses.join(", ")));
            }
        }
    }

    /// What uses `limit`, as the entries of its `use`: whole classes where all their routes use it alike.
    fn uses(&self, limit: CapacityId) -> Vec<String> {
        let use_of = |at: u32| {
            let uses = &self.machine.routes[at as usize].uses;
            uses.iter().find(|(capacity, _)| *capacity == limit).map(|(_, ppm)| *ppm)
        };
        let entry = |key: &str, ppm: u32| format!("{key} = {}", quoted(&decimal(u64::from(ppm))));
        let routes =
            |class| (0..self.machine.routes.len() as u32).filter(move |at| self.machine.class(RouteId(*at)) == class);
        let common = |class| {
            let mut all = routes(class).map(use_of);
            let first = all.next().flatten()?;
            all.all(|other| other == Some(first)).then_some(first)
        };
        if let (Some(a), Some(b)) = (common(EngineClass::H2d), common(EngineClass::D2h))
            && a == b
            && routes(EngineClass::Peer).all(|at| use_of(at).is_none())
        {
            return vec![entry("host", a)];
        }
        let mut entries = Vec::new();
        for (word, class) in [("h2d", EngineClass::H2d), ("d2h", EngineClass::D2h), ("peer", EngineClass::Peer)] {
            if let Some(ppm) = common(class) {
                entries.push(entry(word, ppm));
                continue;
            }
            let mut pairs = BTreeMap::new();
            for (at, ppm) in routes(class).filter_map(|at| Some((at, use_of(at)?))) {
                let route = &self.machine.routes[at as usize];
                pairs.insert((route.from, route.to), ppm);
            }
            entries.extend(
                pairs
                    .into_iter()
                    .map(|((from, to), ppm)| entry(&quoted(&format!("{}->{}", self.end(from), self.end(to))), ppm)),
            );
        }
        entries
    }

    fn engines(&mut self) {
        for engine in &self.machine.engines {
            self.table("[[engine]]");
            self.field("id", quoted(&engine.id));
            self.field("gpu", quoted(self.end(engine.gpu)));
            self.field("serves", list(engine.serves.iter().map(|class| super::file::word(*class))));
            self.unusual("lanes", engine.parallel, 1, |parallel| parallel.to_string());
        }
    }

    fn routes(&mut self) {
        for route in &self.machine.routes {
            self.table("[[route]]");
            self.field("from", quoted(self.end(route.from)));
            self.field("to", quoted(self.end(route.to)));
            self.field("method", quoted(route.method.word()));
            self.field("engines", list(route.engines.iter().map(|e| self.machine.engines[e.at()].id.as_str())));
            let is_link = |id: &CapacityId| self.machine.capacities[id.at()].kind != CapacityKind::Limit;
            let links = route.uses.iter().map(|(id, _)| *id).filter(is_link);
            self.field("links", list(links.map(|id| self.capacity(id))));
            self.unusual("weight", route.weight, super::file::WEIGHT as u32, |weight| weight.to_string());
            self.field("setup", quoted(&route.setup.exact()));
            self.unusual("setup_queued", route.setup_queued, route.setup, |time| quoted(&time.exact()));
            self.unusual("submit", route.submit, Nanos::ZERO, |time| quoted(&time.exact()));
        }
    }

    fn sets(&mut self) {
        for set in &self.machine.sets {
            let routes = set.routes.iter().map(|route| {
                let route = &self.machine.routes[route.at()];
                format!("{}->{}", self.end(route.from), self.end(route.to))
            });
            let (routes, rates): (Vec<_>, Vec<_>) =
                (routes.collect(), set.rates.iter().map(|rate| rate.exact()).collect());
            self.table("[[set]]");
            self.field("routes", list(routes.iter().map(String::as_str)));
            self.field("rates", list(rates.iter().map(String::as_str)));
        }
    }

    fn kernels(&mut self) {
        for kernel in &self.machine.kernels {
            self.table("[[kernel]]");
            self.field("id", quoted(&kernel.id));
            if !kernel.gpus.is_empty() {
                self.field("gpus", list(kernel.gpus.iter().map(|gpu| self.end(*gpu))));
            }
            self.field("setup", quoted(&kernel.setup.exact()));
            self.field("rate", quoted(&kernel.rate.exact()));
            if let Some(rate) = kernel.chain_rate {
                self.field("chain_rate", quoted(&rate.exact()));
            }
            if let Some(rate) = kernel.operation_rate {
                self.field("operation_rate", quoted(&rate.exact()));
            }
        }
    }

    fn cpu(&mut self, cpu: &CpuCores) {
        self.table("[cpu]");
        self.field("cores", cpu.cores);
        self.line("kernels = [");
        for kernel in &cpu.kernels {
            let [setup, portion] = [kernel.setup, kernel.portion].map(|time| quoted(&time.exact()));
            let (id, rate) = (quoted(&kernel.id), quoted(&kernel.rate.exact()));
            self.line(&format!("  {{ id = {id}, setup = {setup}, lane = {portion}, rate = {rate} }},"));
        }
        self.line("]");
    }

    fn calibration(&mut self, of: &Calibration) {
        self.table("[calibration]");
        if of.is_vouched() {
            self.field("vouched", true);
            self.unusual("margin_ppm", of.margin_ppm, 0, |ppm| ppm.to_string());
            self.unusual("jitter", of.jitter, Nanos::ZERO, |jitter| quoted(&jitter.exact()));
            return;
        }
        self.field("sets", of.sets);
        self.field("repeats", of.repeats);
        self.unusual("batches", of.batches, 0, |count| count.to_string());
        self.field("sigma", quoted(&decimal(of.sigma_ppm)));
        self.field("margin_ppm", of.margin_ppm);
        self.field("jitter", quoted(&of.jitter.exact()));
        self.field("median_ppm", of.median_ppm);
        self.field("p95_ppm", of.p95_ppm);
        self.field("max_ppm", of.max_ppm);
        self.field("date", quoted(&of.date));
        self.field("driver", quoted(&of.driver));
        if let Some(DriverWatch { time, class, woken, noticed }) = &of.driver_watch {
            let (time, class) = (quoted(&time.exact()), quoted(class));
            let (woken, noticed) = (lateness(woken), lateness(noticed));
            self.line(&format!(
                "driver_watch = {{ time = {time}, class = {class}, woken = {woken}, noticed = {noticed} }}"
            ));
        }
        let chunks = of.chunk_watch.iter().map(|(direction, watch)| {
            let ChunkWatch { time, class, chunks, slower_ppm, each, together, max } = watch;
            let [time, each, together, max] = [time, each, together, max].map(|time| quoted(&time.exact()));
            let (direction, class) = (direction.word(), quoted(class));
            format!(
                "{direction} = {{ time = {time}, class = {class}, chunks = {chunks}, slower_ppm = {slower_ppm}, each = {each}, \
                 together = {together}, max = {max} }}"
            )
        });
        if !of.chunk_watch.is_empty() {
            self.line(&format!("chunk_watch = {{ {} }}", chunks.collect::<Vec<_>>().join(", ")));
        }
    }

    fn stamp(&mut self, stamp: &Stamp) {
        self.table("[profile]");
        self.field("source", quoted(&stamp.source));
        self.field("driver", quoted(&stamp.driver));
        self.field("gpus", list(stamp.gpus.iter().map(String::as_str)));
        self.field("pcie", list(stamp.pcie.iter().map(String::as_str)));
        self.field("cpus", quoted(&stamp.cpus));
        self.field("commit", quoted(&stamp.commit));
        self.field("date", quoted(&stamp.date));
    }

    /// The GPUs a table is for, unless they are all that it could be for.
    fn gpus(&mut self, gpus: &[EndpointId], peer: Option<EndpointId>) {
        if !self.machine.gpus().filter(|gpu| Some(*gpu) != peer).eq(gpus.iter().copied()) {
            self.field("gpus", list(gpus.iter().map(|gpu| self.end(*gpu))));
        }
    }

    fn tunings(&mut self) {
        let mut groups: BTreeMap<_, Shared<(Tuning, &[PricedTuning])>> = BTreeMap::new();
        let machine = self.machine;
        let profile = &machine.profile;
        let all: Vec<_> =
            profile.tunings.iter().map(|(key, tuning)| (*key, (*tuning, profile.prices_of(key)))).collect();
        for (TuningKey { gpu, direction, memory, active }, priced) in &all {
            group(groups.entry((*direction, *memory, *active)).or_default(), priced, *gpu);
        }
        for ((direction, memory, active), tunings) in groups {
            for ((tuning, prices), gpus) in tunings {
                self.table("[[staging]]");
                self.gpus(&gpus, None);
                self.field("direction", quoted(direction.word()));
                self.unusual("memory", memory, HostMemory::Touched, |memory| quoted(memory.word()));
                self.unusual("active", active, 1, |active| active.to_string());
                self.field("threads", tuning.threads);
                self.field("buffer", quoted(&tuning.buffer.exact()));
                self.field("stores", quoted(tuning.stores.word()));
                self.field("in_flight", tuning.in_flight);
                if !prices.is_empty() {
                    self.line("prices = [");
                    for PricedTuning { tuning, bytes, time, cpu } in prices.iter() {
                        let Tuning { threads, buffer, stores, in_flight } = tuning;
                        let stores = quoted(stores.word());
                        let row = format!(
                            "  [{threads}, {}, {stores}, {in_flight}, {}, {}, {}],",
                            buffer.0, bytes.0, time.0, cpu.0
                        );
                        self.line(&row);
                    }
                    self.line("]");
                }
            }
        }
    }

    fn arbitration(&mut self) {
        let mut groups: BTreeMap<_, Shared<EngineArbitration>> = BTreeMap::new();
        for ((gpu, direction), found) in &self.machine.profile.arbitration {
            group(groups.entry(*direction).or_default(), found, *gpu);
        }
        for (direction, all) in groups {
            for (found, gpus) in all {
                self.table("[[arbitration]]");
                self.gpus(&gpus, None);
                self.field("direction", quoted(direction.word()));
                self.field("time", quoted(&found.time.exact()));
                self.field("whole", cut_text(&found.whole));
                for (key, cuts) in [("words", &found.words), ("streams", &found.streams)] {
                    if !cuts.is_empty() {
                        self.line(&format!("{key} = ["));
                        cuts.iter().for_each(|cut| self.line(&format!("  {},", cut_text(cut))));
                        self.line("]");
                    }
                }
                if let Some(wait) = &found.process {
                    self.field("process", format!("[{}]", wait_text(wait)));
                }
            }
        }
    }

    fn curves(&mut self, curves: &BTreeMap<CurveKey, Curve>, posted: bool) {
        let mut groups: BTreeMap<Shape, Shared<Curve>> = BTreeMap::new();
        for (key, curve) in curves {
            let shape = (key.direction, key.method, key.memory, key.load, key.active, key.pieces, key.peer);
            group(groups.entry(shape).or_default(), curve, key.gpu);
        }
        for ((direction, method, memory, load, active, pieces, peer), curves) in groups {
            for (curve, gpus) in curves {
                self.table("[[curve]]");
                self.gpus(&gpus, peer);
                if let Some(peer) = peer {
                    self.field("peer", quoted(self.end(peer)));
                }
                self.field("method", quoted(method.word()));
                if let Some(form) = method.form() {
                    self.field("via", quoted(form));
                }
                self.field("direction", quoted(direction.word()));
                self.unusual("memory", memory, HostMemory::Pinned, |memory| quoted(memory.word()));
                self.unusual("load", load, BackgroundLoad::Alone, |load| quoted(load.word()));
                self.unusual("active", active, 1, |active| active.to_string());
                self.unusual("pieces", pieces, 1, |pieces| pieces.to_string());
                self.unusual("posted", posted, false, |posted| posted.to_string());
                self.line("points = [");
                for point in curve.points() {
                    self.line(&format!("  {},", point_text(point)));
                }
                self.line("]");
            }
        }
    }
}

/// Adds `gpu` to those that have `value`.
fn group<T: Clone + PartialEq>(groups: &mut Shared<T>, value: &T, gpu: EndpointId) {
    match groups.iter_mut().find(|(known, _)| known == value) {
        Some((_, gpus)) => gpus.push(gpu),
        None => groups.push((value.clone(), vec![gpu])),
    }
}

fn cut_text(cut: &Cut) -> String {
    format!("[{}, {}, {}]", cut.chunk.0, cut.share_ppm, wait_text(&cut.wait))
}

fn wait_text(wait: &SmallCopyWait) -> String {
    let mut figures = vec![u64::from(wait.n), wait.median.0];
    figures.extend([wait.p99, wait.max].iter().take_while(|time| **time != Nanos::MAX).map(|time| time.0));
    let figures: Vec<String> = figures.iter().map(u64::to_string).collect();
    figures.join(", ")
}

fn point_text(point: &CurvePoint) -> String {
    let mut figures = vec![point.bytes.0, u64::from(point.n), point.median.0];
    figures.extend([point.p99, point.max].iter().take_while(|time| **time != Nanos::MAX).map(|time| time.0));
    let figures: Vec<String> = figures.iter().map(u64::to_string).collect();
    format!("[{}]", figures.join(", "))
}

fn list<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let items: Vec<String> = items.map(quoted).collect();
    format!("[{}]", items.join(", "))
}

/// Delays as an inline table.
fn lateness(of: &DelayStatistics) -> String {
    let [median, max] = [of.median, of.max].map(|time| quoted(&time.exact()));
    let p99 = of.p99.map_or_else(String::new, |p99| format!(" p99 = {},", quoted(&p99.exact())));
    format!("{{ count = {}, median = {median},{p99} max = {max} }}", of.count)
}
