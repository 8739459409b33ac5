//! Clients and a broker in one process: tokens, leases, refusals, loss, restart.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Broker, LIMIT, operation, parameters, shape, wait_until};
use headway_broker::{
    BrokerServer, Client, ClientError, OnLoss, Phase, RefusalReason, ServerError, ServerOptions, UserAccess, client,
};
use headway_core::decisions::engine_lock::{EngineWork, LockedOperation};
use headway_core::decisions::sharing::GpuId;
use headway_core::units::{Bytes, Nanos};
use headway_os::clock;
use headway_os::fork::holds_in_a_child;
use headway_os::ipc::{Socket, SocketPacket};

const WORKS: [EngineWork; 3] = [EngineWork::Execute, EngineWork::CopyIn, EngineWork::CopyOut];

fn connect(broker: &Broker, name: &str) -> Client {
    Client::connect(&broker.socket, name, OnLoss::Wait).unwrap()
}

fn one_gpu(per_gpu: u32) -> impl FnOnce(&mut ServerOptions) {
    move |options| options.arbiter = parameters(1, per_gpu, Nanos(0))
}

#[test]
fn a_token_is_granted_used_and_given_back_again_and_again() {
    let broker = Broker::start(|_| {});
    let client = connect(&broker, "one");
    let mut task = client.register(shape("a")).unwrap();
    for _ in 0..200 {
        let mut token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
        for work in WORKS {
            assert!(token.engine(operation(work)).unwrap().is_locked());
        }
        token.release(Nanos(1_000));
    }
    let status = client.status().unwrap();
    assert_eq!(status.counts.tokens, 200);
    assert_eq!((status.counts.refused, status.counts.cut), (0, 0));
}

#[test]
fn a_client_alone_on_a_gpu_takes_its_engines_without_the_broker() {
    let broker = Broker::start(|_| {});
    let client = connect(&broker, "one");
    let mut task = client.register(shape("a")).unwrap();
    let mut token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    wait_until("the lease", || client.status().unwrap().gpus.iter().any(|gpu| gpu.leased_to.is_some()));
    let before = client.status().unwrap().counts.engines;
    for _ in 0..10_000 {
        for work in WORKS {
            token.engine(operation(work)).unwrap().release();
        }
    }
    assert_eq!(client.status().unwrap().counts.engines, before);
}

#[test]
fn a_forked_child_gives_nothing_of_its_parents_back_and_ends_no_connection() {
    let broker = Broker::start(one_gpu(1));
    let client = connect(&broker, "one");
    let mut bystander = Some(connect(&broker, "two"));
    let mut task = client.register(shape("a")).unwrap();
    let mut token = Some(task.acquire(clock::now(), 0, Some(LIMIT)).unwrap());
    assert!(holds_in_a_child(|| {
        let engine = token.as_mut().is_some_and(|token| token.engine(operation(EngineWork::Execute)).is_err());
        drop((token.take(), bystander.take()));
        client.hang_up();
        engine && matches!(client.status(), Err(ClientError::Lost)) && client.register(shape("b")).is_err()
    }));
    let status = bystander.expect("the child had a copy of it").status().unwrap();
    assert_eq!((status.clients.len(), status.jobs.len()), (2, 1), "{status:?}");
    let mut token = token.expect("the child had a copy of it");
    assert!(token.engine(operation(EngineWork::Execute)).unwrap().is_locked());
    token.release(Nanos(1_000));
    task.acquire(clock::now(), 1, Some(LIMIT)).unwrap();
}

#[test]
fn no_more_tokens_than_there_are_and_never_two_on_an_engine() {
    let broker = Broker::start(one_gpu(2));
    let (holders, most) = (AtomicU32::new(0), AtomicU32::new(0));
    let engines = [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)];
    let granted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (broker, holders, most, engines, granted) = (&broker, &holders, &most, &engines, &granted);
            scope.spawn(move || {
                let client = connect(broker, "many");
                let mut task = client.register(shape("a")).unwrap();
                for round in 0..40 {
                    let mut token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
                    let now = holders.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= 2, "{now} hold a token");
                    most.fetch_max(now, Ordering::SeqCst);
                    for at in [number, round, number + round].map(|at| at % 3) {
                        let engine = token.engine(operation(WORKS[at])).unwrap();
                        assert_eq!(engines[at].fetch_add(1, Ordering::SeqCst), 0, "two on one engine");
                        std::thread::yield_now();
                        engines[at].fetch_sub(1, Ordering::SeqCst);
                        engine.release();
                    }
                    holders.fetch_sub(1, Ordering::SeqCst);
                    token.release(Nanos(1_000));
                    granted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(granted.load(Ordering::SeqCst), 160);
}

#[test]
fn who_gives_everything_back_and_goes_at_once_leaves_nothing_behind() {
    let broker = Broker::start(one_gpu(2));
    let over = AtomicU32::new(0);
    std::thread::scope(|scope| {
        // Keeps the broker at its pages, so that it comes to sockets at any time.
        scope.spawn(|| {
            let client = connect(&broker, "busy");
            let mut task = client.register(shape("a")).unwrap();
            while over.load(Ordering::SeqCst) == 0 {
                drop(task.acquire(clock::now(), 0, Some(LIMIT)).unwrap());
            }
        });
        for _ in 0..500 {
            let client = connect(&broker, "short");
            let mut task = client.register(shape("b")).unwrap();
            task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1_000));
        }
        over.store(1, Ordering::SeqCst);
    });
    // Their process goes on, and nobody waits for its end: no token is held.
    wait_until("all are gone", || client::status(&broker.socket).is_ok_and(|status| status.clients.is_empty()));
}

#[test]
fn threads_of_one_client_exclude_each_other_too() {
    let broker = Broker::start(one_gpu(3));
    let client = connect(&broker, "threads");
    let engines = [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)];
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (client, engines) = (&client, &engines);
            scope.spawn(move || {
                let mut task = client.register(shape("a")).unwrap();
                for round in 0..200 {
                    let mut token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
                    for at in [number, round, number + round].map(|at| at % 3) {
                        let engine = token.engine(operation(WORKS[at])).unwrap();
                        assert_eq!(engines[at].fetch_add(1, Ordering::SeqCst), 0, "two on one engine");
                        if round % 3 == 0 {
                            std::thread::yield_now();
                        }
                        engines[at].fetch_sub(1, Ordering::SeqCst);
                        engine.release();
                    }
                    token.release(Nanos(1_000));
                }
            });
        }
    });
    assert_eq!(client.status().unwrap().counts.refused, 0);
}

#[test]
fn a_lease_ends_when_another_client_gets_a_token_of_the_gpu() {
    let broker = Broker::start(one_gpu(2));
    let (one, two) = (connect(&broker, "one"), connect(&broker, "two"));
    let (mut a, mut b) = (one.register(shape("a")).unwrap(), two.register(shape("b")).unwrap());
    let mut first = a.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    wait_until("the lease", || one.status().unwrap().gpus[0].leased_to.is_some());
    let engine = first.engine(operation(EngineWork::Execute)).unwrap();
    let mut second = b.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let engine = second.engine(operation(EngineWork::Execute)).unwrap();
            assert_eq!(done.load(Ordering::SeqCst), 1, "the engine was in use");
            drop(engine);
        });
        wait_until("somebody waits for the engine", || {
            let jobs = one.status().unwrap().jobs;
            jobs.iter().any(|job| matches!(&job.phase, Phase::Holds { waits_for, .. } if !waits_for.is_empty()))
        });
        assert_eq!(one.status().unwrap().gpus[0].leased_to, None);
        done.store(1, Ordering::SeqCst);
        drop(engine);
        waiter.join().unwrap();
    });
}

#[test]
fn an_engine_goes_from_client_to_client_again_and_again() {
    let broker = Broker::start(one_gpu(2));
    let (one, two) = (connect(&broker, "one"), connect(&broker, "two"));
    let (mut a, mut b) = (one.register(shape("a")).unwrap(), two.register(shape("b")).unwrap());
    let mut first = a.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let mut second = b.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    for _ in 0..20 {
        let engine = first.engine(operation(EngineWork::Execute)).unwrap();
        let done = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let engine = second.engine(operation(EngineWork::Execute)).unwrap();
                assert_eq!(done.load(Ordering::SeqCst), 1, "the engine was in use");
                drop(engine);
            });
            wait_until("somebody waits for the engine", || {
                let jobs = one.status().unwrap().jobs;
                jobs.iter().any(|job| matches!(&job.phase, Phase::Holds { waits_for, .. } if !waits_for.is_empty()))
            });
            done.store(1, Ordering::SeqCst);
            drop(engine);
            waiter.join().unwrap();
        });
    }
    // Whether leased in between or not, every wait ended with a grant.
    assert!(one.status().unwrap().counts.engines >= 20);
}

#[test]
fn waiting_can_be_bounded_and_what_is_granted_meanwhile_is_not_lost() {
    let broker = Broker::start(one_gpu(1));
    let client = connect(&broker, "one");
    let (mut a, mut b) = (client.register(shape("a")).unwrap(), client.register(shape("b")).unwrap());
    for _ in 0..50 {
        let token = a.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
        let refused = b.acquire(clock::now(), 0, Some(Duration::ZERO)).map(drop);
        assert!(matches!(refused, Err(ClientError::TimedOut)), "{refused:?}");
        token.release(Nanos(1));
        b.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
    }
}

#[test]
fn what_the_arbiter_does_not_allow_is_refused_with_a_reason() {
    let broker = Broker::start(|_| {});
    let client = connect(&broker, "one");
    let mut task = client.register(shape("a")).unwrap();
    let mut token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let large = LockedOperation { bytes: Bytes(3 << 20), ..operation(EngineWork::CopyOut) };
    assert!(matches!(token.engine(large).map(drop), Err(ClientError::Request(RefusalReason::Operation))));
    // Nothing to migrate: the task has no state elsewhere.
    assert!(matches!(
        token.engine(operation(EngineWork::Peer)).map(drop),
        Err(ClientError::Request(RefusalReason::Operation))
    ));
    let none = headway_broker::TaskShape { period: Nanos(0), ..shape("b") };
    assert!(matches!(client.register(none).map(drop), Err(ClientError::Refused { .. })));
}

#[test]
fn limits_of_a_user_are_refusals() {
    let broker = Broker::start(|options| {
        options.limits.clients_per_user = 2;
        options.limits.tasks_per_user = 3;
    });
    let (one, two) = (connect(&broker, "one"), connect(&broker, "two"));
    let third = Client::connect(&broker.socket, "three", OnLoss::Fail).map(drop);
    assert!(matches!(third, Err(ClientError::Refused { .. })), "{third:?}");
    let kept: Vec<_> = [&one, &two, &one].map(|client| client.register(shape("a")).unwrap()).into();
    assert!(matches!(two.register(shape("b")).map(drop), Err(ClientError::Refused { .. })));
    drop(kept);
    two.register(shape("b")).unwrap();
    drop(one);
    wait_until("room for another client", || Client::connect(&broker.socket, "three", OnLoss::Fail).is_ok());
}

#[test]
fn who_sends_what_is_no_message_is_cut_off_and_nobody_else_notices() {
    let broker = Broker::start(|_| {});
    let client = connect(&broker, "good");
    let mut task = client.register(shape("a")).unwrap();
    for text in [&b"{"[..], b"null", b"{\"hello\":{}}", b"\"withdraw\"", &[0xff; 100]] {
        let bad = Socket::connect(&broker.socket).unwrap();
        bad.send(text, &[]).unwrap();
        wait_until("the end of the connection", || {
            bad.wait(Duration::from_millis(1)) && matches!(bad.receive(&mut [0; 512]), Ok(SocketPacket::End))
        });
        task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
    }
    assert_eq!(client.status().unwrap().counts.cut, 5);
}

#[test]
fn a_second_broker_at_the_same_socket_is_refused() {
    let broker = Broker::start(|_| {});
    let error = BrokerServer::bind(ServerOptions::new(broker.socket.clone(), parameters(1, 1, Nanos(0))))
        .map(drop)
        .unwrap_err();
    assert!(matches!(error, ServerError::Running { .. }), "{error}");
    assert_eq!(ServerOptions::new(broker.socket.clone(), parameters(1, 1, Nanos(0))).access, UserAccess::Private);
}

#[test]
fn a_client_that_holds_a_token_for_too_long_is_cut_off_and_the_next_one_goes_on() {
    let broker = Broker::start(|options| {
        one_gpu(1)(options);
        // Longer than it takes the next one to give its token back.
        options.watchdog = Nanos(300_000_000);
    });
    let (one, two) = (connect(&broker, "slow"), connect(&broker, "next"));
    let (mut a, mut b) = (one.register(shape("a")).unwrap(), two.register(shape("b")).unwrap());
    let mut slow = a.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let next = b.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    assert_eq!(next.gpu(), GpuId(0));
    next.release(Nanos(1));
    wait_until("the slow one notices", || slow.is_revoked());
    assert!(slow.engine(operation(EngineWork::Execute)).is_err());
    drop(slow);
    assert!(matches!(a.acquire(clock::now(), 0, Some(LIMIT)).map(drop), Err(ClientError::Lost)));
    assert!(two.status().unwrap().counts.cut >= 1);
}

#[test]
fn a_broker_started_again_takes_over_who_holds_what() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let change = |options: &mut ServerOptions| {
        one_gpu(2)(options);
        // As long as it takes: both come back.
        options.recover = Nanos(600_000_000_000);
    };
    let mut broker = Broker::at(&socket, change);
    let (one, two) = (connect(&broker, "one"), connect(&broker, "two"));
    let (mut a, mut b) = (one.register(shape("a")).unwrap(), two.register(shape("b")).unwrap());
    let mut c = two.register(shape("c")).unwrap();
    for round in 1..4 {
        let mut first = a.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
        let second = b.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
        let engine = first.engine(operation(EngineWork::Execute)).unwrap();
        broker.stop();
        broker = Broker::at(&socket, change);
        wait_until("both are back", || client::status(&socket).is_ok_and(|status| !status.recovering));
        let status = client::status(&socket).unwrap();
        assert_eq!(status.epoch, round + 1);
        assert_eq!(status.gpus[0].holders.len(), 2, "{status:?}");
        // Both tokens are taken, and so is the engine.
        assert!(matches!(c.acquire(clock::now(), 0, Some(Duration::ZERO)).map(drop), Err(ClientError::TimedOut)));
        let runs_on = |phase: &Phase| matches!(phase, Phase::Holds { runs_on, .. } if runs_on.len() == 1);
        assert_eq!(status.jobs.iter().filter(|job| runs_on(&job.phase)).count(), 1, "{status:?}");
        drop(engine);
        second.release(Nanos(1));
        c.acquire(clock::now(), 0, Some(LIMIT)).unwrap().engine(operation(EngineWork::Execute)).unwrap().release();
        first.engine(operation(EngineWork::CopyIn)).unwrap().release();
        first.release(Nanos(1));
    }
}

#[test]
fn a_question_that_a_broker_ends_under_is_asked_of_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let mut broker = Broker::at(&socket, one_gpu(1));
    let (over, asked) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for name in ["one", "two"] {
            let (over, asked) = (&over, &asked);
            let client = connect(&broker, name);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    client.register(shape(name)).unwrap();
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..20 {
            let before = asked.load(Ordering::Relaxed);
            wait_until("both go on", || asked.load(Ordering::Relaxed).wrapping_sub(before) > 20);
            broker.stop();
            broker = Broker::at(&socket, one_gpu(1));
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_broker_started_again_remembers_from_its_log_what_the_clients_do_not_tell() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let log = folder.path().join("log");
    let change = |options: &mut ServerOptions| {
        options.arbiter = parameters(3, 1, Nanos(0));
        options.recover = Nanos(600_000_000_000);
        options.log = Some(log.clone());
    };
    let mut broker = Broker::at(&socket, change);
    let client = connect(&broker, "one");
    let (mut a, mut b) = (client.register(shape("a")).unwrap(), client.register(shape("b")).unwrap());
    let first = a.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let second = b.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let home = second.gpu();
    assert_ne!(home, GpuId(0), "without memory the first GPU is taken first");
    let lost = (0..3).map(GpuId).find(|gpu| ![first.gpu(), home].contains(gpu)).unwrap();
    client.declare_lost(lost).unwrap();
    second.release(Nanos(1));
    first.release(Nanos(1));
    for _ in 0..3 {
        wait_until("everything is released", || client.status().unwrap().jobs.is_empty());
        broker.stop();
        // As if it had been killed while it wrote.
        let mut file = std::fs::File::options().append(true).open(&log).unwrap();
        std::io::Write::write_all(&mut file, b"{\"now\":123,\"inp").unwrap();
        broker = Broker::at(&socket, change);
        wait_until("it is back", || client::status(&socket).is_ok_and(|status| !status.recovering));
        let token = b.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
        assert_eq!((token.gpu(), token.from()), (home, None), "its state is there");
        token.release(Nanos(1));
        assert!(client.status().unwrap().gpus[lost.0 as usize].lost);
    }
}

#[test]
fn who_claims_a_token_that_another_holds_is_refused_with_a_log_and_without() {
    claim(false);
    claim(true);
}

fn claim(has_log: bool) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let change = |options: &mut ServerOptions| {
        one_gpu(1)(options);
        options.recover = Nanos(600_000_000_000);
        options.log = has_log.then(|| folder.path().join("log"));
    };
    let mut broker = Broker::at(&socket, change);
    // The honest one finds the broker by another name, which it does not have for a while.
    let name = folder.path().join("name");
    std::os::unix::fs::symlink(&socket, &name).unwrap();
    let client = Client::connect(&name, "honest", OnLoss::Wait).unwrap();
    let mut task = client.register(shape("a")).unwrap();
    let token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let (id, number) = (token.token().0, token.gpu().0);
    std::fs::remove_file(&name).unwrap();
    broker.stop();
    let _broker = Broker::at(&socket, change);
    let liar = Socket::connect(&socket).unwrap();
    let held = format!(
        "{{\"job\":1,\"release\":1,\"gpu\":{number},\"token\":{id},\"slot\":0,\"generation\":1,\"locks\":[false,false,false]}}"
    );
    let shape_text = serde_json::to_string(&shape("liar")).unwrap();
    let hello = format!(
        "{{\"hello\":{{\"version\":7,\"name\":\"liar\",\"resumed\":[{{\"id\":77,\"shape\":{shape_text},\"held\":{held}}}]}}}}"
    );
    liar.send(hello.as_bytes(), &[]).unwrap();
    assert!(liar.wait(LIMIT));
    let mut buffer = [0; 4096];
    let Ok(SocketPacket::Message(length, _)) = liar.receive(&mut buffer) else { panic!() };
    let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
    assert!(answer.contains("task 77 was nobody's"), "{answer}");
    std::os::unix::fs::symlink(&socket, &name).unwrap();
    wait_until("the honest one is back", || client::status(&socket).is_ok_and(|status| !status.recovering));
    let holders = client::status(&socket).unwrap().gpus[0].holders.len();
    assert_eq!((holders, token.is_revoked()), (1, false));
    token.release(Nanos(1));
    task.acquire(clock::now(), 0, Some(LIMIT)).unwrap().release(Nanos(1));
}

#[test]
fn a_claim_names_the_gpu_of_its_token_and_a_slot_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let change = |options: &mut ServerOptions| {
        options.arbiter = parameters(2, 1, Nanos(0));
        options.recover = Nanos(600_000_000_000);
    };
    let mut broker = Broker::at(&socket, change);
    let name = folder.path().join("name");
    std::os::unix::fs::symlink(&socket, &name).unwrap();
    let client = Client::connect(&name, "one", OnLoss::Wait).unwrap();
    let mut tasks = [client.register(shape("a")).unwrap(), client.register(shape("b")).unwrap()];
    let tokens = tasks.each_mut().map(|task| task.acquire(clock::now(), 0, Some(LIMIT)).unwrap());
    let status = client.status().unwrap();
    let claims: Vec<serde_json::Value> = (0..2)
        .map(|at| {
            let id = status.jobs.iter().find(|job| job.name == ["a", "b"][at]).unwrap().task;
            let (gpu, token) = (tokens[at].gpu(), tokens[at].token());
            let held = serde_json::json!({
                "job": 1, "release": 1, "gpu": gpu, "token": token, "slot": 2 * at, "generation": 1,
                "locks": [false, false, false],
            });
            serde_json::json!({ "id": id, "shape": shape("x"), "held": held })
        })
        .collect();
    // This process, by another client than its own, which does not find the broker.
    std::fs::remove_file(&name).unwrap();
    broker.stop();
    let _broker = Broker::at(&socket, change);
    let greet = |claims: &[serde_json::Value]| {
        let socket = Socket::connect(&socket).unwrap();
        let hello = serde_json::json!({ "hello": { "version": 7, "name": "two", "resumed": claims } });
        socket.send(hello.to_string().as_bytes(), &[]).unwrap();
        assert!(socket.wait(LIMIT));
        let mut buffer = [0; 4096];
        let Ok(SocketPacket::Message(length, _)) = socket.receive(&mut buffer) else { panic!("no answer") };
        (String::from_utf8_lossy(&buffer[..length]).into_owned(), socket)
    };
    let with = |key: &str, value: u64| {
        let mut claims = claims.clone();
        claims[1]["held"][key] = value.into();
        greet(&claims).0
    };
    let other = u64::from(tokens[0].gpu().0);
    assert!(with("gpu", other).contains(&format!("is not one of GPU {other}")));
    assert!(with("gpu", 77).contains("is not one of GPU 77"));
    assert!(with("slot", 1).contains("slot 1 with generation 1 is no slot of a token"));
    assert!(with("slot", 128).contains("slot 128"));
    assert!(with("generation", 0).contains("generation 0"));
    assert!(with("slot", 0).contains("slot 0 is another task's"));
    assert!(greet(&[claims[0].clone(), claims[0].clone()]).0.contains("already registered"));
    let mut busy = claims.clone();
    busy[1]["held"]["locks"] = serde_json::json!([true, false, true]);
    assert!(greet(&busy).0.contains("one engine in use at most"));
    busy[1]["held"]["locks"] = serde_json::json!([true, false, false]);
    busy[1]["shape"]["period"] = 0.into();
    // The first one was believed before the second one was found to be no task.
    assert!(greet(&busy).0.contains("period and deadline must be above zero"));
    // Nothing of what was refused has left a trace.
    let (answer, _kept) = greet(&claims);
    assert!(answer.contains("welcome"), "{answer}");
    tokens.into_iter().for_each(std::mem::forget);
}

#[test]
fn an_engine_in_use_is_the_job_s_that_the_record_names_whoever_comes_back_first() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("broker");
    let change = |options: &mut ServerOptions| {
        one_gpu(2)(options);
        options.recover = Nanos(600_000_000_000);
    };
    let mut broker = Broker::at(&socket, change);
    let name = folder.path().join("name");
    std::os::unix::fs::symlink(&socket, &name).unwrap();
    let honest = Client::connect(&name, "honest", OnLoss::Wait).unwrap();
    let mut task = honest.register(shape("a")).unwrap();
    let other = Client::connect(&name, "other", OnLoss::Fail).unwrap();
    let mut others = other.register(shape("b")).unwrap();
    let mut token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    let second = others.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    // Two clients hold tokens of the GPU: nothing is leased.
    let engine = token.engine(operation(EngineWork::Execute)).unwrap();
    let jobs = honest.status().unwrap().jobs;
    let id = jobs.iter().find(|job| job.name == "b").unwrap().task;
    std::fs::remove_file(&name).unwrap();
    broker.stop();
    let _broker = Broker::at(&socket, change);
    let greet = |locks: [bool; 3]| {
        let liar = Socket::connect(&socket).unwrap();
        let held = serde_json::json!({
            "job": 1, "release": u64::MAX, "gpu": second.gpu(), "token": second.token(), "slot": 0, "generation": 1,
            "locks": locks,
        });
        let claim = serde_json::json!({ "id": id, "shape": shape("b"), "held": held });
        let hello = serde_json::json!({ "hello": { "version": 7, "name": "liar", "resumed": [claim] } });
        liar.send(hello.to_string().as_bytes(), &[]).unwrap();
        assert!(liar.wait(LIMIT));
        let mut buffer = [0; 4096];
        let Ok(SocketPacket::Message(length, _)) = liar.receive(&mut buffer) else { panic!("no answer") };
        (String::from_utf8_lossy(&buffer[..length]).into_owned(), liar)
    };
    let (answer, _) = greet([true, false, false]);
    assert!(answer.contains("did not have that engine"), "{answer}");
    let (answer, _kept) = greet([false; 3]);
    assert!(answer.contains("welcome"), "{answer}");
    // A job that is released in the future has no deadline beyond its own.
    let job = client::status(&socket).unwrap().jobs.into_iter().find(|job| job.task == id).unwrap();
    assert!(job.slack_ns <= 50_000_000, "{job:?}");
    std::os::unix::fs::symlink(&socket, &name).unwrap();
    wait_until("the honest one is back", || client::status(&socket).is_ok_and(|status| !status.recovering));
    let status = client::status(&socket).unwrap();
    let runs =
        |job: &&headway_broker::JobStatus| matches!(&job.phase, Phase::Holds { runs_on, .. } if !runs_on.is_empty());
    assert_eq!(status.jobs.iter().filter(runs).map(|job| job.name.as_str()).collect::<Vec<_>>(), ["a"]);
    engine.release();
    assert!(!token.is_revoked());
    token.release(Nanos(1));
    std::mem::forget(second);
}

#[test]
fn a_client_that_does_not_wait_for_the_next_broker_fails() {
    let mut broker = Broker::start(|_| {});
    let client = Client::connect(&broker.socket, "one", OnLoss::Fail).unwrap();
    let mut task = client.register(shape("a")).unwrap();
    let token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    broker.stop();
    wait_until("the client notices", || client.status().is_err());
    drop(token);
    assert!(matches!(task.acquire(clock::now(), 0, Some(LIMIT)).map(drop), Err(ClientError::Lost)));
    assert!(matches!(client::status(&broker.socket), Err(ClientError::Connect { .. })));
}
