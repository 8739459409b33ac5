//! Several users at one broker: none of them waits for all processes of another one.
//!
//! Threads with other users' rights stand for them, which only root can have.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread::{Scope, ScopedJoinHandle};
use std::{fs, thread};

use crate::support::{Broker, LIMIT, parameters, shape, wait_until};
use headway_broker::{Client, ClientError, OnLoss, RefusalReason, ServerOptions, TaskShape, UserAccess};
use headway_core::decisions::sharing::GpuId;
use headway_core::decisions::token::TokenMode;
use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::ipc::user;
use rustix::process::Uid;

/// Users who are nobody's.
const MANY: u32 = 54_321;
const ONE: u32 = 54_322;

/// A broker for a group with one token; `None` without the right to try it.
fn broker(folder: &Path, change: impl FnOnce(&mut ServerOptions)) -> Option<Broker> {
    if user() != 0 {
        println!("skipped: only root can have other users' rights");
        return None;
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let place = folder.join("place");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    let broker = Broker::at(&place.join("broker"), |options| {
        options.access = UserAccess::Group;
        // All connect at once.
        options.limits.guests_per_user = 64;
        options.arbiter = parameters(1, 1, Nanos(0));
        options.arbiter.clusters[0].tokens.mode = TokenMode::Priority;
        change(options);
    });
    // In place of a group of these users.
    fs::set_permissions(&broker.socket, fs::Permissions::from_mode(0o666)).unwrap();
    Some(broker)
}

/// Runs `body` on a thread with the rights of `uid`.
fn as_user<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    uid: u32,
    body: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    scope.spawn(move || {
        rustix::thread::set_thread_res_uid(None, Some(Uid::from_raw(uid)), None).unwrap();
        body()
    })
}

fn connect(broker: &Broker) -> Client {
    Client::connect(&broker.socket, "one", OnLoss::Fail).unwrap()
}

fn due_in(deadline: u64) -> TaskShape {
    TaskShape { period: Nanos(1), deadline: Nanos(deadline), ..shape("a") }
}

/// Tasks that wait for a token, as the owner sees them.
fn waiting(owner: &Client) -> usize {
    let waits = |job: &headway_broker::JobStatus| matches!(job.phase, headway_broker::Phase::WaitsForToken);
    owner.status().unwrap().jobs.into_iter().filter(waits).count()
}

/// Thirty clients of one user wait, each more urgent than the one client of another one, which comes last.
#[test]
fn the_next_token_goes_to_another_user_however_many_wait_and_whatever_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let Some(broker) = broker(folder.path(), |_| {}) else { return };
    let owner = connect(&broker);
    thread::scope(|scope| {
        let broker = &broker;
        let (give_back, given_back) = std::sync::mpsc::channel::<()>();
        let holder = as_user(scope, MANY, move || {
            let client = connect(broker);
            let mut task = client.register(due_in(100_000)).unwrap();
            let token = task.acquire(Nanos(1), 0, Some(LIMIT)).unwrap();
            // Until it is told, and not less than a little, so that it has used something.
            given_back.recv().unwrap();
            token.release(Nanos(1));
        });
        wait_until("it holds", || owner.status().unwrap().counts.tokens == 1);
        let (granted, order) = std::sync::mpsc::channel::<u32>();
        let crowd: Vec<_> = (0..30)
            .map(|_| {
                let granted = granted.clone();
                as_user(scope, MANY, move || {
                    let client = connect(broker);
                    let mut task = client.register(due_in(100_000)).unwrap();
                    let token = task.acquire(Nanos(1), 0, Some(LIMIT)).unwrap();
                    granted.send(MANY).unwrap();
                    token.release(Nanos(1));
                })
            })
            .collect();
        wait_until("all of them wait", || waiting(&owner) == 30);
        let one = as_user(scope, ONE, move || {
            let client = connect(broker);
            let mut task = client.register(due_in(3_000_000_000_000)).unwrap();
            let token = task.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
            granted.send(ONE).unwrap();
            token.release(Nanos(1));
        });
        wait_until("the other one waits too", || waiting(&owner) == 31);
        give_back.send(()).unwrap();
        assert_eq!(order.recv().unwrap(), ONE, "the first to be granted");
        holder.join().unwrap();
        one.join().unwrap();
        crowd.into_iter().for_each(|client| client.join().unwrap());
    });
    // The log's decisions are the arbiter's, turns or not: nobody is left in it.
    assert_eq!(owner.status().unwrap().jobs.len(), 0);
}

#[test]
fn who_waits_for_a_turn_can_give_up_and_lose_the_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let Some(broker) = broker(folder.path(), |_| {}) else { return };
    let owner = connect(&broker);
    let mut own = owner.register(shape("own")).unwrap();
    let token = own.acquire(clock::now(), 0, Some(LIMIT)).unwrap();
    thread::scope(|scope| {
        let broker = &broker;
        let patient = as_user(scope, ONE, move || {
            let client = connect(broker);
            let mut task = client.register(shape("a")).unwrap();
            // Gives up at once, and asks again.
            let given_up = task.acquire(clock::now(), 0, Some(std::time::Duration::ZERO)).map(drop);
            assert!(matches!(given_up, Err(ClientError::TimedOut)), "{given_up:?}");
            task.acquire(clock::now(), 0, Some(LIMIT)).map(drop)
        });
        wait_until("it waits", || waiting(&owner) == 1);
        owner.declare_lost(GpuId(0)).unwrap();
        let refused = patient.join().unwrap();
        let is_no_gpu = matches!(
            &refused,
            Err(ClientError::Request(RefusalReason::NoGpu) | ClientError::GpuLost { .. } | ClientError::Revoked)
        );
        assert!(is_no_gpu, "{refused:?}");
    });
    drop(token);
}

#[test]
fn users_who_take_all_that_they_may_leave_places_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let change = |options: &mut ServerOptions| {
        options.arbiter.limits.tasks_max = 12;
        options.limits.descriptors = Some(40);
    };
    let Some(broker) = broker(folder.path(), change) else { return };
    let owner = connect(&broker);
    let refused = |error: ClientError| match error {
        ClientError::Refused { reason } => reason,
        error => panic!("{error}"),
    };
    // Registers, and keeps, tasks until there is no place.
    let fill = |client: &Client| {
        let mut count = 0;
        loop {
            assert!(count < 12);
            match client.register(shape("a")) {
                Ok(task) => std::mem::forget(task),
                Err(error) => break (count, refused(error)),
            }
            count += 1;
        }
    };
    let greedy = || {
        let client = connect(&broker);
        let (_, reason) = fill(&client);
        assert!(reason.contains("`--tasks`"), "{reason}");
        let mut clients = Vec::new();
        let reason = loop {
            assert!(clients.len() < 12);
            match Client::connect(&broker.socket, "one", OnLoss::Fail) {
                Ok(client) => clients.push(client),
                Err(error) => break refused(error),
            }
        };
        assert!(reason.contains("descriptors for others"), "{reason}");
        (client, clients)
    };
    thread::scope(|scope| {
        let first = as_user(scope, MANY, greedy).join().unwrap();
        let second = as_user(scope, ONE, greedy).join().unwrap();
        let third = || {
            let client = connect(&broker);
            std::mem::forget(client.register(shape("a")).unwrap());
            client
        };
        let third = as_user(scope, ONE + 1, third).join().unwrap();
        // The owner has all that is left.
        let (left, _) = fill(&owner);
        let sum =
            |status: headway_broker::BrokerStatus| status.clients.iter().map(|client| client.tasks).sum::<usize>();
        assert!(left >= 2 && sum(owner.status().unwrap()) == 12, "{left}");
        drop((first, second, third));
    });
}
