//! Where threads have their control blocks, and what is around them. May use `unsafe`.

use core::ffi::{c_int, c_void};

/// What has to stay as it is on behalf of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// An address in the control block.
    pub(super) at: u64,
    /// How far below it its thread-local variables and its stack may reach. A guard page ends that sooner.
    pub(super) below: u64,
}

/// What a control block has behind the head of its list (in glibc 1,568 bytes).
pub(super) const ABOVE: u64 = 1600;
/// What glibc has below the block for libraries that come later, generously.
const SURPLUS: u64 = 4096;
/// Stacks of threads where no limit says more.
const STACK: u64 = 8 << 20;

/// The control blocks of all threads. glibc tells the kernel of each thread where it keeps the list of its robust
/// mutexes: in the control block. Threads that have none (of the kernel, as those of io_uring are) have no block either.
pub(super) fn blocks() -> std::io::Result<Vec<Block>> {
    let first = rustix::process::getpid().as_raw_nonzero().get();
    let (variables, stack) = (static_variables() + SURPLUS, stack_limit());
    let mut blocks = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let name = entry?.file_name();
        let Some(thread) = name.to_str().and_then(|name| name.parse::<c_int>().ok()) else { continue };
        let Some(at) = robust_list(thread) else { continue };
        // The first thread's block was made by the loader, with no stack below, and often with other memory right there.
        let below = if thread == first { variables } else { variables + stack };
        blocks.push(Block { at, below });
    }
    Ok(blocks)
}

fn stack_limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack);
    limit.current.unwrap_or(STACK).max(STACK)
}

/// `None` when the thread has ended, or has no such list.
fn robust_list(thread: c_int) -> Option<u64> {
    let (mut head, mut len) = (core::ptr::null_mut::<c_void>(), 0_usize);
    // SAFETY: the system stores one pointer and one length, where there is room for them.
    let outcome = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut len) };
    (outcome == 0 && !head.is_null()).then(|| head.addr() as u64)
}

/// Bytes of thread-local variables of all that is loaded.
fn static_variables() -> u64 {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, sum: *mut c_void) -> c_int {
        // SAFETY: the loader gives a valid description, whose headers are as many as it says; `sum` is ours.
        unsafe {
            let headers = (0..(*info).dlpi_phnum).map(|number| &*(*info).dlpi_phdr.add(number.into()));
            let bytes = headers.filter(|header| header.p_type == libc::PT_TLS);
            *sum.cast::<u64>() += bytes.map(|header| header.p_memsz + header.p_align).sum::<u64>();
        }
        0
    }
    let mut sum = 0_u64;
    // SAFETY: the callback stores to `sum` only, and only during the call.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut sum).cast()) };
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_is_found_and_its_block_is_above_its_variables() {
        thread_local!(static HERE: u64 = const { 7 });
        let before = blocks().unwrap().len();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (go, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                let stack = 0_u8;
                let stack = core::ptr::from_ref(&stack).addr() as u64;
                let local = HERE.with(|here| core::ptr::from_ref(here).addr() as u64);
                tell.send((stack, local)).unwrap();
                let _ = wait.recv();
            });
            let (stack, local) = told.recv().unwrap();
            let all = blocks().unwrap();
            assert!(all.len() > before.min(1), "{all:?}");
            let holds = |address: u64| all.iter().any(|block| block.at > address && block.at - block.below <= address);
            assert!(holds(stack) && holds(local), "{stack:#x} {local:#x} {all:x?}");
            drop(go);
        });
    }
}
