//! NVIDIA's Multi-Process Service, run by a broker: who joins its daemon, and what stands in the way.
//!
//! Without it, processes that compute on one GPU take turns in time slices of milliseconds. Under one daemon their kernels run at the
//! same time, and each process can be held to a share of the multiprocessors. The page `docs/mps.md` says what that costs.

use std::env;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use headway_broker::mps::{LOG_VARIABLE, MEMORY_VARIABLE, PIPE_VARIABLE, SHARE_VARIABLE};
use headway_broker::{ClientError, client, place};
pub use headway_broker::{MpsError, MpsStatus, mps::guard};
use headway_core::units::Bytes;
use headway_cuda::{ComputeMode, Nvml};
use headway_os::environment;

use crate::guest::GuestError;
use crate::{Error, Failure};

/// The least memory that a guest may be held to; limits are told in MiB.
const MEMORY_MIN: Bytes = Bytes(1 << 20);

/// What a guest may use of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpsShare {
    /// Of the multiprocessors, in percent: 1 to 100.
    pub percent: u8,
    /// Of the memory of each GPU; `None` = all.
    pub memory: Option<Bytes>,
}

/// Has `command` join the daemon of the broker at `socket`, or of the usual place, with no more than its share.
///
/// # Errors
/// `ErrorKind::Guest` where no broker runs a daemon for this user, or the share cannot be meant; `ErrorKind::Broker` where the broker
/// there is not to be trusted or does not answer.
pub fn join_as_guest(command: &mut Command, socket: Option<&Path>, share: MpsShare) -> Result<(), Error> {
    if share.percent == 0 || share.percent > 100 || share.memory.is_some_and(|memory| memory < MEMORY_MIN) {
        return Err(GuestError::NoShare { percent: share.percent, memory: share.memory }.into());
    }
    let path = socket.map_or_else(place::usual, Path::to_owned);
    let daemon = match client::serving_mps(&path) {
        Ok(Some(daemon)) => daemon,
        Ok(None) => return Err(GuestError::NoMps { socket: path, is_there: true }.into()),
        Err(ClientError::Connect { .. }) => return Err(GuestError::NoMps { socket: path, is_there: false }.into()),
        Err(error) => return Err(Failure::Client(error).into()),
    };
    command.env(PIPE_VARIABLE, &daemon.folder).env(LOG_VARIABLE, &daemon.log);
    command.env(SHARE_VARIABLE, share.percent.to_string());
    match share.memory {
        Some(memory) => command.env(MEMORY_VARIABLE, memory_limit(memory, gpus_seen())),
        None => command.env_remove(MEMORY_VARIABLE),
    };
    Ok(())
}

/// The memory limit for the GPUs numbered from 0, as the driver reads it: whole MiB.
fn memory_limit(memory: Bytes, gpus: usize) -> String {
    let mib = memory.0 >> 20;
    let of = |gpu: usize| format!("{gpu}={mib}M");
    (0..gpus.max(1)).map(of).collect::<Vec<_>>().join(",")
}

/// How many GPUs a program of this environment will see. The driver is not asked: it would be initialised outside the daemon.
fn gpus_seen() -> usize {
    let there = Nvml::system().and_then(|nvml| nvml.report()).map_or(1, |report| report.gpus.len());
    let named =
        env::var("CUDA_VISIBLE_DEVICES").ok().map(|list| list.split(',').filter(|gpu| !gpu.trim().is_empty()).count());
    named.map_or(there, |named| named.min(there))
}

/// Has this process join the daemon that the broker at `socket`, or of the usual place, runs for this user: the daemon, or `None`
/// where there is none, or where the environment names one already. To be called before anything else, since it sets environment
/// variables, which is safe only while the process has one thread, and since the CUDA driver reads them when it is initialised.
///
/// # Errors
/// `ErrorKind::Guest` where the process has other threads; `ErrorKind::Broker` where a broker is there that is not to be trusted or
/// does not answer.
pub fn join(socket: Option<&Path>) -> Result<Option<MpsStatus>, Error> {
    let path = socket.map_or_else(place::usual, Path::to_owned);
    if env::var_os(PIPE_VARIABLE).is_some_and(|named| !named.is_empty()) || !path.exists() {
        return Ok(None);
    }
    let daemon = match client::serving_mps(&path) {
        Ok(Some(daemon)) => daemon,
        // Nobody listens: left by a broker that was killed.
        Ok(None) | Err(ClientError::Connect { .. }) => return Ok(None),
        Err(error) => return Err(Failure::Client(error).into()),
    };
    let variables = [(PIPE_VARIABLE, OsStr::new(&daemon.folder)), (LOG_VARIABLE, OsStr::new(&daemon.log))];
    if environment::set_while_alone(variables) { Ok(Some(daemon)) } else { Err(Failure::NotAlone.into()) }
}

/// Why no daemon can serve the GPUs of this computer, with the remedy, as far as their compute mode says.
pub(crate) fn forbidden() -> Option<String> {
    let report = Nvml::system().and_then(|nvml| nvml.report()).ok()?;
    let shut = report.gpus.iter().position(|gpu| gpu.compute_mode == ComputeMode::Prohibited)?;
    Some(format!(
        "GPU {shut} is in the compute mode \"prohibited\", in which no program may use it, under MPS or not; \
         `nvidia-smi -i {shut} -c EXCLUSIVE_PROCESS` (as root) lets programs under MPS use it, `-c DEFAULT` all programs"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_limit_is_told_for_every_gpu_in_whole_mib() {
        assert_eq!(memory_limit(Bytes(4 << 30), 2), "0=4096M,1=4096M");
        assert_eq!(memory_limit(Bytes((3 << 20) + 5), 0), "0=3M");
    }

    #[test]
    fn shares_that_mean_nothing_are_refused_before_anybody_is_asked() {
        let nowhere = Path::new("/nowhere/broker");
        for share in [
            MpsShare { percent: 0, memory: None },
            MpsShare { percent: 101, memory: None },
            MpsShare { percent: 50, memory: Some(Bytes(1_000)) },
        ] {
            let refused = join_as_guest(&mut Command::new("true"), Some(nowhere), share);
            assert!(
                matches!(refused.map_err(Error::into_failure), Err(Failure::Guest(GuestError::NoShare { .. }))),
                "{share:?}"
            );
        }
        let share = MpsShare { percent: 100, memory: Some(MEMORY_MIN) };
        let refused = join_as_guest(&mut Command::new("true"), Some(nowhere), share);
        assert!(matches!(
            refused.map_err(Error::into_failure),
            Err(Failure::Guest(GuestError::NoMps { is_there: false, .. }))
        ));
        assert!(join(Some(nowhere)).unwrap().is_none());
    }
}
