//! `rsocket` and what belongs to it: sockets over RDMA, which are not there. The names are, so that programs that use the rest start.

use super::{say, set_errno};
use std::sync::Once;

fn refuse() -> isize {
    static SAID: Once = Once::new();
    SAID.call_once(|| say("rsockets are not supported (docs/rdma.md)"));
    set_errno(libc::ENOSYS);
    -1
}

macro_rules! refuse {
    ($($name:ident)*) => {$(
        /// Not supported.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> isize {
            refuse()
        }
    )*};
}

refuse! {
    raccept rbind rclose rconnect rfcntl rgetpeername rgetsockname rgetsockopt riomap riounmap riowrite rlisten rpoll rread rreadv rrecv
    rrecvfrom rrecvmsg rselect rsend rsendmsg rsendto rsetsockopt rshutdown rsocket rwrite rwritev
}
