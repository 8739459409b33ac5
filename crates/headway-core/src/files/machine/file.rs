//! The machine file: TOML in, a checked [`Machine`] out.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Calibration, Capacity, CapacityId, CapacityKind, Endpoint, EndpointId, EndpointKind, Engine, EngineClass, EngineId,
    KernelCost, Machine, MeasuredSet, Route, RouteId,
};
use crate::files::document::{self, DocumentTable, Field, narrow, suggest};
use crate::files::error::{FileError, SourceText};
use crate::models::cpu::{ChunkWatch, DelayStatistics, DriverWatch};
use crate::models::transfer::arbitration::DIRECTIONS;
use crate::models::transfer::{Direction, Method};
use crate::units::{PPM, Rate};

/// Slowest link or limit that a machine file can hold; below it, rates in whole bytes per second would be too coarse for the sharing model.
pub const RATE_MIN: Rate = Rate(1_000_000);
/// Weight of a route that gives none, and the largest.
pub(super) const WEIGHT: u64 = 1_000;
const WEIGHT_MAX: u64 = 1_000_000;
/// Largest `use`: bytes of a limit per byte moved.
const USE_MAX_PPM: u64 = 100 * PPM;
/// Endpoint names that mean something else in a workload file.
const RESERVED: [&str; 2] = ["auto", "gpu"];

const TOP: &[&str] = &[
    "name",
    "description",
    "memory",
    "gpu",
    "link",
    "limit",
    "engine",
    "route",
    "set",
    "kernel",
    "cpu",
    "calibration",
    "profile",
    "curve",
    "staging",
    "arbitration",
];
const ENDPOINT: &[&str] = &["id", "numa", "pci", "uuid"];
const LINK: &[&str] = &["id", "from", "to", "rate", "rate_low", "opposite", "rate_both"];
const LIMIT: &[&str] = &["id", "rate", "rate_low", "use"];
const ENGINE: &[&str] = &["id", "gpu", "serves", "lanes"];
const ROUTE: &[&str] = &["from", "to", "method", "engines", "links", "weight", "setup", "setup_queued", "submit"];
const SET: &[&str] = &["routes", "rates"];
const KERNEL: &[&str] = &["id", "gpus", "setup", "rate", "chain_rate", "operation_rate"];
const CALIBRATION: &[&str] = &[
    "vouched",
    "sets",
    "repeats",
    "batches",
    "sigma",
    "margin_ppm",
    "jitter",
    "median_ppm",
    "p95_ppm",
    "max_ppm",
    "date",
    "driver",
    "driver_watch",
    "chunk_watch",
];
const CLASSES: &[(&str, EngineClass)] =
    &[("h2d", EngineClass::H2d), ("d2h", EngineClass::D2h), ("peer", EngineClass::Peer), ("ee", EngineClass::Ee)];
const METHODS: &[(&str, Method)] = &[("dma", Method::Dma), ("pageable", Method::Pageable), ("peer", Method::Peer)];

/// Reads a machine file.
///
/// # Errors
/// At the first thing that is not TOML, not a known key, not a value of its kind, not the name of anything, or that
/// contradicts another part of the file.
pub fn parse(name: &str, text: &str) -> Result<Machine, FileError> {
    let source = SourceText::new(name, text);
    let mut top = document::root(&source, TOP)?;
    let mut reader = Reader::new(&source, text, &mut top)?;
    reader.endpoints(&mut top)?;
    reader.links(&mut top)?;
    let uses = reader.limits(&mut top)?;
    reader.engines(&mut top)?;
    reader.routes(&mut top)?;
    for (limit, fields) in uses {
        reader.apply_use(limit, fields)?;
    }
    reader.sets(&mut top)?;
    reader.kernels(&mut top)?;
    reader.machine.cpu = super::cpu::read(&mut top)?;
    reader.machine.calibration = calibration(&mut top)?;
    reader.profile(&mut top)?;
    Ok(reader.machine)
}

/// Names given so far in one namespace, and what they stand for.
struct Names<T> {
    kind: &'static str,
    /// What each is, and where in the file it is defined.
    known: BTreeMap<String, (T, usize)>,
}

impl<T: Copy> Names<T> {
    const fn new(kind: &'static str) -> Self {
        Self { kind, known: BTreeMap::new() }
    }

    fn define(&mut self, field: &Field<'_>, value: T) -> Result<String, FileError> {
        let id = field.name()?;
        if let Some((_, first)) = self.known.insert(id.clone(), (value, field.span.start)) {
            let (line, help) = (field.line_of(first), "give each part its own id".to_owned());
            return Err(field.error(format!("`{id}` is already taken, in line {line}"), Some(help)));
        }
        Ok(id)
    }

    fn get(&self, id: &str) -> Option<T> {
        self.known.get(id).map(|(value, _)| *value)
    }

    fn find(&self, field: &Field<'_>) -> Result<T, FileError> {
        let id = field.text("\"...\"")?;
        self.get(id).ok_or_else(|| {
            let help = suggest(id, self.known.keys().map(String::as_str), self.kind);
            field.error(format!("`{id}` is not among the {}", self.kind), Some(help))
        })
    }
}

pub(super) struct Reader<'a> {
    source: &'a SourceText,
    pub(super) machine: Machine,
    endpoints: Names<EndpointId>,
    capacities: Names<CapacityId>,
    engines: Names<EngineId>,
}

impl<'a> Reader<'a> {
    fn new(source: &'a SourceText, text: &str, top: &mut DocumentTable<'a>) -> Result<Self, FileError> {
        let machine = Machine {
            name: top.require("name", "\"my-node\"")?.name()?,
            description: optional_text(top, "description")?.unwrap_or_default(),
            hash: document::hash(text),
            ..Machine::none()
        };
        let (endpoints, capacities) = (Names::new("memories and GPUs"), Names::new("links and limits"));
        Ok(Self { source, machine, endpoints, capacities, engines: Names::new("engines") })
    }

    fn endpoints(&mut self, top: &mut DocumentTable<'_>) -> Result<(), FileError> {
        for (key, kind) in [("memory", EndpointKind::Memory), ("gpu", EndpointKind::Gpu)] {
            for mut table in top.tables(key, ENDPOINT)? {
                let field = table.require("id", "\"gpu0\"")?;
                let id = self.endpoints.define(&field, EndpointId(narrow(self.machine.endpoints.len())))?;
                if RESERVED.contains(&id.as_str()) {
                    let help = format!("`{id}` has its own meaning in workload files; write for example `{id}0`");
                    return Err(field.error(format!("`{id}` cannot name a memory or GPU"), Some(help)));
                }
                let numa = table.take("numa").map(|f| f.integer(0, u64::from(u32::MAX))).transpose()?.map(narrow);
                let (pci, uuid) = (optional_text(&mut table, "pci")?, optional_text(&mut table, "uuid")?);
                self.machine.endpoints.push(Endpoint { id, kind, numa, pci, uuid });
            }
        }
        if self.machine.endpoints.is_empty() {
            let help = "add `[[memory]]` and `[[gpu]]` tables, or let `headway measure` write the file";
            return Err(self.source.error(0..0, "the machine is empty", Some(help.to_owned())));
        }
        Ok(())
    }

    fn links(&mut self, top: &mut DocumentTable<'_>) -> Result<(), FileError> {
        let mut pairs = Vec::new();
        for mut table in top.tables("link", LINK)? {
            let at = CapacityId(narrow(self.machine.capacities.len()));
            let id = self.capacities.define(&table.require("id", "\"gpu0.in\"")?, at)?;
            let from = table.require("from", "\"host\"")?.name()?;
            let to = table.require("to", "\"gpu0\"")?.name()?;
            let (rate, rate_low) = rates(&mut table)?;
            let rate_both = table.take("rate_both");
            let opposite = table.take("opposite");
            if let (Some(field), None) = (&rate_both, &opposite) {
                let help = "name the link of the other direction: `opposite = \"...\"`".to_owned();
                return Err(field.key_error(format!("link `{id}` has `rate_both` but no `opposite`"), Some(help)));
            }
            let rate_both = rate_both.map(|f| slower(&f, rate)).transpose()?.unwrap_or(rate);
            pairs.extend(opposite.map(|field| (at, field, rate_both)));
            let kind = CapacityKind::Link { from, to, opposite: None };
            self.machine.capacities.push(Capacity { id, rate, rate_low, kind });
        }
        self.pair(pairs)
    }

    /// Connects the two directions of each wire.
    fn pair(&mut self, pairs: Vec<(CapacityId, Field<'_>, Rate)>) -> Result<(), FileError> {
        let mut named = BTreeMap::new();
        for (link, field, _) in &pairs {
            named.insert(*link, self.capacities.find(field)?);
        }
        for (link, field, rate_both) in pairs {
            let other = named[&link];
            let other_id = self.machine.capacities[other.at()].id.clone();
            let this = &self.machine.capacities[link.at()];
            if other == link || named.get(&other) != Some(&link) {
                let help = format!("add `opposite = \"{}\"` to link `{other_id}`", this.id);
                let message = format!("link `{}` names `{other_id}` as its opposite, but not the reverse", this.id);
                return Err(field.error(message, Some(help)));
            }
            let ends = |at: CapacityId| match &self.machine.capacities[at.at()].kind {
                CapacityKind::Link { from, to, .. } => (from.clone(), to.clone()),
                CapacityKind::Limit => (String::new(), String::new()),
            };
            let ((from, to), (other_from, other_to)) = (ends(link), ends(other));
            if (&from, &to) != (&other_to, &other_from) {
                let help = format!("the opposite of a link from `{from}` to `{to}` goes from `{to}` to `{from}`");
                let message = format!("link `{other_id}` goes from `{other_from}` to `{other_to}`");
                return Err(field.error(message, Some(help)));
            }
            if let CapacityKind::Link { opposite, .. } = &mut self.machine.capacities[link.at()].kind {
                *opposite = Some((other, rate_both));
            }
        }
        Ok(())
    }

    /// Reads the limits; their `use` is returned, as it can only be resolved when the routes are known.
    fn limits<'d>(&mut self, top: &mut DocumentTable<'d>) -> Result<Vec<(CapacityId, Vec<Field<'d>>)>, FileError> {
        let mut uses = Vec::new();
        for mut table in top.tables("limit", LIMIT)? {
            let at = CapacityId(narrow(self.machine.capacities.len()));
            let id = self.capacities.define(&table.require("id", "\"io\"")?, at)?;
            let (rate, rate_low) = rates(&mut table)?;
            let fields = table.require("use", "{ host = \"1\" }")?.map()?.rest();
            if fields.is_empty() {
                return Err(table.error(format!("limit `{id}` is used by nothing"), "add `use = { host = \"1\" }`"));
            }
            uses.push((at, fields));
            self.machine.capacities.push(Capacity { id, rate, rate_low, kind: CapacityKind::Limit });
        }
        Ok(uses)
    }

    fn engines(&mut self, top: &mut DocumentTable<'_>) -> Result<(), FileError> {
        for mut table in top.tables("engine", ENGINE)? {
            let at = EngineId(narrow(self.machine.engines.len()));
            let id = self.engines.define(&table.require("id", "\"gpu0.h2d\"")?, at)?;
            let gpu = table.require("gpu", "\"gpu0\"")?;
            let gpu = self.gpu(&gpu)?;
            let serves = table.require("serves", "[\"h2d\"]")?;
            let empty =
                serves.error(format!("engine `{id}` serves nothing"), Some("list some of h2d, d2h, peer, ee".into()));
            let serves: Vec<EngineClass> =
                serves.elements("[\"h2d\"]")?.iter().map(|f| f.word(CLASSES)).collect::<Result<_, _>>()?;
            if serves.is_empty() {
                return Err(empty);
            }
            let parallel = table.take("lanes").map_or(Ok(1), |f| f.integer(1, 64))?;
            self.machine.engines.push(Engine { id, gpu, serves, parallel: narrow(parallel) });
        }
        Ok(())
    }

    pub(super) fn gpu(&self, field: &Field<'_>) -> Result<EndpointId, FileError> {
        let found = self.endpoints.find(field)?;
        if self.machine.endpoints[found.at()].kind == EndpointKind::Gpu {
            return Ok(found);
        }
        let gpus: Vec<&str> = self.machine.gpus().map(|g| self.machine.endpoints[g.at()].id.as_str()).collect();
        let help = suggest("", gpus.into_iter(), "GPUs");
        Err(field.error(format!("`{}` is a memory, not a GPU", self.machine.endpoints[found.at()].id), Some(help)))
    }

    fn routes(&mut self, top: &mut DocumentTable<'_>) -> Result<(), FileError> {
        let mut seen = BTreeMap::new();
        for mut table in top.tables("route", ROUTE)? {
            let from = self.endpoints.find(&table.require("from", "\"host\"")?)?;
            let to = self.endpoints.find(&table.require("to", "\"gpu0\"")?)?;
            let name = self.route_name(from, to);
            let class = self.route_class(&table, from, to)?;
            let method = method(&mut table, class)?;
            if seen.insert((from, to, method), ()).is_some() {
                let help = "a pair of endpoints has one route for each method";
                return Err(table.error(format!("route `{name}` is there twice with the same method"), help));
            }
            let engines = self.route_engines(&mut table, &name, class, [from, to])?;
            let uses = self.route_links(&mut table, &name, [from, to])?;
            let weight = table.take("weight").map_or(Ok(WEIGHT), |f| f.integer(1, WEIGHT_MAX))?;
            let setup = table.require("setup", "\"7 us\"")?.time()?;
            let setup_queued = table.take("setup_queued").map_or(Ok(setup), |f| f.time())?;
            let submit = table.take("submit").map_or(Ok(crate::units::Nanos::ZERO), |f| f.time())?;
            let weight = narrow(weight);
            self.machine.routes.push(Route { from, to, method, engines, uses, weight, setup, setup_queued, submit });
        }
        Ok(())
    }

    fn route_name(&self, from: EndpointId, to: EndpointId) -> String {
        format!("{}->{}", self.machine.endpoints[from.at()].id, self.machine.endpoints[to.at()].id)
    }

    fn route_class(
        &self,
        table: &DocumentTable<'_>,
        from: EndpointId,
        to: EndpointId,
    ) -> Result<EngineClass, FileError> {
        let kind = |end: EndpointId| self.machine.endpoints[end.at()].kind;
        match (kind(from), kind(to)) {
            _ if from == to => {
                Err(table.error(format!("route `{}` goes nowhere", self.route_name(from, to)), "name two endpoints"))
            }
            (EndpointKind::Memory, EndpointKind::Memory) => Err(table.error(
                format!("route `{}` joins two memories", self.route_name(from, to)),
                "a route begins or ends at a GPU, whose engine moves the data",
            )),
            (EndpointKind::Memory, EndpointKind::Gpu) => Ok(EngineClass::H2d),
            (EndpointKind::Gpu, EndpointKind::Memory) => Ok(EngineClass::D2h),
            (EndpointKind::Gpu, EndpointKind::Gpu) => Ok(EngineClass::Peer),
        }
    }

    fn route_engines(
        &self,
        table: &mut DocumentTable<'_>,
        name: &str,
        class: EngineClass,
        ends: [EndpointId; 2],
    ) -> Result<Vec<EngineId>, FileError> {
        let list = table.require("engines", "[\"gpu0.h2d\"]")?;
        let none =
            list.error(format!("route `{name}` has no engine"), Some("list the engine that serves it".to_owned()));
        let mut engines = Vec::new();
        for field in list.elements("[\"gpu0.h2d\"]")? {
            let at = self.engines.find(&field)?;
            let engine = &self.machine.engines[at.at()];
            if !engine.serves.contains(&class) {
                let help = format!("name an engine that serves {0}, or add \"{0}\" to its `serves`", word(class));
                let message = format!("engine `{}` does not serve {} as route `{name}` needs", engine.id, word(class));
                return Err(field.error(message, Some(help)));
            }
            if !ends.contains(&engine.gpu) {
                let gpu = &self.machine.endpoints[engine.gpu.at()].id;
                let help = "name an engine of a GPU at its ends".to_owned();
                let message = format!("engine `{}` is of `{gpu}`, which is at no end of route `{name}`", engine.id);
                return Err(field.error(message, Some(help)));
            }
            if engines.contains(&at) {
                return Err(field.error(format!("route `{name}` lists engine `{}` twice", engine.id), None));
            }
            engines.push(at);
        }
        if engines.is_empty() { Err(none) } else { Ok(engines) }
    }

    fn route_links(
        &self,
        table: &mut DocumentTable<'_>,
        name: &str,
        [from, to]: [EndpointId; 2],
    ) -> Result<Vec<(CapacityId, u32)>, FileError> {
        let list = table.require("links", "[\"gpu0.in\"]")?;
        let span = list.span.clone();
        let list_error = |message: String, help: String| self.source.error(span.clone(), message, Some(help));
        let id = |end: EndpointId| self.machine.endpoints[end.at()].id.as_str();
        let mut here = id(from);
        let mut uses: Vec<(CapacityId, u32)> = Vec::new();
        for field in list.elements("[\"gpu0.in\"]")? {
            let at = self.capacities.find(&field)?;
            let link = &self.machine.capacities[at.at()];
            let CapacityKind::Link { from: start, to: end, .. } = &link.kind else {
                let help = "a limit names its routes itself, in its `use`".to_owned();
                return Err(field.error(format!("`{}` is a limit, not a link", link.id), Some(help)));
            };
            if start != here {
                let help =
                    format!("list the links of route `{name}` in path order, from `{}` to `{}`", id(from), id(to));
                let message = format!("link `{}` starts at `{start}`, but the path is at `{here}`", link.id);
                return Err(field.error(message, Some(help)));
            }
            if uses.iter().any(|(used, _)| *used == at) {
                return Err(field.error(format!("route `{name}` crosses link `{}` twice", link.id), None));
            }
            here = end;
            uses.push((at, narrow(PPM)));
        }
        if uses.is_empty() {
            let help = "list the links it crosses, from end to end".to_owned();
            return Err(list_error(format!("route `{name}` has no links"), help));
        }
        if here != id(to) {
            let help = format!("add the links from `{here}` to `{}`", id(to));
            return Err(list_error(format!("the links of route `{name}` end at `{here}`"), help));
        }
        Ok(uses)
    }

    /// Adds `limit` to the routes that its `use` names. For a route that several keys name, the narrowest counts: the
    /// route itself, then its class, then `host`.
    fn apply_use(&mut self, limit: CapacityId, fields: Vec<Field<'_>>) -> Result<(), FileError> {
        let id = self.machine.capacities[limit.at()].id.clone();
        let mut chosen: BTreeMap<usize, (u8, u32)> = BTreeMap::new();
        for field in fields {
            let ppm = narrow(field.decimal_ppm(1, USE_MAX_PPM)?);
            let matching = self.routes_called(&field)?;
            if matching.is_empty() {
                let help = format!("remove it from the `use` of limit `{id}`, or add the route");
                return Err(field.key_error(format!("no route is called `{}`", field.key), Some(help)));
            }
            for (route, narrowness) in matching {
                let entry = chosen.entry(route).or_insert((narrowness, ppm));
                if narrowness > entry.0 {
                    *entry = (narrowness, ppm);
                }
            }
        }
        for (route, (_, ppm)) in chosen {
            self.machine.routes[route].uses.push((limit, ppm));
        }
        Ok(())
    }

    /// Positions of the routes that a key of `use` names, with how narrow that name is.
    fn routes_called(&self, field: &Field<'_>) -> Result<Vec<(usize, u8)>, FileError> {
        let all = self.machine.routes.iter().enumerate();
        if let Some((from, to)) = field.key.split_once("->") {
            let end = |id: &str| {
                let id = id.trim();
                self.endpoints.get(id).ok_or_else(|| {
                    let known = self.endpoints.known.keys().map(String::as_str);
                    let help = suggest(id, known, self.endpoints.kind);
                    field.key_error(format!("`{id}` is not among the {}", self.endpoints.kind), Some(help))
                })
            };
            let (from, to) = (end(from)?, end(to)?);
            return Ok(all.filter(|(_, r)| r.from == from && r.to == to).map(|(i, _)| (i, 2)).collect());
        }
        let classes: (&[EngineClass], u8) = match field.key.as_str() {
            "h2d" => (&[EngineClass::H2d], 1),
            "d2h" => (&[EngineClass::D2h], 1),
            "peer" => (&[EngineClass::Peer], 1),
            "host" => (&[EngineClass::H2d, EngineClass::D2h], 0),
            other => {
                let help =
                    "keys of `use` are h2d, d2h, peer, host (both h2d and d2h) or a route such as \"host->gpu0\"";
                return Err(field.key_error(format!("`{other}` names no routes"), Some(help.to_owned())));
            }
        };
        let named = |i: usize| classes.0.contains(&self.machine.class(RouteId(narrow(i))));
        Ok(all.map(|(i, _)| i).filter(|i| named(*i)).map(|i| (i, classes.1)).collect())
    }

    /// Reads the measured sets: routes between host and GPUs, in any order in the file, each with its rate.
    fn sets(&mut self, top: &mut DocumentTable<'_>) -> Result<(), FileError> {
        let mut seen = BTreeSet::new();
        for mut table in top.tables("set", SET)? {
            let mut copies = BTreeMap::new();
            let routes = table.require("routes", "[\"host->gpu0\"]")?.elements("[\"host->gpu0\"]")?;
            let rates = table.require("rates", "[\"8 GB/s\"]")?.elements("[\"8 GB/s\"]")?;
            if routes.len() != rates.len() || routes.len() < 2 {
                let message = format!("a set has {} routes and {} rates", routes.len(), rates.len());
                return Err(table.error(message, "give two routes or more, and one rate for each"));
            }
            for (route, field) in routes.iter().zip(&rates) {
                let at = self.copy_called(route)?;
                let rate = field.rate_above_zero("8 GB/s")?;
                fast_enough(field, rate)?;
                if copies.insert(at, rate).is_some() {
                    let help = "a set has each route once".to_owned();
                    return Err(route.error(format!("`{}` is there twice", route.excerpt()), Some(help)));
                }
            }
            let set = MeasuredSet { routes: copies.keys().copied().collect(), rates: copies.into_values().collect() };
            if !seen.insert(set.routes.clone()) {
                return Err(table.error("a set of the same routes was there before", "keep one of them"));
            }
            self.machine.sets.push(set);
        }
        Ok(())
    }

    /// The `dma` route between host and a GPU that `field` names.
    fn copy_called(&self, field: &Field<'_>) -> Result<RouteId, FileError> {
        let name = field.text("\"host->gpu0\"")?;
        let end = |id: &str| self.endpoints.get(id.trim());
        let found = name.split_once("->").and_then(|(from, to)| self.machine.route(end(from)?, end(to)?));
        let copy = found.filter(|route| self.machine.class(*route) != EngineClass::Peer);
        copy.ok_or_else(|| {
            let copies = (0..).map(RouteId).zip(&self.machine.routes);
            let copies =
                copies.filter(|(id, r)| r.method == Method::Dma && self.machine.class(*id) != EngineClass::Peer);
            let names: Vec<String> = copies.map(|(_, route)| self.route_name(route.from, route.to)).collect();
            let help = suggest(name, names.iter().map(String::as_str), "routes");
            field.error(format!("`{name}` is no `dma` route between a memory and a GPU"), Some(help))
        })
    }

    fn kernels(&mut self, top: &mut DocumentTable<'_>) -> Result<(), FileError> {
        for mut table in top.tables("kernel", KERNEL)? {
            let field = table.require("id", "\"aes128-cbc\"")?;
            let id = field.name()?;
            let gpus = table.take("gpus").map_or_else(|| Ok(Vec::new()), |f| f.elements("[\"gpu0\"]"))?;
            let gpus: Vec<EndpointId> = gpus.iter().map(|f| self.gpu(f)).collect::<Result<_, _>>()?;
            let overlaps = |other: &KernelCost| {
                gpus.is_empty() || other.gpus.is_empty() || gpus.iter().any(|gpu| other.gpus.contains(gpu))
            };
            if self.machine.kernels.iter().any(|other| other.id == id && overlaps(other)) {
                let help = "give one entry for each kernel and GPU; an entry without `gpus` is for all".to_owned();
                return Err(field.error(format!("kernel `{id}` has two costs for the same GPU"), Some(help)));
            }
            let setup = table.require("setup", "\"20 us\"")?.time()?;
            let rate = table.require("rate", "\"2 GB/s\"")?.rate_above_zero("2 GB/s")?;
            let chain_rate = table.take("chain_rate").map(|f| f.rate_above_zero("20 MB/s")).transpose()?;
            let operation_rate = table.take("operation_rate").map(|f| f.rate_above_zero("40000 GB/s")).transpose()?;
            self.machine.kernels.push(KernelCost { id, gpus, setup, rate, chain_rate, operation_rate });
        }
        Ok(())
    }
}

fn calibration(top: &mut DocumentTable<'_>) -> Result<Option<Calibration>, FileError> {
    let Some(field) = top.take("calibration") else { return Ok(None) };
    let mut table = field.table("[calibration]", CALIBRATION)?;
    if let Some(vouched) = table.take("vouched") {
        if !vouched.boolean()? {
            let help = "leave the key out, and write what was measured".to_owned();
            return Err(vouched.error("`vouched` says nothing unless it is true", Some(help)));
        }
        let mut calibration = Calibration::vouched();
        if let Some(margin) = table.take("margin_ppm") {
            calibration.margin_ppm = margin.integer(0, 100 * PPM)?;
        }
        if let Some(jitter) = table.take("jitter") {
            calibration.jitter = jitter.time()?;
        }
        return match CALIBRATION.iter().find_map(|key| table.take(key)) {
            Some(field) => {
                let help = "beside `vouched` write only `margin_ppm` and `jitter`".to_owned();
                Err(field.error("this is for a machine that was measured", Some(help)))
            }
            None => Ok(Some(calibration)),
        };
    }
    let mut integer = |key, min, max| table.require(key, "0")?.integer(min, max);
    let counts = (integer("sets", 1, u64::from(u32::MAX))?, integer("repeats", 1, u64::from(u32::MAX))?);
    let [margin_ppm, median_ppm, p95_ppm, max_ppm] = [
        integer("margin_ppm", 0, 100 * PPM)?,
        integer("median_ppm", 0, 100 * PPM)?,
        integer("p95_ppm", 0, 100 * PPM)?,
        integer("max_ppm", 0, 100 * PPM)?,
    ];
    Ok(Some(Calibration {
        sets: narrow(counts.0),
        repeats: narrow(counts.1),
        batches: narrow(table.take("batches").map_or(Ok(0), |f| f.integer(0, u64::from(u32::MAX)))?),
        sigma_ppm: table.require("sigma", "\"1.02\"")?.decimal_ppm(PPM, 100 * PPM)?,
        margin_ppm,
        jitter: table.require("jitter", "\"200 us\"")?.time()?,
        median_ppm,
        p95_ppm,
        max_ppm,
        date: table.require("date", "\"2026-11-21\"")?.text("\"2026-11-21\"")?.to_owned(),
        driver: table.require("driver", "\"580.159.04\"")?.text("\"580.159.04\"")?.to_owned(),
        driver_watch: table.take("driver_watch").map(driver_watch).transpose()?,
        chunk_watch: table.take("chunk_watch").map_or_else(|| Ok(BTreeMap::new()), chunk_watch)?,
    }))
}

fn driver_watch(field: Field<'_>) -> Result<DriverWatch, FileError> {
    let mut table = field.table("driver_watch", &["time", "class", "woken", "noticed"])?;
    Ok(DriverWatch {
        time: table.require("time", "\"5 s\"")?.time()?,
        class: table.require("class", "\"SCHED_OTHER\"")?.text("\"SCHED_OTHER\"")?.to_owned(),
        woken: lateness(table.require("woken", LATENESS)?)?,
        noticed: lateness(table.require("noticed", LATENESS)?)?,
    })
}

fn chunk_watch(field: Field<'_>) -> Result<BTreeMap<Direction, ChunkWatch>, FileError> {
    let mut both = field.table("chunk_watch", &DIRECTIONS.map(Direction::word))?;
    let taken = DIRECTIONS.map(|direction| both.take(direction.word()).map(|field| (direction, field)));
    taken.into_iter().flatten().map(|(direction, field)| Ok((direction, chunks_of_one_direction(field)?))).collect()
}

fn chunks_of_one_direction(field: Field<'_>) -> Result<ChunkWatch, FileError> {
    let keys = ["time", "class", "chunks", "slower_ppm", "each", "together", "max"];
    let mut table = field.table("chunks", &keys)?;
    Ok(ChunkWatch {
        time: table.require("time", "\"1 s\"")?.time()?,
        class: table.require("class", "\"SCHED_OTHER\"")?.text("\"SCHED_OTHER\"")?.to_owned(),
        chunks: table.require("chunks", "30000")?.integer(0, u64::MAX)?,
        slower_ppm: table.require("slower_ppm", "0")?.integer(0, 100 * PPM)?,
        each: table.require("each", "\"4 us\"")?.time()?,
        together: table.require("together", "\"120 us\"")?.time()?,
        max: table.require("max", "\"110 us\"")?.time()?,
    })
}

const LATENESS: &str = "{ count = 500, median = \"1 us\", p99 = \"60 us\", max = \"80 us\" }";

fn lateness(field: Field<'_>) -> Result<DelayStatistics, FileError> {
    let mut table = field.table("delays", &["count", "median", "p99", "max"])?;
    Ok(DelayStatistics {
        count: table.require("count", "500")?.integer(0, u64::MAX)?,
        median: table.require("median", "\"1 us\"")?.time()?,
        p99: table.take("p99").map(|p99| p99.time()).transpose()?,
        max: table.require("max", "\"80 us\"")?.time()?,
        beyond: 0,
    })
}

fn rates(table: &mut DocumentTable<'_>) -> Result<(Rate, Rate), FileError> {
    let field = table.require("rate", "\"8 GB/s\"")?;
    let rate = field.rate_above_zero("8 GB/s")?;
    fast_enough(&field, rate)?;
    let rate_low = table.take("rate_low").map_or(Ok(rate), |field| slower(&field, rate))?;
    Ok((rate, rate_low))
}

/// A second rate of the same link or limit, which cannot be above its typical one.
fn slower(field: &Field<'_>, rate: Rate) -> Result<Rate, FileError> {
    let value = field.rate_above_zero("8 GB/s")?;
    fast_enough(field, value)?;
    if value <= rate {
        return Ok(value);
    }
    let help = format!("lower it to at most {rate}, or raise `rate`");
    Err(field.error(format!("`{}` is above the `rate` of {rate}", field.excerpt()), Some(help)))
}

fn fast_enough(field: &Field<'_>, rate: Rate) -> Result<(), FileError> {
    if rate >= RATE_MIN {
        return Ok(());
    }
    let help = format!("write at least {RATE_MIN}; rates are in bytes per second, B/s, unless they say bit/s");
    Err(field.error(format!("`{}` is below {RATE_MIN}", field.excerpt()), Some(help)))
}

fn method(table: &mut DocumentTable<'_>, class: EngineClass) -> Result<Method, FileError> {
    let usual = if class == EngineClass::Peer { Method::Peer } else { Method::Dma };
    let Some(field) = table.take("method") else { return Ok(usual) };
    let method = field.word(METHODS)?;
    if (method == Method::Peer) == (class == EngineClass::Peer) {
        return Ok(method);
    }
    let help = "`peer` is for two GPUs; `dma` and `pageable` for a memory and a GPU".to_owned();
    Err(field.error(format!("`{}` does not fit {}", field.excerpt(), word(class)), Some(help)))
}

pub(super) fn word(class: EngineClass) -> &'static str {
    match class {
        EngineClass::H2d => "h2d",
        EngineClass::D2h => "d2h",
        EngineClass::Peer => "peer",
        EngineClass::Ee => "ee",
    }
}

fn optional_text(table: &mut DocumentTable<'_>, key: &str) -> Result<Option<String>, FileError> {
    table.take(key).map(|field| field.text("\"...\"").map(str::to_owned)).transpose()
}
