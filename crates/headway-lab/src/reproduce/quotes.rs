//! What the papers say, word for word, for the rows that compare with it. A test finds every number of the column "paper" here.

use serde::Serialize;

/// What the paper says about a row, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Said {
    /// In our words, with the numbers of the paper and no others.
    #[serde(rename = "paper")]
    pub text: String,
    /// The sections, tables or figures that the text and its numbers come from, with semicolons between them; empty if the paper says nothing.
    pub section: &'static str,
}

/// What the paper says in `section`.
pub(super) fn said(section: &'static str, text: impl Into<String>) -> Said {
    Said { text: text.into(), section }
}

/// The paper does not treat the question of the row; `text` says so, and has no numbers.
pub(super) fn silent(text: &'static str) -> Said {
    Said { text: text.to_owned(), section: "" }
}

/// Sentences of one paper: where they stand, and the words.
pub(super) type Quotes = &'static [(&'static str, &'static str)];

/// The sentences of the paper that `experiment` makes again; none for experiments of our own.
pub(super) fn of(experiment: &str) -> Quotes {
    match experiment.split('-').next().unwrap_or_default() {
        "fujii" => FUJII,
        "patil" => PATIL,
        "cho" => CHO,
        "gpusync" => ELLIOTT,
        "np" | "verner" | "join" => VERNER,
        _ => &[],
    }
}

/// Fujii, Azumi, Nishio, Kato, Edahiro: "Data Transfer Matters for GPU Computing", 2013.
const FUJII: Quotes = &[
    ("III-A", "Once a DMA transfer starts, it is non-preemptive."),
    ("III-B", "the size of each data transfer is limited by 256 bytes"),
    ("III-D", "the size of this range is 4MB"),
    ("IV", "We evaluate the data transfer performances of both real-time and normal tasks."),
    ("IV-A", "the performance of standard DMA exhibits a 10x difference between the two directions of communications"),
    ("IV-A", "for small data from 16B to 8MB, IORW is preferred, while DMA outperforms IORW larger data than 8MB"),
    ("IV-A", "The other methods are almost always inferior to either of DMA or IORW."),
    ("IV-A", "It is faster than DMA only until 512B."),
    ("IV-A", "there is some degradation in the performance of DMA for the host-to-device direction"),
    (
        "IV-B",
        "the data transfer times increase by orders of magnitude as compared to those achieved by a real-time task",
    ),
    ("IV-B", "the impact of memory pressure on the data transfer performance is negligible"),
    ("IV-C", "the best performance is obtained when both the two tasks use IORW"),
    ("IV-C", "using the microcontroller(s) provides the best performance until 2MB"),
    ("IV-C", "From 16B to 16KB, a combination of the microcontroller and IOIW is the fastest"),
    ("IV-C", "that of the microcontroller and DMA is the fastest from 16KB to 2MB"),
    ("V", "method is fully preemptive and the microcontroller-based method is partly preemptive"),
    ("VI", "the hardware-based DMA and the I/O read and write methods are the most effective"),
];

/// Patil, Kulkarni: "Data transfer optimization in CPU/GPGPU Communication", 2021.
const PATIL: Quotes = &[
    ("3.3", "the pinned data transfer rate is higher than the pageable data transfer rate"),
    (
        "3.4",
        "there is significant optimization in the time results when the overlap of the data transfers and kernel execution",
    ),
    ("Figure II", "Transfer size (MB): 32"),
    ("Figure II", "Host to Device bandwidth (GB/s): 3.493577"),
    ("Figure II", "Device to Host bandwidth (GB/s): 3.417327"),
    ("Figure II", "Host to Device bandwidth (GB/s): 11.989344"),
    ("Figure II", "Device to Host bandwidth (GB/s): 12.901422"),
    ("Table I", "64MB 3.58 3.37 12.15 12.91"),
    ("Table I", "128MB 3.51 3.14 12.20 9.94"),
    ("Table I", "256MB 2.20 1.86 12.28 10.03"),
    ("Table I", "512MB 1.57 2.23 12.33 10.21"),
    ("Table I", "1024MB 3.58 1.64 12.34 13.11"),
    ("Figure III", "Time for sequential transfer and execute (ms): 3.026560"),
    ("Figure III", "Time for asynchronous data transfer and kernel execution (ms): 1.971584"),
    ("Table II", "64MB 12.96 10.20"),
    ("Table II", "128MB 26.05 20.38"),
    ("Table II", "256MB 52.19 40.72"),
    ("Table II", "512MB 91.72 60.43"),
    ("Table II", "1024MB 208.40 163.23"),
    (
        "4",
        "The average latency gets reduced to 35% with the pinned memory mechanism as compared to the pageable memory mechanism.",
    ),
    ("4", "Many smaller transfers can be batched into one large transfer can help to get better results"),
];

/// Cho, Hong: "Multithreaded Double Queuing for GPGPU", 2018. Its results are in Korean; the pages have no section numbers.
const CHO: Quotes = &[
    ("Results, BFS", "노드 수가 128K와 1M을 기준으로 급격하게 성능향상을 보여주고 있는데"),
    ("Results, BFS", "데이터 크기가 일정 이상이면 대략 270%의 성능 향상을 보여준다."),
    ("Results, Pathfinder", "그 반대의 경우에는 2GB 이후에 성능 향상을 보여주고 있는데"),
    ("Results, Pathfinder", "를 초과하자 성능 향상이 발견되고 있다"),
    ("Results, Pathfinder", "BFS의 경우와 마찬가지로 Host to Device에서는 1MB"),
    ("Results, Pathfinder", "결과 값의 데이터 크기가 1MB을 초과하기 때문이다. 성능향상은 270% 정도로 BFS와 거의 같다."),
    ("Results, ratio", "일정 크기를 초과하면 비율이 50%이상 감소하는 것을 볼 수 있다"),
    ("Multithreaded Double Queuing", "The number of buffers is set twice the number of producers."),
];

/// Verner, Mendelson, Schuster: "Scheduling Periodic Real-Time Communication in Multi-GPU Systems", 2014.
const VERNER: Quotes = &[
    (
        "II-A",
        "when transferring data from the CPU to two GPUs that use different PCIe buses, the bottleneck is in the processor interconnect",
    ),
    (
        "II-A",
        "Figure II.1 shows the bandwidth distribution in this system during the transfer of two data blocks: 128 MB CPU→GPU0 and 64MB CPU0→GPU2.",
    ),
    ("II-A", "Note that the aggregate bandwidth decreases when the shorter transfer completes."),
    ("Table I", "Processor interconnect QPI 9.6"),
    ("Table I", "PCI Express bus PCIe 2.0 8"),
    ("Table I", "Memory bus DDR3 32"),
    ("II-B", "The test checks the utilization condition $\\sum_i u_i \\leq 1$, among others."),
    (
        "II-C",
        "The method also includes an accurate execution-time prediction algorithm that is based on a detailed model of the system interconnect.",
    ),
    ("III-B", "follow the offline scheduling scheme, meaning that the characterization of the data streams is"),
    ("IV", "Each such operation has a scheduling window of a pipeline cycle, in which it must execute."),
    ("IV-B", "(10\\text{MB}, \\text{CPU0}, \\text{GPU1}, 15\\text{ms}, 0)"),
    ("IV-B", "(15\\text{MB}, \\text{CPU0}, \\text{GPU2}, 20\\text{ms}, 0)"),
    (
        "IV-C",
        "Our algorithm uses a greedy approach, where the optimization parameter is the *sum-utilization* of the message set",
    ),
    (
        "IV-D",
        "if we transfer one quarter of m_1 's 80MB block in each of these periods, the data will be transferred before the deadline",
    ),
    ("IV-D", "Note that message m' reserves time for a 20MB transfer of m_1 's data every 10ms"),
    (
        "V-A",
        "Each camera produces images of size 200x1000 pixels with 16-bit encoding at a data rate of 360 MB/s (an image every 1.11 ms).",
    ),
    ("V-A", "the system processed the images one generation at a time"),
    (
        "V-A",
        "the throughput of each compute node was increased by 67%, with a processing capability of up to 15 cameras",
    ),
    (
        "V-B",
        "any schedule that the framework verified to be valid can be executed on the system without deadline misses",
    ),
    ("V-B", "the CPU has a maximum throughput of 250 MB/sec, and each GPU has a maximum throughput of 7500MB/sec"),
    ("V-B", "In System 1, the framework was able to process 74% more streams on"),
    ("V-B", "average, and in System 2 the speedup was 31 %."),
    (
        "V-B",
        "overlapping transfers in *opposite* directions for different GPUs gives the highest bandwidth. Overlapping all four transfers was not possible",
    ),
    ("Figure V.2", "9. exp STD=1.0 truncate at 5"),
    ("Figure V.2", "11. exp STD=0.2 truncate at 1"),
];

/// Elliott, Ward, Anderson: "GPUSync: A Framework for Real-Time GPU Management", 2013.
const ELLIOTT: Quotes = &[
    ("5", "Each meaningful combination of parameters resulted in a test scenario"),
    ("5", "A large number of different scenarios were tested."),
    ("5", "chunk sizes of 2MB, 4MB, and with chunking disabled"),
    ("5", "Any scenario with an average left of the vertical line at 100% on the *x*-axis is said to be SRT schedule."),
    (
        "5, Observation 1",
        "The use of affinity heuristics, engine locks, direct GPU-to-GPU migrations, and chunking improved average response times by three times or more.",
    ),
    (
        "5, Observation 1",
        "The scenario AEdG,2MB gave the best average response time of 76.11%. In contrast, aedg,XMB, which is roughly equivalent to our prior approaches, had an average response time of 232.15%.",
    ),
    ("5, Observation 2", "A scenario was schedulable iff engine locks were used."),
    (
        "5, Observation 2",
        "The worst performing schedulable scenario was aEdG,XMB with an average response time of 88.09%. The next best scenario was AedG,4MB with an average response time of 163.94%.",
    ),
    (
        "5, Observation 3",
        "The best performing throughput-oriented scenario, TG,2MB, had an average response time of 73.98% in comparison to 76.11% for AEdG,2MB—a difference of about 2%.",
    ),
    ("5, Observation 4", "Affinity heuristics usually improved response times, usually between 1 and 10%."),
    ("5, Observation 4", "affinity heuristics failed to improve performance in a few cases"),
    (
        "5, Observation 4",
        "The average response time for scenario AEdG,2MB was 76.11%, but was only 81.40% with affinity heuristics disabled (aEdG,2MB)",
    ),
    ("5, Observation 5", "Chunking usually improved performance."),
    (
        "5, Observation 5",
        "The average response times for scenarios AEdG,2MB, AEdG,4MB, and AEdG,XMB were 76.11%, 78.24%, and 80.84%, respectively",
    ),
    (
        "5, Observation 6",
        "Under AEDG,2MB, the average response time was 78.08% in comparison to 76.11% for AEdG,2MB—a difference of about 2%. Similar trends can be observed between other scenario pairs.",
    ),
];

/// The numbers in a text, each as it is written. Digits behind a letter, as in `C4`, are names.
#[cfg(test)]
pub(super) fn numbers(text: &str) -> std::collections::BTreeSet<String> {
    let letters: Vec<char> = text.chars().collect();
    let mut found = std::collections::BTreeSet::new();
    let mut at = 0;
    while at < letters.len() {
        if !letters[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let is_name = at > 0 && letters[at - 1].is_ascii_alphabetic() && letters[at - 1] != 'x';
        let from = at;
        let more = |at: usize| letters.get(at).is_some_and(char::is_ascii_digit);
        while more(at) || (letters.get(at) == Some(&'.') && more(at + 1)) {
            at += 1;
        }
        if !is_name {
            found.insert(letters[from..at].iter().collect());
        }
    }
    found
}

/// Numbers of `said` that no sentence of its sections has.
#[cfg(test)]
pub(super) fn invented(experiment: &str, said: &Said) -> Vec<String> {
    let sections: Vec<&str> = said.section.split("; ").collect();
    let quoted: std::collections::BTreeSet<String> =
        of(experiment).iter().filter(|(at, _)| sections.contains(at)).flat_map(|(_, text)| numbers(text)).collect();
    numbers(&said.text).difference(&quoted).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_the_section_does_not_have_is_found() {
        let invented = |section, text: &str| invented("verner-aes", &said(section, text));
        assert_eq!(invented("V-B", "+74 % in system 1, +31 % in system 2"), [""; 0]);
        assert_eq!(invented("V-A", "+74 %"), ["74"]);
        assert_eq!(invented("", "about 2 times"), ["2"]);
        assert_eq!(invented("V-A; V-B", "67 % and 31 %, C4"), [""; 0]);
    }

    #[test]
    fn numbers_are_read_with_their_fractions() {
        assert_eq!(
            numbers("200x1000 at 1.11 ms, m_1. C4").into_iter().collect::<Vec<_>>(),
            ["1", "1.11", "1000", "200"]
        );
    }
}
