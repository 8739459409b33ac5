//! What threads that drive devices get of the CPUs: scheduling classes, what each of them assumes, and how late threads ran.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::transfer::tail;
use crate::units::{Nanos, PPM};

/// A scheduling class that a thread runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "class", rename_all = "kebab-case")]
pub enum SchedulingClass {
    /// `SCHED_DEADLINE`: the kernel reserves `runtime` in every `period`.
    Deadline {
        /// CPU time.
        runtime: Nanos,
        /// The time in which it is given.
        period: Nanos,
    },
    /// `SCHED_FIFO` or `SCHED_RR`: before every ordinary thread.
    Fifo {
        /// 1 (lowest) to 99.
        priority: u32,
    },
    /// An ordinary thread with a nice value other than 0, or one of a class without guarantees.
    Nice {
        /// -20 (the largest share) to 19.
        nice: i32,
    },
    /// An ordinary thread.
    Ordinary,
}

impl fmt::Display for SchedulingClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline { runtime, period } => write!(f, "SCHED_DEADLINE {runtime} in {period}"),
            Self::Fifo { priority } => write!(f, "SCHED_FIFO priority {priority}"),
            Self::Nice { nice } => write!(f, "SCHED_OTHER nice {nice}"),
            Self::Ordinary => f.write_str("SCHED_OTHER"),
        }
    }
}

impl SchedulingClass {
    /// Whether the kernel stops a thread of this class that stays awake too long, so that it must sleep between polls.
    #[must_use]
    pub const fn is_rationed(self) -> bool {
        matches!(self, Self::Deadline { .. } | Self::Fifo { .. })
    }

    /// What must be true so that threads of this class run when they have to. The kernel guarantees nothing beyond it.
    #[must_use]
    pub const fn assumption(self) -> &'static str {
        match self {
            Self::Deadline { .. } => {
                "each of these threads needs at most its reservation, however busy other threads keep the CPUs"
            }
            Self::Fifo { .. } => {
                "no other real-time thread takes the CPU, and real-time threads do not use up what the kernel allows them \
                 (sched_rt_runtime_us); ordinary threads may be busy"
            }
            Self::Nice { .. } => {
                "other threads leave enough of the CPUs: a nice value weights the shares of threads and guarantees nothing"
            }
            Self::Ordinary => {
                "CPUs are free whenever these threads need one: any busy thread can delay them by milliseconds"
            }
        }
    }
}

/// The class asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestedClass {
    /// The strongest that the system permits.
    #[default]
    Auto,
    /// `SCHED_DEADLINE`.
    Deadline,
    /// `SCHED_FIFO`.
    Fifo,
    /// The ordinary class with the lowest nice value permitted.
    Nice,
    /// What the threads would have anyway.
    Ordinary,
}

impl RequestedClass {
    /// Every class by its word.
    pub const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("deadline", Self::Deadline),
        ("fifo", Self::Fifo),
        ("nice", Self::Nice),
        ("ordinary", Self::Ordinary),
    ];

    /// As files and options write it.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, requested)| *requested == self).map_or("auto", |(word, _)| word)
    }

    /// Whether `class` is what was asked for. With `auto` every class is.
    #[must_use]
    pub const fn is_met_by(self, class: SchedulingClass) -> bool {
        match self {
            Self::Auto | Self::Ordinary => true,
            Self::Deadline => matches!(class, SchedulingClass::Deadline { .. }),
            Self::Fifo => matches!(class, SchedulingClass::Fifo { .. }),
            Self::Nice => matches!(class, SchedulingClass::Nice { nice } if nice < 0),
        }
    }
}

/// Threads of one kind that got the same class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Threads {
    /// What they do.
    pub role: String,
    /// How many there are.
    pub count: u32,
    /// Their class.
    #[serde(flatten)]
    pub class: SchedulingClass,
    /// The stronger classes that were tried, each with the reason for its refusal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
}

/// How the threads that drove the devices of a run were scheduled, and how late they ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// The class asked for.
    pub asked: RequestedClass,
    /// The threads, the driver first.
    pub threads: Vec<Threads>,
    /// How long after the times that it had asked for the driver ran.
    pub woken: DelayStatistics,
    /// How long after the ends of operations the driver noticed them.
    pub noticed: DelayStatistics,
}

impl Use {
    /// The class of the driver; `None` for a log that does not tell it.
    #[must_use]
    pub fn driver(&self) -> Option<SchedulingClass> {
        self.threads.first().map(|threads| threads.class)
    }
}

/// Order statistics of delays. Median and 99th percentile are rounded up, by an eighth at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayStatistics {
    /// Delays measured.
    pub count: u64,
    /// The median delay.
    pub median: Nanos,
    /// 99th percentile; of fewer than 100 delays it is left out.
    #[serde(default)]
    pub p99: Option<Nanos>,
    pub max: Nanos,
    /// Of these delays, longer than the jitter that the plan allows.
    pub beyond: u64,
}

/// How late a thread ran that waits as the driver of a run does, on a host that was watched without a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverWatch {
    /// Length of the watch.
    pub time: Nanos,
    /// The scheduling class that the thread got.
    pub class: String,
    /// How long after the times that it had asked for the thread ran.
    pub woken: DelayStatistics,
    /// The longest time between two looks at the devices, of each millisecond in which it polled.
    pub noticed: DelayStatistics,
}

impl DriverWatch {
    /// The longest delay seen.
    #[must_use]
    pub fn worst(&self) -> Nanos {
        self.woken.max.max(self.noticed.max)
    }

    /// What the watch may have missed, and what a longer one would tell. Of delays that come independently of each other, a
    /// watch of three times their mean distance misses all in one case of 20 (e^-3).
    #[must_use]
    pub fn limits(&self) -> String {
        format!(
            "delays that come less often than once in {} may be longer and were perhaps not seen (confidence 95 %); \
             `headway measure --watch TIME` sees those that come once in a third of TIME",
            Nanos(self.time.0 / 3)
        )
    }
}

impl fmt::Display for DriverWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = |of: &DelayStatistics| {
            let p99 = of.p99.map_or_else(String::new, |p99| format!(", p99 {p99}"));
            format!("median {}{p99}, max {}", of.median, of.max)
        };
        let Self { time, class, woken, noticed } = self;
        let (late, gaps) = (figures(woken), figures(noticed));
        write!(
            f,
            "watched for {time} as {class}: {} wake-ups, late by {late}; longest time between two polls in {} ms of polling: {gaps}",
            woken.count, noticed.count
        )
    }
}

/// How much longer chunks took than the machine file says, of a thread that copied one after the other, through far more memory than
/// translations are kept for, and did nothing else.
///
/// Chunks in a row take at most [`Self::together`] longer than the file, [`Self::slower_ppm`] and [`Self::each`] say, if [`LOST_PPM`] of the time
/// is taken off: a CPU that gives `1 - LOST_PPM` of its time after a delay (the bounded-delay model of A. K. Mok, X. Feng, D. Chen, "Resource
/// partition for real-time systems", RTAS 2001).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkWatch {
    /// What all chunks took.
    pub time: Nanos,
    /// The scheduling class that the thread got.
    pub class: String,
    pub chunks: u64,
    /// By how much bytes move slower than the file says, parts per million: half of the chunks took more.
    pub slower_ppm: u64,
    /// 99th percentile of what a chunk takes longer than that.
    pub each: Nanos,
    pub together: Nanos,
    /// The most by which one chunk took longer.
    pub max: Nanos,
}

/// The part of its time that a thread may lose for good and still be in time, parts per million.
pub const LOST_PPM: u64 = 20_000;

impl ChunkWatch {
    /// Of chunks in a row that took `took` each, where the machine file says `setup` and, for its bytes, `moving`; `None` of fewer than 100.
    #[must_use]
    pub fn of(class: String, setup: Nanos, moving: Nanos, took: &[Nanos]) -> Option<Self> {
        let mut sorted = took.to_vec();
        sorted.sort_unstable();
        let rank = |percent: usize| Some(*sorted.get((sorted.len() * percent).div_ceil(100).checked_sub(1)?)?);
        let slower = rank(50)?.saturating_sub(setup).saturating_sub(moving);
        let expected = setup.saturating_add(moving).saturating_add(slower);
        let slower_ppm = (u128::from(slower.0) * u128::from(PPM)).div_ceil(u128::from(moving.0.max(1)));
        let (each, max) = (rank(99)?.saturating_sub(expected), rank(100)?.saturating_sub(expected));
        let (mut time, mut now, mut together) = (0, 0, 0);
        for took in took {
            let late = took.saturating_sub(expected).saturating_sub(each).0;
            now = (now + late).saturating_sub((u128::from(took.0) * u128::from(LOST_PPM) / u128::from(PPM)) as u64);
            together = together.max(now);
            time += took.0;
        }
        let (time, together, chunks) = (Nanos(time), Nanos(together), took.len() as u64);
        let slower_ppm = u64::try_from(slower_ppm).unwrap_or(u64::MAX);
        (took.len() >= 100).then_some(Self { time, class, chunks, slower_ppm, each, together, max })
    }
}

impl fmt::Display for ChunkWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, class, chunks, slower_ppm, each, together, max } = self;
        let slower = *slower_ppm as f64 / 1e4;
        write!(
            f,
            "{chunks} in {time} as {class}: bytes {slower:.1} % slower than the model, chunks later by p99 {each}, max {max}; chunks in a row by \
             {together} beyond that p99 together"
        )
    }
}

/// Buckets of [`Meter`]: eight for each power of two.
const BUCKETS: usize = 62 * 8;

/// Counts delays in buckets, so that a run of any length needs the same memory.
#[derive(Clone, Debug)]
pub struct Meter {
    counts: Box<[u64]>,
    allowed: Nanos,
    max: Nanos,
    beyond: u64,
}

impl Meter {
    /// Counts nothing yet; delays longer than `allowed` will be told apart.
    #[must_use]
    pub fn new(allowed: Nanos) -> Self {
        Self { counts: vec![0; BUCKETS].into(), allowed, max: Nanos::ZERO, beyond: 0 }
    }

    /// Counts one delay.
    pub fn add(&mut self, delay: Nanos) {
        self.counts[bucket(delay.0)] += 1;
        self.max = self.max.max(delay);
        self.beyond += u64::from(delay > self.allowed);
    }

    /// The figures so far, by nearest rank.
    #[must_use]
    pub fn lateness(&self) -> DelayStatistics {
        let count: u64 = self.counts.iter().sum();
        let rank = |hundredths: u64| {
            let rank = (u128::from(count) * u128::from(hundredths)).div_ceil(100);
            let mut seen = 0;
            let at = self.counts.iter().position(|count| {
                seen += u128::from(*count);
                rank > 0 && seen >= rank
            });
            at.map_or(Nanos::ZERO, |at| Nanos(longest(at)).min(self.max))
        };
        DelayStatistics { count, median: rank(50), p99: tail(count, rank(99)), max: self.max, beyond: self.beyond }
    }
}

/// The bucket of `n`: numbers below 8 have their own, larger ones share it with those of the same first four binary digits.
fn bucket(n: u64) -> usize {
    if n < 8 {
        return n as usize;
    }
    let power = n.ilog2() as usize;
    (power - 2) * 8 + (n >> (power - 3) & 7) as usize
}

/// The largest number of bucket `at`.
fn longest(at: usize) -> u64 {
    if at < 8 {
        return at as u64;
    }
    let (power, part) = (at / 8 + 2, at as u64 % 8);
    (8 + part) << (power - 3) | ((1 << (power - 3)) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_numbers_without_a_gap_and_are_an_eighth_wide() {
        let mut first = 0u64;
        for at in 0..BUCKETS {
            let last = longest(at);
            assert_eq!((bucket(first), bucket(last)), (at, at));
            assert!(last - first <= first / 8, "{first} to {last}");
            first = last.wrapping_add(1);
        }
        assert_eq!(first, 0, "the last bucket ends with the largest number");
    }

    #[test]
    fn a_meter_gives_ranks_rounded_up_and_the_exact_maximum() {
        let mut meter = Meter::new(Nanos(900));
        assert_eq!(meter.lateness(), DelayStatistics::default());
        for delay in (1..=1000).rev() {
            meter.add(Nanos(delay));
        }
        let DelayStatistics { count, median, p99, max, beyond } = meter.lateness();
        assert_eq!((count, max, beyond), (1000, Nanos(1000), 100));
        assert!((500..=562).contains(&median.0), "{median}");
        assert!(p99.is_some_and(|p99| (990..=1000).contains(&p99.0)), "{p99:?}");
        let mut few = Meter::new(Nanos::ZERO);
        (1..100).for_each(|delay| few.add(Nanos(delay)));
        assert_eq!((few.lateness().count, few.lateness().p99), (99, None));
    }

    #[test]
    fn a_watch_names_its_worst_delay_and_how_rare_delays_are_that_it_can_miss() {
        let lateness =
            |max| DelayStatistics { count: 500, median: Nanos(1_000), p99: Some(Nanos(2_000)), max, beyond: 0 };
        let (class, late) = ("SCHED_OTHER".to_owned(), Nanos(4_500_000));
        let woken_late =
            DriverWatch { time: Nanos(3_000_000_000), class, woken: lateness(late), noticed: lateness(Nanos(9_000)) };
        let noticed_late = DriverWatch { woken: lateness(Nanos(9_000)), noticed: lateness(late), ..woken_late.clone() };
        assert_eq!([woken_late.worst(), noticed_late.worst()], [late; 2]);
        assert!(woken_late.limits().contains("less often than once in 1 s"), "{}", woken_late.limits());
        let text = woken_late.to_string();
        assert!(
            text.contains("for 3 s as SCHED_OTHER: 500 wake-ups, late by median 1 us, p99 2 us, max 4.5 ms; longest"),
            "{text}"
        );
    }

    #[test]
    fn a_watch_of_chunks_says_how_late_one_and_all_in_a_row_are() {
        let us = |us: u64| Nanos(us * 1_000);
        let of = |took: &[Nanos]| ChunkWatch::of("SCHED_FIFO".to_owned(), us(20), us(80), took);
        // As fast as the file says, or faster: never late.
        let quick = of(&[us(100), us(60)].repeat(100)).unwrap();
        assert_eq!((quick.each, quick.together, quick.max, quick.chunks), (us(0), us(0), us(0), 200));
        assert_eq!((quick.time, quick.slower_ppm), (us(16_000), 0));
        // Two of a hundred are late by 3 us; 50 and 70 us beyond it in a row, of which 2 % of 153 us and 173 us are taken off.
        let mut took = [[us(100)].repeat(98), vec![us(103); 2]].concat().repeat(10);
        (took[400], took[401]) = (us(153), us(173));
        let late = of(&took).unwrap();
        assert_eq!((late.each, late.together, late.max), (us(3), Nanos(120_000 - 3_060 - 3_460), us(73)));
        // Far apart, the time between them pays for the first.
        (took[401], took[500]) = (us(100), us(173));
        assert_eq!(of(&took).unwrap().together, Nanos(70_000 - 3_460));
        assert_eq!(of(&took[..99]), None);
        // A quarter of the time of the bytes longer, all the time: that is slow, and nobody is late.
        let slow = of(&[us(120)].repeat(100)).unwrap();
        assert_eq!((slow.slower_ppm, slow.each, slow.together), (250_000, us(0), us(0)));
    }

    #[test]
    fn a_use_keeps_its_form() {
        let class = SchedulingClass::Deadline { runtime: Nanos(100_000), period: Nanos(200_000) };
        let threads = vec![Threads { role: "driver".to_owned(), count: 1, class, refused: Vec::new() }];
        let used = Use {
            asked: RequestedClass::Auto,
            threads,
            woken: DelayStatistics::default(),
            noticed: Meter::new(Nanos(1)).lateness(),
        };
        let text = serde_json::to_string(&used).unwrap();
        let start = r#"{"asked":"auto","threads":[{"role":"driver","count":1,"class":"deadline","runtime":100000,"period":200000}]"#;
        assert!(text.starts_with(start), "{text}");
        assert_eq!(serde_json::from_str::<Use>(&text).unwrap(), used);
        assert_eq!(used.driver(), Some(class));
    }

    #[test]
    fn only_the_class_asked_for_meets_a_request() {
        let fifo = SchedulingClass::Fifo { priority: 10 };
        assert!(
            RequestedClass::Auto.is_met_by(fifo)
                && RequestedClass::Fifo.is_met_by(fifo)
                && !RequestedClass::Deadline.is_met_by(fifo)
        );
        assert!(
            RequestedClass::Nice.is_met_by(SchedulingClass::Nice { nice: -5 })
                && !RequestedClass::Nice.is_met_by(SchedulingClass::Nice { nice: 5 })
        );
        assert!(RequestedClass::WORDS.iter().all(|(word, requested)| requested.word() == *word));
    }
}
