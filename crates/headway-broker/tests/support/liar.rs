//! A client that lies: it speaks the protocol by itself, and writes into messages and pages what no honest client would.

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use headway_broker::{Phase, TaskShape, client};
use headway_core::decisions::sharing::{JobId, TaskId, TokenOutcome};
use headway_core::units::Nanos;
use headway_os::clock;
use headway_os::ipc::Socket;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;

use super::raw::layout::{self, CLIENT_LONGS, Entry, GPUS_MAX, TAIL};
use super::raw::{LIMIT, Raw, VERSION, greet, hear};
use super::support::shape;
use headway_core::decisions::engine_lock::EngineWork;

/// A way to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Bytes that are no message.
    Garbage,
    /// Messages about tasks, clusters and GPUs that are another client's or nobody's.
    Claims,
    /// A greeting that claims every token, as after the broker was started again; and sometimes another's tasks.
    Greeting,
    /// Questions without end, and no answer is read.
    Deaf,
    /// A ring that says that it holds more than it can.
    Jump,
    /// Random words all over its page.
    Scrawl,
    /// Entries without end that say nothing.
    Flood,
    /// Entries in the name of all tasks that there may be.
    Foreign,
    /// Everything in the wrong order: asked twice, given back while waiting.
    Order,
    /// Lease words of every state, generation and owner while it holds a token.
    Leases,
    /// Gives back neither its token nor its engine.
    Keeps,
    /// Ends its connection with a token and an engine, and lives on.
    Leaves,
}

impl Lie {
    pub(crate) const ALL: [Self; 12] = [
        Self::Garbage,
        Self::Claims,
        Self::Greeting,
        Self::Deaf,
        Self::Jump,
        Self::Scrawl,
        Self::Flood,
        Self::Foreign,
        Self::Order,
        Self::Leases,
        Self::Keeps,
        Self::Leaves,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Garbage => "lies: no message",
            Self::Claims => "lies: messages about others",
            Self::Greeting => "lies: tokens claimed of a new broker",
            Self::Deaf => "lies: questions without end",
            Self::Jump => "lies: a ring without bounds",
            Self::Scrawl => "lies: random words in the page",
            Self::Flood => "lies: entries without end",
            Self::Foreign => "lies: entries for others",
            Self::Order => "lies: the wrong order",
            Self::Leases => "lies: lease words",
            Self::Keeps => "lies: gives nothing back",
            Self::Leaves => "lies: leaves with a token",
        }
    }
}

const LEASE_WORDS: usize = GPUS_MAX * layout::ENGINES;

/// What keeps a liar's connection.
pub(crate) enum Kept {
    Bare(#[expect(dead_code, reason = "held, not read")] Socket),
    WithPages(#[expect(dead_code, reason = "held, not read")] Raw),
}

/// Tells one lie to the broker at `path`; `None` if it was cut off before it could. A liar that greets calls `await_next` when it
/// knows whose tokens there are, and goes on when that broker has ended.
pub(crate) fn tell(path: &Path, lie: Lie, random: &mut Pcg64Mcg, await_next: impl FnOnce()) -> Option<Kept> {
    if lie == Lie::Greeting {
        return greeting(path, random, await_next).map(Kept::Bare);
    }
    let mut raw = Raw::open(path, Rc::new(|| {}))?;
    match lie {
        Lie::Garbage => {
            let bytes: Vec<u8> = (0..random.next_u32() % 4_096).map(|_| random.next_u32() as u8).collect();
            let _ = raw.socket.send(&bytes, &[]);
        }
        Lie::Claims => claims(&raw, random)?,
        Lie::Deaf => {
            let question = serde_json::json!("status").to_string();
            (0..2_000).take_while(|_| raw.socket.send(question.as_bytes(), &[]).is_ok()).for_each(drop);
        }
        Lie::Jump => {
            raw.poke(TAIL, random.next_u64());
            raw.bell.ring();
        }
        Lie::Scrawl => {
            raw.token()?;
            for _ in 0..2_000 {
                let at = random.next_u32() as usize % CLIENT_LONGS;
                raw.poke(at, random.next_u64() >> (random.next_u32() % 64));
            }
            raw.bell.ring();
        }
        Lie::Flood => {
            let job = JobId { task: raw.register()?, job: 1 };
            (0..20_000).for_each(|_| raw.push(Entry::Abort { job }.encode()));
        }
        Lie::Foreign => foreign(&mut raw, random)?,
        Lie::Order => order(&mut raw, random)?,
        Lie::Leases => leases(&mut raw, random)?,
        Lie::Keeps | Lie::Leaves => {
            let job = raw.token()?;
            raw.acquire(
                job,
                1,
                [EngineWork::Execute, EngineWork::CopyIn, EngineWork::CopyOut][random.next_u32() as usize % 3],
            );
            raw.is_granted(1, 1);
            if lie == Lie::Leaves {
                raw.socket.shut_down();
            }
        }
        Lie::Greeting => {}
    }
    Some(Kept::WithPages(raw))
}

fn greeting(path: &Path, random: &mut Pcg64Mcg, await_next: impl FnOnce()) -> Option<Socket> {
    let theirs = client::status(path).map(|status| status.jobs).unwrap_or_default();
    await_next();
    // The next broker is just starting.
    let start = Instant::now();
    let socket = loop {
        match Socket::connect(path) {
            Ok(socket) => break socket,
            Err(_) if start.elapsed() < LIMIT => std::thread::yield_now(),
            Err(_) => return None,
        }
    };
    let impostor = random.next_u32().is_multiple_of(2);
    let mut claim = |id: u32, job: u64, gpu: u32, token: u32| {
        let locks = [(); 3].map(|()| random.next_u32().is_multiple_of(2));
        let held = serde_json::json!({
            "job": job, "release": clock::now(), "gpu": gpu, "token": token, "slot": 0, "generation": 1, "locks": locks,
        });
        serde_json::json!([{ "id": id, "shape": shape("lie"), "held": held }])
    };
    let holders = theirs.iter().filter_map(|job| match job.phase {
        Phase::Holds { gpu, token, .. } => Some((job.task.0, job.job, gpu.0, token.0)),
        Phase::WaitsForToken => None,
    });
    // As one of those that hold a token now, or as somebody who is not known.
    let resumed = match holders.max().filter(|_| impostor) {
        Some((id, job, gpu, token)) => claim(id, job, gpu, token),
        None => claim(77, 1, 0, 0),
    };
    greet(&socket, &resumed);
    let _ = hear(&socket, &|| {});
    Some(socket)
}

fn claims(raw: &Raw, random: &mut Pcg64Mcg) -> Option<()> {
    let mine = raw.register()?;
    let none = TaskShape { period: Nanos::ZERO, ..shape("none") };
    let tokens =
        serde_json::json!({ "cpus": 0, "per_gpu": 0, "mode": "fifo", "affinity": true, "discount_holder": false });
    let messages = [
        serde_json::json!({ "withdraw": { "task": mine.0.wrapping_sub(1 + random.next_u32() % 4) } }),
        serde_json::json!({ "register": none }),
        serde_json::json!({ "lost": { "gpu": 31 } }),
        serde_json::json!({ "fault": { "gpu": random.next_u32() % 4 } }),
        serde_json::json!({ "reconfigure": { "cluster": 9, "tokens": tokens } }),
        serde_json::json!({ "hello": { "version": VERSION, "name": "again", "resumed": [] } }),
    ];
    // The last of them, or any that is no message at all, ends the connection.
    messages.iter().take_while(|message| raw.ask(message).is_some()).for_each(drop);
    Some(())
}

fn foreign(raw: &mut Raw, random: &mut Pcg64Mcg) -> Option<()> {
    let mine = raw.register()?;
    for distance in 1..40 {
        let task = TaskId(mine.0.wrapping_sub(distance));
        for job in 1..4 {
            let job = JobId { task, job };
            let outcome = TokenOutcome::Complete(Nanos(random.next_u64()));
            match random.next_u32() % 4 {
                0 => raw.push(Entry::Release { job, outcome }.encode()),
                1 => raw.push(Entry::Abort { job }.encode()),
                2 => raw.acquire(job, 1, EngineWork::Execute),
                _ => raw.request(job, 0),
            }
        }
        // Not more than the ring holds before the broker has read.
        std::thread::yield_now();
    }
    Some(())
}

fn order(raw: &mut Raw, random: &mut Pcg64Mcg) -> Option<()> {
    let job = JobId { task: raw.register()?, job: 1 };
    for _ in 0..50 {
        match random.next_u32() % 6 {
            0 => raw.request(job, 0),
            1 => raw.push(Entry::Release { job, outcome: TokenOutcome::Complete(Nanos(1)) }.encode()),
            2 => raw.push(Entry::Abort { job }.encode()),
            3 => raw.acquire(job, 1, EngineWork::Execute),
            4 => raw.acquire(job, 1, EngineWork::Peer),
            _ => raw.acquire(job, layout::SLOTS - 1, EngineWork::CopyOut),
        }
        if random.next_u32().is_multiple_of(4) {
            std::thread::yield_now();
        }
    }
    Some(())
}

fn leases(raw: &mut Raw, random: &mut Pcg64Mcg) -> Option<()> {
    let job = raw.token()?;
    for round in 0..400 {
        let owner = u64::from(job.task.0.wrapping_sub(random.next_u32() % 5));
        let at = layout::lease(random.next_u32() as usize % LEASE_WORDS);
        let seen = raw.page.long(at).load(std::sync::atomic::Ordering::Acquire);
        // Near what the broker wrote: another state, another owner.
        raw.poke(
            at,
            match round % 3 {
                0 => (seen & !3) | (random.next_u64() % 4),
                1 => (owner << 32) | (seen & u64::from(u32::MAX)),
                _ => (owner << 32) | (random.next_u64() % 64),
            },
        );
        if round % 10 == 0 {
            raw.acquire(job, 1, EngineWork::Execute);
        }
        raw.bell.ring();
        std::thread::yield_now();
    }
    Some(())
}

/// Waits to be killed.
pub(crate) fn stay() -> ! {
    loop {
        std::thread::park_timeout(Duration::from_secs(1));
    }
}
