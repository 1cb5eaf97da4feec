//! Why memory is not adopted.

use crate::WatchError;
use rustix::io::Errno;

/// Why nothing can be adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// No userfaultfd that sees the kernel's own accesses can be had. One that does not would make system calls of the
    /// program fail while its memory is exchanged.
    #[error(
        "memory cannot be adopted: userfaultfd is not allowed ({call}) and /dev/userfaultfd cannot be opened ({device}); \
         run with CAP_SYS_PTRACE, set vm.unprivileged_userfaultfd=1, or let a card hand the device over"
    )]
    Forbidden {
        /// What the system call said.
        call: Errno,
        /// What opening the device said.
        device: Errno,
    },
    /// The kernel cannot move pages.
    #[error("memory cannot be adopted: this kernel has no UFFDIO_MOVE; Linux 6.8 is needed")]
    NoMove,
    /// The range passes the end of the address space.
    #[error("{len} bytes at {first:#x} pass the end of the address space")]
    Range {
        /// First address.
        first: u64,
        /// Bytes.
        len: u64,
    },
    /// Adopted memory has to be watched, and cannot be.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The file behind adopted memory could not be made.
    #[error("no memory for adopted pages could be had: {0}")]
    File(Errno),
    /// No thread could be started.
    #[error("cannot start the thread that adopts memory: {0}")]
    Thread(std::io::Error),
    /// The handlers that keep a child's memory its own could not be set up.
    #[error("memory cannot be adopted: pthread_atfork failed ({0})")]
    Fork(Errno),
    /// What is mapped in this process cannot be found out.
    #[error("memory cannot be adopted: /proc/self cannot be read ({0})")]
    Maps(std::io::Error),
    /// The thread has ended, or this is a child of the process that had it.
    #[error("memory cannot be adopted any more: this is a child of the process that began to, or its thread has ended")]
    Ended,
}

/// Why pages stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing is mapped there.
    #[error("nothing is mapped there")]
    NotMapped,
    /// The stack of the first thread.
    #[error("it is the stack of the first thread")]
    Stack,
    /// A thread's control block, the thread-local variables below it, or the thread's stack. Who waits for the end of a
    /// thread waits on a shared futex, which would lose its waiters.
    #[error("it is the stack, the thread-local memory or the control block of a thread")]
    Thread,
    /// What `malloc` keeps of an arena: a child that is forked changes it before it can have a copy.
    #[error("it is the head of an arena of malloc")]
    Arena,
    /// `malloc` hands it out again and again ([`Scope::Heap`](super::Scope::Heap) is needed).
    #[error(
        "it belongs to malloc, which hands it out again and again; blocks of 128 KiB and more, and mmap, are other memory"
    )]
    Heap,
    /// A private mapping of a file, `.data` among them.
    #[error("it is a private mapping of a file")]
    File,
    /// It cannot be written.
    #[error("it cannot be written")]
    ReadOnly,
    /// It can be executed.
    #[error("it can be executed")]
    Executable,
    /// Private huge pages (`MAP_HUGETLB`), which cannot be moved.
    #[error("it stands on huge pages of its own; use a memfd with MFD_HUGETLB to share them")]
    HugePages,
    /// Pages of the kernel or of a device.
    #[error("it belongs to the kernel or to a device")]
    Special,
    /// It is shared already, and this process has no file of it.
    #[error("it is shared memory already, and no descriptor of its file is open in this process")]
    NoDescriptor,
    /// Another registration has it watched as private memory.
    #[error("another registration that cannot be exchanged under it watches it")]
    Watched,
    /// A userfaultfd of the program has it.
    #[error("a userfaultfd of the program watches it")]
    Userfault,
    /// It is locked, or of a kind that the kernel does not move.
    #[error("the kernel does not move it; it may be locked (mlock)")]
    Locked,
    /// Somebody held its pages for too long.
    #[error("its pages were in use by the kernel all the time (O_DIRECT or a device); register it again later")]
    Busy,
    /// The process has too many mappings.
    #[error("the process has too many mappings (vm.max_map_count)")]
    Mappings,
    /// There is no memory for it, or another failure of the system.
    #[error("the system refused: {0}")]
    System(Errno),
}
