//! Which tasks still fit when a GPU is lost.

use super::{JobSegment, TaskId, TaskParameters};
use crate::units::Nanos;

/// Tasks for which there is no room on `gpus` GPUs with `tokens` tokens together, if those with smaller numbers come first.
///
/// Necessary conditions only, on what the tasks declare: kernels need no more execution engines than there are, jobs with
/// their CPU time and kernels no more tokens, and none more than its period. A task that is not listed may still be late.
pub(super) fn without_room<'t>(tasks: impl Iterator<Item = &'t TaskParameters>, gpus: u32, tokens: u32) -> Vec<TaskId> {
    // Shares of a GPU and of a token, in units of 2^-40, rounded down: the test must not be pessimistic.
    let share = |time: Nanos, period: Nanos| (u128::from(time.0) << 40) / u128::from(period.0.max(1));
    let (most_gpus, most_tokens) = (u128::from(gpus) << 40, u128::from(tokens) << 40);
    let (mut used_gpus, mut used_tokens) = (0u128, 0u128);
    let mut out = Vec::new();
    for task in tasks {
        let (mut execute, mut hold) = (Nanos::ZERO, Nanos::ZERO);
        for segment in &task.segments {
            match segment {
                JobSegment::Execute { time, .. } => {
                    execute = execute.saturating_add(*time);
                    hold = hold.saturating_add(*time);
                }
                JobSegment::Cpu(time) => hold = hold.saturating_add(*time),
                JobSegment::Copy { .. } => {}
            }
        }
        let (gpu, token) = (share(execute, task.period), share(hold, task.period));
        let fits = used_gpus + gpu <= most_gpus && used_tokens + token <= most_tokens && token <= 1 << 40;
        if fits && gpus > 0 {
            (used_gpus, used_tokens) = (used_gpus + gpu, used_tokens + token);
        } else {
            out.push(task.id);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::sharing::{ClientId, ClusterId};
    use crate::units::Bytes;

    fn task(id: u32, cpu: u64, execute: u64) -> TaskParameters {
        let execute = JobSegment::Execute { kernel: String::new(), time: Nanos(execute) };
        TaskParameters {
            id: TaskId(id),
            client: ClientId(0),
            cluster: ClusterId(0),
            period: Nanos(100),
            deadline: Nanos(100),
            state: Bytes(0),
            segments: vec![JobSegment::Cpu(Nanos(cpu)), execute],
        }
    }

    #[test]
    fn who_came_first_keeps_its_room_and_smaller_ones_fill_what_is_left() {
        let tasks = [task(1, 0, 60), task(2, 0, 60), task(3, 0, 40), task(4, 1, 0)];
        let out = |gpus, tokens| without_room(tasks.iter(), gpus, tokens).iter().map(|task| task.0).collect::<Vec<_>>();
        assert_eq!(out(2, 4), [0u32; 0]);
        assert_eq!(out(1, 2), [2]);
        assert_eq!(out(1, 1), [2, 4], "tokens are used up by kernels too");
        assert_eq!(out(0, 0), [1, 2, 3, 4]);
    }

    #[test]
    fn a_job_longer_than_its_period_has_no_room_anywhere() {
        assert_eq!(without_room([task(7, 60, 41)].iter(), 8, 8), [TaskId(7)]);
        assert_eq!(without_room([task(7, 60, 40)].iter(), 8, 8), []);
    }
}
