//! Which method a copy would take, and why (specification of transfers, 3.2): answered from a machine file, without a GPU.

mod table;

use headway_core::files::machine::Machine;
pub use headway_core::models::transfer::learning::Prefer;
#[doc(hidden)]
pub use headway_core::models::transfer::price::cpu_seconds;
use headway_core::models::transfer::{Available, MethodRequest, Profile, choose, defaults};
pub use headway_core::models::transfer::{
    BackgroundLoad, Bounds, CostFigures, Direction, HostMemory, Price, Statistic, TAIL_SAMPLES,
};
use headway_core::units::Bytes;

pub use self::table::{Explanation, MethodRow};
use crate::{Error, Failure};

/// A copy that somebody thinks of making.
#[derive(Clone, Debug)]
pub struct Question {
    /// Machine by name or file.
    pub machine: String,
    /// Name of the GPU; `None` = the first.
    pub gpu: Option<String>,
    /// Name of the target of a peer copy.
    pub peer: Option<String>,
    pub direction: Direction,
    /// Size of all pieces together.
    pub bytes: Bytes,
    pub pieces: u32,
    /// The host end.
    pub memory: HostMemory,
    /// What else the GPU carries.
    pub load: BackgroundLoad,
    /// GPUs that copy the same way at the same time.
    pub active: u32,
    /// What is to be least.
    pub objective: Statistic,
    /// What may not be used.
    pub excluded: Vec<Exclusion>,
    /// How much of everything the copy may take, and whether the cheapest of nearly equal tunings is taken.
    pub bounds: Bounds,
}

/// A copy of 1 GiB of ordinary memory into the first GPU of the usual machine, alone.
impl Default for Question {
    fn default() -> Self {
        Self {
            machine: crate::machine::USUAL.to_owned(),
            gpu: None,
            peer: None,
            direction: Direction::H2d,
            bytes: Bytes(1 << 30),
            pieces: 1,
            memory: HostMemory::Touched,
            load: BackgroundLoad::Alone,
            active: 1,
            objective: Statistic::Median,
            excluded: Vec::new(),
            bounds: Bounds::default(),
        }
    }
}

/// Something that may not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusion {
    /// Methods that take multiprocessors of the GPU.
    Sm,
    /// Threads of our own.
    Threads,
    /// Links of other GPUs.
    Multipath,
}

/// All methods of the copy, each with its cost and what became of it.
///
/// # Errors
/// What reading the machine gives; `ErrorKind::Machine`.
pub fn explain(question: &Question) -> Result<Explanation, Error> {
    if question.pieces == 0 || question.active == 0 {
        return Err(Failure::Options(
            "a copy has at least one piece and one GPU: `--pieces` and `--active` begin at 1",
        )
        .into());
    }
    let machine = crate::machine::open(&question.machine)?;
    if question.active as usize > machine.gpus().count() {
        return Err(Failure::Options("`--active` counts GPUs of the machine, which has fewer").into());
    }
    let find = |name: &str| {
        let found = machine.endpoint(name).filter(|id| machine.gpus().any(|gpu| gpu == *id));
        found.ok_or_else(|| no_gpu(&machine, name))
    };
    let gpu = match &question.gpu {
        Some(name) => find(name)?,
        None => machine.gpus().next().ok_or_else(|| no_gpu(&machine, "gpu0"))?,
    };
    let peer = question.peer.as_deref().map(find).transpose()?;
    if (question.direction == Direction::Peer) != peer.is_some() {
        return Err(Failure::Options("`--direction peer` and `--peer` need each other").into());
    }
    if peer == Some(gpu) {
        return Err(Failure::Options("`--peer` names the GPU that the copy begins on; name another one").into());
    }
    let request = MethodRequest {
        peer,
        pieces: question.pieces,
        load: question.load,
        active: question.active,
        objective: question.objective,
        ..MethodRequest::new(gpu, question.direction, question.memory, question.bytes)
    };
    // Without curves the built-in figures decide.
    let known = if machine.profile.curves.is_empty() { defaults() } else { machine.profile.clone() };
    let excluded = |what| question.excluded.contains(&what);
    let available = Available {
        no_sm: excluded(Exclusion::Sm),
        no_threads: excluded(Exclusion::Threads),
        multipath: !excluded(Exclusion::Multipath),
        bounds: question.bounds,
        ..measured_methods(&known)
    };
    Ok(table::lay_out(&machine, &request, &choose(&machine.profile, &request, &available)))
}

/// Every method that `profile` has a curve of, as what may be used.
#[doc(hidden)]
#[must_use]
#[doc(hidden)]
pub fn measured_methods(profile: &Profile) -> Available {
    let methods = profile.curves.keys().map(|key| key.method).collect();
    Available { methods, multipath: true, ..Available::default() }
}

fn no_gpu(machine: &Machine, name: &str) -> Error {
    let known: Vec<&str> = machine.gpus().map(|gpu| machine.endpoints[gpu.at()].id.as_str()).collect();
    Failure::NoGpu { machine: machine.name.clone(), name: name.to_owned(), known: known.join(", ") }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question { direction: Direction::D2h, ..Question::default() }
    }

    fn chosen(question: &Question) -> String {
        let explanation = explain(question).unwrap();
        assert_eq!(explanation.rows[0].verdict, "chosen", "{explanation:?}");
        explanation.rows[0].method.to_owned()
    }

    #[test]
    fn an_exclusion_changes_the_answer() {
        assert_eq!(chosen(&question()), "multipath");
        let without = |excluded: &[Exclusion]| chosen(&Question { excluded: excluded.to_vec(), ..question() });
        assert_eq!(without(&[Exclusion::Multipath]), "staged");
        assert_eq!(without(&[Exclusion::Threads]), "pageable");
    }

    #[test]
    fn a_gpu_that_is_not_there_is_named_with_those_that_are() {
        let error = explain(&Question { gpu: Some("gpu7".to_owned()), ..question() }).unwrap_err();
        assert!(error.to_string().contains("gpu7") && error.to_string().contains("gpu3"), "{error}");
        assert!(explain(&Question { gpu: Some("host".to_owned()), ..question() }).is_err());
    }

    #[test]
    fn a_copy_in_no_pieces_and_one_by_no_gpu_are_refused() {
        for nothing in [Question { pieces: 0, ..question() }, Question { active: 0, ..question() }] {
            assert!(explain(&nothing).unwrap_err().to_string().contains("at least one piece"), "{nothing:?}");
        }
    }

    #[test]
    fn fewer_than_a_hundred_copies_have_no_99th_percentile() {
        let explained = explain(&question()).unwrap();
        let mut few = 0;
        for row in explained.rows.iter().filter(|row| row.figures.n > 0) {
            assert_eq!(row.figures.p99.is_some(), row.figures.n >= 100, "{row:?}");
            assert!(row.figures.max.is_some());
            few += usize::from(row.figures.n < 100);
        }
        assert!(few > 0, "{explained:?}");
        let objective = Question { objective: Statistic::P99, ..question() };
        assert!(explain(&objective).unwrap().why[0].starts_with("the longest of "), "{explained:?}");
    }

    #[test]
    fn a_peer_copy_has_a_target_and_nothing_else_has() {
        let peer = Question { direction: Direction::Peer, peer: Some("gpu1".to_owned()), ..question() };
        assert_eq!(chosen(&peer), "peer");
        let itself = explain(&Question { gpu: Some("gpu1".to_owned()), ..peer.clone() }).unwrap_err();
        assert!(itself.to_string().contains("name another one"), "{itself}");
        assert!(explain(&Question { peer: None, ..peer }).is_err());
    }
}
