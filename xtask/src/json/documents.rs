//! The documents: what each is called, the type that is written, and what a reader must know beside its fields.

pub(super) struct Document {
    pub(super) title: &'static str,
    /// The type: crate, modules and name.
    pub(super) root: &'static str,
    pub(super) introduction: &'static str,
}

const fn document(title: &'static str, root: &'static str, introduction: &'static str) -> Document {
    Document { title, root, introduction }
}

pub(super) const INTRODUCTION: &str = "\
# JSON outputs

<!-- Written by `cargo xtask json` from the types; edit their comments. -->

Commands take `--format json` and print one document with a `schema` number; within a number fields are only added. Four print no document of
their own: `exec` becomes the program that it starts, `broker` prints lines on the standard error, `man` without `--out` prints a page,
`completions` prints a script. Their errors are documents, too. Progress and warnings go to stderr; `--quiet` leaves them out. Machine and workload files are described in [Files](files.md).

Each table is an object, with the names, types and units that the program writes. A linked type is an object with a table of its own. A field
\"or null\" is always there and may be null; a field \"or absent\" is left out where it does not apply. \"Anything\" has no fixed form. A type
\"text\" with words in quotes has one of these values. An object whose table is a list of variants has one of the fields, or is one of the texts.
A list of 2 has two values, of the types and units that are named in this order. A meaning is left out where the name says it all; numbers
called `pipeline`, `step`, `stream` and their like are positions in the lists of that name, from 0.
";

pub(super) const DOCUMENTS: &[Document] = &[
    document(
        "`headway plan`",
        "headway::plan::PlanAnswer",
        "Also `plan.json`, without `models`, `assumes` and `confidence`. Exit status 0, 1 or 3 as the verdict says.",
    ),
    document("`headway plan` of tasks", "headway::share::SharingReport", "For a workload with `[sharing]`."),
    document("`headway run`", "headway::run::RunReport", "`headway report` prints the `summary` alone."),
    document("`headway run` of tasks", "headway::run::tasks::TasksReport", "For a workload with `[sharing]`."),
    document("`headway replay`", "headway_cli::commands::ReplayAnswer", ""),
    document("`headway replay` of a broker's log", "headway_cli::commands::BrokerReplayAnswer", ""),
    document("`headway doctor`", "headway::doctor::Examination", ""),
    document("`headway measure`", "headway_measure::report::MeasureReport", ""),
    document("`headway bench transfers`", "headway_measure::bench::TransferBenchReport", ""),
    document("`headway bench flows`", "headway_measure::bench::flows::FlowBenchReport", ""),
    document("`headway explain`", "headway_cli::transfers::ExplainAnswer", ""),
    document("`headway machines`", "headway_cli::commands::ShippedMachines", ""),
    document("`headway machines NAME`", "headway_cli::commands::MachineText", ""),
    document("`headway man --out FOLDER`", "headway_cli::manual::Pages", ""),
    document("`headway status`", "headway_broker::status::BrokerStatus", ""),
    document("`headway top --once`", "headway_cli::top::TopReport", ""),
    document(
        "`manifest.json`",
        "headway::run::ManifestEntry",
        "A list of these, one for each stream in the order of the workload.",
    ),
    document("`run.jsonl`, first line", "headway_core::log::LogHeader", ""),
    document(
        "`run.jsonl`, records",
        "headway_core::log::LogRecord",
        "One line each, with `input`, `action` or `event`.",
    ),
    document("`run.jsonl`, last line", "headway_core::log::LogEnd", ""),
    document("`run.jsonl` of tasks, first line", "headway_trace::sharing::TaskLogHeader", ""),
    document(
        "`run.jsonl` of tasks, jobs",
        "headway_trace::sharing::CompletedJob",
        "One line each, in the order of their ends.",
    ),
    document("`run.jsonl` of tasks, last line", "headway_trace::sharing::End", ""),
    document(
        "Log of a broker",
        "headway_core::decisions::broker::log::BrokerLogLine",
        "A line. `headway broker --log FILE` writes them; a file begins with a `broker` line, and others follow where a broker was started \
         again or could not write for a while. `headway replay` makes the decisions of the `fed` lines again. \
         Times are of the host's monotonic clock. Numbers of GPUs are those of the machine file.",
    ),
    document(
        "Journal of `headway measure`, first line",
        "headway_measure::journal::Head",
        "`headway measure` keeps what it has measured in `OUT.partial.jsonl` until it has ended, and goes on there after an interruption. \
         The file belongs to one version of Headway.",
    ),
    document(
        "Journal of `headway measure`, other lines",
        "headway_measure::journal::JournalEntry",
        "One for each step that is done. The form of `value` is the step's own and no interface.",
    ),
    document(
        "Errors",
        "headway_cli::failure::Document",
        "Of every command, on the standard output. Exit status and kinds: [Files](files.md).",
    ),
    document(
        "Log of a guest, first line",
        "headway_core::files::guest_log::GuestLogStart",
        "What `headway exec --log FILE` writes ([the log](exec.md#who-copied-what-and-how-long-the-log)).",
    ),
    document("Log of a guest, lines", "headway_core::files::guest_log::GuestLogLine", "Each has one of the fields."),
    document(
        "`headway report` of a guest",
        "headway_trace::guest::summary::GuestSummary",
        "For a log of `headway exec --log`.",
    ),
];
