//! The machine that explains what was measured: fitted to sets of concurrent copies, completed with what the fit leaves out.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use headway_core::files::machine::{CapacityKind, Endpoint, EndpointId, EndpointKind, Machine, RATE_MIN};
use headway_core::interconnect::fit::{self, NodeFacts, Sample};
use headway_core::models::transfer::{Direction, Method, Stamp};
use headway_core::units::{Nanos, Rate};
use headway_device::gpu::Gpu;
use headway_os::topology::SYSFS;

use headway::plan::JITTER_MIN;

use super::links::MeasuredSetup;
use super::node::{self, part};
use super::sets::{Rates, Set, SetTransfer};
use crate::Error;

/// Everything measured on links.
pub struct Observed {
    pub sets: Vec<Set>,
    /// Their rates.
    pub rates: Vec<Rates>,
    /// Set-up times of every transfer.
    pub setups: Vec<MeasuredSetup>,
    /// The longest time between submission and start plus end and notice.
    pub jitter: Nanos,
}

impl Observed {
    /// The machine called `name` that fits.
    pub fn machine(&self, name: &str, devices: &[Arc<dyn Gpu>], stamp: &Stamp) -> Result<Machine, Error> {
        let endpoints = node::endpoints(devices, Path::new(SYSFS));
        let gpus: Vec<EndpointId> = (0..)
            .map(EndpointId)
            .zip(&endpoints)
            .filter(|(_, e)| e.kind == EndpointKind::Gpu)
            .map(|(id, _)| id)
            .collect();
        let models: BTreeMap<&str, usize> = devices.iter().fold(BTreeMap::new(), |mut models, device| {
            *models.entry(device.description().name.as_str()).or_default() += 1;
            models
        });
        let models: Vec<String> = models.iter().map(|(model, count)| format!("{count} x {model}")).collect();
        let node = NodeFacts {
            name: name.to_owned(),
            description: format!("{}, measured on {} with driver {}", models.join(", "), stamp.date, stamp.driver),
            endpoints,
            setups: self.host_setups(&gpus),
            jitter: Nanos(self.jitter.0.saturating_add(self.jitter.0 / 4)).max(JITTER_MIN),
            date: stamp.date.clone(),
            driver: stamp.driver.clone(),
        };
        self.fitted(&node, |from, to| from != to && devices[from].reaches(devices[to].id()))
    }

    /// The machine that fits, for a node whose GPUs reach each other as `reaches` says.
    pub fn fitted(&self, node: &NodeFacts, reaches: impl Fn(usize, usize) -> bool) -> Result<Machine, Error> {
        let is_gpu = |(_, end): &(EndpointId, &Endpoint)| end.kind == EndpointKind::Gpu;
        let gpus: Vec<EndpointId> =
            (0..).map(EndpointId).zip(&node.endpoints).filter(is_gpu).map(|(id, _)| id).collect();
        let fitted = fit::fit(node, &self.samples(&gpus))?;
        let mut machine = node::complete(fitted, reaches);
        self.put_peers(&mut machine);
        self.put_peer_setups(&mut machine, &gpus);
        Ok(machine)
    }

    /// Set-ups of copies between host and GPUs.
    pub fn host_setups(&self, gpus: &[EndpointId]) -> BTreeMap<(EndpointId, Direction), fit::CopySetup> {
        let setup = |setup: &MeasuredSetup| {
            let found = fit::CopySetup { idle: setup.idle, queued: setup.queued, submit: setup.submit };
            match setup.member {
                SetTransfer::H2d(gpu) => Some(((gpus[gpu], Direction::H2d), found)),
                SetTransfer::D2h(gpu) => Some(((gpus[gpu], Direction::D2h), found)),
                SetTransfer::Peer(..) => None,
            }
        };
        self.setups.iter().filter_map(setup).collect()
    }

    /// The sets between host and GPUs, as the fit takes them.
    fn samples(&self, gpus: &[EndpointId]) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (set, rates) in self.sets.iter().zip(&self.rates) {
            let copy = |member: &SetTransfer| match *member {
                SetTransfer::H2d(gpu) => Some((gpus[gpu], Direction::H2d)),
                SetTransfer::D2h(gpu) => Some((gpus[gpu], Direction::D2h)),
                SetTransfer::Peer(..) => None,
            };
            let transfers: Option<Vec<_>> = set.members.iter().map(copy).collect();
            let Some(transfers) = transfers else { continue };
            samples.extend(rates.0.iter().map(|rates| Sample {
                transfers: transfers.clone(),
                rates: rates.iter().map(|rate| Rate(*rate).max(RATE_MIN)).collect(),
            }));
        }
        samples
    }

    /// Set-ups of copies between GPUs.
    fn put_peer_setups(&self, machine: &mut Machine, gpus: &[EndpointId]) {
        for setup in &self.setups {
            let SetTransfer::Peer(from, to) = setup.member else { continue };
            let ends = (gpus[from], gpus[to]);
            let routes = machine.routes.iter_mut().filter(|r| r.method == Method::Peer && (r.from, r.to) == ends);
            for route in routes {
                (route.setup, route.setup_queued, route.submit) = (setup.idle, setup.queued, setup.submit);
            }
        }
    }

    /// Rates of the links between GPUs: of a GPU's port the fastest pair's median, the slowest repetition of any pair, and
    /// what both directions of a pair got.
    fn put_peers(&self, machine: &mut Machine) {
        for capacity in &mut machine.capacities {
            let CapacityKind::Link { opposite, .. } = &mut capacity.kind else { continue };
            let port = |gpu: usize, out: bool| capacity.id == part(gpu, if out { "peer-out" } else { "peer-in" });
            let uses = |member: &SetTransfer| matches!(*member, SetTransfer::Peer(from, to) if port(from, true) || port(to, false));
            let (mut typical, mut low, mut both) = (Vec::new(), Vec::new(), Vec::new());
            for (set, rates) in self.sets.iter().zip(&self.rates) {
                for at in (0..set.members.len()).filter(|at| uses(&set.members[*at])) {
                    let mut found: Vec<u64> = rates.0.iter().map(|rates| rates[at].max(RATE_MIN.0)).collect();
                    found.sort_unstable();
                    let median = found[(found.len() - 1) / 2];
                    match set.members.len() {
                        1 => {
                            typical.push(median);
                            low.push(found[0]);
                        }
                        2 if set.name.ends_with("both") => both.push(median),
                        _ => {}
                    }
                }
            }
            let Some(rate) = typical.into_iter().max() else { continue };
            (capacity.rate, capacity.rate_low) = (Rate(rate), Rate(low.into_iter().min().unwrap_or(rate)));
            if let Some((_, rate_both)) = opposite {
                *rate_both = Rate(both.into_iter().max().unwrap_or(rate).min(rate));
            }
        }
    }
}
