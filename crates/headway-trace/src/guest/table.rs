//! A guest's summary as text.

use std::fmt::{self, Write};

use headway_core::files::guest_log::{Copy, LintFinding, Problem};
use headway_core::units::Nanos;

use super::GuestSummary;
use super::summary::{CopyGroup, Times};

fn or_dash(time: Option<Nanos>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| time.to_string())
}

impl GuestSummary {
    /// Tables for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.head(&mut text).and_then(|()| self.groups(&mut text)).and_then(|()| self.beside(&mut text));
        let _ = self.slowest(&mut text).and_then(|()| self.found(&mut text));
        text
    }

    fn head(&self, text: &mut String) -> fmt::Result {
        writeln!(text, "guest    process {}: {}", self.pid, self.command.join(" "))?;
        writeln!(text, "options  {}", self.options)?;
        writeln!(text, "copies   {} of {} in {} of calls", self.copies, self.bytes, self.blocked)?;
        if !self.ended {
            writeln!(text, "note     the log has no last line: the program was killed, ended by `_exit`, or runs on")?;
        }
        if self.full {
            writeln!(text, "note     the log had reached its size: later copies were only counted")?;
        }
        if self.lost > 0 || self.torn > 0 {
            writeln!(text, "note     {} lines could not be written, {} were cut off", self.lost, self.torn)?;
        }
        Ok(())
    }

    fn groups(&self, text: &mut String) -> fmt::Result {
        let mut row = |cells: [&str; 9]| {
            let [call, size, became, copies, bytes, median, p99, longest, blocked] = cells;
            writeln!(
                text,
                "{call:<17} {size:<9} {became:<9} {copies:>9} {bytes:>14} {median:>10} {p99:>10} {longest:>10} \
                 {blocked:>10}"
            )
        };
        row(["\ncall", " size", "made", "copies", "bytes", "median", "p99", "longest", "together"])?;
        for group in &self.groups {
            row([
                group.call.name(),
                group.size,
                group.became.name(),
                &group.copies.to_string(),
                &group.bytes.0.to_string(),
                &or_dash(group.median),
                &or_dash(group.p99),
                &group.longest.to_string(),
                &group.blocked.to_string(),
            ])?;
        }
        for group in self.groups.iter().filter(|group| group.is_slower()) {
            let CopyGroup { call, size, became, median, drivers_median, .. } = group;
            let (median, drivers) = (or_dash(*median), or_dash(*drivers_median));
            let (call, became) = (call.name(), became.name());
            writeln!(text, "slower   {call} of {size}, made {became}: median {median}, the driver's {drivers}")?;
        }
        if !self.reasons.is_empty() {
            writeln!(text, "\npassed on, as far as copies have lines")?;
        }
        for reason in &self.reasons {
            writeln!(text, "{:>9}  {}", reason.copies, reason.why.name())?;
        }
        Ok(())
    }

    fn beside(&self, text: &mut String) -> fmt::Result {
        let beside = &self.beside;
        if [&beside.with, &beside.same_stream, &beside.aside].iter().all(|times| times.copies == 0) {
            return Ok(());
        }
        writeln!(text, "\nsmall copies out of a GPU, and bulk copies out of it by this process")?;
        let mut row = |name: &str, times: &Times| {
            if times.copies == 0 {
                return Ok(());
            }
            let Times { copies, median, longest, blocked } = times;
            let (median, longest) = (or_dash(*median), longest.to_string());
            let blocked = blocked.to_string();
            writeln!(
                text,
                "  {name:<26} {copies:>9} copies, median {median:>10}, longest {longest:>10}, together {blocked}"
            )
        };
        row("bulk in another stream", &beside.with)?;
        row("bulk in the same stream", &beside.same_stream)?;
        row("no bulk copy under way", &beside.without)?;
        row("made by a kernel (--aside)", &beside.aside)?;
        if beside.same_stream.copies > 0 {
            writeln!(
                text,
                "  in the same stream they wait for its order: no option changes that, another CUDA stream does"
            )?;
        }
        if beside.with_legacy > 0 {
            writeln!(
                text,
                "  {} of those with bulk in another stream may wait for the order of the legacy default stream",
                beside.with_legacy
            )?;
        }
        match beside.waited {
            Some(waited) if waited > Nanos::ZERO => writeln!(
                text,
                "  in another stream they wait for the engine, {waited} longer than as many medians without a bulk copy: `headway exec \
                 --aside` lets them pass"
            )?,
            Some(_) => {
                writeln!(text, "  in another stream they took no longer than without: `--aside` would change nothing")?
            }
            None if beside.with.copies > 0 => {
                writeln!(text, "  too few copies without a bulk copy to say what `--aside` would change")?;
            }
            None => {}
        }
        writeln!(text, "  a queued bulk copy counts as under way for the time that its bytes take at 20 GB/s")
    }

    fn slowest(&self, text: &mut String) -> fmt::Result {
        if self.slowest.is_empty() {
            return Ok(());
        }
        writeln!(text, "\nslowest copies")?;
        for copy in &self.slowest {
            let Copy { at, took, thread, call, bytes, stream, became, why, .. } = copy;
            let why = why.map_or_else(String::new, |why| format!(": {}", why.name()));
            let (took, at) = (took.to_string(), at.to_string());
            writeln!(
                text,
                "{took:>10} at {at:>12}, thread {thread}, stream {stream:#x}, {} of {} bytes, {}{why}",
                call.name(),
                bytes.0,
                became.name()
            )?;
        }
        Ok(())
    }

    fn found(&self, text: &mut String) -> fmt::Result {
        if !self.findings.is_empty() {
            writeln!(text, "\ncopies that lose time")?;
        }
        for finding in &self.findings {
            let LintFinding { problem, site, call, copies, bytes, took, gain } = finding;
            let problem = match problem {
                Problem::Ordinary => "large copies of ordinary memory",
                Problem::Tiny => "many tiny copies",
                Problem::Blocking => "small results waited for again and again",
                Problem::Repeated => "the same ordinary memory again and again",
            };
            let gain = gain.map_or_else(|| "not known from this run".to_owned(), |gain| format!("about {gain}"));
            writeln!(text, "{problem}: {} at {site}", call.name())?;
            writeln!(text, "  {copies} copies of {bytes} in {took}; to be gained: {gain}")?;
        }
        for difference in &self.differences {
            writeln!(
                text,
                "\nWRONG: {} of {} bytes, made {}, differs from the driver's from byte {} on",
                difference.call.name(),
                difference.bytes.0,
                difference.became.name(),
                difference.offset.0
            )?;
        }
        if let Some(verified) = self.verified {
            writeln!(
                text,
                "\nverified  {} accelerated copies compared, {} differed, {} could not be compared",
                verified.compared, verified.different, verified.not_compared
            )?;
        }
        Ok(())
    }
}
