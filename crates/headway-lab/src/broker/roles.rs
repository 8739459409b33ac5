//! What the processes of the benchmark do: one is the broker, one the second client.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;

use headway_broker::{Client, OnLoss};
use headway_os::ipc::{Socket, SocketPacket, Words};

use super::contend;
use super::processes::{PATIENCE, WORDS, broker};

/// Is one of the benchmark's processes, until its parent goes; whether it did what its role is.
pub(crate) fn take_part(role: &str) -> bool {
    // The parent's end of the pipe closes with the parent.
    thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let mut lines = role.lines();
    let (role, folder) = (lines.next().unwrap_or_default(), PathBuf::from(lines.next().unwrap_or_default()));
    let orders: Vec<&str> = lines.collect();
    let done = match role {
        "broker" => broker(&folder, &orders),
        _ => client(&folder, &orders),
    };
    done.is_some()
}

fn client(folder: &Path, orders: &[&str]) -> Option<()> {
    let socket = Socket::connect(&folder.join("words")).ok()?;
    let mut buffer = [0; 16];
    let SocketPacket::Message(_, descriptors) = socket.wait(PATIENCE).then(|| socket.receive(&mut buffer).ok())??
    else {
        return None;
    };
    let words = Words::open(descriptors.into_iter().next()?, WORDS, 1).ok()?;
    let client = Client::connect(&folder.join("broker"), "bench", OnLoss::Fail).ok()?;
    let waits = contend::contend(&client, &words, &contend::Orders::parse(orders)?).ok()?;
    let text: String = waits.iter().map(|wait| format!("{} {}\n", wait.waited.0, wait.handed.0)).collect();
    io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()).ok()
}
