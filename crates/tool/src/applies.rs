//! Which of the shared options each command has a use for: the others are not in its help, and refused.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

/// Every shared option, in the order of the help.
pub const ALL: [&str; 9] = ["device", "queue", "engine", "mode", "size", "count", "burst", "poll", "json"];

/// Commands and the shared options that they use; those that are not here use all.
pub type Uses = [(&'static [&'static str], &'static [&'static str])];

/// The command line with those options left out of each command's help that it does not use.
pub fn narrowed(root: Command, uses: &Uses) -> Command {
    uses.iter().fold(root, |root, (path, used)| {
        // A command keeps its own definition of an option when that of the command above it, which may be hidden there, is handed down.
        let own = |option: &&str| {
            let argument = root.get_arguments().find(|arg| arg.get_id() == option)?.clone();
            Some(argument.hide(!used.contains(option)))
        };
        let arguments: Vec<_> = ALL.iter().filter_map(own).collect();
        within(root, path, |command| {
            // A command may have an option of its own by that name, which means something else.
            let is_own = |long: &str| command.get_arguments().any(|own| own.get_long() == Some(long));
            let nameless =
                |argument: Arg| if argument.get_long().is_some_and(is_own) { argument.long(None) } else { argument };
            let arguments: Vec<Arg> = arguments.into_iter().map(nameless).collect();
            command.args(arguments)
        })
    })
}

/// The command line with the help of a shared option in words of that command's own.
pub fn reworded(root: Command, path: &[&'static str], option: &str, help: &'static str) -> Command {
    let found = root.get_arguments().find(|argument| argument.get_id() == option);
    let Some(argument) = found.map(|argument| argument.clone().help(help)) else { return root };
    within(root, path, |command| {
        let has_own = command.get_arguments().any(|own| own.get_id() == option);
        if has_own { command.mut_arg(option, |own| own.help(help)) } else { command.arg(argument) }
    })
}

fn within(command: Command, path: &[&'static str], change: impl FnOnce(Command) -> Command) -> Command {
    match path {
        [] => change(command),
        [name, rest @ ..] if command.find_subcommand(name).is_some() => {
            command.mut_subcommand(name, |below| within(below, rest, change))
        }
        _ => command,
    }
}

/// Refuses options on the command line that the command does not use. Those of the environment are meant for others.
pub fn check(root: &mut Command, matches: &ArgMatches, uses: &Uses) -> Result<(), clap::Error> {
    let (mut path, mut leaf) = (Vec::new(), matches);
    while let Some((name, below)) = leaf.subcommand() {
        path.push(name);
        leaf = below;
    }
    let Some((_, used)) = uses.iter().find(|(command, _)| path.starts_with(command)) else { return Ok(()) };
    let given = |option: &&&str| leaf.value_source(option) == Some(ValueSource::CommandLine);
    match ALL.iter().filter(|option| !used.contains(option)).find(given) {
        Some(option) => {
            let command = format!("{} {}", root.get_bin_name().unwrap_or(root.get_name()), path.join(" "));
            let text = format!("`{command}` has no use for --{option}; `{command} --help` lists its options");
            Err(root.error(ErrorKind::UnknownArgument, text))
        }
        None => Ok(()),
    }
}
