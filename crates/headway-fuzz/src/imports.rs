//! Task sets of other tools.

use headway_core::files::workload::{self, Workload};
use headway_core::units::Nanos;
use headway_lab::formats::{Export, FileFormat, Import, export, import};

/// The first byte says the format and the options, the rest is the file.
pub(crate) fn cross(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let (_, format) = FileFormat::WORDS[usize::from(*first) % FileFormat::WORDS.len()];
    let given = |bit: u8, time: u64| (first & 1 << bit != 0).then_some(Nanos(time));
    let options = Import {
        unit: given(7, 1_000),
        window: given(6, 1_000_000),
        cost: given(5, 1),
        server: None,
        name: (first & 1 << 4 != 0).then(|| "a \"name\"".to_owned()),
    };
    let imported = match import(format, text, &options) {
        Ok(imported) => imported,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let read = workload::parse("imported.toml", &imported.workload);
    let read = read.unwrap_or_else(|error| panic!("{error}\n{}", imported.workload)).value;
    assert_eq!(read.demands.len(), imported.demands);
    let again =
        workload::parse("written.toml", &workload::write(&read)).unwrap_or_else(|error| panic!("{error}")).value;
    assert_eq!(Workload { hash: read.hash.clone(), ..again }, read);
    for (_, format) in FileFormat::EXPORTS {
        let Ok(exported) = export(*format, &read, &Export::default()) else { continue };
        let unit = (*format == FileFormat::Schedcat).then_some(Nanos(1));
        let back = Import { unit, window: Some(Nanos(1_000_000_000)), ..Import::default() };
        // The window of a job set may be longer than its tasks repeat, so that it has other tasks.
        if let Err(error) = import(*format, &exported.text, &back) {
            panic!("{format:?}: {error}\n{}", exported.text);
        }
    }
}
