//! The laboratory: experiments of papers, benchmarks, and import and export for other tools, with their plots.
//!
//! It is not published. The command line serves it as `headway reproduce`, `bench`, `import` and `export`.
#![forbid(unsafe_code)]

pub mod child;
pub mod combine;
mod error;
pub mod formats;
pub mod reproduce;
pub mod rows;
pub mod simulation;

pub use error::Error;
pub use headway_runtime::outlet::file_name;
