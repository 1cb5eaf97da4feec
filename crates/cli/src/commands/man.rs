//! `millrace man`: manual pages, made of the help.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;

use crate::commands::completions::shown;
use crate::failure::Failure;
use crate::output::put;

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

/// Runs the command.
pub fn run(args: &ManArgs) -> Result<(), Failure> {
    let pages = pages()?;
    let Some(folder) = &args.folder else {
        let own = pages.iter().find(|(name, _)| name == "millrace.1").expect("the command itself has a page");
        return Ok(put(&own.1)?);
    };
    for (name, text) in &pages {
        write(&folder.join(name), text)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|source| Failure::File { doing: "cannot write", path: path.to_owned(), source })
}

/// Name and text of each page: of the command, of its commands, and so on.
fn pages() -> io::Result<Vec<(String, String)>> {
    let mut command = shown().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, &mut pages)?;
    Ok(pages)
}

fn collect(command: &Command, pages: &mut Vec<(String, String)>) -> io::Result<()> {
    let man = Man::new(command.clone()).source(concat!("Millrace ", env!("CARGO_PKG_VERSION"))).manual("Millrace");
    pages.push((man.get_filename(), page(command, &man)?));
    command.get_subcommands().filter(|one| !one.is_hide_set()).try_for_each(|one| collect(one, pages))
}

fn page(command: &Command, man: &Man) -> io::Result<String> {
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let text = String::from_utf8(text).map_err(io::Error::other)?;
    Ok(text + &command.get_after_help().map_or_else(String::new, |notes| as_it_stands(&notes.to_string())))
}

/// What stands below the options in the help. Its lines stay lines; the generator would fill them.
fn as_it_stands(notes: &str) -> String {
    let lines = notes.lines().map(|line| format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-")));
    format!(".SH NOTES\n.nf\n{}.fi\n", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn there_is_a_page_for_every_command_that_the_help_shows() {
        let pages = pages().unwrap();
        let has = |name: &str| pages.iter().any(|(file, _)| file == &format!("millrace-{name}.1"));
        for one in Cli::command().get_subcommands() {
            assert_eq!(has(one.get_name()), !one.is_hide_set(), "{}", one.get_name());
        }
        assert!(has("bench-latency") && !has("help"));
        for (name, text) in &pages {
            assert!(text.contains(".TH ") && text.contains(".SH OPTIONS"), "{name}");
            assert!(!text.contains("millrace\\-hostile") && !text.contains("millrace\\-soak"), "{name}");
        }
    }

    #[test]
    fn examples_keep_their_lines() {
        assert_eq!(as_it_stands(".a\n  b -c \\d"), ".SH NOTES\n.nf\n\\&.a\n\\&  b \\-c \\ed\n.fi\n");
    }
}
