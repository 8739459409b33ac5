//! Copies that were promised to be in time: by the copy engine, in chunks that go before all that has no promise, by deadline.
//!
//! Who promises knows how large the chunks of other copies are: [`Copier::limit_chunks`].

use std::sync::PoisonError;

use headway_core::decisions::engine_line::FlowClass;
use headway_core::models::transfer::{Direction, Method};
use headway_core::units::{Bytes, Nanos};
use headway_device::DeviceError;
use headway_os::clock;

use super::engine::{Engine, Promise, PromisedCopy, Stopped, steps};
use super::request::{Host, Request};
use super::{At, Copier, CopyError};
use crate::staging::{Limited, Place, Promiser};
use crate::wait::Patience;

/// How long a promiser waits for another one to give the engine back.
const HANDED_OVER: Nanos = Nanos(20_000_000);

impl Copier {
    /// Copies `from`, which is pinned, to the device.
    ///
    /// # Errors
    /// [`CopyError`]; [`CopyError::Invalid`] for memory that is not pinned.
    pub fn promised_in(&self, to: At<'_>, from: &[u8], promise: Promise) -> Result<PromisedCopy, CopyError> {
        let gpu = self.gpu_of(to.buffer)?;
        self.promised(Request::new(gpu, Direction::H2d, to, Host::In(from), from.len()), promise)
    }

    /// Copies from the device to `to`, which is pinned.
    ///
    /// # Errors
    /// Those of [`Copier::promised_in`].
    pub fn promised_out(&self, to: &mut [u8], from: At<'_>, promise: Promise) -> Result<PromisedCopy, CopyError> {
        let (gpu, len) = (self.gpu_of(from.buffer)?, to.len());
        self.promised(Request::new(gpu, Direction::D2h, from, Host::Out(to), len), promise)
    }

    /// Copies between pinned memory that is a [`headway_device::Buffer`] and the device.
    ///
    /// # Errors
    /// Those of [`Copier::promised_in`].
    pub fn promised_pinned(
        &self,
        direction: Direction,
        device: At<'_>,
        host: At<'_>,
        len: usize,
        promise: Promise,
    ) -> Result<PromisedCopy, CopyError> {
        let gpu = self.gpu_of(device.buffer)?;
        self.is_pinned_for(gpu, direction, host)?;
        self.promised(Request::new(gpu, direction, device, Host::Held(host), len), promise)
    }

    /// The engine of the GPU at position `gpu` for somebody who hands chunks to it by other means. While this lives, promises that need
    /// smaller chunks than it had at the beginning wait.
    #[must_use]
    pub fn engine_turns(&self, gpu: usize, direction: Direction) -> EngineTurns<'_> {
        let engine = self.gpus[gpu].engine(direction);
        EngineTurns { engine, limited: engine.shared.limit.enter(), patience: self.options.limits.patience }
    }

    fn promised(&self, mut request: Request<'_>, promise: Promise) -> Result<PromisedCopy, CopyError> {
        self.checked(&request)?;
        let asked = clock::now();
        if request.len == 0 {
            return Ok(PromisedCopy { asked, ended: asked, ..PromisedCopy::default() });
        }
        let gpu = &self.gpus[request.gpu];
        self.pinned(gpu, &request, "a promised copy")?;
        let cancel = self.cancel.watch();
        let (direction, len) = (request.direction, request.len);
        let chunk = usize::try_from(promise.chunk.0).unwrap_or(usize::MAX).max(1);
        let bounds = self.bounds(&cancel);
        let moved = request.with_buffers(Some(gpu.device.domain()), |from, to| {
            let steps = steps(from, to, len, chunk).map_err(Stopped::early)?;
            gpu.engine(direction).run_promised(gpu.device.as_ref(), steps, promise, bounds)
        });
        let result = moved.map_err(|stopped| stopped.error(Method::Dma, bounds));
        if let Err(CopyError::DeviceLost) = result {
            gpu.lose();
        }
        result
    }

    /// Makes a queue for one more caller of promised copies, since the driver takes longer for that than for many a copy.
    ///
    /// # Errors
    /// [`CopyError`] if the driver refuses it.
    pub fn prepare_promised(&self, gpu: usize, direction: Direction) -> Result<(), CopyError> {
        let of = &self.gpus[gpu];
        let prepared = of.engine(direction).prepare(of.device.as_ref());
        prepared.map_err(|error| CopyError::device(Method::Dma, error, 0, 0))
    }

    /// Bounds the chunks of all copies without a promise on the engine of the GPU at position `gpu` from now on, for the promises of `who`;
    /// `None` = as before, if `who` has bounded them. On return no larger chunk is on the engine. Copies in callers' streams, and copies that
    /// the driver stages, are not bounded.
    ///
    /// # Errors
    /// [`CopyError::Timeout`] if larger copies that are under way make no progress; the bound holds for later ones.
    /// [`CopyError::Invalid`] where another one bounds them, or a plan runs that copies there.
    pub fn limit_chunks(
        &self,
        who: Promiser,
        gpu: usize,
        direction: Direction,
        chunk: Option<Bytes>,
    ) -> Result<(), CopyError> {
        let of = &self.gpus[gpu];
        let shared = &of.engine(direction).shared;
        if chunk.is_none() && !shared.is_promised_by(who) {
            return Ok(());
        }
        // A node that was dropped a moment ago may still be giving the engine back, on another thread.
        let mut patience = Patience::new(HANDED_OVER);
        while !shared.promise_by(who) {
            if patience.pause() {
                continue;
            }
            let reason = "another copier or node of this process, or a plan that it runs, promises copies on the same engine; promise all of a \
                          GPU by one of them, and when the plan has ended";
            return Err(CopyError::Invalid { what: "promised copies", reason: reason.to_owned() });
        }
        if direction == Direction::D2h {
            let mut before = of.turn_before.lock().unwrap_or_else(PoisonError::into_inner);
            match chunk {
                Some(chunk) => {
                    let was = of.device.set_turn(Some(chunk));
                    before.get_or_insert(was);
                }
                None => drop(before.take().map(|turn| of.device.set_turn(turn))),
            }
        }
        of.engine(direction).watch(chunk.is_some());
        let patience = self.options.limits.patience;
        if shared.limit.set(chunk, patience) {
            if chunk.is_none() {
                shared.promise_ends(who);
            }
            return Ok(());
        }
        let what = "a copy with larger chunks that was under way".to_owned();
        Err(CopyError::Timeout { what, after: patience, completed_prefix: 0 })
    }
}

/// One engine of a copier, for somebody who hands chunks to it by other means.
pub struct EngineTurns<'a> {
    engine: &'a Engine,
    limited: Limited<'a>,
    patience: Nanos,
}

/// A chunk's turn on an engine, which ends when this is dropped.
pub struct Turn(#[expect(dead_code, reason = "held")] Place);

impl EngineTurns<'_> {
    /// Tells the user's other programs of bytes that are handed to the engine.
    pub fn moved(&self, class: FlowClass, bytes: Bytes) {
        self.engine.activity().moved(class, bytes);
    }

    /// Tells them of a copy.
    pub fn copied(&self, class: FlowClass) {
        self.engine.activity().copied(class, Nanos::ZERO);
    }

    /// What the engine may get at once; `None` = nothing is promised there, and nobody has to wait for turns.
    #[must_use]
    pub fn chunk(&self) -> Option<Bytes> {
        (self.limited.bytes < usize::MAX).then_some(Bytes(self.limited.bytes as u64))
    }

    /// Waits until a chunk may go to the engine.
    ///
    /// # Errors
    /// [`DeviceError::Timeout`] if chunks of others make no progress.
    pub fn take(&self) -> Result<Turn, DeviceError> {
        let mut place = self.engine.bulk_place();
        let mut patience = Patience::new(self.patience);
        while !place.take() {
            if !patience.pause() {
                let what = "the turn of a chunk".to_owned();
                return Err(DeviceError::Timeout { what, after: self.patience });
            }
        }
        Ok(Turn(place))
    }
}
