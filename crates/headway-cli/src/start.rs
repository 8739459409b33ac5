//! What happens before Rust's runtime begins.
#![allow(unsafe_code)]

/// The loader calls what is listed here (System V ABI, initialization functions).
// SAFETY: the section holds addresses of functions of this type; the function changes nothing but its own notes.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = headway::guest::note_the_start;
