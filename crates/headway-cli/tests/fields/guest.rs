//! The log of a guest: every line that one can write, and what `headway report` makes of it.

use std::fs;
use std::path::Path;

use headway_core::files::guest_log::{
    Became, Call, Copy, Counted, Difference, End, Finding, Host, KIND, Line, Problem, SCHEMA, Start, Towards, Verified,
    Why,
};
use headway_core::units::{Bytes, Nanos};

use super::Found;

const COPY: Copy = Copy {
    at: Nanos(1),
    took: Nanos(2),
    thread: 3,
    call: Call::OutAsync,
    direction: Towards::Out,
    bytes: Bytes(4),
    stream: 5,
    host: Host::NotAsked,
    became: Became::PassedOn,
    why: Some(Why::NoOption),
    status: 0,
    of: 1,
};

fn copies() -> Vec<Copy> {
    let calls = [Call::In, Call::InAsync, Call::Out, Call::OutAsync, Call::Any, Call::AnyAsync];
    let whys = [
        Why::NoOption,
        Why::EngineFree,
        Why::Capture,
        Why::NotOrdinary,
        Why::Context,
        Why::NotOnGpu,
        Why::OtherMemory,
        Why::NoLine,
        Why::NotLaunched,
        Why::Whole,
        Why::Failed,
        Why::DriverFastest,
        Why::SmallStack,
    ];
    let mut copies: Vec<Copy> = calls.map(|call| Copy { call, ..COPY }).to_vec();
    copies.extend(whys.map(|why| Copy { why: Some(why), ..COPY }));
    copies.extend([Became::Fast, Became::Aside, Became::Pieces].map(|became| Copy { became, why: None, ..COPY }));
    copies.extend([Towards::In, Towards::Unknown].map(|direction| Copy { direction, ..COPY }));
    copies.extend([Host::Ordinary, Host::PageLocked, Host::KnownToDriver].map(|host| Copy { host, ..COPY }));
    copies
}

fn lines() -> Vec<Line> {
    let (call, became, bytes, took) = (Call::Out, Became::PassedOn, Bytes(1), Nanos(2));
    let mut lines: Vec<Line> = copies().into_iter().map(Line::Copy).collect();
    lines.push(Line::Counted(Counted { call, class: 0, became, copies: 3, bytes, took, longest: took }));
    lines.push(Line::Lost(1));
    let problems = [Problem::Ordinary, Problem::Tiny, Problem::Blocking, Problem::Repeated];
    let finding = |problem| Finding { problem, site: "a".to_owned(), call, copies: 1, bytes, took, gain: Some(took) };
    lines.extend(problems.map(|problem| Line::Finding(finding(problem))));
    lines.push(Line::Difference(Difference { call, became: Became::Aside, bytes, offset: Bytes(0) }));
    lines.push(Line::Verified(Verified { compared: 1, different: 1, not_compared: 0 }));
    lines.push(Line::End(End { at: took, lost: 1, full: false }));
    lines
}

pub(crate) fn log(found: &mut Found, place: &Path) {
    let start = Start {
        schema: SCHEMA,
        kind: KIND.to_owned(),
        version: "0".to_owned(),
        pid: 1,
        command: vec!["a".to_owned()],
        options: "fast".to_owned(),
        began_unix: Nanos(1),
    };
    let lines: Vec<String> = lines().iter().map(|line| serde_json::to_string(line).unwrap()).collect();
    let start = serde_json::to_string(&start).unwrap();
    found.lines(&start, "log-of-a-guest-first-line", "a guest");
    found.lines(&lines.join("\n"), "log-of-a-guest-lines", "a guest");
    fs::write(place.join("guest.log"), format!("{start}\n{}\n", lines.join("\n"))).unwrap();
    found.command(place, "headway-report-of-a-guest", &["report", "guest.log"]);
}
