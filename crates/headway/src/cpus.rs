//! What plans assume of the CPUs, and how to get more of them.

use headway_core::models::cpu::{RequestedClass, SchedulingClass};
use headway_core::plan::{DriverDemand, Plan};
use headway_core::units::{Nanos, percent};
use headway_os::sched::{self, Missing, Role, SchedError};
use serde::Serialize;

/// What the answer of a plan assumes of the CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// How late the driver may be: how long after its time a window may open, and how long after its end an operation may be
    /// noticed, together.
    pub late_max: Nanos,
    /// The assumption as a sentence.
    pub text: String,
}

/// What `plan` assumes of the CPUs.
#[must_use]
pub fn assumption(plan: &Plan) -> Assumption {
    let late_max = plan.jitter;
    let allowance = match late_max {
        Nanos::ZERO => "is never late".to_owned(),
        late_max => format!("opens windows and notices ends at most {late_max} late, together"),
    };
    let demand = match plan.driver {
        Some(DriverDemand { calls_per_second, busy_ppm, at_once }) => format!(
            "its {calls_per_second} calls a second that submit take {} of one CPU, and at most {at_once} at one instant; other CPU time is \
             not part of the model",
            percent(busy_ppm)
        ),
        None => "CPU time is not part of the model".to_owned(),
    };
    let text = format!(
        "the thread that drives the GPUs {allowance}, and blocks are packed before their windows open; {demand}, and what makes a thread run in time is its scheduling class (`headway doctor` names it); no other program \
         copies over the engines of the plan, and a run on GPUs names who does"
    );
    Assumption { late_max, text }
}

/// The class that the driver of a run gets here, and how it gets a stronger one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Driver {
    pub(crate) class: SchedulingClass,
    /// What the class is, and what must be true so that it suffices.
    pub(crate) found: String,
    /// How to get the stronger ones; `None` for the strongest.
    pub(crate) remedy: Option<String>,
}

/// Tries the classes for the driver of a run.
pub(crate) fn driver() -> Driver {
    let sched::Taken { class, refused } = sched::strongest(RequestedClass::Auto, Role::Driver);
    let found = format!("{class}; deadlines hold as long as {}", class.assumption());
    let remedies: Vec<String> = refused.iter().map(|error| format!("{}: {}", error.wanted, remedy(error))).collect();
    Driver {
        class,
        found,
        remedy: (!remedies.is_empty()).then(|| remedies.join("; for ")).map(|remedies| format!("for {remedies}")),
    }
}

/// How to get the class that was refused with `error`.
pub(crate) fn remedy(error: &SchedError) -> String {
    match error.lack {
        Missing::Permission => permission(error.wanted),
        Missing::Affinity => "let the program use all CPUs (no `taskset`, no `--cpuset-cpus`), or give it a cpuset partition of \
                              its own (`cpuset.cpus.partition`)"
            .to_owned(),
        Missing::Bandwidth => {
            "end other programs with reservations (`ps -eLo class,pid,comm` shows DLN), or raise \
             /proc/sys/kernel/sched_rt_runtime_us"
                .to_owned()
        }
        Missing::Group => {
            "give the cgroup real-time bandwidth (cpu.rt_runtime_us), or run outside it; in a container, `--cap-add SYS_NICE`"
                .to_owned()
        }
        Missing::Support => "use a kernel that has it".to_owned(),
        Missing::Other => "see the reason above".to_owned(),
    }
}

/// How a user gets the permission for the class `wanted`.
fn permission(wanted: &str) -> String {
    let program = std::env::current_exe().map_or_else(|_| "headway".to_owned(), |path| path.display().to_string());
    let capability = format!(
        "start it by `sudo setpriv --reuid $(id -u) --regid $(id -g) --init-groups --inh-caps +sys_nice --ambient-caps +sys_nice {program}`, \
         `AmbientCapabilities=CAP_SYS_NICE` in a systemd unit, or `--cap-add SYS_NICE` for a container"
    );
    match wanted {
        "SCHED_DEADLINE" => capability,
        "SCHED_FIFO" => "the same, or `LimitRTPRIO=10` in a systemd unit, or `USER - rtprio 10` in /etc/security/limits.conf \
                         and a new login"
            .to_owned(),
        _ => "the same, or `LimitNICE=-20` in a systemd unit, or `USER - nice -20` in /etc/security/limits.conf and a new \
              login"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_core::files::machine;
    use headway_core::plan::planner::{self, PlanOptions};
    use headway_kernels::workload;

    #[test]
    fn a_plan_names_how_late_the_driver_may_be_on_its_machine() {
        let text = include_str!("../../../workloads/encrypt.toml");
        let workload = workload::parse("encrypt.toml", text).unwrap().value;
        let of = |name: &str| {
            let machine = machine::shipped(name).unwrap();
            assumption(&planner::plan(&machine, &workload, PlanOptions::default()).unwrap())
        };
        let h200 = of("h200-x1");
        assert_eq!(h200.late_max, Nanos(100_000));
        assert!(h200.text.contains("at most 100 us late"), "{}", h200.text);
    }

    #[test]
    fn the_driver_gets_the_strongest_class_or_a_remedy_for_each_that_is_refused() {
        let driver = driver();
        assert!(driver.found.starts_with(&driver.class.to_string()) && driver.found.contains("hold as long as"));
        assert_eq!(driver.remedy.is_none(), matches!(driver.class, SchedulingClass::Deadline { .. }), "{driver:?}");
        for wanted in ["SCHED_DEADLINE", "SCHED_FIFO", "a nice value below 0"] {
            assert!(permission(wanted).contains(if wanted == "SCHED_DEADLINE" { "setpriv" } else { "limits.conf" }));
        }
    }
}
