//! Which of the shared options each command has a use for: the others are not in its help, and refused.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// Every shared option, in the order of the help.
const ALL: [&str; 9] = ["device", "queue", "engine", "mode", "size", "count", "burst", "poll", "json"];

/// What a command uses that moves frames through queues, besides their sizes.
const QUEUES: &[&str] = &["device", "queue", "engine", "mode", "count", "burst", "poll", "json"];

/// Commands and the shared options that they use; those that are not here use all.
const USES: &[(&[&str], &[&str])] = &[
    (&["card"], &["engine", "poll", "json"]),
    (&["ports"], &["device", "json"]),
    (&["workers"], &["device", "json"]),
    (&["clients"], &["device", "json"]),
    (&["locks"], &["device", "json"]),
    // With `--device embedded`, an engine is one of the card that is made.
    (&["info"], &["device", "engine", "json"]),
    (&["tree"], &["device", "engine", "json"]),
    (&["regs"], &["device", "engine", "json"]),
    (&["stats"], &["device", "queue", "count", "json"]),
    (&["read"], QUEUES),
    (&["receive"], QUEUES),
    (&["transmit"], QUEUES),
    (&["loopback"], QUEUES),
    (&["forward"], &["device", "queue", "engine", "count", "burst", "poll", "json"]),
    (&["demo"], &["json"]),
    (&["completions"], &[]),
    (&["man"], &[]),
    (&["bench", "sync"], &["device", "queue", "engine", "mode", "size", "count", "json"]),
    (&["bench", "latency"], &["device", "queue", "engine", "mode", "size", "count", "json"]),
    (&["bench", "throughput"], &["device", "queue", "engine", "mode", "size", "count", "burst", "json"]),
    (&["bench", "matrix"], &["device", "engine", "size", "json"]),
    (&["bench", "queues"], &["device", "engine", "json"]),
    (&["bench", "nfb"], &["device", "queue", "engine", "size", "json"]),
];

/// The command line with those options left out of each command's help that it does not use.
pub fn narrowed(root: Command) -> Command {
    USES.iter().fold(root, |root, (path, used)| {
        let hidden = ALL.iter().filter(|option| !used.contains(option));
        let arguments: Vec<_> =
            hidden.filter_map(|option| root.get_arguments().find(|arg| arg.get_id() == option)).collect();
        // A command keeps its own definition of an option when the one for all is handed down.
        let arguments: Vec<_> = arguments.into_iter().map(|argument| argument.clone().hide(true)).collect();
        within(root, path, |command| command.args(&arguments))
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
pub fn check(root: &mut Command, matches: &ArgMatches) -> Result<(), clap::Error> {
    let (mut path, mut leaf) = (Vec::new(), matches);
    while let Some((name, below)) = leaf.subcommand() {
        path.push(name);
        leaf = below;
    }
    let Some((_, used)) = USES.iter().find(|(command, _)| path.starts_with(command)) else { return Ok(()) };
    let given = |option: &&&str| leaf.value_source(option) == Some(ValueSource::CommandLine);
    match ALL.iter().filter(|option| !used.contains(option)).find(given) {
        Some(option) => {
            let command = path.join(" ");
            let text = format!(
                "`millrace {command}` has no use for --{option}; `millrace {command} --help` lists its options"
            );
            Err(root.error(ErrorKind::UnknownArgument, text))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<(), String> {
        let mut root = narrowed(Cli::command());
        let matches = root.try_get_matches_from_mut(line.split(' ')).map_err(|error| error.to_string())?;
        check(&mut root, &matches).map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_command_ignores_is_refused_wherever_it_stands() {
        for line in [
            "millrace info --size 64",
            "millrace --size 64 info",
            "millrace ports plug 0 null --count 3",
            "millrace card --device embedded",
            "millrace transmit x.pcap --size 100",
            "millrace bench --poll sync",
            "millrace demo --queue 3",
        ] {
            let refused = parse(line).expect_err(line);
            assert!(refused.contains("has no use for --"), "{refused}");
        }
    }

    #[test]
    fn what_it_uses_is_taken_wherever_it_stands() {
        for line in [
            "millrace --json --device embedded info",
            "millrace ports --device unix:/x plug 0 null",
            "millrace stats --watch --count 3 --queue 0",
            "millrace generate --size 64 --count 3 --burst 5 --poll --mode direct",
            "millrace bench --count 100 latency --size 64",
            "millrace card --poll --engine sze",
        ] {
            parse(line).expect(line);
        }
    }

    #[test]
    fn help_shows_what_can_be_said() {
        let mut root = narrowed(Cli::command());
        root.build();
        let mut help = |path: &[&str]| {
            let command = path.iter().fold(&mut root, |command, name| command.find_subcommand_mut(name).unwrap());
            command.render_long_help().to_string()
        };
        let (info, plug, generate) = (help(&["info"]), help(&["ports", "plug"]), help(&["generate"]));
        assert!(info.contains("--device") && !info.contains("--size") && !info.contains("--count"), "{info}");
        assert!(plug.contains("--device") && !plug.contains("--burst"), "{plug}");
        assert!(ALL.iter().all(|option| generate.contains(&format!("--{option}"))), "{generate}");
    }

    #[test]
    fn every_name_is_one() {
        let root = Cli::command();
        for option in ALL.iter().chain(USES.iter().flat_map(|(_, used)| used.iter())) {
            assert!(root.get_arguments().any(|arg| arg.get_id() == option), "{option}");
        }
    }
}
