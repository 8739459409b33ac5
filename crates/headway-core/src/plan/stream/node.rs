//! Flows that join and leave a whole node while others run: every domain of transfers and every execution engine is a server
//! with its own test, and a flow is taken in by all servers of its steps or by none.
//!
//! Each server is safe by itself, as [`super::admission`] has it: what a step delivers is carried by the first window of the
//! next step that opens afterwards. Windows of one length that follow each other exactly cost no waiting between steps; any
//! others up to a window each. The sum is a flow's latency, which must not exceed its deadline.

use std::collections::BTreeMap;

use super::admission::{self, Admission, Admitted, DomainLimits, FlowRequest, Running};
use crate::analysis::schedulability::{RecurrentTask, TestOutcome, TestViolation, jeffay};
use crate::files::machine::{EngineId, Machine, RouteId};
use crate::models::interconnect::{BatchBlock, Network};
use crate::units::{Nanos, PPM};

/// One step of a flow, in every cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowStep {
    /// What each packet moves, one block per route.
    Copy(Vec<BatchBlock>),
    /// A kernel over what a cycle of the flow's window gathers.
    Kernel {
        /// The execution engine.
        engine: EngineId,
        /// Its worst-case time.
        cost: Nanos,
    },
}

/// What a flow asks of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFlow {
    pub id: String,
    /// Steps in order.
    pub steps: Vec<FlowStep>,
    /// Time between packets.
    pub period: Nanos,
    /// The longest window of a step.
    pub window: Nanos,
    /// From the arrival of a packet to the end of its last step.
    pub deadline: Nanos,
}

/// What serves one job at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeServer {
    /// Transfers that can slow each other down, by number.
    Domain(usize),
    /// An execution engine.
    Engine(EngineId),
}

/// A part of an accepted flow: a step, or what of it falls into one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPart {
    pub step: usize,
    pub server: NodeServer,
    /// The start of its first window, and the length of its windows, one after the other.
    pub first: Nanos,
    pub window: Nanos,
}

/// A flow or leave that is not possible. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeRefused {
    /// A domain does not take its transfers.
    #[error("step {step} does not fit domain {domain}")]
    Transfers { step: usize, domain: usize, source: admission::AdmissionRefused },
    /// An execution engine would miss windows.
    #[error(
        "kernel of step {step} of flow `{flow}` would let `{suffers}` miss windows; lower its rate, or raise its deadline"
    )]
    Kernel {
        /// Who asked.
        flow: String,
        step: usize,
        /// Whose window could be missed.
        suffers: String,
    },
    /// Its steps fit, and their windows one after the other take too long.
    #[error(
        "packets of flow `{flow}` would take up to {latency} with what runs now, and have {deadline}; shorten its windows"
    )]
    Latency {
        /// Who asked.
        flow: String,
        /// What its packets would take.
        latency: Nanos,
        /// What they may.
        deadline: Nanos,
    },
    /// A step uses a route or engine that the node was not set up with, or asks for nothing.
    #[error("step {step} of flow `{flow}` moves nothing, or uses a route or engine that this node does not serve")]
    Step {
        /// Who asked.
        flow: String,
        step: usize,
    },
    /// The name is taken, or the flow is not running.
    #[error("flow `{flow}` {what}")]
    Name {
        flow: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A kernel that runs in every window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Worst-case time of a job.
    pub cost: Nanos,
    /// Start of its first window.
    pub start: Nanos,
    /// Period and relative deadline.
    pub window: Nanos,
    /// Deadline of its last job, once its flow leaves.
    last_deadline: Option<Nanos>,
}

#[derive(Clone, Debug)]
struct Domain {
    routes: Vec<RouteId>,
    admission: Admission,
}

/// The servers of a node and the flows on them.
#[derive(Clone, Debug)]
pub struct Node {
    domains: Vec<Domain>,
    engines: BTreeMap<EngineId, BTreeMap<String, Kernel>>,
    flows: BTreeMap<String, Vec<FlowPart>>,
}

impl Node {
    /// A node without flows on which `routes` and all execution engines may be used.
    #[must_use]
    pub fn new(machine: &Machine, routes: &[RouteId], limits: DomainLimits) -> Self {
        let network = Network::new(machine);
        let sigma_ppm = machine.calibration.as_ref().map_or(PPM, |calibration| calibration.sigma_ppm);
        let numbers = network.domains(routes, sigma_ppm);
        let count = numbers.iter().max().map_or(0, |last| last + 1);
        let domain = |number: usize| {
            let split = |inside: bool| {
                let chosen = routes.iter().zip(&numbers).filter(|(_, of)| (**of == number) == inside);
                chosen.map(|(route, _)| *route).collect::<Vec<RouteId>>()
            };
            // Other domains may be busy at any time.
            let own = network.loaded_by(&split(false));
            Domain { routes: split(true), admission: Admission::new(own, machine.calibration.clone(), limits) }
        };
        let engines = machine.gpus().filter_map(|gpu| machine.execution_engine(gpu));
        Self {
            domains: (0..count).map(domain).collect(),
            engines: engines.map(|engine| (engine, BTreeMap::new())).collect(),
            flows: BTreeMap::new(),
        }
    }

    /// Every server, in order.
    pub fn servers(&self) -> impl Iterator<Item = NodeServer> {
        let domains = (0..self.domains.len()).map(NodeServer::Domain);
        domains.chain(self.engines.keys().map(|&engine| NodeServer::Engine(engine)))
    }

    /// The messages that run in a domain, by number.
    ///
    /// # Panics
    /// If there is no such domain.
    #[must_use]
    pub fn messages(&self, domain: usize) -> &BTreeMap<u64, Running> {
        self.domains[domain].admission.messages()
    }

    /// The kernels that run on an execution engine, by flow and step.
    ///
    /// # Panics
    /// If the node has no such engine.
    #[must_use]
    pub fn kernels(&self, engine: EngineId) -> &BTreeMap<String, Kernel> {
        &self.engines[&engine]
    }

    /// The flows that run and do not leave.
    pub fn flows(&self) -> impl Iterator<Item = &str> {
        self.flows.keys().map(String::as_str)
    }

    /// When capacity can return at the earliest on some server.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let transfers = self.domains.iter().filter_map(|domain| domain.admission.poll_timeout());
        let kernels = self.engines.values().flat_map(BTreeMap::values).filter_map(|kernel| kernel.last_deadline);
        transfers.chain(kernels).min()
    }

    /// Takes a flow in at `now`, on all servers of its steps or on none, and says where its parts go.
    ///
    /// A server that has begun a job at `now` did so without the flow, whose first job may be released at once: ask a nanosecond
    /// later then. The tests count with blockers that begin before what they block, not at the same time.
    ///
    /// # Errors
    /// [`NodeRefused`]; nothing has changed then.
    pub fn join(&mut self, now: Nanos, flow: &NodeFlow) -> Result<Vec<FlowPart>, NodeRefused> {
        if self.flows.contains_key(&flow.id) {
            return Err(NodeRefused::Name { flow: flow.id.clone(), what: "is there already; choose another name" });
        }
        if flow.steps.is_empty() {
            return Err(NodeRefused::Step { flow: flow.id.clone(), step: 0 });
        }
        let mut after = self.clone();
        let mut parts = Vec::new();
        for (step, of) in flow.steps.iter().enumerate() {
            // Windows of one length follow each other.
            let at = now.saturating_add(Nanos(flow.window.0.saturating_mul(step as u64)));
            match of {
                FlowStep::Copy(blocks) => after.transfers(at, flow, step, blocks, &mut parts)?,
                FlowStep::Kernel { engine, cost } => parts.push(after.kernel(at, flow, step, *engine, *cost)?),
            }
        }
        let latency = latency(flow, &parts);
        if latency > flow.deadline {
            return Err(NodeRefused::Latency { flow: flow.id.clone(), latency, deadline: flow.deadline });
        }
        after.flows.insert(flow.id.clone(), parts.clone());
        *self = after;
        Ok(parts)
    }

    fn transfers(
        &mut self,
        at: Nanos,
        flow: &NodeFlow,
        step: usize,
        blocks: &[BatchBlock],
        parts: &mut Vec<FlowPart>,
    ) -> Result<(), NodeRefused> {
        let known = |block: &BatchBlock| self.domains.iter().any(|domain| domain.routes.contains(&block.route));
        if blocks.is_empty() || !blocks.iter().all(known) {
            return Err(NodeRefused::Step { flow: flow.id.clone(), step });
        }
        for (number, domain) in self.domains.iter_mut().enumerate() {
            let own: Vec<BatchBlock> = blocks.iter().copied().filter(|b| domain.routes.contains(&b.route)).collect();
            if own.is_empty() {
                continue;
            }
            let request =
                FlowRequest { id: part_name(&flow.id, step), blocks: own, period: flow.period, window: flow.window };
            let refused = |source| NodeRefused::Transfers { step, domain: number, source };
            let Admitted { message, placement, effective, .. } =
                domain.admission.join(at, &request).map_err(refused)?;
            let window = match placement {
                admission::FlowPlacement::Grown => domain.admission.messages()[&message].period,
                admission::FlowPlacement::Alone | admission::FlowPlacement::Combined { .. } => flow.window,
            };
            parts.push(FlowPart { step, server: NodeServer::Domain(number), first: effective, window });
        }
        Ok(())
    }

    fn kernel(
        &mut self,
        at: Nanos,
        flow: &NodeFlow,
        step: usize,
        engine: EngineId,
        cost: Nanos,
    ) -> Result<FlowPart, NodeRefused> {
        let Some(kernels) = self.engines.get_mut(&engine).filter(|_| flow.window > Nanos::ZERO) else {
            return Err(NodeRefused::Step { flow: flow.id.clone(), step });
        };
        let name = part_name(&flow.id, step);
        let new = Kernel { cost, start: at, window: flow.window, last_deadline: None };
        let mut names: Vec<&str> = kernels.keys().map(String::as_str).collect();
        names.push(&flow.id);
        let tasks: Vec<RecurrentTask> =
            kernels.values().chain([&new]).map(|of| RecurrentTask::whole(of.cost, of.window, of.window)).collect();
        let outcome = jeffay(&tasks).outcome;
        if outcome != TestOutcome::Schedulable {
            let suffers = match outcome {
                TestOutcome::NotSchedulable(TestViolation::Demand { contributions, .. }) => {
                    contributions.iter().map(|part| part.task).max_by_key(|&at| (tasks[at].deadline, at))
                }
                _ => None,
            };
            let suffers = suffers.map_or(flow.id.as_str(), |at| names[at]).to_owned();
            return Err(NodeRefused::Kernel { flow: flow.id.clone(), step, suffers });
        }
        kernels.insert(name, new);
        Ok(FlowPart { step, server: NodeServer::Engine(engine), first: at, window: flow.window })
    }

    /// Lets a flow leave at `now`, and says when the last of its jobs must be done.
    ///
    /// # Errors
    /// [`NodeRefused::Name`] if it is not running.
    ///
    /// # Panics
    /// Never: every part of a running flow is on its server.
    pub fn leave(&mut self, now: Nanos, id: &str) -> Result<Nanos, NodeRefused> {
        let Some(parts) = self.flows.remove(id) else {
            return Err(NodeRefused::Name { flow: id.to_owned(), what: "is not running" });
        };
        // What arrived until now is done with one step before the next takes it.
        let mut done = now;
        let mut step = 0;
        let mut ready = now;
        for part in parts {
            if part.step > step {
                (step, ready) = (part.step, done);
            }
            let name = part_name(id, part.step);
            let deadline = match part.server {
                NodeServer::Domain(domain) => {
                    let left = self.domains[domain].admission.leave(ready, &name);
                    left.expect("a part of a running flow runs in its domain")
                }
                NodeServer::Engine(engine) => {
                    let kernel = self.engines.get_mut(&engine).and_then(|kernels| kernels.get_mut(&name));
                    let kernel = kernel.expect("a part of a running flow runs on its engine");
                    let windows = ready.saturating_sub(kernel.start).0.div_ceil(kernel.window.0);
                    let deadline = kernel.start.saturating_add(Nanos(kernel.window.0.saturating_mul(windows + 1)));
                    kernel.last_deadline = Some(deadline);
                    deadline
                }
            };
            done = done.max(deadline);
        }
        Ok(done)
    }

    /// The driver says that at `now` no job of a server is released and unfinished: capacity of leavers whose last deadline
    /// there is not after `now` returns.
    ///
    /// # Panics
    /// If the node has no such server.
    pub fn idle(&mut self, server: NodeServer, now: Nanos) {
        match server {
            NodeServer::Domain(domain) => {
                self.domains[domain].admission.idle(now);
            }
            NodeServer::Engine(engine) => {
                let kernels = self.engines.get_mut(&engine).expect("the driver knows the node's engines");
                kernels.retain(|_, kernel| kernel.last_deadline.is_none_or(|deadline| deadline > now));
            }
        }
    }
}

fn part_name(flow: &str, step: usize) -> String {
    format!("{flow}/{step}")
}

/// The most time from the arrival of a packet to the end of its last step.
fn latency(flow: &NodeFlow, parts: &[FlowPart]) -> Nanos {
    let mut total = Nanos::ZERO;
    for step in 0..flow.steps.len() {
        let of = |step: usize| parts.iter().filter(move |part| part.step == step);
        let longest = |wait: &dyn Fn(&FlowPart) -> Nanos| {
            of(step).map(|part| part.window.saturating_add(wait(part))).max().unwrap_or_default()
        };
        let follows = |part: &FlowPart| {
            let exactly = |before: &FlowPart| {
                let end = before.first.saturating_add(before.window);
                before.window == part.window && end.0 % part.window.0 == part.first.0 % part.window.0
            };
            step > 0 && of(step - 1).all(exactly)
        };
        let wait = |part: &FlowPart| if follows(part) { Nanos::ZERO } else { part.window };
        total = total.saturating_add(longest(&wait));
    }
    total
}
