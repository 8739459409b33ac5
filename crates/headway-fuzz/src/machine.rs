//! Machine files, and the profiles in them.

use headway_core::files::machine::{Machine, parse, write};

use crate::place;

/// What a profile is of: a node that stands before it in the file.
const NODE: &str = r#"name = "node"
[[memory]]
id = "host"
[[gpu]]
id = "gpu0"
[[gpu]]
id = "gpu1"
"#;

pub(crate) fn cross(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        check(text);
    }
}

pub(crate) fn cross_profile(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        check(&format!("{NODE}{text}"));
    }
}

fn check(text: &str) {
    let machine = match parse("fuzz.toml", text) {
        Ok(machine) => machine,
        Err(error) => return place::check(&error, text),
    };
    assert_eq!(reread(&machine), machine);
    for gpus in 1..machine.gpus().count() {
        let part = machine.with_gpus(gpus).expect("it has more GPUs");
        assert_eq!(part.gpus().count(), gpus);
        assert_eq!(reread(&part).profile, part.profile);
    }
}

/// What is read of the file of `machine`.
fn reread(machine: &Machine) -> Machine {
    let written = write(machine, &["a comment"]);
    let again = parse("written.toml", &written).unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(write(&again, &["a comment"]), written);
    Machine { hash: machine.hash.clone(), ..again }
}
