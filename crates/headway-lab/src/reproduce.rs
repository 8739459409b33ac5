//! The experiments of the papers: run, compared with what the papers say, written down.

mod bench;
mod cho;
mod fujii;
mod gpusync;
mod gpusync_gpu;
#[cfg(test)]
mod labels;
mod loads;
mod np_edf;
mod patil;
mod quotes;
mod raw;
mod site;
mod verner;
pub(crate) mod verner_combine;
mod verner_wafer;
mod who_waits;

use headway_core::plan::Strategy;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::Compression;
use flate2::write::GzEncoder;
use headway_core::units::Nanos;
use headway_runtime::outlet::file_name;
use serde::Serialize;

pub use self::gpusync_gpu::SharingOptions;
pub(crate) use self::gpusync_gpu::camera;
pub(crate) use self::loads::serve as load;
pub use self::quotes::Said;
use self::quotes::{said, silent};
pub use self::raw::RawFigures;
use self::raw::{LastColumns, RawCell, raw_figures};
use crate::Error;
use headway::COMMIT;
use headway::run::Backend;
use headway_measure::folder::{self, Folder};
use headway_measure::plot::Figure;

/// One experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// What the command line calls it.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// The paper and where in it.
    pub paper: &'static str,
    /// What it can be made on.
    pub on: &'static [Backend],
    run: fn(&ExperimentSetting) -> Result<ExperimentResults, Error>,
}

const SIMULATED: &[Backend] = &[Backend::Sim];
const GPUS: &[Backend] = &[Backend::Cuda];
const DEVICES: &[Backend] = &[Backend::Emu, Backend::Cuda];
const ANY: &[Backend] = &[Backend::Sim, Backend::Emu, Backend::Cuda];

/// Every experiment, in the order of the papers.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "fujii",
        about: "every transfer method alone, under CPU load, memory pressure and pipes, and two at a time",
        paper: "Fujii, Azumi, Nishio, Kato, Edahiro 2013, III to VI",
        on: ANY,
        run: fujii::run,
    },
    Experiment {
        name: "patil-table1",
        about: "pageable against pinned memory",
        paper: "Patil and Kulkarni 2021, Table I",
        on: DEVICES,
        run: patil::table_1,
    },
    Experiment {
        name: "patil-table2",
        about: "copies and kernels at the same time",
        paper: "Patil and Kulkarni 2021, Table II",
        on: DEVICES,
        run: patil::table_2,
    },
    Experiment {
        name: "patil-batch",
        about: "many small copies as one",
        paper: "Patil and Kulkarni 2021, batching of small transfers",
        on: DEVICES,
        run: patil::batch,
    },
    Experiment {
        name: "cho-bfs",
        about: "breadth-first search with double queues, and the ratio of transfers to kernels",
        paper: "Cho and Hong 2018, BFS",
        on: DEVICES,
        run: cho::bfs,
    },
    Experiment {
        name: "cho-pathfinder",
        about: "Pathfinder with double queues, and the ratio of transfers to kernels",
        paper: "Cho and Hong 2018, Pathfinder",
        on: DEVICES,
        run: cho::pathfinder,
    },
    Experiment {
        name: "cho-queues",
        about: "the paper's double queues by threads and buffers",
        paper: "Cho and Hong 2018, double queuing",
        on: DEVICES,
        run: cho::queues,
    },
    Experiment {
        name: "np-edf",
        about: "which share of random sets passes as sporadic tasks, with known offsets, with exact costs, and in chunks",
        paper: "Verner, Mendelson, Schuster 2014, IV (the test of Jeffay, Stanat, Martel 1991)",
        on: ANY,
        run: np_edf::run,
    },
    Experiment {
        name: "gpusync-sim",
        about: "feature trackers on shared GPUs: every scenario of the evaluation in simulation, seven checks of its shape",
        paper: "Elliott, Ward, Anderson 2013, 5",
        on: SIMULATED,
        run: gpusync::run,
    },
    Experiment {
        name: "verner-combine",
        about: "message combining: the paper's examples, and the greedy algorithm against the optimum",
        paper: "Verner, Mendelson, Schuster 2014, IV",
        on: SIMULATED,
        run: verner_combine::run,
    },
    Experiment {
        name: "verner-fig2.1",
        about: "two blocks that share the processor interconnect; on devices, unequal blocks over what they share",
        paper: "Verner, Mendelson, Schuster 2014, Figure II.1",
        on: ANY,
        run: verner::figure_2_1,
    },
    Experiment {
        name: "verner-wafer",
        about: "how many cameras a node inspects under each policy, planned and run, every planted defect found",
        paper: "Verner, Mendelson, Schuster 2014, V-A",
        on: ANY,
        run: verner_wafer::run,
    },
    Experiment {
        name: "verner-aes",
        about: "how many streams a node encrypts under each policy: twelve workloads on two nodes (sim), one for real (emu, cuda)",
        paper: "Verner, Mendelson, Schuster 2014, V-B",
        on: ANY,
        run: verner::aes,
    },
    Experiment {
        name: "verner-sweep",
        about: "how much the interconnect must carry for the paper's gains (sim)",
        paper: "Verner, Mendelson, Schuster 2014, V-B",
        on: SIMULATED,
        run: verner::sweep,
    },
    Experiment {
        name: "join-leave",
        about: "random joins and leaves of flows on a running node: no deadline is missed (sim, emu, cuda)",
        paper: "beyond Verner, Mendelson, Schuster 2014",
        on: ANY,
        run: verner::join_leave,
    },
    Experiment {
        name: "gpusync-gpu",
        about: "feature trackers as processes that share GPUs through a broker, beside the same program without one",
        paper: "Elliott, Ward, Anderson 2013, 5",
        on: DEVICES,
        run: gpusync_gpu::run,
    },
    Experiment {
        name: "who-waits",
        about: "a small copy beside a bulk copy, by what is between the bulk copy's pieces: who waits for whom, and the price (cuda)",
        paper: "no paper",
        on: GPUS,
        run: who_waits::run,
    },
];

/// How an experiment is made.
#[derive(Clone, Debug)]
pub struct ExperimentSetting {
    /// What it runs on.
    pub backend: Backend,
    /// Fewer and smaller points.
    pub quick: bool,
    /// Seed of everything drawn.
    pub seed: u64,
    /// Machine whose profile `copy` chooses by; the built-in defaults without one. Experiments that plan plan for it.
    pub machine: Option<String>,
    /// Use this many GPUs, where an experiment can use several.
    pub gpus: Option<usize>,
    /// How long each run on devices lasts, where an experiment has a choice.
    pub duration: Option<Nanos>,
    /// What `verner-aes` encrypts on devices.
    pub streams: StreamSetting,
    /// What only `gpusync-gpu` asks.
    pub sharing: SharingOptions,
    /// Folder for the results; `None` = `out/NAME-SOURCE` with [`ExperimentSetting::label`] behind it.
    pub out: Option<PathBuf>,
    /// What tells these results from others of the same experiment.
    pub label: String,
    /// What there is so far.
    pub so_far: SoFar,
}

impl ExperimentSetting {
    /// Where the results belong.
    #[must_use]
    pub fn folder(&self, experiment: &str, source: &str) -> PathBuf {
        let usual = || Path::new("out").join(format!("{experiment}-{source}{}", file_name(&self.label)));
        self.out.clone().unwrap_or_else(usual)
    }

    /// Keeps raw figures, which are there even if somebody ends the experiment.
    fn keep(&self, experiment: &'static str, source: &'static str, machine: &str, tables: Vec<RawFigures>) {
        self.so_far.keep(ExperimentResults {
            tables,
            ..ExperimentResults::new(experiment, source, machine.to_owned(), self.seed)
        });
    }
}

/// What an experiment has found so far; kept when somebody ends it early.
#[derive(Clone, Debug, Default)]
pub struct SoFar(Arc<Mutex<Option<ExperimentResults>>>);

impl SoFar {
    /// Keeps this instead of what was kept before.
    fn keep(&self, outcome: ExperimentResults) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }

    /// The raw figures so far. No row of the comparison is judged by a part of them.
    #[must_use]
    pub fn take(&self) -> Option<ExperimentResults> {
        let outcome = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(ExperimentResults { complete: false, rows: Vec::new(), notes: Vec::new(), figures: Vec::new(), ..outcome })
    }
}

impl Default for ExperimentSetting {
    fn default() -> Self {
        let (machine, gpus, duration, streams) = (None, None, None, StreamSetting::default());
        let (sharing, so_far) = (SharingOptions::default(), SoFar::default());
        let (backend, quick, seed, out, label) = (Backend::Sim, false, 1, None, String::new());
        Self { backend, quick, seed, machine, gpus, duration, streams, sharing, out, label, so_far }
    }
}

/// What `verner-aes` encrypts on devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSetting {
    /// Numbers of the paper's workloads, 1 to 12.
    pub workloads: Vec<u32>,
    /// Streams with shorter deadlines are left out, whatever the policy.
    pub deadline_min: Nanos,
    /// Rates of the streams are the paper's times this.
    pub rate_scale: u64,
    /// Plan for a machine so many times slower; `None` = 1 on GPUs, 400 on emulated devices.
    pub slower: Option<u64>,
    /// Most streams that are planned; `None` = as many as are accepted.
    pub streams_max: Option<usize>,
    /// Cores of the CPU that serve streams beside the GPUs, at most as many as the machine file says; 0 = none.
    pub cores: u32,
    /// Policies to compare.
    pub policies: Vec<Strategy>,
}

impl Default for StreamSetting {
    fn default() -> Self {
        Self {
            workloads: vec![3],
            deadline_min: Nanos(20_000_000),
            rate_scale: 1,
            slower: None,
            streams_max: None,
            cores: 2,
            policies: vec![Strategy::Serial, Strategy::Lockstep, Strategy::Combined, Strategy::Partitioned],
        }
    }
}

/// What one row of an experiment shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PaperVerdict {
    /// A figure of the paper and a figure of ours agree, and no parameter was free to make them agree.
    Reproduced,
    /// Ours agrees with the paper, but a parameter that the paper does not state was chosen or fitted by us.
    Consistent,
    /// A check of ours holds. The paper has no figure for it, or none that can be compared.
    OwnCheck,
    /// The statement of the paper, or the check of ours, does not hold here.
    NotReproduced,
    /// It cannot be asked here: hardware, permission or a figure of the paper is missing.
    NotComparable,
}

impl PaperVerdict {
    /// All of them, the strongest first.
    pub const ALL: [Self; 5] =
        [Self::Reproduced, Self::Consistent, Self::OwnCheck, Self::NotReproduced, Self::NotComparable];

    /// Of a figure of the paper that is compared with a figure of ours without a free parameter.
    #[must_use]
    pub const fn figure(holds: bool) -> Self {
        if holds { Self::Reproduced } else { Self::NotReproduced }
    }

    /// Of a comparison with the paper in which a parameter was chosen or fitted by us.
    #[must_use]
    pub const fn fitted(holds: bool) -> Self {
        if holds { Self::Consistent } else { Self::NotReproduced }
    }

    /// Of a check for which the paper has no figure.
    #[must_use]
    pub const fn own(holds: bool) -> Self {
        if holds { Self::OwnCheck } else { Self::NotReproduced }
    }

    /// The sentence that says why: `held` if the row has what was asked of it, else `failed`.
    fn why(self, held: impl Into<String>, failed: impl Into<String>) -> String {
        match self {
            Self::NotReproduced | Self::NotComparable => failed.into(),
            Self::Reproduced | Self::Consistent | Self::OwnCheck => held.into(),
        }
    }

    /// As the tables write it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Consistent => "consistent, with a fitted parameter",
            Self::OwnCheck => "own check",
            Self::NotReproduced => "not reproduced",
            Self::NotComparable => "not comparable",
        }
    }
}

/// One line of the table of paper and ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PaperRow {
    /// What is compared.
    pub what: String,
    /// What the paper says, and where.
    #[serde(flatten)]
    pub paper: Said,
    /// What was found.
    pub ours: String,
    /// How the two compare.
    pub verdict: PaperVerdict,
    /// Why the row has this verdict, in one sentence.
    pub why: String,
}

impl PaperRow {
    /// The paper's words with the place where they stand.
    #[must_use]
    pub fn cited(&self) -> String {
        match self.paper.section {
            "" => self.paper.text.clone(),
            section => format!("{} ({section})", self.paper.text),
        }
    }
}

/// Everything that one experiment gave.
#[derive(Clone, Debug, Serialize)]
pub struct ExperimentResults {
    /// Version of the JSON form.
    pub schema: u32,
    pub experiment: &'static str,
    /// What the figures stand for: `sim`, `emu` or `cuda`.
    pub source: &'static str,
    /// What it ran on.
    pub machine: String,
    /// Commit of the program.
    pub commit: &'static str,
    pub seed: u64,
    /// Whether it was not interrupted.
    pub complete: bool,
    /// Paper and ours.
    pub rows: Vec<PaperRow>,
    /// What a reader must know.
    pub notes: Vec<String>,
    #[serde(skip)]
    pub tables: Vec<RawFigures>,
    /// Plots, each with the name of its file.
    #[serde(skip)]
    pub figures: Vec<(String, Figure)>,
}

impl ExperimentResults {
    /// An outcome of this program, still without rows and figures.
    #[must_use]
    pub const fn new(experiment: &'static str, source: &'static str, machine: String, seed: u64) -> Self {
        Self {
            schema: 1,
            experiment,
            source,
            machine,
            commit: COMMIT,
            seed,
            complete: true,
            rows: Vec::new(),
            notes: Vec::new(),
            tables: Vec::new(),
            figures: Vec::new(),
        }
    }

    /// The outcome as a page of text.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# {}\n\nSource `{}`, machine {}, commit {}, seed {}.\n\n",
            self.experiment, self.source, self.machine, self.commit, self.seed
        );
        text.push_str(&if self.complete {
            "| what | paper | ours | verdict | why |\n|---|---|---|---|---|\n".to_owned()
        } else {
            format!("{}: raw figures, and no comparison with the paper.\n", folder::ENDED_EARLY)
        });
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        for row in &self.rows {
            let verdict = row.verdict.label();
            text.push_str(&format!(
                "| {} | {} | {} | {verdict} | {} |\n",
                cell(&row.what),
                cell(&row.cited()),
                cell(&row.ours),
                cell(&row.why)
            ));
        }
        for note in &self.notes {
            text.push_str(&format!("\n{note}\n"));
        }
        let cited: Vec<&str> = self.rows.iter().flat_map(|row| row.paper.section.split("; ")).collect();
        let mut quotes = quotes::of(self.experiment).iter().filter(|(at, _)| cited.contains(at)).peekable();
        if quotes.peek().is_some() {
            text.push_str("\nThe sentences of the paper that the rows speak of:\n\n");
        }
        for (at, words) in quotes {
            text.push_str(&format!("* {at}: \"{}\"\n", words.replace('|', "\\|")));
        }
        for (name, figure) in &self.figures {
            text.push_str(&format!("\n![{}]({name}.svg)\n", figure.title));
        }
        text
    }

    /// Writes the page, the raw figures and the plots into `folder`, which is made if it is not there, or beside it if they are not
    /// complete and complete ones are there. Returns where they are.
    ///
    /// # Errors
    /// [`headway::ErrorKind::Io`], [`headway_measure::Error::Plot`].
    pub fn write(&self, folder: &Path) -> Result<PathBuf, Error> {
        let folder = Folder::open(folder, self.experiment, self.complete)?;
        for table in self.tables.iter().filter(|table| !table.columns.is_empty()) {
            if table.lines.len() <= LINES_PLAIN {
                folder.put(&format!("{}.csv", table.name), table.csv())?;
                continue;
            }
            let name = format!("{}.csv.gz", table.name);
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            let packed = packed.write_all(table.csv().as_bytes()).and_then(|()| packed.finish());
            folder
                .put(&name, packed.map_err(|source| headway::Failure::Write { path: folder.path(&name), source })?)?;
        }
        for (name, figure) in &self.figures {
            folder.put(&format!("{name}.svg"), figure.svg()?)?;
        }
        folder.put(OUTCOME, serde_json::to_string_pretty(self).unwrap_or_default() + "\n")?;
        Ok(folder.summary(&self.markdown())?)
    }
}

/// The rows and notes of an experiment as JSON, for programs.
pub const OUTCOME: &str = "outcome.json";
/// Tables with more lines are compressed.
const LINES_PLAIN: usize = 20_000;

/// The experiment called `name`.
///
/// # Errors
/// [`Error::NoExperiment`] with the names that exist.
pub fn find(name: &str) -> Result<&'static Experiment, Error> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name).ok_or_else(|| Error::NoExperiment {
        name: name.to_owned(),
        known: EXPERIMENTS.iter().map(|experiment| experiment.name).collect::<Vec<_>>().join(", "),
    })
}

impl Experiment {
    /// Checks that where the results may go is free, or has earlier ones of the same experiment.
    ///
    /// # Errors
    /// [`headway_measure::Error::InTheWay`] if there is anything else, [`headway::ErrorKind::Io`].
    pub fn may_write(&self, setting: &ExperimentSetting) -> Result<(), Error> {
        let sources: &[&str] = match setting.backend {
            Backend::Auto => &["sim", "emu", "cuda"],
            Backend::Sim => &["sim"],
            Backend::Emu => &["emu"],
            Backend::Cuda => &["cuda"],
        };
        for source in sources {
            folder::check(&setting.folder(self.name, source), self.name)?;
        }
        Ok(())
    }

    /// Whether it can be made on a backend.
    #[must_use]
    pub fn runs_on(&self, backend: Backend) -> bool {
        self.on.contains(&backend)
    }

    /// Makes it.
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn run(&self, setting: &ExperimentSetting) -> Result<ExperimentResults, Error> {
        let (setting, profile) = site::with_profile(setting, self.on);
        let mut outcome = (self.run)(&setting)?;
        if outcome.source != "sim" {
            outcome.notes.push(profile);
        }
        if outcome.source == "emu" {
            // The rates of an emulated device were chosen by us.
            for row in outcome.rows.iter_mut().filter(|row| row.verdict == PaperVerdict::Reproduced) {
                row.verdict = PaperVerdict::Consistent;
            }
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_experiment_is_refused_with_the_known_ones() {
        let error = find("fuji").unwrap_err();
        assert!(error.to_string().contains("fujii"), "{error}");
    }
}
