//! Flows of several programs on the same engines.
//!
//! Chunks of different processes do not stand in one line: the engine goes round among processes, and each keeps it for at most a *turn*, which
//! is measured. So each program has a [`FlowBook`] of its own, whose engines cost the turns of all other processes in addition
//! ([`FlowEngine::beside`]). What a process does can take no more from the others than its turns, whether it keeps to its contracts, hangs or
//! lies. So the only question between programs is how many processes there are:
//!
//! - A program counts on all its engines from its first flow until its *process* has ended and the drain has passed. Closing flows or the
//!   connection changes nothing, since the process can go on to copy. Nobody's word counts for less.
//! - A program that comes is refused if a flow of another one would then miss a deadline.
//! - What changes for programs is one *change* at a time: each gets its new [`FlowTerms`], and the flow that needs them is answered when all
//!   others have said that they keep to them, or are gone. One that does not say so within the watchdog is cut off. Nobody waits for the program
//!   that asks: it counts from now on, and what it does costs the others its turns and no more.
//! - Users take turns, and processes of one user. A user to whom a flow was refused waits a moment before the next one is looked at, since to
//!   find out what would fit takes the broker long.
//!
//! A program keeps the same book with the terms that it was told, and closes a flow here when it has left there: so its flows are always among
//! those that were tested here, with the same chunks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::messages::{Action, ClientProcess, FlowTerms, ProgramEngine, Reply};
use super::usage::LimitUse;
use super::{Book, ClientId};
use crate::decisions::flows::{
    CHUNK_MAX, CHUNK_MIN, FlowAdmitted, FlowBook, FlowContract, FlowEngine, FlowId, FlowRefused, FlowUnfit,
    InvalidContract, LIMITS,
};
use crate::models::transfer::Direction;
use crate::units::Nanos;

/// Engines of a program at most.
const ENGINES_MAX: usize = 64;
/// Chunks without a promise that a program may have on an engine at a time.
const UNPROMISED_MAX: u32 = 64;
/// Users, and processes, of which the book remembers when they were served.
const SERVED_MAX: usize = 1_024;
/// How long a user waits after a refusal: hostile contracts take the broker up to some 20 ms each.
const PAUSE: Nanos = Nanos(100_000_000);

/// A flow of a program, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFlow {
    pub client: ClientId,
    pub gpu: String,
    pub contract: FlowContract,
}

/// Which process it is, by whichever connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ProgramProcess {
    pid: u32,
    /// When it was started.
    started: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Program {
    process: ProgramProcess,
    engines: Vec<ProgramEngine>,
    book: FlowBook,
    /// What it was told last.
    told: Vec<FlowEngine>,
}

impl Program {
    fn has(&self, other: &ProgramEngine) -> bool {
        let same = |own: &ProgramEngine| own.gpu == other.gpu && own.engine.direction == other.engine.direction;
        self.engines.iter().any(same)
    }
}

/// A flow that a client asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct FlowAsk {
    client: ClientId,
    account: u32,
    process: ProgramProcess,
    engines: Vec<ProgramEngine>,
    contract: FlowContract,
}

/// New terms that not all programs keep to yet. Nobody is waited for where no flow opens: the former terms were stricter.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct TermsChange {
    version: u64,
    since: Nanos,
    waits_for: BTreeSet<ClientId>,
    /// The client whose flow is open when all keep to the terms, and the answer that it gets then.
    opens: Option<(ClientId, FlowAdmitted)>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Programs {
    #[serde(with = "crate::decisions::pairs")]
    programs: BTreeMap<ClientId, Program>,
    asks: VecDeque<FlowAsk>,
    /// How many asks had been looked at when an ask of this user, or of this process, was looked at last.
    users_served: BTreeMap<u32, u64>,
    #[serde(with = "crate::decisions::pairs")]
    processes_served: BTreeMap<ProgramProcess, u64>,
    served: u64,
    /// Users to whom a flow was refused, and until when they wait.
    pauses: BTreeMap<u32, Nanos>,
    change: Option<TermsChange>,
    version: u64,
    /// A flow or process has left, which the others were not told.
    has_left: bool,
}

impl Programs {
    pub(super) fn has(&self, client: ClientId) -> bool {
        self.programs.contains_key(&client) || self.asks.iter().any(|ask| ask.client == client)
    }

    /// Since when programs are waited for that have not said that they keep to their terms.
    pub(super) fn waits_since(&self) -> Option<Nanos> {
        self.change.as_ref().map(|change| change.since)
    }

    pub(super) fn waits_for(&self) -> Vec<ClientId> {
        self.change.iter().flat_map(|change| change.waits_for.iter().copied()).collect()
    }

    /// The next ask that may be looked at: of the user, and among those of the process, that was served least recently.
    fn next_ask(&mut self, now: Nanos) -> Option<FlowAsk> {
        self.pauses.retain(|_, until| *until > now);
        let may = self.asks.iter().enumerate().filter(|(_, ask)| !self.pauses.contains_key(&ask.account));
        let served = |ask: &FlowAsk| {
            let user = self.users_served.get(&ask.account).copied();
            (user, self.processes_served.get(&ask.process).copied())
        };
        // Of those that are alike, the first.
        let (at, _) = may.min_by_key(|(_, ask)| served(ask))?;
        let ask = self.asks.remove(at)?;
        self.served += 1;
        remember(&mut self.users_served, ask.account, self.served);
        remember(&mut self.processes_served, ask.process, self.served);
        Some(ask)
    }

    /// When the next ask may be looked at that waits for nothing but a pause.
    fn pause_ends(&self) -> Option<Nanos> {
        let waits_for_others = self.change.as_ref().is_some_and(|change| !change.waits_for.is_empty());
        let ends = self.asks.iter().map(|ask| self.pauses.get(&ask.account).copied().unwrap_or(Nanos::ZERO));
        ends.min().filter(|_| !waits_for_others)
    }

    #[cfg(test)]
    pub(super) fn terms_of_programs(&self) -> BTreeMap<ClientId, Vec<FlowEngine>> {
        self.programs.iter().map(|(client, program)| (*client, program.book.terms())).collect()
    }

    /// The programs as they are once each engine costs the turns of the processes that are there. A program without flows is left as it is
    /// where turns are not measured, but for the engine of `asked`.
    fn counted(
        mut self,
        now: Nanos,
        floor: u32,
        asked: Option<(ClientId, &FlowContract)>,
    ) -> Result<Self, FlowRefused> {
        let name = asked.map_or_else(String::new, |(_, contract)| contract.name.clone());
        for client in self.programs.keys().copied().collect::<Vec<_>>() {
            let of = &self.programs[&client];
            let (process, mut changes) = (of.process, Vec::new());
            for engine in &of.engines {
                let there = self.programs.values().filter(|other| other.has(engine)).map(|other| other.process);
                let others = there.filter(|other| *other != process).collect::<BTreeSet<_>>().len();
                let others = u32::try_from(others).unwrap_or(u32::MAX).max(floor);
                let FlowEngine { gpu, direction, .. } = engine.engine;
                let flow = of.book.flows().find(|flow| (flow.gpu, flow.direction) == (gpu, direction));
                let wanted = asked.filter(|(asks, contract)| {
                    *asks == client && (contract.gpu, contract.direction) == (gpu, direction)
                });
                let asks = flow.map(|flow| flow.name).or_else(|| wanted.map(|(_, contract)| contract.name.clone()));
                match engine.engine.beside(others) {
                    Some(engine) => changes.push(engine),
                    None => {
                        if let Some(asks) = asks {
                            return Err(InvalidContract::TurnUnknown { name, asks }.into());
                        }
                    }
                }
            }
            let book = &mut self.programs.get_mut(&client).expect("it is one of these").book;
            for engine in changes {
                let (gpu, direction, turn) = (engine.gpu, engine.direction, engine.turn);
                if let Err(of) = book.change(now, engine, &format!(" (process {})", process.pid)) {
                    let (suffers, by, why, proposals) = (of.suffers, of.by, of.why, Vec::new());
                    let unfit = FlowUnfit { name, suffers, by, why, proposals, turn };
                    return Err(FlowRefused::Unfit(Box::new(unfit)));
                }
                // What is on the engine, its program sees to.
                book.drained(now, gpu, direction);
            }
        }
        Ok(self)
    }

    /// The programs with one flow more.
    fn with(mut self, now: Nanos, floor: u32, ask: &FlowAsk) -> Result<(Self, FlowAdmitted), FlowRefused> {
        let FlowAsk { client, process, engines, contract, .. } = ask;
        self.programs.entry(*client).or_insert_with(|| {
            let of = engines.iter().map(|named| named.engine.clone()).collect();
            Program { process: *process, engines: engines.clone(), book: FlowBook::new(of, LIMITS), told: Vec::new() }
        });
        let mut counted = self.counted(now, floor, Some((*client, contract)))?;
        let book = &mut counted.programs.get_mut(client).expect("it was put there").book;
        let admitted = book.open(now, contract.clone())?;
        book.drained(now, contract.gpu, contract.direction);
        Ok((counted, admitted))
    }
}

/// Notes when `who` was served. If there are too many entries, the oldest one is removed.
fn remember<T: Ord + Copy>(all: &mut BTreeMap<T, u64>, who: T, when: u64) {
    all.insert(who, when);
    if all.len() > SERVED_MAX
        && let Some((&first, _)) = all.iter().min_by_key(|(_, when)| **when)
    {
        all.remove(&first);
    }
}

fn check_engines(engines: &[ProgramEngine]) -> Result<(), String> {
    if engines.len() > ENGINES_MAX {
        return Err(format!("at most {ENGINES_MAX} engines a program"));
    }
    let is_usual = |named: &ProgramEngine| {
        let engine = &named.engine;
        (engine.chunk_min, engine.chunk_max) == (CHUNK_MIN, CHUNK_MAX)
            && (1..=UNPROMISED_MAX).contains(&engine.unpromised_in_flight)
            && engine.direction != Direction::Peer
            && engine.others.is_none()
    };
    let keys: BTreeSet<_> = engines.iter().map(|named| (named.engine.gpu, named.engine.direction)).collect();
    if keys.len() < engines.len() || !engines.iter().all(is_usual) {
        return Err("these are no engines of a program".to_owned());
    }
    Ok(())
}

impl Book {
    /// The flows of all programs.
    pub fn flows(&self) -> impl Iterator<Item = ProgramFlow> {
        self.flows.programs.iter().flat_map(|(client, program)| {
            program.book.flows().map(|contract| {
                let named = program.engines.iter().find(|named| named.engine.gpu == contract.gpu);
                let gpu = named.map_or_else(String::new, |named| named.gpu.clone());
                ProgramFlow { client: *client, gpu, contract }
            })
        })
    }

    pub(super) fn flows_of(&self, account: u32) -> LimitUse {
        let is_theirs = |client: &ClientId| self.account_of(*client) == account;
        let open = self.flows.programs.iter().filter(|(client, _)| is_theirs(client));
        let asked = self.flows.asks.iter().filter(|ask| is_theirs(&ask.client)).count();
        let open = open.map(|(_, program)| program.book.flows().count()).sum::<usize>();
        LimitUse::of(open + asked, self.parameters.limits.flows_per_user)
    }

    /// A client asks for a flow, and says which engines its program copies on.
    pub(super) fn open_flow(
        &mut self,
        now: Nanos,
        client: ClientId,
        engines: &[ProgramEngine],
        contract: &FlowContract,
        bytes: u64,
    ) -> bool {
        if !self.may_change(now, client, bytes) {
            return false;
        }
        if let Err(reason) = check_engines(engines).and_then(|()| self.check_ask(client)) {
            self.reply(client, Reply::Refused { reason });
            return true;
        }
        let process = self.clients.get(&client).map_or_else(ProgramProcess::default, |known| {
            let ClientProcess { pid, started, .. } = known.process;
            ProgramProcess { pid, started }
        });
        let (account, engines, contract) = (self.account_of(client), engines.to_vec(), contract.clone());
        self.flows.asks.push_back(FlowAsk { client, account, process, engines, contract });
        self.go_on_with_flows(now);
        true
    }

    fn check_ask(&self, client: ClientId) -> Result<(), String> {
        if self.clients.get(&client).is_some_and(|known| !known.tasks.is_empty()) {
            return Err("a connection has tasks or flows; open flows on another one".to_owned());
        }
        if self.flows.asks.iter().any(|ask| ask.client == client) {
            return Err("this connection asks for a flow already; wait for the answer".to_owned());
        }
        let flows = self.flows_of(self.account_of(client));
        if !flows.has_room_for(1) {
            return Err(format!("this user has {} flows, the most allowed; close one", flows.used));
        }
        Ok(())
    }

    /// A flow has left its program's own book.
    pub(super) fn close_flow(&mut self, now: Nanos, client: ClientId, flow: FlowId, bytes: u64) -> bool {
        if !self.may_change(now, client, bytes) {
            return false;
        }
        let book = self.flows.programs.get_mut(&client).map(|program| &mut program.book);
        let is_closed = book.is_some_and(|book| book.close(now, flow).is_ok());
        self.flows.has_left |= is_closed;
        let unknown = || format!("flow {} is not this client's", flow.0);
        self.reply_done(client, if is_closed { Ok(()) } else { Err(unknown()) });
        self.go_on_with_flows(now);
        true
    }

    /// A program keeps to the terms of this version.
    pub(super) fn take_terms(&mut self, now: Nanos, client: ClientId, version: u64) -> bool {
        let change = self.flows.change.as_mut().filter(|change| change.version == version);
        let was_waited_for = change.is_some_and(|change| change.waits_for.remove(&client));
        if was_waited_for {
            self.go_on_with_flows(now);
        }
        was_waited_for
    }

    /// A client is served no longer: its flows are lost. Its process may still copy, and counts.
    pub(super) fn lose_flows(&mut self, now: Nanos, client: ClientId) {
        let flows = &mut self.flows;
        flows.asks.retain(|ask| ask.client != client);
        if let Some(change) = &mut flows.change {
            change.waits_for.remove(&client);
            change.opens.take_if(|(opens, _)| *opens == client);
        }
        if let Some(program) = flows.programs.get_mut(&client) {
            program.book.close_all(now);
        }
        self.go_on_with_flows(now);
    }

    /// A process has ended and its GPU work too, or a newer connection stands for it: it no longer counts.
    pub(super) fn forget_program(&mut self, now: Nanos, client: ClientId) {
        if self.flows.programs.remove(&client).is_some() {
            self.flows.has_left = true;
            self.go_on_with_flows(now);
        }
    }

    /// When an ask may be looked at that waits for nothing but a pause.
    pub(super) fn flow_pause_ends(&self) -> Option<Nanos> {
        self.flows.pause_ends().filter(|_| self.recovery.is_none())
    }

    /// Ends the change that all keep to, and begins the next one.
    pub(super) fn go_on_with_flows(&mut self, now: Nanos) {
        loop {
            if self.flows.change.as_ref().is_some_and(|change| !change.waits_for.is_empty()) {
                return;
            }
            if let Some((client, admitted)) = self.flows.change.take().and_then(|change| change.opens) {
                self.reply(client, Reply::FlowOpened(admitted));
                self.forget_former_connections(now, client);
                continue;
            }
            // Programs of the broker before must be able to come back before others take their place.
            if self.recovery.is_some() {
                return;
            }
            let floor = self.parameters.limits.flow_programs.saturating_sub(1);
            if std::mem::take(&mut self.flows.has_left) {
                // It only becomes easier; what cannot be, stays as it is.
                let relaxed = self.flows.clone().counted(now, floor, None).unwrap_or_else(|_| self.flows.clone());
                self.put_in_force(now, relaxed, None);
                continue;
            }
            let Some(ask) = self.flows.next_ask(now) else { return };
            match self.flows.clone().with(now, floor, &ask) {
                Ok((programs, admitted)) => self.put_in_force(now, programs, Some((ask.client, admitted))),
                Err(refused) => {
                    self.flows.pauses.insert(ask.account, now.saturating_add(PAUSE));
                    self.reply(ask.client, Reply::FlowRefused(refused));
                }
            }
        }
    }

    fn put_in_force(&mut self, now: Nanos, programs: Programs, opens: Option<(ClientId, FlowAdmitted)>) {
        self.flows = programs;
        self.flows.version += 1;
        let (version, mut waits_for) = (self.flows.version, BTreeSet::new());
        let served: BTreeSet<ClientId> =
            self.flows.programs.keys().copied().filter(|client| self.is_served(*client)).collect();
        for (client, program) in self.flows.programs.iter_mut().filter(|(client, _)| served.contains(client)) {
            let engines = program.book.terms();
            if engines != program.told {
                program.told.clone_from(&engines);
                if opens.as_ref().is_some_and(|(asks, _)| asks != client) {
                    waits_for.insert(*client);
                }
                self.actions.push_back(Action::SetTerms { client: *client, terms: FlowTerms { version, engines } });
            }
        }
        self.flows.change = Some(TermsChange { version, since: now, waits_for, opens });
    }

    /// A process that comes back counts by its new connection, where that has all engines of the former one.
    fn forget_former_connections(&mut self, now: Nanos, client: ClientId) {
        let programs = &self.flows.programs;
        let Some(now_there) = programs.get(&client) else { return };
        let is_former = |(other, of): &(&ClientId, &Program)| {
            **other != client
                && of.process == now_there.process
                && !self.is_served(**other)
                && of.engines.iter().all(|engine| now_there.has(engine))
        };
        for former in programs.iter().filter(is_former).map(|(former, _)| *former).collect::<Vec<_>>() {
            self.drained(now, former);
        }
    }
}
