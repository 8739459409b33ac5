//! The files shown in the documentation are accepted, and plan as the text says.

use headway::machine::{self, Machine};
use headway::plan::{Outcome, PlanOptions};
use headway::workload::{self, Loaded, Workload};
use headway_core::models::transfer::{CpuUse, HostMemory, Method, Occupies};
use headway_core::units::Bytes;

const PAGE: &str = include_str!("../../../docs/files.md");

/// The code block whose info string is `toml KIND`.
fn block(kind: &str) -> &'static str {
    let fence = format!("```toml {kind}\n");
    let from = PAGE.find(&fence).expect("the page has such a block") + fence.len();
    let to = PAGE[from..].find("```").expect("the block ends");
    &PAGE[from..from + to]
}

fn example() -> (Machine, Loaded<Workload>) {
    let machine = machine::parse("machine", block("machine")).unwrap_or_else(|error| panic!("{error}"));
    let workload = workload::parse("workload", block("workload")).unwrap_or_else(|error| panic!("{error}"));
    (machine, workload)
}

#[test]
fn the_example_files_are_accepted_and_schedulable() {
    let (machine, workload) = example();
    let plan = headway::plan::make(&machine, &workload, PlanOptions::default()).unwrap();
    assert_eq!(plan.verdict.outcome, Outcome::Schedulable);
    assert_eq!((plan.streams.len(), plan.batches.len(), plan.pipelines.len()), (1, 2, 5));
}

#[test]
fn every_name_that_a_workload_gives_to_the_machine_is_checked_at_its_place() {
    let (machine, _) = example();
    let text = block("workload").replace(r#"gpu = "auto""#, r#"gpu = "gpu7""#);
    let workload = workload::parse("workload", &text).unwrap();
    let error = headway::plan::make(&machine, &workload, PlanOptions::default()).unwrap_err().to_string();
    let line = text.lines().position(|line| line.contains("gpu7")).unwrap() + 1;
    assert!(
        error.contains(&format!("workload:{line}:7:")) && error.contains("gpu7") && error.contains("gpu0"),
        "{error}"
    );
}

/// A tutorial, the example whose lines it shows, and how many blocks of files and of code it has.
const TUTORIALS: [(&str, &str, [usize; 2]); 3] = [
    (
        include_str!("../../../docs/tutorials/from-plan-to-program.md"),
        include_str!("../examples/plan_program.rs"),
        [1, 3],
    ),
    (include_str!("../../../docs/tutorials/flows.md"), include_str!("../examples/flows.rs"), [0, 4]),
    (include_str!("../../../docs/tutorials/five-programs.md"), include_str!("../examples/share_program.rs"), [1, 3]),
];

#[test]
fn tutorials_show_lines_of_their_examples_and_say_how_long_these_are() {
    for (page, example, counts) in TUTORIALS {
        let blocks = |kind: &str| -> Vec<&str> {
            let fence = format!("```{kind}\n");
            page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
        };
        let (files, code) = (blocks("toml"), blocks("rust"));
        assert_eq!([files.len(), code.len()], counts);
        for block in code {
            assert!(example.contains(block), "{block}");
        }
        assert!(page.contains(&format!("has {} lines", example.lines().count())));
    }
    let (page, example, _) = TUTORIALS[0];
    let file = page.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0;
    assert!(example.contains(&format!("r#\"\n{file}\"#")), "{file}");
}

#[test]
fn the_page_of_methods_has_the_table_that_the_program_uses() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/adding-a-method.md");
    let page = std::fs::read_to_string(path).unwrap();
    let table = table();
    let (begin, rest) = page.split_at(page.find("| method | what happens").expect("the table"));
    let end = rest.find("\n\n").map_or("", |end| &rest[end + 1..]);
    if std::env::var_os("SNAPSHOTS").is_some_and(|value| value == "overwrite") {
        std::fs::write(path, format!("{begin}{table}{end}")).unwrap();
    } else {
        assert_eq!(
            page,
            format!("{begin}{table}{end}"),
            "`SNAPSHOTS=overwrite cargo test -p headway-gpu --test docs` writes it"
        );
    }
}

/// The table of the methods as Markdown, as `docs/adding-a-method.md` has it.
fn table() -> String {
    let list = |words: Vec<String>| if words.is_empty() { "-".to_owned() } else { words.join(", ") };
    let mut text =
        "| method | what happens | directions | host memory | measured from | up to, in / out | keeps busy | \
                    posted | instead |\n|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for method in Method::ALL.into_iter().filter(|method| method.any_form() == *method) {
        let row = method.abilities();
        let memory = match row.memory {
            all if all.len() == HostMemory::WORDS.len() => "any".to_owned(),
            [HostMemory::Touched, HostMemory::Untouched, HostMemory::File] => "not pinned".to_owned(),
            memory => list(memory.iter().map(ToString::to_string).collect()),
        };
        let most = match row.most {
            [Bytes(u64::MAX), Bytes(u64::MAX)] => "-".to_owned(),
            [to, from] if to == from => to.to_string(),
            [to, from] => format!("{to} / {from}"),
        };
        let cells = [
            format!("`{method}`{}", forms(method)),
            row.summary.to_owned(),
            list(row.directions.iter().map(ToString::to_string).collect()),
            memory,
            if row.least == Bytes(0) { "-".to_owned() } else { row.least.to_string() },
            most,
            list(busy(&row.occupies)),
            if row.posted { "stores" } else { "-" }.to_owned(),
            list(row.instead.iter().map(|method| format!("`{method}`")).collect()),
        ];
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

fn forms(method: Method) -> String {
    let all = match method {
        Method::Window(_) | Method::PagedWindow(_) | Method::Resident(_) => method.forms(),
        _ => Vec::new(),
    };
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

fn busy(occupies: &Occupies) -> Vec<String> {
    let parts = [
        (occupies.engine, "the copy engine"),
        (occupies.cpu == CpuUse::Caller, "the caller's CPU"),
        (matches!(occupies.cpu, CpuUse::Threads | CpuUse::ThreadsUnlessPinned), "several CPUs"),
        (occupies.multiprocessor(), "multiprocessors"),
        (occupies.pager, "the small mapping"),
        (occupies.others, "other GPUs' links"),
    ];
    parts.into_iter().filter(|(held, _)| *held).map(|(_, what)| what.to_owned()).collect()
}
