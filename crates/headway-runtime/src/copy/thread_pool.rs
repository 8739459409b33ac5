//! Threads that gather and scatter pieces for requests of many of them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use headway_os::fork::Home;
use headway_os::threads;

/// Something to do once, on any of the threads.
pub(super) type PoolTask = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<PoolTask>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    news: Condvar,
}

/// A few threads that live as long as this value. A job that panics ends alone.
pub(super) struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    home: Home,
}

impl ThreadPool {
    /// Starts up to `threads` threads; fewer when the system gives no more.
    pub(super) fn start(threads: usize) -> Self {
        let shared = Arc::<Shared>::default();
        let start = |at: usize| {
            let shared = Arc::clone(&shared);
            threads::spawn(&format!("headway-gather-{at}"), move || serve(&shared)).ok()
        };
        let threads = (0..threads).map_while(start).collect();
        Self { shared, threads, home: Home::here() }
    }

    /// Threads that run.
    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Queues `job`.
    pub(super) fn submit(&self, job: PoolTask) {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).jobs.push_back(job);
        self.shared.news.notify_one();
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // The threads, and whoever held the lock, stayed in the parent.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.shared.news.notify_all();
        for thread in self.threads.drain(..) {
            // It contains the panics of its jobs, the only ones there can be.
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared) {
    loop {
        let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let job = loop {
            match queue.jobs.pop_front() {
                Some(job) => break job,
                None if queue.closed => return,
                None => queue = shared.news.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(queue);
        // The panic hook has reported it; the request that waits is told by what the job dropped.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn jobs_go_on_after_one_that_panics() {
        let thread_pool = ThreadPool::start(2);
        assert_eq!(thread_pool.threads(), 2);
        let (sent, taken) = channel();
        for number in 0..100 {
            let sent = sent.clone();
            thread_pool.submit(Box::new(move || {
                assert!(number % 10 != 3, "a job that fails");
                sent.send(number).unwrap();
            }));
        }
        drop(sent);
        let mut numbers: Vec<i32> = taken.iter().collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100).filter(|number| number % 10 != 3).collect::<Vec<_>>());
    }
}
