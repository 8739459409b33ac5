//! Copies between two GPUs.

use std::collections::VecDeque;

use headway_core::decisions::chooser::ChoiceReason;
use headway_core::models::transfer::{Direction, HostMemory, Method};
use headway_core::units::{Bytes, Nanos};
use headway_device::gpu::Operation;
use headway_device::{Access, DeviceError};
use headway_os::clock;

use super::bounce::SLOT;
use super::engine::{Bounds, EngineMoved, QueueStep, Stopped, Why, steps};
use super::gpu::CopierGpu;
use super::request::claim;
use super::{At, Copier, CopyError, CopyReport};

/// Slots that a copy through the host uses: two on each queue, and one between them.
const SLOTS: usize = 5;

impl Copier {
    /// Copies `len` bytes, through the lines of both GPUs.
    pub(super) fn peer(&self, to: At<'_>, from: At<'_>, len: usize) -> Result<CopyReport, CopyError> {
        let (source, target) = (self.gpu_of(from.buffer)?, self.gpu_of(to.buffer)?);
        let started = clock::now();
        let result = self.peer_copy(source, target, to, from, len).map(|(moved, instead_of)| {
            let method = Method::Peer;
            let peer = Some(self.gpus[target].endpoint);
            let chooser = &self.choosers[source];
            let bytes = Bytes(len as u64);
            CopyReport {
                method,
                reason: ChoiceReason::Named,
                bytes,
                chunks: moved.chunks,
                predicted: match len {
                    0 => Some(Nanos::ZERO),
                    _ => chooser.lock().predicted(peer, method, Direction::Peer, HostMemory::Pinned, bytes),
                },
                observed: clock::now().saturating_sub(started),
                waited: moved.waited,
                ahead: moved.ahead,
                cpu: None,
                instead_of,
            }
        });
        Self::log_end(source, Direction::Peer, &result);
        result
    }

    fn peer_copy(
        &self,
        source: usize,
        target: usize,
        to: At<'_>,
        from: At<'_>,
        len: usize,
    ) -> Result<(EngineMoved, Option<(Method, String)>), CopyError> {
        let method = Method::Peer;
        let (source, target) = (&self.gpus[source], &self.gpus[target]);
        if len == 0 {
            return Ok((EngineMoved::default(), None));
        }
        if source.is_lost() || target.is_lost() {
            return Err(CopyError::DeviceLost);
        }
        let direct = source.id == target.id || source.device.reaches(target.id);
        let instead_of = (!direct).then(|| {
            let reason = "the GPUs do not reach each other: the copy goes through the host".to_owned();
            (method, reason)
        });
        if let Some((_, reason)) = &instead_of {
            let names = [source, target].map(|gpu| gpu.device.description().name.as_str()).join(" -> ");
            self.events.tell_once(names, reason);
        }
        let cancel = self.cancel.watch();
        let bounds = self.bounds(&cancel);
        let moved = if direct {
            let second = (source.id != target.id).then(|| target.peer.inward());
            steps(from, to, len, self.chunk(Method::Peer, len))
                .map_err(Stopped::early)
                .and_then(|steps| source.peer.run(source.device.as_ref(), second, steps, bounds))
        } else {
            self.through_host(source, target, to, from, len, bounds)
        };
        let moved = moved.map_err(|stopped| stopped.error(method, bounds));
        // A copy through the host has said on which of the two it stopped.
        if let Err(CopyError::DeviceLost) = moved
            && direct
        {
            source.lose();
        }
        Ok((moved?, instead_of))
    }

    /// Out to pinned slots and in from them, both at a time.
    fn through_host(
        &self,
        source: &CopierGpu,
        target: &CopierGpu,
        to: At<'_>,
        from: At<'_>,
        len: usize,
        bounds: Bounds<'_>,
    ) -> Result<EngineMoved, Stopped> {
        if source.device.domain() != target.device.domain() {
            return Err(Stopped::early(DeviceError::Unavailable {
                what: "a copy between these GPUs".into(),
                reason: "they belong to different drivers".into(),
                remedy: "copy out of one and into the other".into(),
            }));
        }
        let pinned_max = self.options.limits.pinned_max;
        let slots = source.bounce.await_slots(source.device.as_ref(), SLOTS, pinned_max, bounds).map_err(on(source))?;
        let limits = [source.d2h.shared.limit.enter(), target.h2d.shared.limit.enter()];
        let chunk = limits.iter().map(|limited| limited.bytes).fold(SLOT, usize::min);
        let (mut free, mut full) = (slots.offsets.clone(), VecDeque::new());
        let mut emptying = VecDeque::new();
        let mut reading = VecDeque::new();
        let (chunks, bytes) = (len.div_ceil(chunk), Bytes(chunk as u64));
        let mut outward = source.d2h.open(source.device.as_ref(), chunks, bytes, bounds).map_err(on(source))?;
        let mut inward = target.h2d.open(target.device.as_ref(), chunks, bytes, bounds).map_err(on(target))?;
        let (mut read, mut written) = (0, 0);
        while written < len {
            if read < len && !free.is_empty() && outward.turn() {
                let (here, slot) = (chunk.min(len - read), free.pop().expect("checked above"));
                let step = one_step(from.plus(read), At { buffer: &slots.buffer, offset: slot }, here)?;
                outward.submit(step).map_err(on(source))?;
                reading.push_back((read, here, slot));
                read += here;
            }
            if !full.is_empty() && inward.turn() {
                let (start, here, slot) = full.pop_front().expect("checked above");
                let step = one_step(At { buffer: &slots.buffer, offset: slot }, to.plus(start), here)?;
                inward.submit(step).map_err(on(target))?;
                emptying.push_back((here, slot));
            }
            for (run, gpu) in [(&mut outward, source), (&mut inward, target)] {
                let passed = if run.flying() > 0 { run.poll() } else { run.pause() };
                passed.map_err(on(gpu))?;
            }
            while reading.len() > outward.flying() {
                full.extend(reading.pop_front());
            }
            while emptying.len() > inward.flying() {
                let (here, slot) = emptying.pop_front().expect("longer than the queue's");
                written += here;
                free.push(slot);
            }
        }
        let (first, second) = (outward.finish().map_err(on(source))?, inward.finish().map_err(on(target))?);
        let waited = first.waited.saturating_add(second.waited);
        Ok(EngineMoved { chunks: second.chunks, waited, ahead: first.ahead, cpu: None })
    }
}

/// Knows that `gpu` is lost if a step stopped for that.
fn on(gpu: &CopierGpu) -> impl Fn(Stopped) -> Stopped + '_ {
    |stopped| {
        if matches!(stopped.why, Why::Device(DeviceError::DeviceLost)) {
            gpu.lose();
        }
        stopped
    }
}

/// One copy of `len` bytes.
fn one_step(from: At<'_>, to: At<'_>, len: usize) -> Result<QueueStep, Stopped> {
    let claim = |at, access| claim(at, len, access).map_err(Stopped::early);
    let (from, to) = (claim(from, Access::Read)?, claim(to, Access::Write)?);
    Ok(QueueStep { what: Operation::Copy { from, to }, len: len as u64 })
}

impl At<'_> {
    /// `bytes` further on.
    pub(super) const fn plus(self, bytes: usize) -> Self {
        Self { buffer: self.buffer, offset: self.offset.saturating_add(bytes) }
    }
}
