//! A lock whose holder inherits the scheduling priority of whoever waits for it (`PTHREAD_PRIO_INHERIT`): a thread of a real-time class
//! that waits for an ordinary one waits no longer than that one needs to give the lock back.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// A mutual exclusion lock with priority inheritance. It is not poisoned by a panic.
pub struct InheritingMutex<T> {
    /// In a place of its own, since it must not move.
    lock: Box<UnsafeCell<libc::pthread_mutex_t>>,
    data: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the lock reaches the data.
unsafe impl<T: Send> Send for InheritingMutex<T> {}
// SAFETY: threads that share a reference reach the data one at a time, each while it holds the lock.
unsafe impl<T: Send> Sync for InheritingMutex<T> {}

impl<T> InheritingMutex<T> {
    /// Where the C library knows no such locks the lock is an ordinary one.
    pub fn new(data: T) -> Self {
        let lock = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the attributes are initialised before they are used and destroyed once; nobody has the lock yet. A lock that is not
        // initialised anew stays the ordinary one that it is.
        unsafe {
            if libc::pthread_mutexattr_init(attributes.as_mut_ptr()) == 0 {
                if libc::pthread_mutexattr_setprotocol(attributes.as_mut_ptr(), libc::PTHREAD_PRIO_INHERIT) == 0 {
                    libc::pthread_mutex_init(lock.get(), attributes.as_ptr());
                }
                libc::pthread_mutexattr_destroy(attributes.as_mut_ptr());
            }
        }
        Self { lock, data: UnsafeCell::new(data) }
    }

    /// The right to the data, if nobody has it.
    pub fn try_lock(&self) -> Option<InheritingGuard<'_, T>> {
        // SAFETY: the lock is initialised.
        let is_locked = unsafe { libc::pthread_mutex_trylock(self.lock.get()) } == 0;
        is_locked.then(|| InheritingGuard { mutex: self, stays: PhantomData })
    }

    /// Waits for the right to the data.
    ///
    /// # Panics
    /// If the system refuses to lock, as where the calling thread has the lock already.
    pub fn lock(&self) -> InheritingGuard<'_, T> {
        // SAFETY: the lock is initialised.
        let refused = unsafe { libc::pthread_mutex_lock(self.lock.get()) };
        assert!(refused == 0, "a lock is refused with errno {refused}");
        InheritingGuard { mutex: self, stays: PhantomData }
    }
}

impl<T> Drop for InheritingMutex<T> {
    fn drop(&mut self) {
        // SAFETY: nobody has or awaits the lock, or there would be a reference.
        unsafe { libc::pthread_mutex_destroy(self.lock.get()) };
    }
}

impl<T: Default> Default for InheritingMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// The right to what an [`InheritingMutex`] guards. It stays on its thread.
pub struct InheritingGuard<'a, T> {
    mutex: &'a InheritingMutex<T>,
    stays: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives shared references only.
unsafe impl<T: Sync> Sync for InheritingGuard<'_, T> {}

impl<T> Deref for InheritingGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread has the lock.
        unsafe { &*self.mutex.data.get() }
    }
}

impl<T> DerefMut for InheritingGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread has the lock.
        unsafe { &mut *self.mutex.data.get() }
    }
}

impl<T> Drop for InheritingGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: this thread has the lock.
        unsafe { libc::pthread_mutex_unlock(self.mutex.lock.get()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_data() {
        const ROUNDS: u32 = 20_000;
        let count = InheritingMutex::new([0_u32; 2]);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let mut both = if round % 2 == 0 { Some(count.lock()) } else { count.try_lock() };
                        let Some(both) = both.as_deref_mut() else { continue };
                        assert_eq!(both[0], both[1]);
                        both[0] += 1;
                        both[1] += 1;
                    }
                });
            }
        });
        assert!(count.lock()[0] >= 4 * ROUNDS / 2);
    }

    #[test]
    fn who_waits_gets_the_lock_when_it_is_given_back_and_a_panic_gives_it_back() {
        let mutex = InheritingMutex::new(1);
        let waits = AtomicBool::new(false);
        thread::scope(|scope| {
            let held = mutex.lock();
            assert!(mutex.try_lock().is_none());
            let other = scope.spawn(|| {
                waits.store(true, Ordering::SeqCst);
                *mutex.lock() += 1;
                panic!("as planned");
            });
            while !waits.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            assert_eq!(*held, 1);
            drop(held);
            assert!(other.join().is_err());
        });
        assert_eq!(*mutex.lock(), 2);
    }
}
