//! The name by which programs that are linked with the library look for it: it changes when they no longer fit.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libheadway.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
