//! The integration tests of `headway-runtime` as one program: it is linked once, and `cargo test -p headway-runtime
//! --test it FILE::` runs those of one file.

mod copy;
mod copy_faults;
mod copy_price;
mod faulty;
mod messages;
mod own_work;
mod plain_run;
mod sharing;
mod staging;
mod unplanned;
mod wall;
