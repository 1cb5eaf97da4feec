//! The wall against panics: none may leave this library, whose callers know nothing of them.

use crate::failure::Failure;
use crate::queue::Queue;
use rustix::io::Errno;
use std::any::Any;
use std::ffi::c_int;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// What a function for C does: its result, or the number of what went wrong.
#[inline(always)]
pub fn run(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // What a panic leaves behind in a device is behind the device's own locks.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => failure.report(),
        Err(panic) => panicked(panic).report(),
    }
}

/// As [`run`], with a queue, which is out of use after a panic.
#[inline(always)]
pub fn with<I, R>(
    queue: Option<&mut Queue<I, R>>,
    body: impl FnOnce(&mut Queue<I, R>) -> Result<c_int, Failure>,
) -> c_int {
    let Some(queue) = queue else { return Failure::null("the queue").report() };
    match catch_unwind(AssertUnwindSafe(|| body(queue))) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => failure.report(),
        Err(panic) => {
            queue.give_up();
            panicked(panic).report()
        }
    }
}

#[cold]
fn panicked(panic: Box<dyn Any + Send>) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("no text");
    Failure::new(Errno::NOTRECOVERABLE, format!("a fault in libmillrace, please report it: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure;

    #[test]
    fn a_panic_becomes_a_number_and_a_text() {
        extern "C" fn falls_over(number: c_int) -> c_int {
            run(|| panic!("number {number}"))
        }
        assert_eq!(falls_over(7), -Errno::NOTRECOVERABLE.raw_os_error());
        assert_eq!(failure::last_text(), "a fault in libmillrace, please report it: number 7");
    }
}
