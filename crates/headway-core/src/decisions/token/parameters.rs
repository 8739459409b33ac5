//! The queue lengths that follow from how tokens are given.

use super::{Sizes, TokenMode, TokenParameters, TokenRefused};

impl TokenParameters {
    /// The queue sizes for `gpus` GPUs.
    ///
    /// # Errors
    /// [`TokenRefused::Parameters`] if there is no CPU or token, or `F > k*L` so that a request could find no room.
    pub fn sizes(&self, gpus: u32) -> Result<Sizes, TokenRefused> {
        let wrong = || TokenRefused::Parameters { cpus: self.cpus, gpus, per_gpu: self.per_gpu, mode: self.mode };
        let m = self.cpus;
        let k = self.per_gpu.checked_mul(gpus).filter(|k| *k > 0 && *k <= Self::TOKENS_MAX).ok_or_else(wrong)?;
        if m == 0 || m > Self::CPUS_MAX {
            return Err(wrong());
        }
        let (queued, length) = match self.mode {
            TokenMode::Optimal => (Some(m), Some(m.div_ceil(k))),
            TokenMode::WorkConserving => (Some(m.max(k)), Some(m.max(k).div_ceil(k))),
            TokenMode::Relaxed(length) => (Some(m), Some(length)),
            TokenMode::Fifo => (None, None),
            TokenMode::Priority => (Some(k), Some(1)),
        };
        if let (Some(queued), Some(length)) = (queued, length)
            && u64::from(queued) > u64::from(k) * u64::from(length)
        {
            return Err(wrong());
        }
        let donation = queued.is_some_and(|queued| queued >= m);
        Ok(Sizes { tokens: k, queued_max: queued, length_max: length, donation })
    }

    /// These parameters with FIFOs long enough for `gpus` GPUs, at least one: where GPUs are lost, `relaxed` may need longer ones.
    pub(super) fn fitting(self, gpus: u32) -> Self {
        let tokens = self.per_gpu.saturating_mul(gpus).max(1);
        let mode = match self.mode {
            TokenMode::Relaxed(length) => TokenMode::Relaxed(length.max(self.cpus.div_ceil(tokens))),
            mode => mode,
        };
        Self { mode, ..self }
    }
}
