//! The rules by example.

use super::*;

fn allocator(mode: TokenMode, cpus: u32, gpus: u32, per_gpu: u32, affinity: bool) -> TokenAllocator {
    let parameters = TokenParameters { cpus, per_gpu, mode, affinity };
    let ids: Vec<GpuId> = (0..gpus).map(|gpu| GpuId(10 + gpu)).collect();
    TokenAllocator::new(parameters, ids, Distances::switched(gpus as usize, 2), 100).unwrap()
}

fn job(task: u32) -> JobId {
    JobId { task: TaskId(task), job: 0 }
}

/// Task `task` asks; the deadline is its number unless given.
fn ask(tokens: &mut TokenAllocator, task: u32, deadline: u64, estimates: &[u64]) {
    let mut request = request(key(deadline, task as usize), estimates.len() as u32);
    request.estimates = estimates.iter().map(|estimate| Nanos(*estimate)).collect();
    tokens.handle_request(tokens.now, request).unwrap();
    tokens.check().unwrap();
}

fn release(tokens: &mut TokenAllocator, task: u32) {
    tokens.handle_release(tokens.now, job(task)).unwrap();
    tokens.check().unwrap();
}

/// The grants since the last call: task and GPU.
fn grants(tokens: &mut TokenAllocator) -> Vec<(u32, u32)> {
    let actions = std::iter::from_fn(|| tokens.poll_action());
    let grant = |action| match action {
        TokenAction::Grant { job, gpu, .. } => Some((job.task.0, gpu.0)),
        _ => None,
    };
    actions.filter_map(grant).collect()
}

fn standing(tokens: &TokenAllocator, task: u32) -> RequestStanding {
    tokens.standing(TaskId(task)).unwrap()
}

#[test]
fn an_urgent_newcomer_donates_to_the_request_it_pushed_out_and_enters_when_that_ends() {
    let mut tokens = allocator(TokenMode::Optimal, 2, 1, 1, false);
    ask(&mut tokens, 5, 50, &[1]);
    ask(&mut tokens, 4, 40, &[1]);
    assert_eq!(grants(&mut tokens), [(5, 10)]);
    ask(&mut tokens, 3, 30, &[1]);
    assert_eq!(standing(&tokens, 3), RequestStanding::Donor { donee: TaskId(5) });
    assert_eq!(tokens.effective_key(TaskId(5)).unwrap().deadline, Nanos(30));
    release(&mut tokens, 5);
    assert_eq!(grants(&mut tokens), [(4, 10)]);
    assert_eq!(standing(&tokens, 3), RequestStanding::Waiting { token: TokenId(0), ahead: 1 });
    assert_eq!(tokens.effective_key(TaskId(4)).unwrap().deadline, Nanos(30), "the holder inherits from its waiters");
}

#[test]
fn a_more_urgent_newcomer_takes_the_donee_of_the_donor_it_pushed_out() {
    let mut tokens = allocator(TokenMode::Optimal, 1, 1, 1, false);
    ask(&mut tokens, 5, 50, &[1]);
    ask(&mut tokens, 4, 40, &[1]);
    ask(&mut tokens, 3, 30, &[1]);
    assert_eq!(standing(&tokens, 3), RequestStanding::Donor { donee: TaskId(5) });
    assert_eq!(standing(&tokens, 4), RequestStanding::Deferred);
    let events: Vec<TokenEvent> = std::iter::from_fn(|| tokens.poll_event()).collect();
    assert!(events.contains(&TokenEvent::Evicted { job: job(4), by: job(3) }));
    ask(&mut tokens, 6, 60, &[1]);
    assert_eq!(standing(&tokens, 6), RequestStanding::Deferred, "nobody inherits from the queue");
    for (ends, next) in [(5, 3), (3, 4), (4, 6)] {
        grants(&mut tokens);
        release(&mut tokens, ends);
        assert_eq!(grants(&mut tokens), [(next, 10)]);
    }
}

#[test]
fn a_task_waits_for_its_own_gpu_when_that_is_predicted_to_end_sooner() {
    // Figure 4 of the paper: GPU 1 is free sooner, yet migration costs more than the wait.
    let mut tokens = allocator(TokenMode::Relaxed(2), 4, 2, 1, true);
    ask(&mut tokens, 2, 20, &[10, 90]);
    release(&mut tokens, 2);
    ask(&mut tokens, 7, 70, &[30, 99]);
    ask(&mut tokens, 8, 80, &[99, 20]);
    grants(&mut tokens);
    ask(&mut tokens, 2, 20, &[10, 90]);
    assert_eq!(standing(&tokens, 2), RequestStanding::Waiting { token: TokenId(0), ahead: 1 });
    // Were GPU 0 busy for longer, the way to GPU 1 would be worth it.
    let mut tokens = allocator(TokenMode::Relaxed(2), 4, 2, 1, true);
    ask(&mut tokens, 7, 70, &[300, 999]);
    ask(&mut tokens, 2, 20, &[10, 90]);
    assert_eq!(standing(&tokens, 2), RequestStanding::Holder { token: TokenId(1), virtually_released: false });
}

#[test]
fn an_idle_token_takes_the_most_urgent_waiter_or_by_affinity_the_one_that_comes_home() {
    for (affinity, stolen) in [(false, 3), (true, 4)] {
        let mut tokens = allocator(TokenMode::Fifo, 4, 2, 1, affinity);
        tokens.homes.insert(TaskId(4), 1);
        tokens.forced = Some(0);
        [9, 3, 4].into_iter().for_each(|task| ask(&mut tokens, task, u64::from(task), &[1, 1]));
        tokens.forced = Some(1);
        ask(&mut tokens, 8, 8, &[1, 1]);
        grants(&mut tokens);
        release(&mut tokens, 8);
        assert_eq!(grants(&mut tokens), [(stolen, 11)]);
    }
}

#[test]
fn without_affinity_requests_spread_over_gpus_before_they_double_up() {
    let mut tokens = allocator(TokenMode::WorkConserving, 4, 2, 2, false);
    (1..=4).for_each(|task| ask(&mut tokens, task, u64::from(task), &[1, 1]));
    assert_eq!(grants(&mut tokens), [(1, 10), (2, 11), (3, 10), (4, 11)]);
}

#[test]
fn an_optimal_queue_leaves_tokens_unused_and_a_work_conserving_one_does_not() {
    for (mode, used) in [(TokenMode::Optimal, 2), (TokenMode::WorkConserving, 4)] {
        let mut tokens = allocator(mode, 2, 4, 1, false);
        (1..=5).for_each(|task| ask(&mut tokens, task, u64::from(task), &[1; 4]));
        assert_eq!(grants(&mut tokens).len(), used);
    }
}

#[test]
fn a_holder_over_its_budget_keeps_its_token_but_not_its_place() {
    let mut tokens = allocator(TokenMode::Optimal, 2, 2, 1, false);
    [1, 2, 3].into_iter().for_each(|task| ask(&mut tokens, task, u64::from(task), &[1, 1]));
    grants(&mut tokens);
    tokens.handle_exhausted(Nanos(0), job(1), Nanos(99)).unwrap();
    tokens.check().unwrap();
    assert_eq!(standing(&tokens, 1), RequestStanding::Holder { token: TokenId(0), virtually_released: true });
    assert_eq!(standing(&tokens, 3), RequestStanding::Waiting { token: TokenId(0), ahead: 1 });
    assert_eq!(tokens.effective_key(TaskId(1)).unwrap().deadline, Nanos(3), "it runs for who waits behind it");
    release(&mut tokens, 1);
    assert_eq!(grants(&mut tokens), [(3, 10)]);
}

#[test]
fn a_waiter_over_its_budget_queues_anew_with_its_later_deadline() {
    let mut tokens = allocator(TokenMode::Optimal, 2, 1, 1, false);
    [1, 2].into_iter().for_each(|task| ask(&mut tokens, task, u64::from(task), &[1]));
    tokens.handle_exhausted(Nanos(0), job(2), Nanos(90)).unwrap();
    ask(&mut tokens, 3, 30, &[1]);
    assert_eq!(standing(&tokens, 3), RequestStanding::Donor { donee: TaskId(2) });
}

#[test]
fn the_tokens_of_a_dead_client_stay_taken_until_its_work_has_ended() {
    let mut tokens = allocator(TokenMode::Optimal, 2, 1, 1, false);
    [1, 2].into_iter().for_each(|task| ask(&mut tokens, task, u64::from(task), &[1]));
    grants(&mut tokens);
    tokens.handle_client_gone(Nanos(0), ClientId(1));
    assert_eq!(grants(&mut tokens), []);
    tokens.handle_release(Nanos(0), job(1)).unwrap();
    assert_eq!(grants(&mut tokens), [(2, 10)]);
    tokens.handle_client_gone(Nanos(0), ClientId(2));
    assert_eq!(
        tokens.standing(TaskId(2)),
        Some(RequestStanding::Holder { token: TokenId(0), virtually_released: false })
    );
}

#[test]
fn a_lost_gpu_takes_its_tokens_and_those_who_waited_queue_anew_by_priority() {
    let mut tokens = allocator(TokenMode::Optimal, 4, 2, 1, false);
    [1, 2, 4, 3].into_iter().for_each(|task| ask(&mut tokens, task, u64::from(task), &[1, 1]));
    grants(&mut tokens);
    tokens.handle_gpu_lost(Nanos(0), GpuId(10)).unwrap();
    tokens.check().unwrap();
    assert_eq!(tokens.poll_action(), Some(TokenAction::Revoke { job: job(1), gpu: GpuId(10) }));
    assert_eq!(tokens.sizes().length_max, Some(4));
    for (task, ahead) in [(3, 1), (4, 2)] {
        assert_eq!(standing(&tokens, task), RequestStanding::Waiting { token: TokenId(1), ahead });
    }
    assert_eq!(tokens.handle_gpu_lost(Nanos(0), GpuId(10)), Err(TokenRefused::NoGpu { gpu: GpuId(10) }));
    tokens.handle_gpu_lost(Nanos(0), GpuId(11)).unwrap();
    let revoked =
        std::iter::from_fn(|| tokens.poll_action()).filter(|a| matches!(a, TokenAction::Revoke { .. })).count();
    assert_eq!(revoked, 3);
    let refused = tokens.handle_request(Nanos(0), request(key(9, 9), 2));
    assert!(matches!(refused, Err(TokenRefused::NoGpu { .. })));
}

#[test]
fn new_parameters_apply_when_the_holders_have_finished_and_these_run_for_those_who_wait() {
    let mut tokens = allocator(TokenMode::Optimal, 2, 1, 1, false);
    [5, 6].into_iter().for_each(|task| ask(&mut tokens, task, u64::from(task), &[1]));
    let new = TokenParameters { per_gpu: 3, cpus: 3, ..tokens.parameters };
    tokens.handle_reconfigure(Nanos(0), new).unwrap();
    assert_eq!(tokens.handle_reconfigure(Nanos(0), new), Err(TokenRefused::Reconfiguring));
    ask(&mut tokens, 4, 4, &[1]);
    assert_eq!(standing(&tokens, 4), RequestStanding::Stopped);
    assert_eq!(tokens.effective_key(TaskId(5)).unwrap().deadline, Nanos(4));
    grants(&mut tokens);
    release(&mut tokens, 5);
    assert_eq!(grants(&mut tokens), [(4, 10), (6, 10)], "regranted by priority");
}

#[test]
fn refusals_name_the_limit_and_change_nothing() {
    let mut tokens = allocator(TokenMode::Optimal, 2, 1, 1, false);
    tokens.requests_max = 2;
    [1, 2].into_iter().for_each(|task| ask(&mut tokens, task, u64::from(task), &[1]));
    let request = |task| request(key(1, task), 1);
    assert_eq!(tokens.handle_request(Nanos(0), request(1)), Err(TokenRefused::TaskBusy { task: TaskId(1) }));
    assert_eq!(tokens.handle_request(Nanos(0), request(3)), Err(TokenRefused::TooManyRequests { requests_max: 2 }));
    let (later, other) = (JobId { task: TaskId(1), job: 1 }, job(9));
    assert_eq!(tokens.handle_release(Nanos(0), later), Err(TokenRefused::NoRequest { job: later }));
    assert_eq!(tokens.handle_abort(Nanos(0), other), Err(TokenRefused::NoRequest { job: other }));
    assert_eq!(tokens.handle_release(Nanos(0), job(2)), Err(TokenRefused::NotHolder { job: job(2) }));
    let short = TokenParameters { mode: TokenMode::Relaxed(1), ..tokens.parameters };
    assert!(matches!(tokens.handle_reconfigure(Nanos(0), short), Err(TokenRefused::Parameters { .. })));
    release(&mut tokens, 1);
    let two = allocator(TokenMode::Optimal, 2, 2, 1, false).handle_request(Nanos(0), request(1));
    assert_eq!(two, Err(TokenRefused::Estimates { given: 1, gpus: 2 }));
}
