//! `headway-fuzz`: a harness as a program. `cargo xtask fuzz` builds it with libFuzzer, which then has `main` and reads `$HEADWAY_FUZZ`, the name
//! of the border. Without libFuzzer, `headway-fuzz BORDER FILE...` crosses the border with files.
#![cfg_attr(fuzzing, no_main)]
#![cfg_attr(fuzzing, allow(unsafe_code, reason = "libFuzzer calls two functions by name"))]

use headway_fuzz::BorderHarness;

#[cfg(fuzzing)]
static BORDER: std::sync::LazyLock<BorderHarness> = std::sync::LazyLock::new(|| {
    let name = std::env::var("HEADWAY_FUZZ").expect("$HEADWAY_FUZZ names the border");
    BorderHarness::named(&name).unwrap_or_else(|| panic!("there is no border `{name}`"))
});

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (BORDER.cross)(bytes));

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(border) = arguments.next().as_deref().and_then(BorderHarness::named) else {
        let names: Vec<&str> = headway_fuzz::BORDERS.iter().map(|border| border.name).collect();
        eprintln!("usage: headway-fuzz BORDER FILE...; borders: {}", names.join(", "));
        return std::process::ExitCode::FAILURE;
    };
    headway_fuzz::limit_memory();
    for path in arguments {
        match std::fs::read(&path) {
            Ok(bytes) => (border.cross)(&bytes),
            Err(error) => {
                eprintln!("error: cannot read `{path}`: {error}");
                return std::process::ExitCode::FAILURE;
            }
        }
    }
    std::process::ExitCode::SUCCESS
}
