//! `headway exec`: this process becomes the guest.

use std::os::unix::process::CommandExt;

use anyhow::Result;
use headway::guest::{self, Aside, GuestError, GuestOptions};

use crate::Answer;
use crate::args::{AsideArg, ExecArgs, PieceArg};

fn options(args: &ExecArgs) -> GuestOptions {
    let aside = match args.aside {
        AsideArg::Auto => Aside::Auto,
        AsideArg::Always => Aside::Always,
        AsideArg::Never => Aside::Never,
    };
    let piece = match args.piece {
        PieceArg::Bytes(bytes) => Some(bytes),
        PieceArg::Never => None,
        // Small copies that go by a kernel wait for nobody: then whole copies keep their full rate.
        PieceArg::Auto => (aside == Aside::Never).then_some(guest::PIECE_USUAL),
    };
    GuestOptions { aside, piece, stats: args.stats, alone: args.alone }
}

/// Returns only if the program could not be started.
pub(crate) fn exec(args: &ExecArgs) -> Result<Answer> {
    let [program, arguments @ ..] = args.command.as_slice() else { return Ok(Answer::No) };
    let mut command = guest::command(options(args), program, arguments).map_err(headway::Error::from)?;
    let source = command.exec();
    let program = program.to_string_lossy().into_owned();
    Err(headway::Error::from(GuestError::Start { program, source }).into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use headway::core::units::Bytes;

    use super::*;
    use crate::args::{Cli, Command};

    fn parsed(line: &str) -> GuestOptions {
        let line = ["headway", "exec"].into_iter().chain(line.split_whitespace()).chain(["--", "true", "--aside"]);
        let Command::Exec(args) = Cli::try_parse_from(line).unwrap().command else {
            unreachable!("the verb is `exec`")
        };
        options(&args)
    }

    #[test]
    fn bulk_copies_yield_unless_small_ones_go_aside() {
        assert_eq!(parsed("").piece, Some(guest::PIECE_USUAL));
        assert_eq!(parsed("--aside"), GuestOptions { aside: Aside::Auto, ..GuestOptions::default() });
        assert_eq!(parsed("--aside --yield=2MiB").piece, Some(Bytes(2 << 20)));
        assert_eq!(parsed("--yield=never --stats"), GuestOptions { stats: true, ..GuestOptions::default() });
    }
}
