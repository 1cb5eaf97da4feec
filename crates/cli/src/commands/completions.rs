//! `millrace completions`: what a shell has to know to complete the command.

use clap::builder::Resettable;
use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;

use crate::args;
use crate::failure::Failure;
use crate::output::put;

const HELP: &str = "\
Prints a script; `make install` and the Debian package put it where the shell
looks for it. By hand:

  bash  millrace completions bash >~/.local/share/bash-completion/completions/millrace
  zsh   millrace completions zsh >FOLDER/_millrace, with a FOLDER of $fpath
  fish  millrace completions fish >~/.config/fish/completions/millrace.fish";

/// Options of `completions`.
#[derive(Clone, Debug, Args)]
#[command(after_help = HELP)]
pub struct CompletionsArgs {
    /// Shell to write the script for
    shell: Dialect,
}

/// Shells with a script.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Dialect {
    /// Bourne Again Shell
    Bash,
    /// Z shell
    Zsh,
    /// Friendly interactive shell
    Fish,
}

/// Runs the command.
pub fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    Ok(put(&script(args.shell))?)
}

fn script(shell: Dialect) -> String {
    let shell = match shell {
        Dialect::Bash => Shell::Bash,
        Dialect::Zsh => Shell::Zsh,
        Dialect::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(), "millrace", &mut script);
    String::from_utf8(script).expect("made of the texts of the command")
}

/// The grammar without hidden commands, which the generators of scripts would offer.
pub fn shown() -> Command {
    let all = args::command();
    let shown = all.get_subcommands().filter(|one| !one.is_hide_set());
    Command::new("millrace")
        .version(env!("MILLRACE_VERSION"))
        .about(Resettable::from(all.get_about().cloned()))
        .after_help(Resettable::from(all.get_after_help().cloned()))
        .args(all.get_arguments())
        .subcommand_required(true)
        .subcommands(shown.cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn scripts_know_every_command_but_the_hidden_ones() {
        let (all, shown) = (Cli::command(), shown());
        for one in all.get_subcommands() {
            assert_eq!(shown.find_subcommand(one.get_name()).is_none(), one.is_hide_set(), "{}", one.get_name());
        }
        for shell in Dialect::value_variants() {
            let script = script(*shell);
            for word in shown.get_subcommands().map(Command::get_name).chain(["keep-privileges", "latency"]) {
                assert!(script.contains(word), "{shell:?}: {word}");
            }
        }
    }
}
