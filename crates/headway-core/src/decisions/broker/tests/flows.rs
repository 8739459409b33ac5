//! Flows of several programs: which terms each program gets, and which flows are refused. A program that tests a flow by its terms gets the same
//! answer as the broker.

use super::*;
use crate::decisions::flows::{
    CHUNK_MAX, CHUNK_MIN, FlowAdmitted, FlowBook, FlowContract, FlowEngine, FlowId, FlowRefused, JobFacts, LIMITS,
};
use crate::files::workload::OnMiss;
use crate::models::transfer::Direction;
use crate::units::Rate;

const MS: u64 = 1_000_000;
const IN: Direction = Direction::H2d;

/// 10 us and 20.98 us for each MiB, and turns of a millisecond.
fn engine(gpu: u32, direction: Direction) -> FlowEngine {
    FlowEngine {
        gpu,
        direction,
        setup: Nanos(10_000),
        rate: Rate(50_000_000_000),
        jitter: Nanos(20_000),
        late_each: None,
        unpromised_in_flight: 2,
        chunk_max: CHUNK_MAX,
        chunk_min: CHUNK_MIN,
        is_measured: true,
        turn: Some(Nanos(MS)),
        others: None,
    }
}

fn engines(gpus: &[&str]) -> Vec<ProgramEngine> {
    let of = |(number, gpu): (u32, &&str)| {
        [IN, Direction::D2h]
            .map(|direction| ProgramEngine { gpu: (*gpu).to_owned(), engine: engine(number, direction) })
    };
    (0..).zip(gpus).flat_map(of).collect()
}

fn contract(name: &str, bytes: u64, period_ms: u64, deadline_us: u64) -> FlowContract {
    let (period, deadline) = (Nanos(period_ms * MS), Nanos(deadline_us * 1_000));
    let (name, on_miss) = (name.to_owned(), OnMiss::Finish);
    FlowContract { name, gpu: 0, direction: IN, bytes: Bytes(bytes), period, deadline, on_miss }
}

fn open(host: &mut Host, client: u64, contract: FlowContract) -> Vec<Action> {
    let (client, engines) = (ClientId(client), engines(&["GPU-a"]));
    host.feed(Input::OpenFlow { client, engines, contract, bytes: 1 })
}

fn terms(actions: &[Action]) -> BTreeMap<u64, FlowTerms> {
    let of = |action: &Action| match action {
        Action::SetTerms { client, terms } => Some((client.0, terms.clone())),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

/// Has each program that got terms keep to them. Returns `actions` and what followed.
fn keep(host: &mut Host, actions: &[Action]) -> Vec<Action> {
    let told = terms(actions).into_iter();
    let more = told.flat_map(|(client, FlowTerms { version, .. })| {
        host.feed(Input::TermsTaken { client: ClientId(client), version })
    });
    actions.iter().cloned().chain(more).collect()
}

fn opened(actions: &[Action]) -> Option<&FlowAdmitted> {
    actions.iter().find_map(|action| match action {
        Action::Reply { reply: Reply::FlowOpened(admitted), .. } => Some(admitted),
        _ => None,
    })
}

fn refused(actions: &[Action]) -> Option<&FlowRefused> {
    actions.iter().find_map(|action| match action {
        Action::Reply { reply: Reply::FlowRefused(refused), .. } => Some(refused),
        _ => None,
    })
}

/// Opens a flow, and has all keep to the terms.
fn admitted(host: &mut Host, client: u64, contract: FlowContract) -> FlowAdmitted {
    let actions = open(host, client, contract);
    let actions = keep(host, &actions);
    opened(&actions).unwrap().clone()
}

fn others(host: &Host, client: u64) -> Vec<Option<u32>> {
    let program = &host.book.flows.terms_of_programs()[&ClientId(client)];
    program.iter().map(|engine| engine.others).collect()
}

fn hosts(clients: u64) -> Host {
    let mut host = Host::new(parameters(1, 1));
    for client in 1..=clients {
        host.connect(client, 11);
    }
    host
}

#[test]
fn a_flow_is_answered_when_every_program_counts_the_turns_of_its_process() {
    let mut host = hosts(2);
    let alone = admitted(&mut host, 1, contract("camera", 1 << 20, 40, 20_000));
    assert!(alone.bound < Nanos(2 * MS), "{alone:?}");
    let actions = open(&mut host, 2, contract("camera", 1 << 20, 40, 20_000));
    assert_eq!(opened(&actions), None, "the first program does not know of it");
    let told = terms(&actions);
    assert_eq!(told.keys().copied().collect::<Vec<_>>(), [1, 2]);
    let setups = told.values().map(|of| of.engines.iter().map(|engine| engine.setup).collect::<Vec<_>>());
    assert!(setups.flatten().all(|setup| setup == Nanos(MS + 10_000)), "one turn of the other");
    let version = told[&1].version;
    let one = host.feed(Input::TermsTaken { client: ClientId(2), version });
    assert_eq!(opened(&one), None);
    assert!(host.feed(Input::TermsTaken { client: ClientId(1), version: version - 1 }).is_empty(), "an earlier one");
    let all = host.feed(Input::TermsTaken { client: ClientId(1), version });
    // Two chunks without a promise before it, and its own: each waits for a turn.
    assert!(opened(&all).unwrap().bound > Nanos(3 * MS));
    assert_eq!(
        host.book.flows().map(|flow| (flow.client.0, flow.gpu)).collect::<Vec<_>>(),
        [(1, "GPU-a".to_owned()), (2, "GPU-a".to_owned())]
    );
}

#[test]
fn who_comes_is_refused_with_the_name_of_the_flow_that_would_suffer_and_its_process() {
    let mut host = hosts(3);
    admitted(&mut host, 1, contract("steady", 1 << 20, 40, 40_000));
    admitted(&mut host, 2, contract("hasty", 1 << 20, 40, 6_000));
    let before = host.book.flows.terms_of_programs();
    let actions = open(&mut host, 3, contract("third", 1 << 20, 100, 100_000));
    let refused = refused(&actions).unwrap();
    assert_eq!(refused.suffers(), Some("hasty (process 102)"));
    assert!(refused.to_string().contains("`hasty (process 102)` could end"), "{refused}");
    assert!(refused.to_string().contains("could wait 1 ms for it") && refused.to_string().contains("--flow-programs"));
    assert_eq!(host.book.flows.terms_of_programs(), before, "nothing has changed");
    host.wait(100 * MS);
    let own = open(&mut host, 2, contract("more", 1 << 20, 40, 3_000));
    assert!(own.iter().any(|action| matches!(action,
        Action::Reply { reply: Reply::FlowRefused(FlowRefused::Unfit(unfit)), .. } if !unfit.proposals.is_empty())));
    // On another GPU it disturbs nobody.
    host.wait(100 * MS);
    let (client, other) = (ClientId(3), engines(&["GPU-b"]));
    let contract = contract("third", 1 << 20, 100, 100_000);
    let actions = host.feed(Input::OpenFlow { client, engines: other, contract, bytes: 1 });
    assert_eq!(terms(&actions).keys().copied().collect::<Vec<_>>(), [3]);
}

#[test]
fn a_process_counts_until_it_has_ended_and_the_drain_has_passed_whatever_it_says() {
    let mut host = hosts(3);
    let liar = admitted(&mut host, 1, contract("liar", 1 << 20, 40, 20_000));
    admitted(&mut host, 2, contract("honest", 1 << 20, 40, 20_000));
    assert_eq!(others(&host, 2), [Some(1), Some(1)]);
    let actions = host.feed(Input::CloseFlow { client: ClientId(1), flow: liar.flow, bytes: 1 });
    keep(&mut host, &actions);
    assert_eq!(others(&host, 2), [Some(1), Some(1)], "it may go on to copy");
    host.feed(Input::Left { client: ClientId(1) });
    host.wait(10 * WATCHDOG);
    assert_eq!(others(&host, 2), [Some(1), Some(1)], "so long as it lives");
    assert_eq!(host.book.flows().count(), 1);
    host.feed(Input::ProcessEnded { client: ClientId(1) });
    assert_eq!(others(&host, 2), [Some(1), Some(1)], "its GPU work may not have ended");
    let actions = host.wait(DRAIN + 1);
    assert!(actions.contains(&Action::Remove { client: ClientId(1) }));
    assert_eq!(terms(&actions)[&2].engines.iter().map(|of| of.others).collect::<Vec<_>>(), [Some(0), Some(0)]);
    // The next one does not wait until the survivor says that it keeps to that: what it kept to is stricter.
    let actions = open(&mut host, 3, contract("next", 1 << 20, 40, 20_000));
    let version = terms(&actions)[&2].version;
    assert!(opened(&host.feed(Input::TermsTaken { client: ClientId(2), version })).is_some());
}

#[test]
fn a_program_that_does_not_take_its_terms_is_cut_off_and_the_flow_that_waits_is_opened() {
    let mut host = hosts(2);
    admitted(&mut host, 1, contract("hung", 1 << 20, 40, 20_000));
    let actions = open(&mut host, 2, contract("next", 1 << 20, 40, 20_000));
    let version = terms(&actions)[&2].version;
    host.feed(Input::TermsTaken { client: ClientId(2), version });
    assert!(!host.wait(WATCHDOG - 1).contains(&Action::Shut { client: ClientId(1) }));
    let actions = host.wait(2);
    assert!(actions.contains(&Action::Cut { client: ClientId(1), pid: 101, hung: true }), "{actions:?}");
    assert!(opened(&actions).is_some());
    assert_eq!(others(&host, 2), [Some(1), Some(1)], "its process lives");
    assert_eq!(host.book.flows().map(|flow| flow.contract.name).collect::<Vec<_>>(), ["next"], "its flows are lost");
    // It comes back by another connection, and counts once.
    let process = process(1, 11);
    host.feed(Input::Greeting { client: ClientId(9), process, name: "c".to_owned(), resumed: Vec::new(), bytes: 1 });
    let actions = open(&mut host, 9, contract("again", 1 << 20, 40, 20_000));
    let actions = keep(&mut host, &actions);
    assert!(opened(&actions).is_some() && actions.contains(&Action::Remove { client: ClientId(1) }), "{actions:?}");
    assert_eq!(others(&host, 2), [Some(1), Some(1)]);
}

#[test]
fn after_a_restart_flows_are_opened_when_the_programs_of_the_broker_before_are_back_or_gone() {
    let known = KnownProcess { pid: 101, started: 7, uid: 11, tasks: Vec::new(), threads: Vec::new() };
    let mut host = Host::after(parameters(1, 1), Roster { clients: vec![known], ..Roster::default() });
    host.connect(2, 11);
    assert!(open(&mut host, 2, contract("new", 1 << 20, 40, 20_000)).is_empty());
    assert_eq!(host.book.flows().count(), 0, "no flow outlives its broker");
    let actions = host.connect(1, 11);
    assert_eq!(terms(&actions).keys().copied().collect::<Vec<_>>(), [2]);
    let actions = keep(&mut host, &actions);
    assert!(opened(&actions).is_some());
}

#[test]
fn a_user_has_so_many_flows_and_a_connection_tasks_or_flows() {
    let mut parameters = parameters(1, 1);
    parameters.limits.flows_per_user = 2;
    let mut host = Host::new(parameters);
    for (client, uid) in [(1, 11), (2, 11), (3, 12)] {
        host.connect(client, uid);
    }
    let small = |name: &str| contract(name, 4_096, 1_000, 500_000);
    admitted(&mut host, 1, small("a"));
    admitted(&mut host, 2, small("b"));
    let reason = |actions: &[Action]| match actions {
        [Action::Reply { reply: Reply::Refused { reason }, .. }] => reason.clone(),
        other => panic!("{other:?}"),
    };
    assert!(reason(&open(&mut host, 1, small("c"))).contains("2 flows, the most"));
    admitted(&mut host, 3, small("another user's"));
    assert!(reason(&host.feed(Input::Register { client: ClientId(1), shape: shape(10), bytes: 1 })).contains("flows"));
    assert_eq!(host.book.use_of(Nanos(host.now), 11).flows, LimitUse { used: 2, most: 2 });
    let task = host.party(4, 13, 10);
    assert!(reason(&open(&mut host, 4, small("d"))).contains("tasks or flows"), "{task:?}");
    let mut wrong = engines(&["GPU-a"]);
    wrong[0].engine.chunk_min = Bytes(1);
    let asks = Input::OpenFlow { client: ClientId(3), engines: wrong, contract: small("e"), bytes: 1 };
    assert!(reason(&host.feed(asks)).contains("no engines"));
}

#[test]
fn places_that_are_kept_are_paid_for_from_the_beginning_and_unknown_turns_share_with_nobody() {
    let mut parameters = parameters(1, 1);
    parameters.limits.flow_programs = 2;
    let mut host = Host::new(parameters);
    for client in [1, 2] {
        host.connect(client, 10 + client as u32);
    }
    // Alone it would fit.
    assert!(refused(&open(&mut host, 1, contract("greedy", 1 << 20, 40, 2_500))).is_some());
    host.wait(100 * MS);
    admitted(&mut host, 1, contract("fair", 1 << 20, 40, 6_000));
    let actions = open(&mut host, 2, contract("second", 1 << 20, 40, 6_000));
    assert_eq!(terms(&actions).keys().copied().collect::<Vec<_>>(), [2], "nothing changes for the first");

    let mut host = hosts(2);
    let mut unknown = engines(&["GPU-a"]);
    unknown.iter_mut().for_each(|named| named.engine.turn = None);
    let asks = |client, name| Input::OpenFlow {
        client: ClientId(client),
        engines: unknown.clone(),
        contract: contract(name, 1 << 20, 40, 20_000),
        bytes: 1,
    };
    let actions = host.feed(asks(1, "first"));
    keep(&mut host, &actions);
    let actions = host.feed(asks(2, "second"));
    assert!(refused(&actions).unwrap().to_string().contains("headway measure"), "{actions:?}");
}

#[test]
fn programs_that_never_take_their_terms_keep_a_newcomer_for_one_watchdog_however_many_they_are() {
    let mut host = hosts(20);
    for client in 1..20 {
        let actions = open(&mut host, client, contract(&format!("silent {client}"), 4_096, 1_000, 900_000));
        // Each that comes is waited for by those before it.
        let told = terms(&actions).into_iter().filter(|(other, _)| *other != client);
        for (other, FlowTerms { version, .. }) in told.collect::<Vec<_>>() {
            host.feed(Input::TermsTaken { client: ClientId(other), version });
        }
    }
    assert_eq!(host.book.flows().count(), 19);
    let actions = open(&mut host, 20, contract("victim", 4_096, 1_000, 900_000));
    assert_eq!(opened(&actions), None);
    let actions = host.wait(WATCHDOG + 1);
    assert!(opened(&actions).is_some(), "{actions:?}");
    assert_eq!(host.book.flows().map(|flow| flow.contract.name).collect::<Vec<_>>(), ["victim"]);
}

#[test]
fn users_take_turns_and_one_to_whom_a_flow_was_refused_waits_a_moment() {
    let mut host = Host::new(parameters(1, 1));
    for (client, uid) in [(1, 10), (2, 11), (3, 11), (4, 11), (5, 12)] {
        host.connect(client, uid);
    }
    let small = |client: u64| contract(&format!("of {client}"), 4_096, 1_000, 900_000);
    admitted(&mut host, 1, small(1));
    let first = open(&mut host, 2, small(2));
    assert_eq!(opened(&first), None, "the first program does not know of it");
    for client in [3, 4, 5] {
        assert!(open(&mut host, client, small(client)).is_empty());
    }
    let (mut order, mut actions) = (Vec::new(), first);
    while !terms(&actions).is_empty() {
        actions = terms(&actions)
            .into_iter()
            .flat_map(|(client, FlowTerms { version, .. })| {
                host.feed(Input::TermsTaken { client: ClientId(client), version })
            })
            .collect();
        order.extend(actions.iter().filter_map(|action| match action {
            Action::Reply { client, reply: Reply::FlowOpened(_) } => Some(client.0),
            _ => None,
        }));
    }
    assert_eq!(order, [2, 5, 3, 4], "a user's first flow goes before the second one of another user");
    let impossible = || contract("impossible", 1 << 30, 1, 1_000);
    assert!(refused(&open(&mut host, 2, impossible())).is_some());
    assert!(open(&mut host, 3, impossible()).is_empty());
    assert!(refused(&open(&mut host, 5, impossible())).is_some(), "another user waits for nobody");
    assert!(host.wait(100 * MS - 1).is_empty());
    assert!(refused(&host.wait(1)).is_some());
}

/// A program as it keeps a book of its own.
struct Player {
    book: FlowBook,
    /// Here, at the broker.
    flows: Vec<(FlowId, FlowId)>,
    jobs: Vec<(FlowId, u64)>,
    pending: Option<FlowTerms>,
    /// What the broker has admitted, and the terms that were told last by then: it is open here once the program keeps to them.
    admitted: Option<(FlowAdmitted, u64)>,
    version: u64,
    asked: Option<FlowContract>,
    lives: bool,
}

/// What programs play: each does one thing, and hears what comes of it.
struct Game {
    host: Host,
    players: BTreeMap<u64, Player>,
    opened: u32,
}

impl Game {
    fn hear(&mut self, actions: Vec<Action>) {
        let now = Nanos(self.host.now);
        for action in actions {
            match action {
                Action::SetTerms { client, terms } => {
                    let player = self.players.get_mut(&client.0).unwrap();
                    for engine in &terms.engines {
                        let possible = player.book.change(now, engine.clone(), "");
                        assert_eq!(possible, Ok(()), "what was tested at the broker holds here");
                        player.book.drained(now, engine.gpu, engine.direction);
                    }
                    player.version = terms.version;
                    player.pending = Some(terms);
                }
                Action::Reply { client, reply: Reply::FlowOpened(there) } => {
                    let player = self.players.get_mut(&client.0).unwrap();
                    player.admitted = Some((there, player.version));
                }
                Action::Reply { client, reply: Reply::FlowRefused(_) | Reply::Refused { .. } } => {
                    self.players.get_mut(&client.0).unwrap().asked = None;
                }
                Action::Shut { client } => self.players.get_mut(&client.0).unwrap().lives = false,
                _ => {}
            }
        }
    }

    fn turn(&mut self, client: u64, choice: u32, size: u64) {
        let now = Nanos(self.host.now);
        let player = self.players.get_mut(&client).unwrap();
        if !player.lives {
            return;
        }
        let name = format!("{client} at {now}");
        let input = match choice {
            0..3 if player.asked.is_none() => {
                let asked = contract(&name, 1 + (size << 18), 5 + size, 1_500 * (1 + size));
                player.asked = Some(asked.clone());
                let engines = engines(&["GPU-a"]);
                Some(Input::OpenFlow { client: ClientId(client), engines, contract: asked, bytes: 1 })
            }
            3 | 4 => {
                if let Some((flow, _)) = player.flows.first()
                    && let Ok(job) = player.book.submit(now, *flow, Bytes(1))
                {
                    player.jobs.push((job.flow, job.sequence));
                }
                None
            }
            5..8 => {
                for (flow, sequence) in std::mem::take(&mut player.jobs) {
                    player.book.ended(now, flow, sequence, JobFacts::default()).unwrap();
                }
                None
            }
            8 if !player.flows.is_empty() => {
                let _ = player.book.close(now, player.flows[0].0);
                None
            }
            9 if size == 0 => Some(Input::ProcessEnded { client: ClientId(client) }),
            _ => None,
        };
        if let Some(input) = input {
            let actions = self.host.feed(input);
            self.hear(actions);
        }
        self.tell(client);
    }

    /// What a program says by itself: that it keeps to its terms, and that a flow has left.
    fn tell(&mut self, client: u64) {
        let now = Nanos(self.host.now);
        let player = self.players.get_mut(&client).unwrap();
        let mut inputs = Vec::new();
        for direction in [IN, Direction::D2h] {
            player.book.rest(now, 0, direction);
        }
        let gone = player.flows.extract_if(.., |(here, _)| player.book.bound(*here).is_none());
        inputs.extend(gone.map(|(_, flow)| Input::CloseFlow { client: ClientId(client), flow, bytes: 1 }));
        let in_force = |of: &mut FlowTerms| of.engines.iter().all(|of| player.book.is_in_force(of.gpu, of.direction));
        if let Some(FlowTerms { version, .. }) = player.pending.take_if(in_force) {
            inputs.push(Input::TermsTaken { client: ClientId(client), version });
        }
        if player.pending.is_none()
            && let Some((there, version)) = player.admitted.take()
        {
            let here = player.book.open(now, player.asked.take().unwrap()).unwrap();
            player.book.drained(now, 0, IN);
            let is_same = here.chunk == there.chunk && here.bound <= there.bound;
            assert!(is_same || version < player.version, "{here:?} for {there:?}");
            player.flows.push((here.flow, there.flow));
            self.opened += 1;
        }
        for input in inputs {
            let actions = self.host.feed(input);
            self.hear(actions);
        }
    }
}

proptest! {
    #[test]
    fn what_a_program_tests_itself_is_what_was_tested_for_all_and_a_log_replays(
        moves in prop::collection::vec((1..=3_u64, 0..10_u32, 0..12_u64, 0..3_000_u64), 1..120)
    ) {
        let mut host = Host::new(parameters(1, 1));
        let start = BrokerLogStart::of(&host.book, 1, Nanos(host.now), StartReason::Started);
        let mut players = BTreeMap::new();
        for client in 1..=3 {
            host.connect(client, 10 + client as u32);
            let book = FlowBook::new([IN, Direction::D2h].map(|way| engine(0, way)).to_vec(), LIMITS);
            let (flows, jobs) = (Vec::new(), Vec::new());
            let (pending, admitted, asked) = (None, None, None);
            players.insert(client, Player { book, flows, jobs, pending, admitted, version: 0, asked, lives: true });
        }
        let mut game = Game { host, players, opened: 0 };
        for (client, choice, size, wait) in moves {
            game.turn(client, choice, size);
            // Now and then those to whom a flow was refused may ask again.
            let actions = game.host.wait(if wait % 3 == 0 { 100 * MS } else { wait });
            game.hear(actions);
        }
        let mut again = start.begin().unwrap();
        for fed in &game.host.log {
            prop_assert_eq!(&fed.again(&mut again), fed);
        }
        prop_assert_eq!(json(&again), json(&game.host.book));
        let snapshot = BrokerLogStart::of(&again, 1, Nanos(game.host.now), StartReason::Rotated);
        prop_assert_eq!(json(&snapshot.begin().unwrap()), json(&again));
    }
}
