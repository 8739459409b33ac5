//! A trace for `ui.perfetto.dev` and `trace_processor`, in Perfetto's own format (perfetto.dev, "Track events").
//!
//! Below one track that names the run and its source: the engines of every GPU with one slice per operation; per stream its
//! packets from arrival to delivery and an instant at each deadline; per pipeline the time in which a cycle gathers and the
//! instant of its delivery; per server the number of jobs that wait. A flow leads each cycle from gathering through its
//! operations to its delivery. Timestamps are the log's.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufWriter, Write};

use headway_core::plan::PipelineSource;
use headway_core::units::Nanos;

use crate::RunLog;
use crate::excerpt::Excerpt;
use crate::proto::Message;
use crate::timeline::{SubmittedOperation, Timeline};

/// Field numbers of `perfetto_trace.proto`.
mod field {
    pub(super) const TRACE_PACKET: u32 = 1;
    pub(super) mod packet {
        pub(crate) const TIMESTAMP: u32 = 8;
        pub(crate) const SEQUENCE: u32 = 10;
        pub(crate) const TRACK_EVENT: u32 = 11;
        pub(crate) const INTERNED: u32 = 12;
        pub(crate) const SEQUENCE_FLAGS: u32 = 13;
        pub(crate) const TRACK_DESCRIPTOR: u32 = 60;
    }
    pub(super) mod track {
        pub(crate) const UUID: u32 = 1;
        pub(crate) const NAME: u32 = 2;
        pub(crate) const PARENT: u32 = 5;
        pub(crate) const COUNTER: u32 = 8;
        pub(crate) const CHILD_ORDERING: u32 = 11;
        pub(crate) const RANK: u32 = 12;
        pub(crate) const DESCRIPTION: u32 = 14;
    }
    pub(super) mod counter {
        pub(crate) const UNIT: u32 = 3;
    }
    pub(super) mod event {
        pub(crate) const CATEGORY: u32 = 3;
        pub(crate) const ANNOTATION: u32 = 4;
        pub(crate) const TYPE: u32 = 9;
        pub(crate) const NAME: u32 = 10;
        pub(crate) const TRACK: u32 = 11;
        pub(crate) const COUNTER_VALUE: u32 = 30;
        pub(crate) const FLOW: u32 = 47;
        pub(crate) const FLOW_END: u32 = 48;
    }
    pub(super) mod annotation {
        pub(crate) const NAME: u32 = 1;
        pub(crate) const UINT: u32 = 3;
        pub(crate) const INT: u32 = 4;
        pub(crate) const STRING: u32 = 6;
    }
    pub(super) mod interned {
        pub(crate) const CATEGORIES: u32 = 1;
        pub(crate) const NAMES: u32 = 2;
        pub(crate) const ANNOTATION_NAMES: u32 = 3;
        /// In each of the messages above.
        pub(crate) const IID: u32 = 1;
        pub(crate) const TEXT: u32 = 2;
    }
}

/// `ChildTracksOrdering.EXPLICIT`: by rank.
const EXPLICIT: u64 = 3;
/// `CounterDescriptor.Unit.UNIT_COUNT`.
const UNIT_COUNT: u64 = 2;
/// `SEQ_INCREMENTAL_STATE_CLEARED`, then `SEQ_NEEDS_INCREMENTAL_STATE`.
const CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;
pub(crate) const ROOT: u64 = 1;

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Begin,
    End,
    Instant,
    Counter,
}

impl Kind {
    /// `TrackEvent.Type`.
    fn code(self) -> u64 {
        match self {
            Self::Begin => 1,
            Self::End => 2,
            Self::Instant => 3,
            Self::Counter => 4,
        }
    }
}

/// An event before it is written: its content is encoded already, its place in the file is not known yet.
struct TraceEvent {
    at: Nanos,
    kind: Kind,
    track: u64,
    content: Message,
}

/// An argument's value.
pub(crate) enum Value {
    Uint(u64),
    Int(i64),
    Text(String),
}

/// Texts with numbers that the trace writes once.
#[derive(Default)]
struct Interned {
    texts: Vec<String>,
    known: HashMap<String, u64>,
}

impl Interned {
    fn id(&mut self, text: &str) -> u64 {
        if let Some(&id) = self.known.get(text) {
            return id;
        }
        self.texts.push(text.to_owned());
        let id = self.texts.len() as u64;
        self.known.insert(text.to_owned(), id);
        id
    }
}

/// Tracks that take slices side by side: a slice goes to the first one that is free. Perfetto draws tracks of one name and
/// parent as one.
struct SharedTracks {
    parent: u64,
    name: String,
    rank: u64,
    free: Vec<(Nanos, u64)>,
}

/// A trace under construction: tracks below one root, and events on them.
#[derive(Default)]
pub(crate) struct Builder {
    descriptors: Vec<Message>,
    events: Vec<TraceEvent>,
    names: Interned,
    categories: Interned,
    arguments: Interned,
    tracks: u64,
    /// The track of each pipeline.
    pipelines: Vec<u64>,
}

/// Writes a trace of a part of a run; its first event says what it leaves out.
///
/// # Errors
/// Those of `out`.
pub fn write_excerpt(log: &RunLog, excerpt: &Excerpt, out: impl Write) -> io::Result<()> {
    let timeline = &excerpt.timeline;
    let mut builder = Builder::new(&run_name(log));
    builder.run(log, excerpt);
    let flows = builder.cycles(log, timeline);
    builder.engines(log, timeline, &flows);
    builder.deliveries(timeline, &flows);
    builder.streams(log, timeline);
    builder.queues(log, timeline);
    builder.finish(BufWriter::with_capacity(1 << 16, out))
}

fn run_name(log: &RunLog) -> String {
    let header = log.header();
    format!("{} on {} [{}]", header.plan.workload.name, header.plan.machine.name, header.source)
}

impl Builder {
    /// A trace with nothing but its root track.
    pub(crate) fn new(name: &str) -> Self {
        let mut track = Message::default();
        track.number(field::track::UUID, ROOT).text(field::track::NAME, name);
        track.text(field::track::DESCRIPTION, "a run of Headway").number(field::track::CHILD_ORDERING, EXPLICIT);
        Self { tracks: ROOT, descriptors: vec![track], ..Self::default() }
    }

    fn run(&mut self, log: &RunLog, excerpt: &Excerpt) {
        let header = log.header();
        let plan = &header.plan;
        let text = |text: &str| Value::Text(text.to_owned());
        let mut arguments = vec![
            ("source", Value::Text(header.source.to_string())),
            ("workload", text(&plan.workload.name)),
            ("workload_hash", text(&plan.workload.hash)),
            ("machine", text(&plan.machine.name)),
            ("machine_hash", text(&plan.machine.hash)),
            ("devices", Value::Text(header.devices.join(", "))),
            ("seed", Value::Uint(header.seed)),
            ("version", text(&header.version)),
            ("commit", text(&header.commit)),
        ];
        arguments.extend(excerpt.left_out().map(|what| ("left_out", text(what))));
        self.event(excerpt.timeline.epoch, Kind::Instant, ROOT, "run", "run", arguments);
    }

    /// A track with children below `parent`.
    fn group(&mut self, parent: u64, name: &str, rank: u64) -> u64 {
        let uuid = self.track(parent, name, rank);
        let track = self.descriptors.last_mut().expect("the track was pushed a line above");
        track.number(field::track::CHILD_ORDERING, EXPLICIT);
        uuid
    }

    pub(crate) fn track(&mut self, parent: u64, name: &str, rank: u64) -> u64 {
        self.tracks += 1;
        let mut track = Message::default();
        track.number(field::track::UUID, self.tracks).text(field::track::NAME, name);
        track.number(field::track::PARENT, parent).number(field::track::RANK, rank);
        self.descriptors.push(track);
        self.tracks
    }

    /// The track for a slice; slices must come in the order of their start.
    fn free_track(&mut self, shared: &mut SharedTracks, from: Nanos, to: Nanos) -> u64 {
        if let Some(track) = shared.free.iter_mut().find(|track| track.0 <= from) {
            track.0 = to;
            return track.1;
        }
        let uuid = self.track(shared.parent, &shared.name, shared.rank);
        shared.free.push((to, uuid));
        uuid
    }

    /// Adds an event with a name, a category and arguments, and returns its content for more.
    pub(crate) fn event(
        &mut self,
        at: Nanos,
        kind: Kind,
        track: u64,
        name: &str,
        category: &str,
        arguments: Vec<(&str, Value)>,
    ) -> &mut Message {
        let mut content = Message::default();
        content.number(field::event::NAME, self.names.id(name));
        content.number(field::event::CATEGORY, self.categories.id(category));
        for (name, value) in arguments {
            let name = self.arguments.id(name);
            content.message(field::event::ANNOTATION, |annotation| {
                annotation.number(field::annotation::NAME, name);
                match value {
                    Value::Uint(value) => annotation.number(field::annotation::UINT, value),
                    Value::Int(value) => annotation.signed(field::annotation::INT, value),
                    Value::Text(value) => annotation.text(field::annotation::STRING, value),
                };
            });
        }
        self.events.push(TraceEvent { at, kind, track, content });
        &mut self.events.last_mut().expect("the event was pushed a line above").content
    }

    pub(crate) fn end(&mut self, at: Nanos, track: u64) {
        self.events.push(TraceEvent { at, kind: Kind::End, track, content: Message::default() });
    }

    /// The gathering of every cycle that moved; returns the flow of each.
    fn cycles(&mut self, log: &RunLog, timeline: &Timeline) -> BTreeMap<(u32, u64), u64> {
        let group = self.group(ROOT, "pipelines", 200);
        let plan = &log.header().plan;
        for (rank, pipeline) in (0..).zip(&plan.pipelines) {
            let track = self.track(group, &pipeline.name, rank);
            self.pipelines.push(track);
        }
        let submitted = timeline.jobs.iter().filter(|job| job.submitted.is_some());
        let mut flows: BTreeMap<(u32, u64), u64> = submitted.map(|job| ((job.pipeline, job.cycle), 0)).collect();
        for (flow, (&(index, cycle), value)) in (1..).zip(&mut flows) {
            *value = flow;
            let pipeline = &plan.pipelines[index as usize];
            let track = self.pipelines[index as usize];
            let opens = timeline.epoch + pipeline.release(cycle, 0);
            let gathers = matches!(pipeline.source, PipelineSource::Streams(_)) && pipeline.gather > Nanos::ZERO;
            let (kind, name, from) = match gathers {
                true => (Kind::Begin, "gather", opens.saturating_sub(pipeline.gather)),
                false => (Kind::Instant, "release", opens),
            };
            let content = self.event(from, kind, track, name, "pipeline", vec![("cycle", Value::Uint(cycle))]);
            content.fixed64(field::event::FLOW, flow);
            if gathers {
                self.end(opens, track);
            }
        }
        flows
    }

    /// The ends of the flows.
    fn deliveries(&mut self, timeline: &Timeline, flows: &BTreeMap<(u32, u64), u64>) {
        for delivery in &timeline.deliveries {
            let Some(&flow) = flows.get(&(delivery.pipeline, delivery.cycle)) else { continue };
            let track = self.pipelines[delivery.pipeline as usize];
            let arguments = vec![("cycle", Value::Uint(delivery.cycle))];
            let content = self.event(delivery.at, Kind::Instant, track, "deliver", "pipeline", arguments);
            content.fixed64(field::event::FLOW_END, flow);
        }
    }

    fn engines(&mut self, log: &RunLog, timeline: &Timeline, flows: &BTreeMap<(u32, u64), u64>) {
        let plan = &log.header().plan;
        let mut gpus: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        for gpu in plan.engines.iter().map(|engine| engine.gpu) {
            let name = gpu.map_or_else(|| "cpu".to_owned(), |gpu| format!("gpu {gpu}"));
            let rank = u64::from(gpu.unwrap_or(u32::MAX)).min(99);
            gpus.entry(gpu).or_insert_with(|| self.group(ROOT, &name, rank));
        }
        let abstract_servers = self.abstract_servers(log);
        let engines = (0..).zip(&plan.engines).map(|(rank, engine)| SharedTracks {
            parent: gpus[&engine.gpu],
            name: engine.name.clone(),
            rank,
            free: Vec::new(),
        });
        let mut rows: Vec<SharedTracks> = engines.chain(abstract_servers).collect();
        let mut ended: Vec<(Nanos, Nanos, usize)> = (0..)
            .zip(&timeline.operations)
            .filter_map(|(at, operation)| operation.ended.map(|ended| (ended.started, ended.finished, at)))
            .collect();
        ended.sort_unstable();
        let last: HashMap<usize, usize> = (0..).zip(&timeline.operations).map(|(at, op)| (op.job, at)).collect();
        for (from, to, at) in ended {
            let operation = &timeline.operations[at];
            let mut last = last[&operation.job] == at;
            let held = &timeline.planned(log, operation).engines;
            let server = plan.engines.len() + timeline.step(log, operation.job).server as usize;
            for row in held.iter().map(|engine| engine.at()).chain(held.is_empty().then_some(server)) {
                let track = self.free_track(&mut rows[row], from, to);
                self.operation(log, timeline, flows, operation, (from, to, track));
                if std::mem::take(&mut last) {
                    self.trouble(log, timeline, operation.job, to, track);
                }
            }
        }
    }

    /// Rows for the servers; only those without engines get operations.
    fn abstract_servers(&mut self, log: &RunLog) -> Vec<SharedTracks> {
        let servers = &log.header().plan.servers;
        let parent = match servers.iter().any(|server| server.engines.is_empty()) {
            true => self.group(ROOT, "servers", 100),
            false => ROOT,
        };
        let shared = |(rank, server): (u64, &headway_core::plan::Server)| SharedTracks {
            parent,
            name: server.name.clone(),
            rank,
            free: Vec::new(),
        };
        (0..).zip(servers).map(shared).collect()
    }

    fn operation(
        &mut self,
        log: &RunLog,
        timeline: &Timeline,
        flows: &BTreeMap<(u32, u64), u64>,
        operation: &SubmittedOperation,
        (from, to, track): (Nanos, Nanos, u64),
    ) {
        let job = &timeline.jobs[operation.job];
        let pipelines = &log.header().plan.pipelines;
        let step = timeline.step(log, operation.job);
        let mut arguments = vec![("cycle", Value::Uint(job.cycle)), ("bytes", Value::Uint(operation.bytes.0))];
        let queued = from.saturating_sub(operation.submitted);
        if queued > Nanos::ZERO {
            arguments.push(("submitted_before_ns", Value::Uint(queued.0)));
        }
        if job.wait() > Nanos::ZERO {
            arguments.push(("job_waited_ns", Value::Uint(job.wait().0)));
            if let Some(cause) = job.longest_wait().and_then(|wait| wait.cause) {
                let cause = &timeline.jobs[cause];
                let name = &pipelines[cause.pipeline as usize].name;
                arguments.push(("mostly_for", Value::Text(format!("{name} #{}", cause.cycle))));
            }
        }
        let name = &pipelines[job.pipeline as usize].name;
        let content = self.event(from, Kind::Begin, track, name, &step.name, arguments);
        if let Some(&flow) = flows.get(&(job.pipeline, job.cycle)) {
            content.fixed64(field::event::FLOW, flow);
        }
        self.end(to, track);
    }

    /// Overrun and lateness of a job, where its last operation ended.
    fn trouble(&mut self, log: &RunLog, timeline: &Timeline, index: usize, at: Nanos, track: u64) {
        let job = &timeline.jobs[index];
        if job.overrun {
            let planned = timeline.step(log, index).cost;
            let arguments = vec![("planned_ns", Value::Uint(planned.0)), ("took_ns", Value::Uint(job.took.0))];
            self.event(at, Kind::Instant, track, "overrun", "trouble", arguments);
        }
        if let Some(by) = job.late {
            self.event(at, Kind::Instant, track, "late", "trouble", vec![("by_ns", Value::Uint(by.0))]);
        }
    }

    fn streams(&mut self, log: &RunLog, timeline: &Timeline) {
        let group = self.group(ROOT, "streams", 150);
        let mut tracks = Vec::new();
        for (rank, stream) in (0..).zip(&log.header().plan.streams) {
            let parent = self.group(group, &stream.id, rank);
            let packets = SharedTracks { parent, name: "packets".to_owned(), rank: 0, free: Vec::new() };
            tracks.push((packets, self.track(parent, "deadlines", 1)));
        }
        let mut packets: Vec<_> = timeline.packets(log).collect();
        packets.sort_by_key(|packet| (packet.arrival, packet.stream));
        for packet in packets {
            let (shared, deadlines) = &mut tracks[packet.stream as usize];
            let track = self.free_track(shared, packet.arrival, packet.delivered);
            let slack = packet.deadline.0.cast_signed() - packet.delivered.0.cast_signed();
            let arguments = vec![
                ("packet", Value::Uint(packet.packet)),
                ("cycle", Value::Uint(packet.cycle)),
                ("bytes", Value::Uint(packet.bytes.0)),
                ("deadline_ns", Value::Uint(packet.deadline.0)),
                ("slack_ns", Value::Int(slack)),
            ];
            let name = &log.header().plan.streams[packet.stream as usize].id;
            self.event(packet.arrival, Kind::Begin, track, name, "packet", arguments);
            self.end(packet.delivered, track);
            let name = if packet.missed() { "missed" } else { "deadline" };
            let arguments = vec![("packet", Value::Uint(packet.packet))];
            self.event(packet.deadline, Kind::Instant, *deadlines, name, "deadline", arguments);
        }
    }

    /// Waiting jobs per server. Jobs that were submitted at once do not count.
    fn queues(&mut self, log: &RunLog, timeline: &Timeline) {
        let group = self.group(ROOT, "waiting jobs", 120);
        let servers = &log.header().plan.servers;
        let mut changes: Vec<BTreeMap<Nanos, i64>> = vec![BTreeMap::new(); servers.len()];
        for (index, job) in timeline.jobs.iter().enumerate().filter(|(_, job)| job.wait() > Nanos::ZERO) {
            let changes = &mut changes[timeline.step(log, index).server as usize];
            *changes.entry(job.ready.unwrap_or_default()).or_default() += 1;
            *changes.entry(job.submitted.unwrap_or_default()).or_default() -= 1;
        }
        for ((rank, server), changes) in (0..).zip(servers).zip(changes) {
            if changes.is_empty() {
                continue;
            }
            let track = self.track(group, &server.name, rank);
            let descriptor = self.descriptors.last_mut().expect("the track was pushed a line above");
            descriptor.message(field::track::COUNTER, |counter| {
                counter.number(field::counter::UNIT, UNIT_COUNT);
            });
            let mut waiting = 0;
            let changes = changes.into_iter().filter(|(_, change)| *change != 0);
            for (at, change) in std::iter::once((timeline.epoch, 0)).chain(changes) {
                waiting += change;
                let mut content = Message::default();
                content.signed(field::event::COUNTER_VALUE, waiting);
                self.events.push(TraceEvent { at, kind: Kind::Counter, track, content });
            }
        }
    }

    /// Writes interned texts, then tracks, then events in the order of time.
    pub(crate) fn finish(mut self, mut out: impl Write) -> io::Result<()> {
        let mut first = Message::default();
        first.number(field::packet::SEQUENCE, 1).number(field::packet::SEQUENCE_FLAGS, CLEARED);
        first.message(field::packet::INTERNED, |interned| {
            let texts = [
                (field::interned::CATEGORIES, &self.categories),
                (field::interned::NAMES, &self.names),
                (field::interned::ANNOTATION_NAMES, &self.arguments),
            ];
            for (field, texts) in texts {
                for (id, text) in (1..).zip(&texts.texts) {
                    interned.message(field, |entry| {
                        entry.number(field::interned::IID, id).text(field::interned::TEXT, text);
                    });
                }
            }
        });
        packet(&mut out, &first)?;
        for descriptor in &self.descriptors {
            let mut message = Message::default();
            message.number(field::packet::SEQUENCE, 1).text(field::packet::TRACK_DESCRIPTOR, descriptor.bytes());
            packet(&mut out, &message)?;
        }
        // Stable: on each track events were added in an order that is right for equal times too.
        self.events.sort_by_key(|event| event.at);
        for TraceEvent { at, kind, track, content } in &self.events {
            let mut event = Message::default();
            event.number(field::event::TYPE, kind.code()).number(field::event::TRACK, *track).append(content);
            let mut message = Message::default();
            message.number(field::packet::TIMESTAMP, at.0).number(field::packet::SEQUENCE, 1);
            message.number(field::packet::SEQUENCE_FLAGS, NEEDS_STATE).text(field::packet::TRACK_EVENT, event.bytes());
            packet(&mut out, &message)?;
        }
        out.flush()
    }
}

fn packet(out: &mut impl Write, content: &Message) -> io::Result<()> {
    let mut framed = Message::default();
    framed.text(field::TRACE_PACKET, content.bytes());
    out.write_all(framed.bytes())
}
