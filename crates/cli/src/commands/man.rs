//! `millrace man`: manual pages, made of the help.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use millrace_tool::failure::Failure;
use millrace_tool::output::{note, put};
use millrace_tool::{manual, programs};

const HELP: &str = "\
Without FOLDER the page of millrace itself goes to standard output.

Examples:
  millrace man | man -l -
  millrace man /usr/local/share/man/man1";

/// Options of `man`.
#[derive(Clone, Debug, Args)]
#[command(after_help = HELP)]
pub struct ManArgs {
    /// Write a page for every command into this folder
    folder: Option<PathBuf>,
}

/// Runs the command, whose grammar is `root`.
pub fn run(args: &ManArgs, root: &clap::Command) -> Result<(), Failure> {
    let pages = manual::pages(root)?;
    let Some(folder) = &args.folder else {
        let own = pages.iter().find(|(name, _)| name == "millrace.1").expect("the command itself has a page");
        return Ok(put(&own.1)?);
    };
    manual::write(&pages, folder)?;
    add_benchmarks(folder)
}

/// The benchmarks know their own pages best.
fn add_benchmarks(folder: &Path) -> Result<(), Failure> {
    let path = programs::beside(programs::BENCH)?;
    if !path.exists() {
        note(format!("there are no pages of the benchmarks: {} is not there", path.display()));
        return Ok(());
    }
    match Command::new(&path).arg("man").arg(folder).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Found(format!("{} man: {status}", path.display()))),
        Err(source) => Err(Failure::File { doing: "cannot run", path, source }),
    }
}
