//! How late threads are that drive promised copies.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use headway::flow::FlowPlace;
use headway_core::decisions::engine_line::FlowClass;
use headway_core::decisions::flows::{FlowEngine, flow_engines};
use headway_core::files::machine::Machine;
use headway_core::models::cpu::ChunkWatch;
use headway_core::units::{Bytes, Nanos};
use headway_device::DeviceSource;
use headway_device::gpu::Gpu;
use headway_os::{clock, sched};
use headway_runtime::copy::{Copier, CopyOptions, Promise, UNPROMISED_IN_FLIGHT};

use crate::Error;
use crate::session::Session;

/// One chunk: more and the time of its bytes hides the thread's.
const CHUNK: usize = 1 << 20;
const DEADLINE: Nanos = Nanos(1_000_000_000);

/// Copies chunks into and out of the first GPU of `machine` at once for `time`, each direction on a thread as flows have it: the later one's
/// figures.
pub(crate) fn watch(
    session: &mut Session<'_>,
    gpu: &Arc<dyn Gpu>,
    machine: &Machine,
    time: Nanos,
) -> Result<Option<ChunkWatch>, Error> {
    session.phase("chunks", 1);
    let found = session.step("chunk watch", |session| {
        let Some(id) = machine.gpus().next() else { return Ok(None) };
        let copier = Copier::new(vec![(id, Arc::clone(gpu))], machine.profile.clone(), CopyOptions::default())?;
        let engines = flow_engines(machine, UNPROMISED_IN_FLIGHT);
        let interrupt = session.interrupt();
        let end = clock::now().saturating_add(time);
        let copies = |engine: &FlowEngine| -> Result<Option<ChunkWatch>, Error> {
            let (device, host) = (FlowPlace::device(&copier, 0, CHUNK)?, FlowPlace::pinned(&copier, 0, CHUNK)?);
            // The threads of an emulated GPU would get no CPU beside it.
            if gpu.description().source == DeviceSource::Cuda {
                let _ = sched::request_realtime();
            }
            let class = sched::current().map_or_else(|error| error.to_string(), |class| class.to_string());
            let expected = engine.setup.saturating_add(engine.rate.time_for(Bytes(CHUNK as u64)));
            copier.limit_chunks(0, engine.direction, Some(Bytes(CHUNK as u64)))?;
            let mut took = Vec::new();
            while clock::now() < end && !interrupt.load(Ordering::Relaxed) {
                let deadline = clock::now().saturating_add(DEADLINE);
                let promise = Promise { deadline, class: FlowClass::Guaranteed, chunk: Bytes(CHUNK as u64) };
                took.push(copier.promised_pinned(engine.direction, device.at(), host.at(), CHUNK, promise)?.engine);
            }
            copier.limit_chunks(0, engine.direction, None)?;
            Ok(ChunkWatch::of(class, expected, &took))
        };
        let found = thread::scope(|scope| {
            let copies = &copies;
            let threads: Vec<_> = engines
                .iter()
                .filter(|engine| engine.gpu == 0)
                .map(|engine| scope.spawn(move || copies(engine)))
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect::<Result<Vec<_>, _>>()
        })?;
        session.go_on()?;
        Ok(found.into_iter().flatten().reduce(|watch, other| watch.worse(&other)))
    })?;
    session.advance()?;
    Ok(found)
}
