//! Workload files.

use headway_core::files::workload::Workload;
use headway_kernels::workload::{check, parse, write};

use crate::place;

pub(crate) fn cross(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let loaded = match parse("fuzz.toml", text) {
        Ok(loaded) => loaded,
        Err(error) => return place::check(&error, text),
    };
    for key in loaded.spans.keys() {
        place::check(&loaded.error_at(key, "something", None), text);
    }
    let read = loaded.value;
    check(&read).unwrap_or_else(|error| panic!("a file may say it and code may not: {error}\n{text}"));
    let written = write(&read);
    let again = parse("written.toml", &written).unwrap_or_else(|error| panic!("{error}\n{written}")).value;
    assert_eq!(write(&again), written);
    assert_eq!(Workload { hash: read.hash.clone(), ..again }, read, "{written}");
}
