//! `millrace bench`: hands over to `millrace-bench`, a program of its own that lies beside this one.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use millrace_tool::failure::Failure;
use millrace_tool::programs;

/// What `millrace-bench` is to do.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The benchmark, and its options; `millrace bench --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCHMARK")]
    words: Vec<OsString>,
}

/// Becomes `millrace-bench`, with these `words` of the command line, but without the first that is `own`.
pub fn run(own: Option<&str>, words: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let path = programs::beside(programs::BENCH)?;
    let source = Command::new(&path).args(without(own, words.skip(1))).exec();
    if source.kind() != io::ErrorKind::NotFound {
        return Err(Failure::File { doing: "cannot run", path, source });
    }
    Err(Failure::Found(format!(
        "the benchmarks are a program of their own, and {} is not there: `make build` or `cargo build` makes it beside \
         millrace, `make install` and the Debian package put it there",
        path.display()
    )))
}

/// In front of the command there are only shared options, none of which has its name for a value.
fn without(own: Option<&str>, words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    if let Some(at) = words.iter().position(|word| own.is_some_and(|own| word == own)) {
        words.remove(at);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_of_the_words_is_left_out() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let rest = |own, line: &str| without(own, words(line).into_iter());
        assert_eq!(rest(Some("bench"), "--json bench latency --plot bench"), words("--json latency --plot bench"));
        assert_eq!(rest(None, "hostile rings"), words("hostile rings"));
    }
}
