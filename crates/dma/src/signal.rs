//! Handlers of signals that the processor raises, each with whoever handled the signal before behind it. May use `unsafe`.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// What handled a signal before we did.
pub(crate) struct Before(AtomicPtr<libc::sigaction>);

/// What a handler gets: the signal, what the system says about it, and the registers of the thread.
pub(crate) type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

impl Before {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Puts `handler` in front of whatever handles `signal` now. Says whether that could be done.
    pub(crate) fn install(&self, signal: c_int, handler: Handler) -> bool {
        let Some(before) = action(signal) else { return false };
        // Release pairs with the Acquire in `call`.
        self.0.store(Box::leak(Box::new(before)), Ordering::Release);
        // SAFETY: all zero is a valid sigaction (the default action, nothing blocked).
        let mut ours: libc::sigaction = unsafe { core::mem::zeroed() };
        ours.sa_sigaction = handler as *const () as usize;
        // On the alternative stack where there is one: the handler before may need it (a stack that overflows).
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `ours` is valid; what its function may do in a signal handler is its owner's matter.
        unsafe { libc::sigaction(signal, &ours, core::ptr::null_mut()) == 0 }
    }

    /// Lets whoever handled the signal before do so.
    pub(crate) fn call(&self, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: null, or what `install` has leaked; Acquire pairs with its Release.
        let before = unsafe { self.0.load(Ordering::Acquire).as_ref() };
        match before {
            Some(before) if before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != libc::SIG_IGN => {
                let function = before.sa_sigaction as *const ();
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    // SAFETY: a handler that was installed with SA_SIGINFO has this type.
                    let function: Handler = unsafe { core::mem::transmute(function) };
                    function(signal, info, context);
                } else {
                    // SAFETY: a handler that was installed without SA_SIGINFO has this type.
                    let function: extern "C" fn(c_int) = unsafe { core::mem::transmute(function) };
                    function(signal);
                }
            }
            _ => {
                // SAFETY: the default action, and the signal once more, which is delivered when this handler returns;
                // both calls may be made in a signal handler.
                unsafe {
                    libc::signal(signal, libc::SIG_DFL);
                    libc::raise(signal);
                }
            }
        }
    }
}

/// What handles a signal now.
fn action(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: all zero is a valid sigaction.
    let mut now: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: only asks; `now` is valid for writing.
    (unsafe { libc::sigaction(signal, core::ptr::null(), &mut now) } == 0).then_some(now)
}

/// Whether `handler` is what handles a signal now.
pub(crate) fn is_handled_by(signal: c_int, handler: Handler) -> bool {
    action(signal).is_some_and(|now| now.sa_sigaction == handler as *const () as usize)
}
