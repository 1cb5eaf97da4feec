//! All tests that need no program of their own, in one program: it is linked once, and its tests run beside one another.

mod common;

mod clock;
mod flows;
mod hostile_memory;
mod hostile_socket;
mod kept;
mod many_queues;
mod memory;
mod native;
mod ownership;
mod pool;
mod rights;
mod round_trip;
mod rules;
mod server_load;
mod silent_card;
mod sleep;
mod stamps;
mod supplied;
mod wiring;
mod writers;

use common::argument;

/// Plays the role for which `common::Process` started this program.
#[test]
fn role() {
    let Some(role) = common::role() else { return };
    match role.as_str() {
        "daemon" => common::run_daemon(),
        "small daemon" => server_load::small_daemon(),
        "guarded" => rights::guarded(),
        "flood of connections" => hostile_socket::flood(),
        "flood of requests" => server_load::flood(),
        "crowd" => server_load::crowd(),
        "slow closer" => server_load::slow_closer(),
        "program with all queues" => many_queues::open_everything(&argument("PLACE")),
        "holder" => ownership::holder(),
        "writer" => ownership::writer(),
        "one of several writers" => writers::writer(),
        "holder of buffers" => pool::holder(),
        "other" => rights::other(),
        "leader" => clock::leader(),
        "hasty" => silent_card::hasty(),
        "stranger" => wiring::stranger(),
        other => panic!("no role {other}"),
    }
}
