//! Network namespaces for tests that make interfaces.

use std::process::Command;

/// Set in the process that runs in a network namespace of its own.
const INSIDE: &str = "MILLRACE_TEST_INSIDE_NETNS";

/// What a test needs to be allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// What every user may do in a user namespace of his own.
    OfAnyUser,
    /// What only root of the machine may do, such as loading a program for the kernel.
    OfRoot,
}

/// Runs the test of this name again in a fresh network namespace, or says why that is not possible here. `false` in the
/// process in which the test is to go on.
#[must_use]
pub(crate) fn enter(test: &str, rights: Rights) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    let unshare = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(arguments);
        command
    };
    let ways: &[&[&str]] = match rights {
        Rights::OfAnyUser => &[&["--net"], &["--net", "--user", "--map-root-user"]],
        Rights::OfRoot => &[&["--net"]],
    };
    let Some(way) = ways.iter().find(|way| unshare(way).arg("true").output().is_ok_and(|out| out.status.success()))
    else {
        println!("skipped: `unshare --net` is missing or not permitted; run as root");
        return true;
    };
    let me = std::env::current_exe().expect("the path of this test");
    let out = unshare(way).arg(me).args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output();
    let out = out.expect("unshare, which has just worked");
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
    print!("{text}");
    true
}

/// `ip ARGUMENTS`; `false` if it is missing or fails.
#[must_use]
pub(crate) fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).status().is_ok_and(|status| status.success())
}
