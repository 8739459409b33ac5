//! The record next to the socket: the processes that are served, their tasks, and the holder of each token and engine. The broker always
//! writes it, so that a broker that is started again knows which claims are true.
//!
//! `.state` is replaced whenever a client or task comes or goes. `.held` has a slot of 64 bytes for each token and each engine
//! lock. The broker writes a slot in place before it answers the holder; a process that is killed never leaves half a slot. Both have their
//! room on the disk from the start, so that it may be full later.
//!
//! Each slot, and the whole of `.state`, has a checksum, so that a damaged value is not taken for another one.
//!
//! An engine that was given back stays in its slot until it is granted again: that counts only while the job holds a token. Of
//! engines that are used by lease nothing is written: then one client alone holds tokens of that GPU.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use headway_core::decisions::engine_lock::{EngineRole, LockId};
use headway_core::decisions::sharing::{ClusterId, GpuId, JobId, TaskId, TokenId};
use headway_os::ipc::boot;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::{DiskFaults, Holders, allowed, is_passing};
use crate::error::ServerError;
use crate::folder::{Folder, with_ending};
use headway_core::decisions::broker::{KnownProcess, Roster, UserAccount};

const SCHEMA: u32 = 1;
/// Largest file that is read: thousands of clients with all tasks that they may have.
const BYTES_MAX: u64 = 16 << 20;
/// Room that `.state` has from the start, for some hundred clients, and `.held`, for as many tokens.
const ROOM: usize = 16 << 10;
/// Bytes of a slot; they divide the size of a page, so that a slot is written at once.
const SLOT: usize = 64;
/// The first slot says whether the others are all, and how many they are.
/// How `.held` begins.
pub(in crate::server) const HELD: &[u8] = b"headway ";
const COMPLETE: &str = "headway 3 complete";
const INCOMPLETE: &str = "headway 3 incomplete";

#[derive(Serialize, Deserialize)]
struct State {
    schema: u32,
    /// The start of the system: processes of before it have all ended.
    boot: String,
    clients: Vec<KnownProcess>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    users: Vec<UserAccount>,
}

/// What a slot is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Token(ClusterId, TokenId),
    Engine(LockId),
}

type Entry = (Place, Option<JobId>);

pub(super) struct Record {
    folder: Folder,
    state: OsString,
    held: OsString,
    file: Option<File>,
    /// What each slot says.
    slots: Vec<Entry>,
    /// What the state file is to say, and whether it does.
    clients: Vec<KnownProcess>,
    users: Vec<UserAccount>,
    is_written: bool,
    is_complete: bool,
    /// Whether the broker answers only after it has written: then nothing is ever missing.
    must_remember: bool,
    faults: Option<DiskFaults>,
}

/// FNV-1a of 32 bits: one byte that is another one always shows.
fn checksum(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn slot(text: &str) -> [u8; SLOT] {
    let text = format!("{text} {:08x}", checksum(text));
    let length = text.len().min(SLOT - 1);
    let mut slot = [b' '; SLOT];
    slot[..length].copy_from_slice(&text.as_bytes()[..length]);
    slot[SLOT - 1] = b'\n';
    slot
}

/// The text of a slot, unless it is damaged.
fn text_of(slot: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(slot.strip_suffix(b"\n")?).ok().filter(|line| line.len() == SLOT - 1)?;
    let (text, sum) = line.trim_end_matches(' ').rsplit_once(' ')?;
    (sum == format!("{:08x}", checksum(text))).then_some(text)
}

/// The JSON of a state file, unless it is damaged.
fn json_of(bytes: &[u8]) -> Option<&str> {
    let (sum, json) = std::str::from_utf8(bytes).ok()?.trim_end_matches(' ').split_once(' ')?;
    (sum == format!("{:08x}", checksum(json))).then_some(json)
}

/// Whether a state file may begin so: with a checksum, a blank, and JSON. It may have been cut short anywhere.
pub(in crate::server) fn is_beginning_of_state(bytes: &[u8]) -> bool {
    let json = b" {\"schema\"";
    let (sum, rest) = bytes.split_at(bytes.len().min(8));
    let rest = &rest[..rest.len().min(json.len())];
    sum.iter().all(|byte| byte.is_ascii_hexdigit()) && json.starts_with(rest)
}

const ENGINES: [(EngineRole, &str); 3] =
    [(EngineRole::Execute, "execute"), (EngineRole::In, "in"), (EngineRole::Out, "out")];

fn holding((place, job): Entry) -> [u8; SLOT] {
    let place = match place {
        Place::Token(cluster, token) => format!("{} {}", cluster.0, token.0),
        Place::Engine(LockId { gpu, engine }) => {
            let name = ENGINES.iter().find(|known| known.0 == engine).map_or("", |known| known.1);
            format!("gpu {} {name}", gpu.0)
        }
    };
    let job = job.map_or_else(|| "free".to_owned(), |job| format!("{} {}", job.task.0, job.job));
    slot(&format!("{place} {job}"))
}

fn parse(slot: &[u8]) -> Option<Entry> {
    let mut words = text_of(slot)?.split_whitespace();
    let mut word = || words.next();
    let place = match word()? {
        "gpu" => {
            let (gpu, name) = (GpuId(word()?.parse().ok()?), word()?);
            Place::Engine(LockId { gpu, engine: ENGINES.iter().find(|known| known.1 == name)?.0 })
        }
        cluster => Place::Token(ClusterId(cluster.parse().ok()?), TokenId(word()?.parse().ok()?)),
    };
    match word()? {
        "free" => Some((place, None)),
        task => Some((place, Some(JobId { task: TaskId(task.parse().ok()?), job: word()?.parse().ok()? }))),
    }
}

/// What `.held` says, and whether that is all. If there was no client, it is ignored.
fn entries(bytes: &[u8], was_served: bool) -> Result<(Vec<Entry>, bool), String> {
    let mut slots = bytes.chunks(SLOT);
    let first = slots.next().and_then(text_of).unwrap_or_default();
    let count = first.strip_prefix(COMPLETE).and_then(|count| count.trim().parse::<usize>().ok());
    if !was_served {
        return Ok((Vec::new(), count.is_some()));
    }
    match count {
        Some(count) => {
            let all: Vec<_> = slots.take(count).map_while(parse).collect();
            if all.len() < count {
                return Err(format!("{} of its {count} entries are whole", all.len()));
            }
            Ok((all, true))
        }
        None if first == INCOMPLETE => Ok((slots.filter_map(parse).collect(), false)),
        None => Err("its first line is wrong".to_owned()),
    }
}

fn names_holders(bytes: &[u8]) -> bool {
    bytes.chunks(SLOT).filter_map(parse).any(|entry| matches!(entry, (Place::Token(..), Some(_))))
}

fn damage(what: &str) -> io::Error {
    let remedy = "end the processes that the broker before served, then move `.state` and `.held` away";
    io::Error::new(io::ErrorKind::InvalidData, format!("it is damaged: {what}; {remedy}"))
}

impl Record {
    /// Reads what is there and takes it over: it stays true until clients are back or known to be gone. With what went
    /// wrong, if that is a full or broken disk.
    pub(super) fn open(
        socket: &Path,
        faults: Option<DiskFaults>,
        must_remember: bool,
    ) -> Result<(Self, Roster, Option<String>), ServerError> {
        let place = |source| ServerError::Place { path: socket.to_owned(), source };
        let (folder, name) = Folder::of(socket).map_err(place)?;
        let folder = Folder::open(&folder).map_err(place)?;
        let (state, held) = (with_ending(&name, ".state"), with_ending(&name, ".held"));
        let path_of = |name: &OsString| folder.path(name);
        let failed = |name: &OsString, source| ServerError::Place { path: path_of(name), source };
        let clients = folder.read(&state, BYTES_MAX).map_err(|source| failed(&state, source))?;
        // If a damaged file counted as empty, the broker would give the token of a living holder to another client.
        let damaged = || failed(&state, damage("it does not say who was served"));
        let parsed = |bytes: Vec<u8>| json_of(&bytes).and_then(|json| serde_json::from_str::<State>(json).ok());
        let clients = clients.map(|bytes| parsed(bytes).ok_or_else(damaged)).transpose()?;
        let slots = folder.read(&held, BYTES_MAX).map_err(|source| failed(&held, source))?;
        let has_clients = clients.is_some();
        let known = clients.filter(|state| state.schema == SCHEMA && state.boot == boot());
        let (clients, users) = known.map(|state| (state.clients, state.users)).unwrap_or_default();
        // Its owner removes both, as errors advise. One alone says that there was a broker, and not whom it served.
        if slots.is_none() && !clients.is_empty() {
            return Err(failed(&held, damage("it is missing, and clients were served")));
        }
        let slots = slots.unwrap_or_default();
        if !has_clients && names_holders(&slots) {
            return Err(failed(&state, damage("it is missing, and `.held` names holders")));
        }
        let (slots, is_complete) = entries(&slots, !clients.is_empty()).map_err(|what| failed(&held, damage(&what)))?;
        let (mut taken, mut engines) = (BTreeMap::new(), BTreeMap::new());
        for (place, job) in slots.iter().filter_map(|(place, job)| Some((*place, (*job)?))) {
            match place {
                Place::Token(cluster, token) => drop(taken.insert((cluster, token), job)),
                Place::Engine(lock) => drop(engines.insert(lock, job)),
            }
        }
        let roster = Roster { clients: clients.clone(), users: users.clone(), held: taken, engines, is_complete };
        let is_whole = is_complete || clients.is_empty();
        let mut this = Self {
            folder,
            state,
            held,
            file: None,
            slots,
            clients,
            users,
            is_written: false,
            is_complete: is_whole,
            must_remember,
            faults,
        };
        let trouble = match this.rewrite() {
            Ok(()) => None,
            Err(error) if is_passing(&error) && !must_remember => Some(this.describe(&error)),
            Err(source) => return Err(ServerError::Place { path: this.unwritten(), source }),
        };
        Ok((this, roster, trouble))
    }

    pub(super) fn describe(&self, error: &io::Error) -> String {
        format!("cannot write the record of tokens and their holders to `{}`: {error}", self.unwritten().display())
    }

    /// Which of the two files the last write failed at.
    fn unwritten(&self) -> PathBuf {
        let is_state = self.file.is_some() && !self.is_written;
        self.folder.path(if is_state { &self.state } else { &self.held })
    }

    /// Writes everything anew; from then on the record is complete, unless what it was taken over from was not.
    pub(super) fn rewrite(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            allowed(self.faults.as_ref(), &self.folder.path(&self.held))?;
            self.file = Some(self.folder.file(&self.held, OFlags::RDWR | OFlags::CREATE)?);
        }
        if !self.is_written {
            self.write_clients()?;
        }
        for at in 0..self.slots.len() {
            self.write(at + 1, &holding(self.slots[at]))?;
        }
        self.write_first()?;
        // No slots of a broker that had more of them, and room for those to come.
        let used = (self.slots.len() + 1) * SLOT;
        if let Some(file) = &self.file {
            file.set_len(used as u64)?;
            file.write_all_at(&vec![b' '; ROOM.saturating_sub(used)], used as u64)?;
        }
        Ok(())
    }

    fn write_first(&self) -> io::Result<()> {
        let complete = format!("{COMPLETE} {}", self.slots.len());
        self.write(0, &slot(if self.is_complete { &complete } else { INCOMPLETE }))
    }

    fn write(&self, at: usize, bytes: &[u8; SLOT]) -> io::Result<()> {
        allowed(self.faults.as_ref(), &self.folder.path(&self.held))?;
        let file = self.file.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        file.write_all_at(bytes, (at * SLOT) as u64)
    }

    /// Notes that what is in the files is not all, as well as that can be done.
    fn spoil(&mut self) {
        if !self.must_remember {
            let _ = self.write(0, &slot(INCOMPLETE));
        }
    }

    /// Records the holders of tokens. While the broker waits for clients of its predecessor, it leaves their tokens as they were.
    pub(super) fn hold(&mut self, holders: &Holders, recovering: bool) -> io::Result<()> {
        for ((cluster, token), job) in holders {
            self.enter(Place::Token(*cluster, *token), *job)?;
        }
        if recovering {
            return Ok(());
        }
        for at in 0..self.slots.len() {
            let is_free =
                |place| matches!(place, Place::Token(cluster, token) if !holders.contains_key(&(cluster, token)));
            if self.slots[at].1.is_some() && is_free(self.slots[at].0) {
                self.slots[at].1 = None;
                self.put(at)?;
            }
        }
        if !self.is_complete {
            // The broker waits for no former client: it knows all holders.
            self.is_complete = true;
            if let Err(error) = self.write_first() {
                self.is_complete = false;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Notes that a job gets an engine.
    pub(super) fn lock(&mut self, lock: LockId, job: JobId) -> io::Result<()> {
        self.enter(Place::Engine(lock), job)
    }

    fn enter(&mut self, place: Place, job: JobId) -> io::Result<()> {
        match self.slots.iter().position(|(known, _)| *known == place) {
            Some(at) if self.slots[at].1 == Some(job) => Ok(()),
            Some(at) => {
                self.slots[at].1 = Some(job);
                self.put(at)
            }
            None => {
                self.slots.push((place, Some(job)));
                self.put(self.slots.len() - 1)?;
                // Only now: a number above what is there would say that the file is damaged.
                self.write_first().inspect_err(|_| self.spoil())
            }
        }
    }

    fn put(&mut self, at: usize) -> io::Result<()> {
        let written = self.write(at + 1, &holding(self.slots[at]));
        if written.is_err() {
            self.spoil();
        }
        written
    }

    /// Records the clients.
    pub(super) fn serve(&mut self, clients: Vec<KnownProcess>, users: Vec<UserAccount>) -> io::Result<()> {
        if self.is_written && self.clients == clients && self.users == users {
            return Ok(());
        }
        (self.clients, self.users, self.is_written) = (clients, users, false);
        let written = self.write_clients();
        if written.is_err() {
            self.spoil();
        }
        written
    }

    fn write_clients(&mut self) -> io::Result<()> {
        allowed(self.faults.as_ref(), &self.folder.path(&self.state))?;
        let state = State { schema: SCHEMA, boot: boot(), clients: self.clients.clone(), users: self.users.clone() };
        let json = serde_json::to_string(&state).map_err(io::Error::from)?;
        let text = format!("{:08x} {json}", checksum(&json));
        self.folder.replace_within(&self.state, text.as_bytes(), ROOM)?;
        self.is_written = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_read_back_as_they_were_written_and_have_one_size() {
        let token = Place::Token(ClusterId(u32::MAX), TokenId(u32::MAX));
        let lock = Place::Engine(LockId { gpu: GpuId(u32::MAX), engine: EngineRole::Execute });
        let job = JobId { task: TaskId(u32::MAX), job: u64::MAX };
        for slot in [(token, Some(job)), (token, None), (lock, Some(job)), (lock, None)] {
            let bytes = holding(slot);
            assert_eq!(bytes[SLOT - 1], b'\n');
            assert_eq!(parse(&bytes), Some(slot));
        }
        assert_eq!(parse(&slot("1 2")), None);
    }
}
