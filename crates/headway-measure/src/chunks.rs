//! How late threads are that drive promised copies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use headway::flow::FlowPlace;
use headway_core::decisions::engine_line::FlowClass;
use headway_core::decisions::flows::{CHUNK_USUAL, FlowEngine, flow_engines};
use headway_core::files::machine::Machine;
use headway_core::models::cpu::ChunkWatch;
use headway_core::models::transfer::Direction;
use headway_core::units::{Bytes, Nanos};
use headway_device::DeviceSource;
use headway_device::gpu::Gpu;
use headway_os::{clock, sched};
use headway_runtime::copy::{At, Copier, CopyOptions, Promise, UNPROMISED_IN_FLIGHT};
use headway_runtime::staging::Promiser;

use crate::Error;
use crate::session::Session;

const DEADLINE: Nanos = Nanos(1_000_000_000);

/// What is copied.
#[derive(Clone, Copy)]
struct Extent {
    /// The largest that flows have.
    chunk: usize,
    /// Buffers of this size are copied through again and again. An engine is slower in large ones, whose translations it does not keep.
    buffer: usize,
}

const EXTENT: Extent = Extent { chunk: CHUNK_USUAL.0 as usize, buffer: 2 << 30 };
const EXTENT_EMULATED: Extent = Extent { chunk: 1 << 20, buffer: 8 << 20 };

/// Memory for copies on an engine.
struct Ends {
    engine: FlowEngine,
    device: FlowPlace,
    host: FlowPlace,
    bytes: usize,
}

/// Copies chunks into and out of the first GPU of `machine` at once for `time`, each direction on a thread as flows have it.
pub(crate) fn watch(
    session: &mut Session<'_>,
    gpu: &Arc<dyn Gpu>,
    machine: &Machine,
    time: Nanos,
) -> Result<BTreeMap<Direction, ChunkWatch>, Error> {
    session.only_step("chunks", "chunk watch", |session| {
        let Some(id) = machine.gpus().next() else { return Ok(BTreeMap::new()) };
        let copier = Copier::new(vec![(id, Arc::clone(gpu))], machine.profile.clone(), CopyOptions::default())?;
        let engines = flow_engines(machine, UNPROMISED_IN_FLIGHT);
        let is_cuda = gpu.description().source == DeviceSource::Cuda;
        let Extent { chunk, buffer } = if is_cuda { EXTENT } else { EXTENT_EMULATED };
        let ends = |engine: FlowEngine, bytes| -> Result<Ends, Error> {
            Ok(Ends {
                engine,
                device: FlowPlace::device(&copier, 0, bytes)?,
                host: FlowPlace::pinned(&copier, 0, bytes)?,
                bytes,
            })
        };
        // A user may lock little memory.
        let engines = engines.into_iter().filter(|engine| engine.gpu == 0);
        let all = engines.map(|engine| ends(engine.clone(), buffer).or_else(|_| ends(engine, chunk)));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let promiser = Promiser::new();
        let (interrupt, end) = (session.interrupt(), clock::now().saturating_add(time));
        let copies = |Ends { engine, device, host, bytes }: Ends| -> Result<Option<(Direction, ChunkWatch)>, Error> {
            // The threads of an emulated GPU would get no CPU beside it.
            if is_cuda {
                let _ = sched::request_realtime();
            }
            let class = sched::current().map_or_else(|error| error.to_string(), |class| class.to_string());
            let size = Bytes(chunk as u64);
            copier.limit_chunks(promiser, 0, engine.direction, Some(size))?;
            let mut took = Vec::new();
            for offset in (0..bytes).step_by(chunk).cycle() {
                if clock::now() >= end || interrupt.load(Ordering::Relaxed) {
                    break;
                }
                let deadline = clock::now().saturating_add(DEADLINE);
                let promise = Promise { deadline, class: FlowClass::Guaranteed, chunk: size };
                let [device, host] = [device.at(), host.at()].map(|at| At { offset: at.offset + offset, ..at });
                took.push(copier.promised_pinned(engine.direction, device, host, chunk, promise)?.engine);
            }
            copier.limit_chunks(promiser, 0, engine.direction, None)?;
            let watch = ChunkWatch::of(class, engine.setup, engine.rate.time_for(size), &took);
            Ok(watch.map(|watch| (engine.direction, watch)))
        };
        let found = thread::scope(|scope| {
            let copies = &copies;
            let threads: Vec<_> = all.into_iter().map(|ends| scope.spawn(move || copies(ends))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("it does not panic"))
                .collect::<Result<Vec<_>, Error>>()
        })?;
        session.go_on()?;
        Ok(found.into_iter().flatten().collect())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use headway_core::files::machine::shipped;
    use headway_core::models::transfer::arbitration::DIRECTIONS;
    use headway_device::emu::{EmuGpu, EmuSpec};

    use super::*;

    #[test]
    fn both_directions_are_watched_and_an_interruption_ends_it() {
        let gpu: Arc<dyn Gpu> = Arc::new(EmuGpu::open(EmuSpec::new("gpu0")));
        let (machine, stop, mut ignore) = (shipped("h200-x1").unwrap(), AtomicBool::new(false), |_| ());
        let mut session = Session::new(None, None, &stop, &mut ignore);
        let found = watch(&mut session, &gpu, &machine, Nanos(500_000_000)).unwrap();
        // A busy computer makes fewer than a hundred copies in that time, which say nothing.
        assert!(found.keys().all(|direction| DIRECTIONS.contains(direction)), "{found:?}");
        for watch in found.values() {
            assert!(watch.chunks >= 100 && watch.each <= watch.max && watch.time > Nanos::ZERO, "{watch:?}");
        }
        stop.store(true, Ordering::Relaxed);
        let interrupted = watch(&mut session, &gpu, &machine, Nanos(u64::MAX / 4)).unwrap_err();
        assert_eq!(interrupted.to_string(), headway::Failure::Interrupted.to_string());
    }
}
