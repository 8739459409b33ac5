//! Claims about programs, flows, scheduling classes and neighbours, from what the pieces of release runs printed.

use serde_json::Value;

use super::runs::Run;
use super::{Better, Claim, Line, Made, Measure};

/// How a figure is read from a run.
type Read = Box<dyn Fn(&Run) -> Option<f64>>;

struct Figure {
    measure: Measure,
    read: Read,
}

fn more(
    name: &'static str,
    target: Option<f64>,
    digits: usize,
    read: impl Fn(&Run) -> Option<f64> + 'static,
) -> Figure {
    Figure { measure: Measure { name, better: Better::More, target, digits }, read: Box::new(read) }
}

fn less(
    name: &'static str,
    target: Option<f64>,
    digits: usize,
    read: impl Fn(&Run) -> Option<f64> + 'static,
) -> Figure {
    Figure { measure: Measure { name, better: Better::Less, target, digits }, read: Box::new(read) }
}

/// The last line of a piece that has these texts at these places: a piece may have been made again.
fn line<'a>(run: &'a Run, piece: &str, wanted: &[(&str, &str)]) -> Option<&'a Value> {
    let fits = |line: &&Value, (place, text): &(&str, &str)| match line.pointer(place) {
        Some(Value::String(found)) => found == text,
        found => found.and_then(Value::as_u64).is_some_and(|found| text.parse() == Ok(found)),
    };
    run.printed.get(piece)?.iter().rev().find(|line| wanted.iter().all(|it| fits(line, it)))
}

fn number(run: &Run, piece: &str, wanted: &[(&str, &str)], place: &str) -> Option<f64> {
    line(run, piece, wanted)?.pointer(place)?.as_f64()
}

fn quotient(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    Some(one? / other?)
}

/// What a claim is made of, its lines apart.
struct About {
    title: &'static str,
    about: &'static str,
    price: &'static str,
    piece: &'static str,
    samples: Read,
}

impl About {
    fn claim(self, runs: &[Run], figures: Vec<Figure>) -> Claim {
        let of = |run: &Run| Line {
            run: run.name.clone(),
            gpu: run.gpu,
            gpus: run.gpus,
            commit: run.commit.clone(),
            samples: (self.samples)(run).map_or_else(|| "-".to_owned(), |samples| format!("{samples:.0}")),
            figures: figures.iter().map(|figure| (figure.read)(run)).collect(),
        };
        Claim {
            title: self.title.to_owned(),
            about: self.about.to_owned(),
            lines: runs.iter().filter(|run| run.printed.contains_key(self.piece)).map(of).collect(),
            measures: figures.into_iter().map(|figure| figure.measure).collect(),
            price: self.price,
            made: Some(Made { piece: self.piece, gpus: 1 }),
        }
    }
}

pub(super) fn claims(runs: &[Run]) -> Vec<Claim> {
    let mut claims = demos(runs);
    claims.extend(flows(runs));
    claims.extend(token_loops(runs));
    claims.extend(large_copies(runs));
    claims.extend(first_and_learnt(runs));
    claims.extend(streams(runs));
    claims.extend(main_job(runs));
    claims.push(shares(runs));
    claims.extend(python(runs));
    claims
}

fn demos(runs: &[Run]) -> Vec<Claim> {
    let of = |piece: &'static str, case: &'static str, place: &'static str| {
        move |run: &Run| number(run, piece, &[("/case", case)], place)
    };
    let ms = |piece: &'static str, case: &'static str| {
        move |run: &Run| Some(number(run, piece, &[("/case", case)], "/value")? * 1e3)
    };
    let times = |piece: &'static str, slow: &'static str, fast: &'static str| {
        move |run: &Run| quotient(of(piece, slow, "/value")(run), of(piece, fast, "/value")(run))
    };
    let about = |title, about, price, piece: &'static str| About {
        title,
        about,
        price,
        piece,
        samples: Box::new(of(piece, "exec", "/n")),
    };
    let swap = "swap_models";
    let offload = "offload_weights";
    let token = "token_beside_offload";
    let stall = "checkpoint_stall";
    vec![
        about(
            "Two models of 1 GB change places on a GPU",
            "`bench/demos/swap_models.py --quick`: plain, under `headway exec`, and with `headway.torch.move_out` and `move_in`.",
            "page-locked memory for both models with the package",
            swap,
        )
        .claim(
            runs,
            vec![
                less("plain, ms", None, 0, ms(swap, "plain")),
                less("`exec`, ms", None, 0, ms(swap, "exec")),
                less("package, ms", None, 0, ms(swap, "headway")),
                more("`exec`, times as fast", None, 1, times(swap, "plain", "exec")),
                more("package, times as fast", None, 1, times(swap, "plain", "headway")),
                less("CPUs busy", None, 1, of(swap, "exec", "/cpus")),
            ],
        ),
        about(
            "2 GB of weights come from ordinary memory for each token",
            "`bench/demos/offload_weights.py --quick`: plain, and under `headway exec`.",
            "",
            offload,
        )
        .claim(
            runs,
            vec![
                less("plain, ms", None, 0, of(offload, "plain", "/value")),
                less("`exec`, ms", None, 0, of(offload, "exec", "/value")),
                more("`exec`, times as fast", Some(3.8), 1, times(offload, "plain", "exec")),
                less("CPUs busy", None, 1, of(offload, "exec", "/cpus")),
            ],
        ),
        about(
            "A step of a token loop while the same program offloads",
            "`bench/demos/token_beside_offload.py --quick`: plain, under `headway exec --aside`, and without an offload.",
            "none",
            token,
        )
        .claim(
            runs,
            vec![
                less("plain, us", None, 0, of(token, "plain", "/value")),
                less("`exec --aside`, us", Some(60.0), 1, of(token, "exec", "/value")),
                less("`exec --aside`, p99, us", None, 1, of(token, "exec", "/more/p99 us")),
                less("no offload, us", None, 1, of(token, "idle", "/value")),
            ],
        ),
        about(
            "A training step stands still for a checkpoint of 1 GB",
            "`bench/demos/checkpoint_stall.py --quick`, the longest stall: plain, under `headway exec`, and with `headway.torch.Stager`.",
            "page-locked memory as large as the state with the package",
            stall,
        )
        .claim(
            runs,
            vec![
                less("plain, ms", None, 0, of(stall, "plain", "/value")),
                less("`exec`, ms", None, 0, of(stall, "exec", "/value")),
                less("package, ms", Some(100.0), 0, of(stall, "headway", "/value")),
                less("CPUs busy", None, 1, of(stall, "headway", "/cpus")),
            ],
        ),
    ]
}

/// The rows of `headway bench flows` that `wanted` keeps.
fn flow_rows<'a>(run: &'a Run, case: &str, by: &str) -> Option<Vec<&'a Value>> {
    let rows = run.printed.get("flows")?.last()?.pointer("/rows")?.as_array()?;
    let rows: Vec<&Value> = rows.iter().filter(|row| row["case"] == case && row["by"] == by).collect();
    (!rows.is_empty()).then_some(rows)
}

fn flows(runs: &[Run]) -> Vec<Claim> {
    const ONE: &str = "1 MiB out of the GPU";
    const TEN: &str = "ten flows, both directions";
    let sum = |case: &'static str, by: &'static str, field: &'static str| {
        move |run: &Run| flow_rows(run, case, by)?.into_iter().map(|row| row[field].as_f64()).sum::<Option<f64>>()
    };
    // A host whose threads are too late promises this flow with a longer deadline.
    let in_time = |run: &Run| flow_rows(run, ONE, "flow")?.first()?["deadline"].as_f64().map(|ns| ns / 1e6);
    let one = move |by: &'static str, field: &'static str| {
        move |run: &Run| if in_time(run)? > 1.0 { None } else { sum(ONE, by, field)(run) }
    };
    // Of the flow with the least bound.
    let tightest = |case: &'static str| {
        move |run: &Run| {
            let rows = flow_rows(run, case, "flow")?;
            let row = rows.into_iter().min_by_key(|row| row["bound"].as_u64())?;
            quotient(row["max"].as_f64(), row["bound"].as_f64())
        }
    };
    let about = |title, about, case| About {
        title,
        about,
        price: "",
        piece: "flows",
        samples: Box::new(sum(case, "flow", "n")),
    };
    vec![
        about(
            "1 MiB leaves a GPU every 2 ms, due within 1 ms, beside the program's own bulk copies",
            "`headway bench flows`: as a flow, and by the driver's call (plain). *Bulk* is the rate of the bulk copies, of what they have alone. \
             A host whose threads are too late promises it with a longer period and deadline, and then says nothing of what is missed within 1 ms.",
            ONE,
        )
        .claim(
            runs,
            vec![
                less("the least deadline that was promised, ms", Some(1.0), 0, in_time),
                less("missed", Some(0.0), 0, one("flow", "missed")),
                less("plain, % missed", None, 1, move |run| {
                    Some(quotient(one("plain", "missed")(run), one("plain", "n")(run))? * 100.0)
                }),
                less("longest response, of its bound", Some(1.0), 2, tightest(ONE)),
                more("bulk", Some(0.95), 2, move |run| Some(sum(ONE, "flow", "bulk_share_ppm")(run)? / 1e6)),
            ],
        ),
        about(
            "Ten flows in both directions, beside bulk copies",
            "`headway bench flows`: periods of 1 to 200 ms, as large as can be promised together.",
            TEN,
        )
        .claim(
            runs,
            vec![
                less("missed", Some(0.0), 0, sum(TEN, "flow", "missed")),
                less("longest response of the tightest, of its bound", Some(1.0), 2, tightest(TEN)),
            ],
        ),
    ]
}

fn token_loops(runs: &[Run]) -> Vec<Claim> {
    let of = |case: &'static str, exec: &'static str, place: &'static str| {
        move |run: &Run| number(run, "token-loops", &[("/case", case), ("/exec", exec)], place)
    };
    let median = move |case, exec| of(case, exec, "/result/median_us");
    let p99 = move |case, exec| of(case, exec, "/result/p99_us");
    let rate = move |case, exec| of(case, exec, "/result/offload/gb_per_s");
    let share = move |case: &'static str, exec: &'static str| {
        move |run: &Run| quotient(rate(case, exec)(run), rate(case, "plain")(run))
    };
    let about = |title, about, case: &'static str, exec: &'static str| About {
        title,
        about,
        price: "",
        piece: "token-loops",
        samples: Box::new(of(case, exec, "/result/n")),
    };
    vec![
        about(
            "A token loop beside an offload to page-locked memory",
            "`bench/guests/token_loop.py`, an unmodified PyTorch program: a step reads one token, and two copies of 1 GiB are queued in another \
             stream. *Offload* is its rate, of the plain one.",
            "token",
            "--aside",
        )
        .claim(
            runs,
            vec![
                less("no offload, us", None, 1, median("idle", "plain")),
                less("plain, us", None, 0, median("token", "plain")),
                less("`--aside`, us", Some(60.0), 1, median("token", "--aside")),
                less("`--aside`, p99, us", None, 1, p99("token", "--aside")),
                more("`--aside`, offload", Some(0.95), 3, share("token", "--aside")),
                less("`--yield`, us", Some(110.0), 1, median("token", "--yield")),
                less("`--yield`, p99, us", None, 1, p99("token", "--yield")),
                more("`--yield`, offload", Some(0.95), 3, share("token", "--yield")),
            ],
        ),
        about(
            "A loop that reads 1 MiB a step beside an offload",
            "The same program, `bench/guests/token_loop.py --small 1048576`.",
            "mebibyte",
            "--aside",
        )
        .claim(
            runs,
            vec![
                less("plain, us", None, 0, median("mebibyte", "plain")),
                less("`--aside`, us", None, 1, median("mebibyte", "--aside")),
                more("`--aside`, offload", None, 3, share("mebibyte", "--aside")),
            ],
        ),
        about(
            "A token loop beside the offload of another process",
            "The same program, `bench/guests/token_loop.py --other-process`.",
            "other process",
            "--aside",
        )
        .claim(
            runs,
            vec![
                less("plain, us", None, 0, median("other process", "plain")),
                less("`--aside`, us", None, 1, median("other process", "--aside")),
                more("`--aside`, offload", None, 3, share("other process", "--aside")),
            ],
        ),
        about(
            "A token loop beside an offload to ordinary memory",
            "The same program, `bench/guests/token_loop.py --ordinary`: another thread offloads.",
            "ordinary",
            "--fast",
        )
        .claim(
            runs,
            vec![
                less("plain, us", None, 0, median("ordinary", "plain")),
                more("plain, offload, GB/s", None, 1, rate("ordinary", "plain")),
                less("`--fast`, us", None, 1, median("ordinary", "--fast")),
                less("`--fast`, p99, us", None, 1, p99("ordinary", "--fast")),
                more("`--fast`, offload, GB/s", None, 1, rate("ordinary", "--fast")),
                less("`--fast --aside`, us", None, 1, median("ordinary", "--fast --aside")),
                less("`--fast --aside`, p99, us", None, 1, p99("ordinary", "--fast --aside")),
                more("`--fast --aside`, offload, GB/s", None, 1, rate("ordinary", "--fast --aside")),
            ],
        ),
    ]
}

fn large_copies(runs: &[Run]) -> Vec<Claim> {
    const PIECE: &str = "large-copies";
    let list = |run: &Run, case: &str, exec: &str, cpus: &str, place: &str| -> Option<Vec<f64>> {
        let found = line(run, PIECE, &[("/result/case", case), ("/exec", exec), ("/cpus", cpus)])?;
        found.pointer(place)?.as_array()?.iter().map(Value::as_f64).collect()
    };
    // Without the first copy, which starts threads.
    let ms = move |case: &'static str, exec: &'static str, cpus: &'static str| {
        move |run: &Run| {
            let mut seconds = list(run, case, exec, cpus, "/result/seconds")?.split_off(1);
            seconds.sort_by(f64::total_cmp);
            Some(seconds.get(seconds.len() / 2)? * 1e3)
        }
    };
    let times = move |case: &'static str, cpus: &'static str| {
        move |run: &Run| quotient(ms(case, "plain", cpus)(run), ms(case, "--fast", cpus)(run))
    };
    let busy = move |case: &'static str| {
        move |run: &Run| {
            let sum = |place| Some(list(run, case, "--fast", "all", place)?.iter().sum::<f64>());
            quotient(sum("/result/cpu"), sum("/result/seconds"))
        }
    };
    let of = |title, about, case: &'static str, targets: [Option<f64>; 2]| {
        let about = About {
            title,
            about,
            price: "",
            piece: PIECE,
            samples: Box::new(move |run| Some(list(run, case, "--fast", "all", "/result/seconds")?.len() as f64 - 1.0)),
        };
        let mut figures = vec![
            less("plain, ms", None, 1, ms(case, "plain", "all")),
            less("`--fast`, ms", None, 1, ms(case, "--fast", "all")),
            more("times as fast", targets[0], 2, times(case, "all")),
            less("CPUs busy", None, 1, busy(case)),
        ];
        if case != "asnumpy" {
            figures.push(more("times as fast with 4 CPUs", targets[1], 2, times(case, "0-3")));
        }
        about.claim(runs, figures)
    };
    let about = "`bench/guests/large_copies.py`, unmodified, plain and under `headway exec --fast`; the first copy is left out.";
    vec![
        of("`tensor.to(\"cuda\")` of 1 GiB", about, "to", [Some(5.0), Some(4.0)]),
        of("`host.copy_(tensor)` of 1 GiB", about, "copy", [Some(2.8), Some(2.5)]),
        of("`tensor.cpu()` of 1 GiB into memory without pages yet", about, "cpu", [Some(20.0), None]),
        of("`cupy.asnumpy` of 1 GiB", about, "asnumpy", [Some(3.0), None]),
    ]
}

fn first_and_learnt(runs: &[Run]) -> Vec<Claim> {
    let us = |how: &'static str, case: &'static str, bytes: &'static str| {
        move |run: &Run| number(run, how, &[("/case", case), ("/bytes", bytes)], "/median_us")
    };
    let times = move |how: &'static str, case: &'static str, bytes: &'static str| {
        move |run: &Run| quotient(us("ordinary-plain", case, bytes)(run), us(how, case, bytes)(run))
    };
    let of = |title, case: &'static str| {
        let about = "`bench/guests/first_second.py`, unmodified, plain and under `headway exec --fast` without a machine file: times as fast, by the \
                     first program on a node, and by the next one, which has what the first learnt.";
        let samples: Read = Box::new(move |run| {
            number(run, "ordinary-learnt", &[("/case", case), ("/bytes", "1073741824")], "/copies")
        });
        About { title, about, price: "", piece: "ordinary-learnt", samples }.claim(
            runs,
            vec![
                more("1 MiB, first", None, 1, times("ordinary-first", case, "1048576")),
                more("1 MiB, next", None, 1, times("ordinary-learnt", case, "1048576")),
                more("4 MiB, first", None, 1, times("ordinary-first", case, "4194304")),
                more("4 MiB, next", None, 1, times("ordinary-learnt", case, "4194304")),
                more("16 MiB, first", None, 1, times("ordinary-first", case, "16777216")),
                more("16 MiB, next", None, 1, times("ordinary-learnt", case, "16777216")),
                more("64 MiB, first", None, 1, times("ordinary-first", case, "67108864")),
                more("64 MiB, next", None, 1, times("ordinary-learnt", case, "67108864")),
                more("1 GiB, first", None, 1, times("ordinary-first", case, "1073741824")),
                more("1 GiB, next", None, 1, times("ordinary-learnt", case, "1073741824")),
            ],
        )
    };
    vec![
        of("Ordinary memory into a GPU by an unmodified program, by sizes", "to"),
        of("Ordinary memory out of a GPU by an unmodified program, by sizes", "copy"),
    ]
}

fn streams(runs: &[Run]) -> Vec<Claim> {
    const PIECE: &str = "streams";
    let ms = |case: &'static str, direction: &'static str| {
        move |run: &Run| {
            let wanted = [("/case", case), ("/direction", direction), ("/bytes", "1073741824")];
            Some(number(run, PIECE, &wanted, "/median_us")? / 1e3)
        }
    };
    let looped =
        |case: &'static str, place: &'static str| move |run: &Run| number(run, PIECE, &[("/case", case)], place);
    let both = |title, direction: &'static str| {
        let wanted = [("/case", "copy_"), ("/direction", direction), ("/bytes", "1073741824")];
        About {
            title,
            about: "`bench/guests/stream_copies.py`, by the C library: medians.",
            price: "64 MiB of page-locked memory for each stream of Headway's own",
            piece: PIECE,
            samples: Box::new(move |run| number(run, PIECE, &wanted, "/n")),
        }
        .claim(
            runs,
            vec![
                less("`copy_`, ms", None, 1, ms("copy_", direction)),
                less("`headway_copy`, ms", None, 1, ms("headway_copy", direction)),
                less("`headway_copy_async` and a wait, ms", None, 1, ms("headway_copy_async", direction)),
            ],
        )
    };
    let (alone, thread, ours) =
        ("token loop, alone", "token loop, copy_ in a thread", "token loop, headway_copy_async");
    vec![
        both("1 GiB of ordinary memory into a GPU, in a stream's order", "in"),
        both("1 GiB of ordinary memory out of a GPU, in a stream's order", "out"),
        About {
            title: "A token loop whose own thread offloads to ordinary memory",
            about: "The same program: a step of the loop, while 1 GiB is offloaded again and again by `copy_` in another thread, or by \
                    `headway_copy_async` in the same one.",
            price: "six threads, which sleep when there is nothing to copy",
            piece: PIECE,
            samples: Box::new(looped(ours, "/n")),
        }
        .claim(
            runs,
            vec![
                less("no offload, us", None, 0, looped(alone, "/median_us")),
                less("`copy_`, us", None, 0, looped(thread, "/median_us")),
                more("`copy_`, offload, GB/s", None, 1, looped(thread, "/offload/gb_per_s")),
                less("`headway_copy_async`, us", None, 0, looped(ours, "/median_us")),
                less("`headway_copy_async`, p99, us", None, 0, looped(ours, "/p99_us")),
                more("`headway_copy_async`, offload, GB/s", None, 1, looped(ours, "/offload/gb_per_s")),
            ],
        ),
    ]
}

/// The main job beside busy CPUs, and beside neighbours on the GPU.
fn main_job(runs: &[Run]) -> Vec<Claim> {
    const CLASSES: &str = "cpu-classes";
    let missed = |load: &'static str, class: &'static str| {
        move |run: &Run| number(run, CLASSES, &[("/load", load), ("/cpu_class", class)], "/job/missed")
    };
    let of_load = |title, load: &'static str| {
        let wanted = [("/load", load), ("/cpu_class", "ordinary")];
        About {
            title,
            about: "`bench/main_job.py classes`: packets missed, by the scheduling class of the threads that drive the GPU (`--cpu-class`).",
            price: "`deadline`: the driver sleeps between polls, and notices ends later",
            piece: CLASSES,
            samples: Box::new(move |run| number(run, CLASSES, &wanted, "/job/packets")),
        }
        .claim(
            runs,
            vec![
                less("ordinary", None, 0, missed(load, "ordinary")),
                less("nice -20", None, 0, missed(load, "nice")),
                less("`SCHED_DEADLINE`", Some(0.0), 0, missed(load, "deadline")),
            ],
        )
    };
    const NEIGHBOURS: &str = "neighbours";
    let of = |name: &'static str, how: &'static str, place: &'static str| {
        move |run: &Run| number(run, NEIGHBOURS, &[("/neighbour", name), ("/how", how)], place)
    };
    let (alone, slices, mps, whole, half) = ("alone", "time slices", "MPS, 90 %", "MPS, 100 %", "MPS, 50 %");
    let beside = |title, about, name: &'static str| {
        let share =
            move |run: &Run| quotient(of(name, slices, "/job/missed")(run), of(name, slices, "/job/packets")(run));
        let kept = move |how: &'static str| {
            move |run: &Run| {
                quotient(of(name, how, "/guest/steps_per_s")(run), of(name, alone, "/guest/steps_per_s")(run))
            }
        };
        About {
            title,
            about,
            price: "one fate: a fault of one program ends the GPU work of both",
            piece: NEIGHBOURS,
            samples: Box::new(of(name, mps, "/job/packets")),
        }
        .claim(
            runs,
            vec![
                less("MPS, packets missed", Some(0.0), 0, of(name, mps, "/job/missed")),
                less("MPS, jobs beyond their planned time", None, 0, of(name, mps, "/job/overruns")),
                less("MPS without a share, packets missed", Some(0.0), 0, of(name, whole, "/job/missed")),
                less("MPS, 50 %, packets missed", Some(0.0), 0, of(name, half, "/job/missed")),
                less("time slices, % of the packets missed", None, 1, move |run| Some(share(run)? * 100.0)),
                more("MPS, the neighbour's rate, of alone", Some(0.9), 2, kept(mps)),
                more("time slices, the neighbour's rate, of alone", None, 2, kept(slices)),
            ],
        )
    };
    vec![
        of_load("The main job on CPUs with nothing else to do", "none"),
        of_load("The main job beside 16 busy loops", "16 busy loops"),
        of_load("The main job beside 64 busy loops", "64 busy loops"),
        of_load("The main job beside 16 loops that write memory", "16 loops that write memory"),
        beside(
            "The main job beside a training loop",
            "`bench/main_job.py neighbours`: 64 streams beside `bench/guests/training.py`, in time slices, and by `headway broker --mps` with `exec --share` of 90 % where nothing else is said.",
            "training",
        ),
        beside(
            "The main job beside products of matrices",
            "The same beside `bench/guests/products.py`, which leaves no time between kernels.",
            "products",
        ),
    ]
}

fn shares(runs: &[Run]) -> Claim {
    const PIECE: &str = "shares";
    let rate = |run: &Run, percent: &str| number(run, PIECE, &[("/percent", percent)], "/guest/steps_per_s");
    let kept =
        move |percent: &'static str| move |run: &Run| Some(quotient(rate(run, percent), rate(run, "100"))? * 100.0);
    About {
        title: "Products of matrices under a share of the multiprocessors",
        about: "`bench/main_job.py shares`: the rate of `bench/guests/products.py` under `exec --share`, in percent of its rate alone. Clocks rise where fewer \
                multiprocessors work.",
        price: "",
        piece: PIECE,
        samples: Box::new(|run| number(run, PIECE, &[("/percent", "100")], "/guest/steps")),
    }
    .claim(
        runs,
        vec![
            less("10 %", None, 1, kept("10")),
            less("25 %", None, 1, kept("25")),
            less("50 %", None, 1, kept("50")),
            less("90 %", None, 1, kept("90")),
        ],
    )
}

fn python(runs: &[Run]) -> Vec<Claim> {
    let row = |run: &Run, what: &str, field: &str| -> Option<f64> {
        let rows = run.printed.get("arrays")?.last()?["rows"].as_array()?;
        rows.iter().find(|row| row["what"] == what)?[field].as_f64()
    };
    let times = move |theirs: &'static str, ours: &'static str| {
        move |run: &Run| quotient(row(run, theirs, "median_ns"), row(run, ours, "median_ns"))
    };
    // Lines of loads beside a token loop, which have other figures, do not say how many files there are.
    let of = |loader: &'static str, place: &'static str| {
        move |run: &Run| number(run, "loads", &[("/loader", loader), ("/files", "2")], place)
    };
    let rate = move |loader| of(loader, "/gb_per_s");
    vec![
        About {
            title: "Arrays of 1 GiB copied by the Python package",
            about: "`bench/python/array_copies.py`: the time of the other call over that of `headway.copy`, in one run.",
            price: "",
            piece: "arrays",
            samples: Box::new(move |run| row(run, "in: hw.copy(tensor, array)", "n")),
        }
        .claim(
            runs,
            vec![
                more("`torch.from_numpy(a).to(\"cuda\")`, times", Some(4.0), 1, times("in: torch.from_numpy(a).to('cuda')", "in: hw.copy(tensor, array)")),
                more("`tensor.cpu()`, times", None, 1, times("out: tensor.cpu()", "out: hw.copy(np.empty, tensor)")),
                more("`cupy.asarray(a)`, times", Some(4.0), 1, times("in: cupy.asarray(a)", "in: hw.copy(cupy array, array)")),
                more("`jax.device_get(j)`, times", Some(4.0), 1, times("out: jax.device_get(j)", "out: hw.copy(np.empty, jax array)")),
                less("CPUs busy", None, 1, move |run| row(run, "in: hw.copy(tensor, array)", "cpus")),
                less("`import headway`, ms", Some(150.0), 1, move |run| Some(row(run, "import headway", "median_ns")? / 1e6)),
            ],
        ),
        About {
            title: "Weights of 2 GB loaded by the Python package",
            about: "`bench/python/load_weights.py --quick`: `headway.load_safetensors` from the page cache, beside the package `safetensors`.",
            price: "",
            piece: "loads",
            samples: Box::new(of("headway", "/n")),
        }
        .claim(
            runs,
            vec![
                more("GB/s", None, 1, rate("headway")),
                more("the first load in a process, GB/s", None, 1, of("headway", "/first_gb_per_s")),
                more("times `safetensors`", None, 1, move |run| quotient(rate("headway")(run), rate("safetensors")(run))),
                less("CPUs busy", Some(8.0), 1, of("headway", "/cpus")),
            ],
        ),
    ]
}
