//! Who uses what in fact, and the rules that must hold. It knows only what programs do and what the broker tells them.

use std::collections::{BTreeMap, BTreeSet};

use headway_core::decisions::broker::{BookParameters, BrokerLimits, HeldToken, Roster};
use headway_core::decisions::engine_lock::{EngineRole, LockId};
use headway_core::decisions::sharing::{ClientId, GpuId, TaskId, TokenId};
use headway_core::units::Nanos;

/// Use of a token or an engine by a process.
#[derive(Clone, Copy, Debug)]
struct Use {
    pid: u32,
    /// A process that has ended uses it until then.
    until: Option<Nanos>,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    client: ClientId,
    since: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Welcomed {
    pid: u32,
    account: u32,
}

#[derive(Debug, Default)]
pub(super) struct Audit {
    tokens: BTreeMap<(GpuId, TokenId), Use>,
    engines: BTreeMap<LockId, Use>,
    /// When the broker granted each token, and when it was given back.
    granted: BTreeMap<(GpuId, TokenId), Grant>,
    clients: BTreeMap<ClientId, Welcomed>,
    tasks: BTreeMap<ClientId, BTreeSet<TaskId>>,
    /// When processes ended, and when clients were cut off for hanging.
    died: BTreeMap<u32, Nanos>,
    hung: BTreeMap<ClientId, Nanos>,
    closed: BTreeMap<ClientId, Nanos>,
    lost: BTreeSet<GpuId>,
    pub(super) cut: u64,
}

fn take<K: Ord + Copy + std::fmt::Debug>(
    uses: &mut BTreeMap<K, Use>,
    what: K,
    pid: u32,
    now: Nanos,
) -> Result<(), String> {
    if let Some(other) = uses.get(&what).filter(|other| other.until.is_none_or(|until| now < until)) {
        return Err(match other.until {
            Some(until) => format!(
                "process {pid} gets {what:?} until {until} before the work of process {} that has ended has drained",
                other.pid
            ),
            None => format!("process {pid} gets {what:?}, which process {} uses", other.pid),
        });
    }
    uses.insert(what, Use { pid, until: None });
    Ok(())
}

impl Audit {
    pub(super) fn take_token(&mut self, pid: u32, gpu: GpuId, token: TokenId, now: Nanos) -> Result<(), String> {
        if self.lost.contains(&gpu) {
            return Err(format!("process {pid} gets a token of GPU {}, which is lost", gpu.0));
        }
        take(&mut self.tokens, (gpu, token), pid, now)
    }

    pub(super) fn give_token(&mut self, pid: u32, gpu: GpuId, token: TokenId) {
        if self.tokens.get(&(gpu, token)).is_some_and(|of| of.pid == pid) {
            self.tokens.remove(&(gpu, token));
        }
    }

    pub(super) fn take_engine(&mut self, pid: u32, lock: LockId, now: Nanos) -> Result<(), String> {
        if self.lost.contains(&lock.gpu) {
            return Ok(());
        }
        take(&mut self.engines, lock, pid, now)
    }

    pub(super) fn give_engine(&mut self, pid: u32, lock: LockId) {
        if self.engines.get(&lock).is_some_and(|of| of.pid == pid) {
            self.engines.remove(&lock);
        }
    }

    /// A process has ended, and its GPU work goes on for a while.
    pub(super) fn died(&mut self, pid: u32, now: Nanos, drain: Nanos) {
        let until = Some(now.saturating_add(drain));
        self.tokens
            .values_mut()
            .chain(self.engines.values_mut())
            .filter(|of| of.pid == pid)
            .for_each(|of| of.until = until);
        self.died.insert(pid, now);
    }

    pub(super) fn lose(&mut self, gpu: GpuId) {
        self.lost.insert(gpu);
        self.tokens.retain(|(of, _), _| *of != gpu);
        self.engines.retain(|lock, _| lock.gpu != gpu);
    }

    pub(super) fn is_lost(&self, gpu: GpuId) -> bool {
        self.lost.contains(&gpu)
    }

    pub(super) fn has_lost_all(&self, parameters: &BookParameters) -> bool {
        parameters.arbiter.clusters.iter().flat_map(|cluster| &cluster.gpus).all(|gpu| self.is_lost(*gpu))
    }

    /// Clients of the broker before are nobody's now. Where not all could be written and the broker went on, as it says it does, the new one
    /// does not know who uses what. Without former clients it does not know which GPUs were lost.
    pub(super) fn broker_started(&mut self, before: &Roster, is_memory_current: bool) {
        self.clients.clear();
        self.tasks.clear();
        self.hung.clear();
        self.closed.clear();
        self.granted.clear();
        if before.clients.is_empty() || !is_memory_current {
            self.lost.clear();
        }
        if !before.is_complete {
            self.tokens.clear();
            self.engines.clear();
        }
    }

    pub(super) fn welcomed(&mut self, client: ClientId, pid: u32, account: u32) {
        self.clients.insert(client, Welcomed { pid, account });
    }

    /// The broker has believed a client if it is welcome: then nobody else uses what it claims.
    pub(super) fn check_claims(&self, client: ClientId, claims: &[HeldToken]) -> Result<(), String> {
        let Some(Welcomed { pid, .. }) = self.clients.get(&client) else { return Ok(()) };
        let is_other = |of: &&Use| of.pid != *pid && of.until.is_none();
        for HeldToken { gpu, token, locks, .. } in claims {
            if let Some(other) = self.tokens.get(&(*gpu, *token)).filter(is_other) {
                return Err(format!(
                    "process {pid} is believed to hold {token:?} of {gpu:?}, which process {} uses",
                    other.pid
                ));
            }
            let engines = [EngineRole::Execute, EngineRole::In, EngineRole::Out]
                .into_iter()
                .filter(|engine| locks[*engine as usize]);
            for lock in engines.map(|engine| LockId { gpu: *gpu, engine }) {
                if let Some(other) = self.engines.get(&lock).filter(is_other) {
                    return Err(format!(
                        "process {pid} is believed to hold {lock:?}, which process {} uses",
                        other.pid
                    ));
                }
            }
        }
        Ok(())
    }

    pub(super) fn registered(&mut self, client: ClientId, task: TaskId) {
        self.tasks.entry(client).or_default().insert(task);
    }

    pub(super) fn withdrew(&mut self, client: ClientId, task: TaskId) {
        self.tasks.entry(client).or_default().remove(&task);
    }

    pub(super) fn granted(&mut self, client: ClientId, gpu: GpuId, token: TokenId, now: Nanos) {
        self.granted.insert((gpu, token), Grant { client, since: now });
    }

    /// The broker cuts a client off: as one that hangs only if no token that it has is younger than the watchdog.
    pub(super) fn cut_off(
        &mut self,
        client: ClientId,
        is_hung: bool,
        now: Nanos,
        watchdog: Nanos,
    ) -> Result<(), String> {
        self.cut += 1;
        if !is_hung {
            return Ok(());
        }
        self.hung.insert(client, now);
        let its = self.granted.values().filter(|grant| grant.client == client);
        match its.map(|grant| grant.since).min() {
            Some(oldest) if oldest.saturating_add(watchdog) > now => Err(format!(
                "client {} is cut off as one that hangs, and had its oldest token only since {oldest}",
                client.0
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn closed(&mut self, client: ClientId, now: Nanos) {
        self.closed.insert(client, now);
    }

    /// The broker says that all that a client held is free.
    pub(super) fn removed(
        &mut self,
        client: ClientId,
        now: Nanos,
        watchdog: Nanos,
        drain: Nanos,
    ) -> Result<(), String> {
        self.tasks.remove(&client);
        let Some(Welcomed { pid, .. }) = self.clients.remove(&client) else { return Ok(()) };
        let is_its = |of: &&Use| of.pid == pid && of.until.is_none_or(|until| now < until);
        let holds = self.tokens.values().chain(self.engines.values()).find(is_its).is_some();
        let after = |since: Option<&Nanos>, wait: Nanos| since.is_some_and(|since| since.saturating_add(wait) <= now);
        let hung = after(self.hung.get(&client), drain);
        let left = after(self.closed.get(&client), Nanos(watchdog.0 + drain.0));
        if holds && !hung && !left && !after(self.died.get(&pid), drain) {
            return Err(format!(
                "what process {pid} uses is called free at {now}: it neither ended nor was cut off long enough ago"
            ));
        }
        // From here on it counts as one that uses nothing, whatever it does.
        self.tokens.retain(|_, of| of.pid != pid);
        self.engines.retain(|_, of| of.pid != pid);
        Ok(())
    }

    pub(super) fn check_limits(&self, limits: &BrokerLimits) -> Result<(), String> {
        let mut counts: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        for (client, known) in &self.clients {
            let (clients, tasks) = counts.entry(known.account).or_default();
            *clients += 1;
            *tasks += self.tasks.get(client).map_or(0, BTreeSet::len);
        }
        // A token is one of its user's requests until it is given back.
        let mut requests: BTreeMap<u32, usize> = BTreeMap::new();
        for of in self.tokens.values().filter(|of| of.until.is_none()) {
            let account = self.clients.values().find(|known| known.pid == of.pid).map(|known| known.account);
            account.into_iter().for_each(|account| *requests.entry(account).or_default() += 1);
        }
        if let Some((account, count)) = requests.into_iter().find(|(_, count)| *count > limits.requests_per_user) {
            return Err(format!("user {account} has {count} tokens, and may ask for {}", limits.requests_per_user));
        }
        match counts
            .iter()
            .find(|(_, (clients, tasks))| *clients > limits.clients_per_user || *tasks > limits.tasks_per_user)
        {
            Some((account, (clients, tasks))) => Err(format!("user {account} has {clients} clients and {tasks} tasks")),
            None => Ok(()),
        }
    }
}
