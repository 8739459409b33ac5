//! The CPUs that this process shares with other processes of its user while they copy.

use std::sync::OnceLock;

use headway_os::cpu_shares::{CpuShare, CpuShares};

/// Takes part of `wanted` threads: fewer where other processes copy at the same time. `None` = nothing is shared here, and the
/// copy has what it wants.
pub(super) fn part(wanted: u32) -> Option<CpuShare<'static>> {
    static SHARES: OnceLock<Option<CpuShares>> = OnceLock::new();
    SHARES.get_or_init(|| CpuShares::join(&CpuShares::place()).ok()).as_ref().map(|shares| shares.begin(wanted))
}
