//! The library finds its own functions in itself, also where another copy of it stands in front (two installs, one within the other).

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rerun-if-changed=build.rs");
}
