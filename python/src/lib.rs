//! The private module `headway._native`: the library's functions as the typed Python on top of it wants them.
//!
//! Times are nanoseconds and sizes are bytes, as integers; what has many fields is the library's JSON. Functions that compute run in a thread
//! of their own without the interpreter's lock, and Python's signals are looked at meanwhile.

mod arrays;
mod buffer;
mod callbacks;
mod copies;
mod dlpack;
mod errors;
mod flows;
mod guest;
mod loading;
mod sync;
mod visits;
mod wait;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headway::cores::on_all_cores;
use headway::plan::{PlanAnswer, PlanOptions, Strategy};
use headway::run::TimesOptions;
use headway::units::{Bytes, Nanos};
use headway::workload::Loaded;
use pyo3::prelude::*;

use errors::{Subject, json, options_error, raised};
use wait::wait;

/// A machine: memories, GPUs, links, engines and what they carry.
#[pyclass(frozen, module = "headway._native")]
pub(crate) struct Machine(Arc<headway::machine::Machine>);

#[pymethods]
impl Machine {
    /// Name of the machine, quoted in every result.
    #[getter]
    fn name(&self) -> String {
        self.0.name.clone()
    }

    /// One line for people.
    #[getter]
    fn description(&self) -> String {
        self.0.description.clone()
    }

    /// Number of GPUs.
    #[getter]
    fn gpus(&self) -> usize {
        self.0.gpus().count()
    }

    /// What stands behind its figures, as a sentence.
    #[getter]
    fn confidence(&self) -> String {
        self.0.confidence().statement
    }

    /// The machine with its first `gpus` GPUs only.
    fn with_gpus(&self, py: Python<'_>, gpus: usize) -> PyResult<Self> {
        let fewer = headway::machine::restrict(&self.0, gpus).map_err(|error| raised(py, Subject::Machine, &error))?;
        Ok(Self(Arc::new(fewer)))
    }

    /// The machine as a program has it beside `others` programs that copy over its engines.
    fn beside(&self, py: Python<'_>, others: u32) -> PyResult<Self> {
        let beside = headway::machine::beside(&self.0, others).map_err(|error| raised(py, Subject::Machine, &error))?;
        Ok(Self(Arc::new(beside)))
    }
}

/// A workload that was read and checked.
#[pyclass(frozen, module = "headway._native")]
struct Workload(Arc<Loaded<headway::workload::Workload>>);

#[pymethods]
impl Workload {
    /// Name of the workload, quoted in every result.
    #[getter]
    fn name(&self) -> String {
        self.0.value.name.clone()
    }

    /// The TOML text that was read.
    #[getter]
    fn text(&self) -> String {
        self.0.source.text.clone()
    }

    /// The TOML text that says the same in the usual form.
    fn usual_text(&self) -> String {
        headway::workload::write(&self.0.value)
    }
}

/// A plan: windows for every copy and kernel, with a verdict.
#[pyclass(frozen, module = "headway._native")]
struct Plan {
    answer: Arc<PlanAnswer>,
    machine: Arc<headway::machine::Machine>,
    workload: Arc<Loaded<headway::workload::Workload>>,
}

#[pymethods]
impl Plan {
    /// The plan as JSON, as `headway plan --format json` prints it.
    fn json(&self) -> PyResult<String> {
        json(&*self.answer)
    }

    /// For each stream, message and demand its name, the longest response that the plan allows and the deadline, in nanoseconds.
    fn bounds(&self) -> Vec<(String, Option<u64>, u64)> {
        let plan = &self.answer.plan;
        let streams = plan.streams.iter().map(|stream| {
            let bound = plan.pipelines.get(stream.pipeline as usize).and_then(|pipeline| pipeline.bound());
            (stream.id.clone(), bound.map(|bound| bound.0), stream.deadline.0)
        });
        let others = plan.pipelines.iter().filter(|pipeline| pipeline.source.is_planned() && !pipeline.source.is_fed());
        streams
            .chain(others.map(|pipeline| {
                (pipeline.name.clone(), pipeline.bound().map(|bound| bound.0), pipeline.relative_deadline().0)
            }))
            .collect()
    }

    /// The plan for people, as `headway plan` prints it.
    fn text(&self) -> String {
        self.answer.text("")
    }

    /// The summary of one simulated run for each seed, as JSON.
    #[pyo3(signature = (seeds, duration_ns, kernel_ppm_min, data_late_ns, driver_late_ns))]
    fn simulate(
        &self,
        py: Python<'_>,
        seeds: Vec<u64>,
        duration_ns: Option<u64>,
        kernel_ppm_min: Option<u32>,
        data_late_ns: u64,
        driver_late_ns: u64,
    ) -> PyResult<Vec<String>> {
        let interrupt = Arc::new(AtomicBool::new(false));
        let options = TimesOptions {
            seed: 0,
            duration: duration_ns.map_or(self.workload.value.duration, Nanos),
            kernel_ppm_min,
            data_late_max: Nanos(data_late_ns),
            driver_late_max: Nanos(driver_late_ns),
            interrupt: Arc::clone(&interrupt),
        };
        let (answer, machine) = (Arc::clone(&self.answer), Arc::clone(&self.machine));
        let simulated = wait(py, interrupt, move || {
            on_all_cores(seeds.len(), |at| {
                headway::run::times(&machine, &answer.plan, &TimesOptions { seed: seeds[at], ..options.clone() })
            })
        })?;
        let summaries = simulated.map_err(|error| raised(py, Subject::Other, &error))?;
        summaries.iter().map(json).collect()
    }
}

/// The strategy of that name.
fn named(py: Python<'_>, name: &str) -> PyResult<Strategy> {
    let all = Strategy::ALL;
    all.into_iter().find(|strategy| strategy.name() == name).ok_or_else(|| {
        let names = all.map(Strategy::name).join("`, `");
        options_error(py, &format!("there is no strategy `{name}`; write one of `{names}`"))
    })
}

/// The private native module of `headway`.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::Machine;
    #[pymodule_export]
    use super::Plan;
    #[pymodule_export]
    use super::Workload;
    #[pymodule_export]
    use super::copies::PinnedMemory;
    #[pymodule_export]
    use super::copies::Ticket;
    #[pymodule_export]
    use super::copies::copy;
    #[pymodule_export]
    use super::copies::explain_copy;
    #[pymodule_export]
    use super::copies::finish_copies;
    #[pymodule_export]
    use super::copies::leave_copies;
    #[pymodule_export]
    use super::flows::FlowReport;
    #[pymodule_export]
    use super::flows::NativeFlow;
    #[pymodule_export]
    use super::flows::NativeFlowTicket;
    #[pymodule_export]
    use super::flows::finish_flows;
    #[pymodule_export]
    use super::flows::flow_bounds;
    #[pymodule_export]
    use super::flows::open_flow;
    #[pymodule_export]
    use super::guest::guest_environment;
    #[pymodule_export]
    use super::loading::FileLoad;

    #[pymodule_init]
    fn init() -> PyResult<()> {
        Python::attach(|py| {
            visits::check_interpreter(py)?;
            // What pyo3 makes once for these, it makes without the interpreter's lock: a child that is forked then would wait for ever.
            let kind = py.get_type::<PyAny>();
            kind.module()?;
            kind.qualname()?;
            let logger = pyo3_log::Logger::new(py, pyo3_log::Caching::Loggers)?.filter(log::LevelFilter::Debug);
            // Python's part logs what each copy did. It needs no lock to ask whether anybody listens.
            let logger = logger.filter_target("headway::copy".to_owned(), log::LevelFilter::Info);
            // Another logger of this process stays.
            if log::set_boxed_logger(Box::new(visits::Logger(logger))).is_ok() {
                log::set_max_level(log::LevelFilter::Debug);
            }
            Ok(())
        })
    }

    /// Version of Headway.
    #[pyfunction]
    fn version() -> &'static str {
        headway::VERSION
    }

    /// Commit that this module was built from, or `unknown`.
    #[pyfunction]
    fn commit() -> &'static str {
        headway::COMMIT
    }

    /// The name of the machine file that `headway measure` writes.
    #[pyfunction]
    fn node_file() -> &'static str {
        headway::machine::NODE_FILE
    }

    /// Names of the strategies that plans can be made by.
    #[pyfunction]
    fn strategies() -> Vec<&'static str> {
        Strategy::ALL.iter().map(|strategy| strategy.name()).collect()
    }

    /// Names of the machines that are shipped.
    #[pyfunction]
    fn shipped_machines() -> Vec<&'static str> {
        headway::machine::SHIPPED.iter().map(|(name, _)| *name).collect()
    }

    /// The machine of a shipped name, or of a machine file.
    #[pyfunction]
    fn open_machine(py: Python<'_>, name: &str) -> PyResult<Machine> {
        let machine = headway::machine::open(name).map_err(|error| raised(py, Subject::Machine, &error))?;
        Ok(Machine(Arc::new(machine)))
    }

    /// Reads the text of a workload file called `name`.
    #[pyfunction]
    fn parse_workload(py: Python<'_>, name: &str, text: &str) -> PyResult<Workload> {
        let loaded = headway::workload::parse(name, text)
            .map_err(|error| raised(py, Subject::Other, &headway::Error::from(error)))?;
        Ok(Workload(Arc::new(loaded)))
    }

    /// Reads a workload file.
    #[pyfunction]
    fn open_workload(py: Python<'_>, path: PathBuf) -> PyResult<Workload> {
        let loaded = headway::workload::open(&path).map_err(|error| raised(py, Subject::Other, &error))?;
        Ok(Workload(Arc::new(loaded)))
    }

    /// Plans a workload on a machine, by all strategies that apply or by one.
    #[pyfunction]
    #[pyo3(signature = (machine, workload, strategy))]
    fn plan(py: Python<'_>, machine: &Machine, workload: &Workload, strategy: Option<&str>) -> PyResult<Plan> {
        let strategy = strategy.map(|name| named(py, name)).transpose()?;
        let (machine, workload) = (Arc::clone(&machine.0), Arc::clone(&workload.0));
        let (with, of) = (Arc::clone(&machine), Arc::clone(&workload));
        let made = wait(py, Arc::default(), move || headway::plan::answer(&with, &of, PlanOptions { strategy }))?;
        let answer = made.map_err(|error| raised(py, Subject::Other, &error))?;
        Ok(Plan { answer: Arc::new(answer), machine, workload })
    }

    /// What this computer has and lacks, as JSON.
    #[pyfunction]
    fn doctor(py: Python<'_>, machine: String, watch_ns: u64) -> PyResult<String> {
        let backend = headway::copy::CopyBackend::default();
        let found = wait(py, Arc::default(), move || headway::doctor::examine(backend, &machine, Nanos(watch_ns)))?;
        json(&found)
    }

    /// Bytes that a text such as `4 MiB` says.
    #[pyfunction]
    fn parse_size(py: Python<'_>, text: &str) -> PyResult<u64> {
        text.parse().map(|size: Bytes| size.0).map_err(|error| options_error(py, &error.to_string()))
    }

    /// Nanoseconds that a text such as `33 ms` says.
    #[pyfunction]
    fn parse_time(py: Python<'_>, text: &str) -> PyResult<u64> {
        text.parse().map(|time: Nanos| time.0).map_err(|error| options_error(py, &error.to_string()))
    }
}
