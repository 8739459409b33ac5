//! Joins and leaves on nodes of several domains and execution engines: no accepted flow misses a window on any server.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use headway_core::files::machine::{EngineId, Machine, RouteId, shipped};
use headway_core::models::interconnect::BatchBlock;
use headway_core::plan::stream::admission::{AdmissionRefused, LIMITS};
use headway_core::plan::stream::node::{FlowPart, FlowStep, Node, NodeFlow, NodeRefused, NodeServer};
use headway_core::units::{Bytes, Nanos};

const MS: Nanos = Nanos(1_000_000);

/// The ways in and out of every GPU, and its execution engine.
fn gpus(machine: &Machine) -> Vec<(RouteId, RouteId, EngineId)> {
    let host = machine.memories().next().unwrap();
    let of = |gpu| Some((machine.route(host, gpu)?, machine.route(gpu, host)?, machine.execution_engine(gpu)?));
    machine.gpus().filter_map(of).collect()
}

fn node(machine: &Machine, gpus: &[(RouteId, RouteId, EngineId)]) -> Node {
    let routes: Vec<RouteId> = gpus.iter().flat_map(|gpu| [gpu.0, gpu.1]).collect();
    Node::new(machine, &routes, LIMITS)
}

/// In, kernel, out on one GPU.
fn flow(id: &str, gpu: (RouteId, RouteId, EngineId), bytes: u64, kernel: Nanos, window: Nanos) -> NodeFlow {
    let copy = |route| FlowStep::Copy(vec![BatchBlock { route, bytes: Bytes(bytes) }]);
    let steps = vec![copy(gpu.0), FlowStep::Kernel { engine: gpu.2, cost: kernel }, copy(gpu.1)];
    NodeFlow { id: id.to_owned(), steps, period: window, window, deadline: window * 7 }
}

#[test]
fn domains_and_engines_take_flows_in_by_themselves() {
    let machine = shipped("verner-r1").unwrap();
    let gpus = gpus(&machine);
    let mut node = node(&machine, &gpus);
    // One DMA engine per GPU, each on its own link: a domain each.
    assert_eq!(node.servers().count(), 4);
    // 8 GB/s: 3 ms each way of 10.
    node.join(Nanos(0), &flow("a", gpus[0], 24_000_000, MS * 2, MS * 10)).unwrap();
    let second = flow("b", gpus[0], 24_000_000, MS * 2, MS * 10);
    let refused = node.join(Nanos(0), &second).unwrap_err();
    assert!(
        matches!(refused, NodeRefused::Transfers { step: 2, source: AdmissionRefused::Overload { .. }, .. }),
        "{refused:?}"
    );
    let elsewhere = flow("b", gpus[1], 24_000_000, MS * 2, MS * 10);
    node.join(Nanos(0), &elsewhere).unwrap();
    assert_eq!(node.flows().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_flow_that_one_server_refuses_is_on_none() {
    let machine = shipped("verner-r1").unwrap();
    let gpus = gpus(&machine);
    let mut node = node(&machine, &gpus);
    node.join(Nanos(0), &flow("a", gpus[0], 1_000_000, MS * 8, MS * 10)).unwrap();
    let before = format!("{node:?}");
    let refused = node.join(Nanos(0), &flow("b", gpus[0], 1_000_000, MS * 3, MS * 10)).unwrap_err();
    let NodeRefused::Kernel { flow: ref id, step: 1, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(id, "b");
    assert_eq!(format!("{node:?}"), before);
    // Its copies fit, its kernel fits a longer window; with a peer's route it is refused by name.
    let foreign = NodeFlow { steps: vec![FlowStep::Copy(Vec::new())], ..flow("c", gpus[0], 1, MS, MS * 10) };
    assert_eq!(node.join(Nanos(0), &foreign), Err(NodeRefused::Step { flow: "c".into(), step: 0 }));
    let empty = NodeFlow { steps: Vec::new(), ..foreign };
    assert_eq!(node.join(Nanos(0), &empty), Err(NodeRefused::Step { flow: "c".into(), step: 0 }));
    assert!(matches!(node.join(Nanos(0), &flow("a", gpus[0], 1, MS, MS * 10)), Err(NodeRefused::Name { .. })));
    assert!(matches!(node.leave(Nanos(0), "z"), Err(NodeRefused::Name { .. })));
}

#[test]
fn windows_that_follow_each_other_take_four_and_others_are_counted() {
    let machine = shipped("verner-r1").unwrap();
    let gpus = gpus(&machine);
    let mut node = node(&machine, &gpus);
    let first = NodeFlow { deadline: MS * 40, ..flow("a", gpus[0], 8_000_000, MS, MS * 10) };
    let parts = node.join(MS * 3, &first).unwrap();
    let starts: Vec<Nanos> = parts.iter().map(|part| part.first).collect();
    assert_eq!(starts, [MS * 3, MS * 13, MS * 23], "gathering and three windows: 40 ms");
    // Out of phase: it grows the blocks of the first, which are due at other times than its kernel's windows.
    let tight = NodeFlow { id: "b".into(), deadline: MS * 40, ..first.clone() };
    let refused = node.join(MS * 5, &tight).unwrap_err();
    assert!(matches!(refused, NodeRefused::Latency { latency, .. } if latency > MS * 40), "{refused:?}");
    node.join(MS * 5, &NodeFlow { deadline: MS * 70, ..tight }).unwrap();
}

#[test]
fn capacity_returns_server_by_server_when_each_is_idle_after_its_last_job() {
    let machine = shipped("verner-r1").unwrap();
    let gpus = gpus(&machine);
    let mut node = node(&machine, &gpus);
    node.join(Nanos(0), &flow("a", gpus[0], 36_000_000, MS * 8, MS * 10)).unwrap();
    let large = |id: &str| flow(id, gpus[0], 36_000_000, MS * 8, MS * 10);
    assert!(node.join(Nanos(0), &large("b")).is_err());
    // In: released at 20 for what came until 15, due at 30; kernel due at 40; out due at 50.
    assert_eq!(node.leave(MS * 15, "a"), Ok(MS * 50));
    assert_eq!(node.poll_timeout(), Some(MS * 30));
    let all: Vec<NodeServer> = node.servers().collect();
    for &server in &all {
        node.idle(server, MS * 40);
    }
    assert!(node.kernels(gpus[0].2).is_empty());
    assert_eq!(node.messages(0).len() + node.messages(1).len(), 1, "the way out has jobs left");
    assert!(node.join(MS * 41, &large("b")).is_err());
    for &server in &all {
        node.idle(server, MS * 50);
    }
    node.join(MS * 51, &large("b")).unwrap();
}

/// Numbers drawn from a seed (SplitMix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}

/// What recurs on a server: its number or name, its next release, period and worst case.
type Recurring = (String, Nanos, Nanos, Nanos);

/// One server in virtual time: non-preemptive EDF.
#[derive(Default)]
struct Queue {
    releases: BTreeMap<String, Nanos>,
    ready: BinaryHeap<Reverse<(Nanos, u64, Nanos)>>,
    /// End and deadline.
    running: Option<(Nanos, Nanos)>,
    jobs: u64,
    busy: u64,
}

impl Queue {
    /// Runs until `end`; says when the server was idle by calling `idle`. `of` gives what recurs on it.
    fn run(
        &mut self,
        mut now: Nanos,
        end: Nanos,
        node: &mut Node,
        server: NodeServer,
        draw: &mut Draw,
    ) -> Result<(), String> {
        loop {
            for (name, start, period, cost) in recurring(node, server) {
                let release = self.releases.entry(name).or_insert(start);
                while *release <= now {
                    self.jobs += 1;
                    let cost = if draw.below(3) == 0 { Nanos(draw.below(cost.0 + 1)) } else { cost };
                    self.ready.push(Reverse((*release + period, self.jobs, cost)));
                    *release = *release + period;
                }
            }
            if let Some((ends, deadline)) = self.running.filter(|(ends, _)| *ends <= now) {
                if ends > deadline {
                    return Err(format!("{server:?}: a job due at {deadline} ended at {ends}"));
                }
                self.running = None;
            }
            if self.running.is_none() {
                if let Some(Reverse((deadline, _, cost))) = self.ready.pop() {
                    self.busy += cost.0;
                    self.running = Some((now + cost, deadline));
                    continue;
                }
                node.idle(server, now);
                let there: Vec<String> = recurring(node, server).into_iter().map(|of| of.0).collect();
                self.releases.retain(|name, _| there.contains(name));
            }
            let starts: Vec<Nanos> = recurring(node, server)
                .into_iter()
                .map(|(name, start, ..)| self.releases.get(&name).copied().unwrap_or(start))
                .collect();
            let next = starts.into_iter().chain(self.running.map(|(ends, _)| ends));
            let next = next.chain(node.poll_timeout().filter(|at| *at > now)).min();
            match next.filter(|next| *next <= end) {
                Some(next) => now = now.max(next),
                None => return Ok(()),
            }
        }
    }
}

fn recurring(node: &Node, server: NodeServer) -> Vec<Recurring> {
    match server {
        NodeServer::Domain(domain) => {
            let messages = node.messages(domain).iter();
            messages.map(|(number, m)| (number.to_string(), m.start, m.period, m.cost)).collect()
        }
        NodeServer::Engine(engine) => {
            let kernels = node.kernels(engine).iter();
            kernels.map(|(name, k)| (name.clone(), k.start, k.window, k.cost)).collect()
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    joins: u64,
    refused: [u64; 3],
    leaves: u64,
    jobs: u64,
}

fn random_flow(id: u64, gpus: &[(RouteId, RouteId, EngineId)], rate: u64, draw: &mut Draw) -> NodeFlow {
    let gpu = gpus[draw.below(gpus.len() as u64) as usize];
    let window = match draw.below(2) {
        0 => Nanos(500_000 << draw.below(5)),
        _ => Nanos(300_000 + draw.below(8_000_000)),
    };
    let bytes = (window.0 / 1_000).max(1) * rate * (1 + draw.below(60)) / 100;
    let kernel = Nanos(window.0 * (1 + draw.below(50)) / 100);
    let mut flow = flow(&format!("f{id}"), gpu, bytes, kernel, window);
    flow.deadline = window * (4 + draw.below(4));
    if draw.below(3) == 0 {
        // A copy over two GPUs: parts in several domains.
        let other = gpus[draw.below(gpus.len() as u64) as usize];
        if other.0 != gpu.0 {
            let block = |route| BatchBlock { route, bytes: Bytes(bytes / 2 + 1) };
            flow.steps[0] = FlowStep::Copy(vec![block(gpu.0), block(other.0)]);
        }
    }
    flow
}

fn history(machine: &Machine, rate: u64, seed: u64, tally: &mut Tally) -> Result<(), String> {
    let gpus = gpus(machine);
    let mut node = node(machine, &gpus);
    let mut draw = Draw(seed);
    let mut queues: BTreeMap<NodeServer, Queue> = node.servers().map(|server| (server, Queue::default())).collect();
    let mut now = Nanos::ZERO;
    for change in 0..24 {
        let pause = if change < 8 { 0 } else { draw.below(4_000_000) };
        let end = now + Nanos(pause);
        for (&server, queue) in &mut queues {
            queue.run(now, end, &mut node, server, &mut draw)?;
        }
        // What joins now is not there for what was decided at `end`.
        now = end + Nanos(1);
        let there: Vec<String> = node.flows().map(str::to_owned).collect();
        if !there.is_empty() && draw.below(3) == 0 {
            let id = &there[draw.below(there.len() as u64) as usize];
            node.leave(now, id).unwrap();
            tally.leaves += 1;
            continue;
        }
        let flow = random_flow(change, &gpus, rate, &mut draw);
        match node.join(now, &flow) {
            Ok(parts) => {
                let steps: Vec<usize> = parts.iter().map(|part: &FlowPart| part.step).collect();
                assert!(steps.windows(2).all(|pair| pair[0] <= pair[1]) && steps[steps.len() - 1] == 2);
                tally.joins += 1;
            }
            Err(NodeRefused::Transfers { .. }) => tally.refused[0] += 1,
            Err(NodeRefused::Kernel { .. }) => tally.refused[1] += 1,
            Err(NodeRefused::Latency { .. }) => tally.refused[2] += 1,
            Err(other) => return Err(other.to_string()),
        }
    }
    for (&server, queue) in &mut queues {
        queue.run(now, now + MS * 40, &mut node, server, &mut draw)?;
        tally.jobs += queue.jobs;
    }
    Ok(())
}

/// More with `HEADWAY_HISTORIES=100000 cargo test -p headway-core --test it node_admission::`.
#[test]
fn no_accepted_flow_misses_a_window_on_any_server_whatever_joins_and_leaves() {
    let count = std::env::var("HEADWAY_HISTORIES").map_or(240, |text| text.parse().expect("a number"));
    let machines = [("verner-r1", 8_000), ("verner-r2", 4_000), ("h200-x4", 50_000)];
    let machines = machines.map(|(name, rate)| (shipped(name).unwrap(), rate));
    let mut tally = Tally::default();
    for seed in 0..count {
        let (machine, rate) = &machines[(seed % 3) as usize];
        if let Err(error) = history(machine, *rate, seed, &mut tally) {
            panic!("{} {seed}: {error}", machine.name);
        }
    }
    println!("{count} histories: {tally:?}");
    assert!(tally.joins > 2 * count && tally.leaves > count, "{tally:?}");
    assert!(tally.refused.iter().all(|&refused| refused * 4 > count), "{tally:?}");
}
