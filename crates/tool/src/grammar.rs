//! The grammar of a command line, to be shown to a shell or handed to another program.

use clap::builder::{Resettable, Str};
use clap::{Arg, ArgAction, Command, ValueHint};
use serde::{Deserialize, Serialize};

/// A command as far as a shell has to know it to complete it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grammar {
    name: String,
    about: String,
    version: Option<String>,
    options: Vec<Choice>,
    commands: Vec<Grammar>,
}

/// An option, or a word without a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Choice {
    name: String,
    long: Option<String>,
    short: Option<char>,
    help: String,
    takes_value: bool,
    is_repeated: bool,
    value_name: Option<String>,
    is_path: bool,
    values: Vec<String>,
}

impl Grammar {
    /// That of a command, without what its help does not show.
    pub fn of(command: &Command) -> Self {
        let mut whole = command.clone();
        // Hands the options for all commands down to those that do not hide them.
        whole.build();
        Self::of_built(&whole)
    }

    fn of_built(command: &Command) -> Self {
        // `help` and `--help` come back by themselves, and `--version` with the version.
        let is_made = |one: &&Arg| matches!(one.get_action(), ArgAction::Help | ArgAction::Version);
        let options = command.get_arguments().filter(|one| !one.is_hide_set() && !is_made(one));
        let commands = command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help");
        Self {
            name: command.get_name().to_owned(),
            about: command.get_about().map(ToString::to_string).unwrap_or_default(),
            version: command.get_version().map(str::to_owned),
            options: options.map(Choice::of).collect(),
            commands: commands.map(Self::of_built).collect(),
        }
    }

    /// A command that has it, under another name. Its words live as long as the program: there is one, and it ends soon.
    pub fn command(self, name: &str) -> Command {
        let start = Command::new(kept(name)).about(kept(&self.about));
        let start = start.version(Resettable::from(self.version.map(|version| Str::from(kept(&version)))));
        let start = start.args(self.options.into_iter().map(Choice::argument));
        start.subcommands(self.commands.into_iter().map(|one| {
            let name = one.name.clone();
            one.command(&name)
        }))
    }
}

impl Choice {
    fn of(argument: &Arg) -> Self {
        Self {
            name: argument.get_id().to_string(),
            long: argument.get_long().map(str::to_owned),
            short: argument.get_short(),
            help: argument.get_help().map(ToString::to_string).unwrap_or_default(),
            takes_value: argument.get_action().takes_values(),
            is_repeated: matches!(argument.get_action(), ArgAction::Append | ArgAction::Count),
            value_name: argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string),
            is_path: argument.get_value_hint() == ValueHint::AnyPath,
            values: argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect(),
        }
    }

    fn argument(self) -> Arg {
        let action = match (self.takes_value, self.is_repeated) {
            (true, true) => ArgAction::Append,
            (true, false) => ArgAction::Set,
            (false, true) => ArgAction::Count,
            (false, false) => ArgAction::SetTrue,
        };
        let argument = Arg::new(kept(&self.name)).help(kept(&self.help)).action(action);
        let value_name = self.value_name.filter(|_| self.takes_value).map(|name| Str::from(kept(&name)));
        let argument = argument.value_name(Resettable::from(value_name));
        let argument = argument.long(Resettable::from(self.long.map(|long| Str::from(kept(&long)))));
        let argument = argument.short(Resettable::from(self.short));
        let argument = if self.is_path { argument.value_hint(ValueHint::AnyPath) } else { argument };
        match self.values.is_empty() || !self.takes_value {
            true => argument,
            false => argument.value_parser(self.values.iter().map(|value| kept(value)).collect::<Vec<_>>()),
        }
    }
}

fn kept(text: &str) -> &'static str {
    text.to_owned().leak()
}

/// The command without hidden commands, which generators of scripts and pages would show.
pub fn shown(all: &Command) -> Command {
    let shown = all.get_subcommands().filter(|one| !one.is_hide_set());
    Command::new(kept(all.get_name()))
        .bin_name(Resettable::from(all.get_bin_name().map(str::to_owned)))
        .version(Resettable::from(all.get_version().map(|version| Str::from(kept(version)))))
        .about(Resettable::from(all.get_about().cloned()))
        .after_help(Resettable::from(all.get_after_help().cloned()))
        .args(all.get_arguments())
        .subcommand_required(true)
        .subcommands(shown.cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_survives_the_way_to_another_program() {
        let file = Arg::new("file").long("file").short('f').help("Where to").action(ArgAction::Set);
        let kind = Arg::new("kind").value_parser(["one", "two"]);
        let secret = Arg::new("secret").long("secret").hide(true);
        let quiet = Arg::new("quiet").long("quiet").global(true).action(ArgAction::SetTrue);
        // A command that has no use for an option of all has it hidden.
        let below = Command::new("draw").about("Draws").args([file, kind, secret, quiet.clone().hide(true)]);
        let other = Command::new("other");
        let all = Command::new("program").arg(quiet).subcommands([below, other, Command::new("hidden").hide(true)]);
        let text = serde_json::to_string(&Grammar::of(&all)).unwrap();
        let again = serde_json::from_str::<Grammar>(&text).unwrap().command("other");
        assert_eq!(again.get_name(), "other");
        let draw = again.find_subcommand("draw").unwrap();
        assert!(again.find_subcommand("hidden").is_none() && draw.get_arguments().count() == 2);
        let other = again.find_subcommand("other").unwrap();
        assert!(other.get_arguments().any(|one| one.get_long() == Some("quiet")));
        let file = draw.get_arguments().find(|one| one.get_long() == Some("file")).unwrap();
        assert!(file.get_action().takes_values() && file.get_short() == Some('f'));
        let kind = draw.get_positionals().next().unwrap();
        assert_eq!(kind.get_possible_values().len(), 2);
    }
}
