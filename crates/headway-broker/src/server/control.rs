//! Control messages of clients, read and answered.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use headway_core::decisions::broker::{Input, ProgramEngine};
use headway_core::decisions::flows::FlowContract;
use headway_core::decisions::sharing::{ClientId, JobSegment};
use headway_core::units::Nanos;

use super::driver::BookDriver;
use super::pages::Pages;
use crate::layout::{GENERATIONS, SLOTS};
use crate::message::{FromBroker, FromClient, HeldToken, ResumedTask, TaskShape, VERSION, Welcome};
use crate::text;

/// A task whose names are safe to show.
fn readable(mut shape: TaskShape) -> Result<TaskShape, String> {
    text::check("the task", &shape.name)?;
    shape.name = text::shown(&shape.name);
    for segment in &mut shape.segments {
        if let JobSegment::Execute { kernel, .. } = segment {
            text::check("a kernel", kernel)?;
            *kernel = text::shown(kernel);
        }
    }
    Ok(shape)
}

/// A contract and the engines of its program, with names that are safe to show.
fn readable_flow(
    mut contract: FlowContract,
    mut engines: Vec<ProgramEngine>,
) -> Result<(FlowContract, Vec<ProgramEngine>), String> {
    text::check("the flow", &contract.name)?;
    contract.name = text::shown(&contract.name);
    for named in &mut engines {
        text::check("a GPU", &named.gpu)?;
        named.gpu = text::shown(&named.gpu);
    }
    Ok((contract, engines))
}

/// Checks what former clients say of their pages, and the names of their tasks.
fn readable_claims(resumed: Vec<ResumedTask>) -> Result<Vec<ResumedTask>, String> {
    let mut slots = BTreeMap::new();
    for claim in &resumed {
        let Some(HeldToken { slot, generation, .. }) = claim.held else { continue };
        let is_token_slot = slot.is_multiple_of(2) && (slot as usize) < SLOTS;
        if !is_token_slot || generation == 0 || generation > GENERATIONS {
            return Err(format!("slot {slot} with generation {generation} is no slot of a token"));
        }
        if slots.insert(slot, claim.id).is_some_and(|other| other != claim.id) {
            return Err(format!("slot {slot} is another task's"));
        }
    }
    resumed.into_iter().map(|claim| Ok(ResumedTask { shape: readable(claim.shape)?, ..claim })).collect()
}

/// Bytes of what a message says when the log says it: there it may be longer, with other forms and escapes.
fn logged<T: serde::Serialize>(said: &T, bytes: u64) -> u64 {
    bytes.max(serde_json::to_vec(said).map_or(0, |text| text.len() as u64))
}

impl BookDriver {
    /// Answers one message; `false` if the client must be cut off.
    pub(super) fn message(&mut self, now: Nanos, client: ClientId, text: &[u8]) -> bool {
        let Ok(message) = serde_json::from_slice::<FromClient>(text) else { return false };
        let (greeted, bytes) = (self.is_greeted(client), text.len() as u64);
        match message {
            FromClient::Hello { version, name, resumed } if !greeted => {
                return self.hello(now, client, version, &name, resumed, bytes);
            }
            FromClient::Status => {
                let status = self.status(now, client);
                return self.send(client, &FromBroker::Status(Box::new(status)));
            }
            FromClient::Register(shape) if greeted => {
                let shape = match readable(shape) {
                    Ok(shape) => shape,
                    Err(reason) => return self.send(client, &FromBroker::Refused { reason }),
                };
                let bytes = logged(&shape, bytes);
                self.feed(now, &Input::Register { client, shape, bytes });
            }
            FromClient::Withdraw { task } if greeted => {
                self.catch_up(now, client, true);
                self.feed(now, &Input::Withdraw { client, task, bytes });
            }
            FromClient::OpenFlow { engines, contract } if greeted => {
                let (contract, engines) = match readable_flow(contract, engines) {
                    Ok(readable) => readable,
                    Err(reason) => return self.send(client, &FromBroker::Refused { reason }),
                };
                let bytes = logged(&(&contract, &engines), bytes);
                self.feed(now, &Input::OpenFlow { client, engines, contract, bytes });
            }
            FromClient::CloseFlow { flow } if greeted => {
                self.feed(now, &Input::CloseFlow { client, flow, bytes });
            }
            FromClient::TermsTaken { version } if greeted => {
                self.feed(now, &Input::TermsTaken { client, version });
            }
            FromClient::Fault { gpu } if greeted => {
                self.feed(now, &Input::Fault { client, gpu, bytes });
            }
            FromClient::Lost { gpu } if greeted => self.lose(now, Some(client), gpu),
            FromClient::Reconfigure { cluster, tokens } if greeted => {
                self.feed(now, &Input::Reconfigure { client, cluster, tokens });
            }
            _ => return false,
        }
        self.priority.apply();
        true
    }

    fn hello(
        &mut self,
        now: Nanos,
        client: ClientId,
        version: u32,
        name: &str,
        resumed: Vec<ResumedTask>,
        bytes: u64,
    ) -> bool {
        let checked = if version == VERSION {
            text::check("the client", name).and_then(|()| readable_claims(resumed))
        } else {
            Err(format!("this broker speaks version {VERSION}, the client {version}; use the same of both"))
        };
        let pages = Pages::new().map_err(|_| "no memory or descriptors are left".to_owned());
        let (resumed, pages) = match (checked, pages) {
            (Ok(resumed), Ok(pages)) => (resumed, pages),
            (Err(reason), _) | (_, Err(reason)) => {
                self.send(client, &FromBroker::Refused { reason });
                return false;
            }
        };
        let Some(session) = self.sessions.get_mut(&client) else { return false };
        session.pages = Some(pages);
        let process = session.peer;
        let bytes = logged(&resumed, bytes);
        self.feed(now, &Input::Greeting { client, process, name: text::shown(name), resumed, bytes });
        let is_served = self.book.is_served(client);
        if let Some(session) = self.sessions.get_mut(&client).filter(|_| !is_served) {
            session.pages = None;
        }
        is_served
    }

    /// Sends a new client what it must know, and its pages.
    pub(super) fn welcome(&self, client: ClientId) -> bool {
        let Some(session) = self.sessions.get(&client) else { return false };
        let Some(pages) = &session.pages else { return false };
        let welcome = Welcome {
            client,
            epoch: self.epoch,
            gpus: self.book.gpus().to_vec(),
            engines: self.book.parameters().arbiter.engines,
            log: self.journal.has_log(),
        };
        let [page, answers, bell] = pages.descriptors();
        session.send(&FromBroker::Welcome(welcome), &[page, answers, self.notice.as_fd(), bell])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_counts_as_many_bytes_as_the_log_has_of_it() {
        let segments = vec![r#"{"copy":["to-gpu",1]}"#; 100].join(",");
        let text = format!(r#"["x",0,1,1,0,[{segments}],null]"#);
        let shape: TaskShape = serde_json::from_str(&text).unwrap();
        let long = serde_json::to_string(&shape).unwrap().len() as u64;
        assert!(long > text.len() as u64);
        assert_eq!(logged(&shape, text.len() as u64), long);
        assert_eq!(logged(&shape, 1 << 20), 1 << 20, "all of the message is read");
    }
}
