//! The other programs of Millrace: each lies beside the one that runs.

use std::path::PathBuf;
use std::{env, io};

/// The command itself, which also is the card.
pub const MILLRACE: &str = "millrace";

/// The benchmarks.
pub const BENCH: &str = "millrace-bench";

/// Where the program of that name lies, whether it is there or not.
pub fn beside(name: &str) -> io::Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name(name))
}
