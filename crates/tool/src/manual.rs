//! Manual pages, made of the help.

use std::path::Path;
use std::{fs, io};

use clap::Command;
use clap_mangen::Man;

use crate::failure::Failure;
use crate::grammar::shown;

/// Name of the file and text of each page: of the command, of its commands, and so on.
pub fn pages(command: &Command) -> io::Result<Vec<(String, String)>> {
    let mut command = shown(command).disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, &mut pages)?;
    Ok(pages)
}

/// Writes the pages into a folder.
pub fn write(pages: &[(String, String)], folder: &Path) -> Result<(), Failure> {
    pages.iter().try_for_each(|(name, text)| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|source| Failure::File { doing: "cannot write", path, source })
    })
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

    #[test]
    fn examples_keep_their_lines() {
        assert_eq!(as_it_stands(".a\n  b -c \\d"), ".SH NOTES\n.nf\n\\&.a\n\\&  b \\-c \\ed\n.fi\n");
    }
}
