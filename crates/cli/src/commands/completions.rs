//! `millrace completions`: what a shell has to know to complete the command.

use std::process;

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use millrace_tool::failure::Failure;
use millrace_tool::grammar::Grammar;
use millrace_tool::output::put;
use millrace_tool::programs;

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

/// Runs the command, whose grammar is `root`.
pub fn run(args: &CompletionsArgs, root: &Command) -> Result<(), Failure> {
    Ok(put(&script(args.shell, with_benchmarks(Grammar::of(root).command(root.get_name()))))?)
}

fn script(shell: Dialect, mut command: Command) -> String {
    let shell = match shell {
        Dialect::Bash => Shell::Bash,
        Dialect::Zsh => Shell::Zsh,
        Dialect::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "millrace", &mut script);
    String::from_utf8(script).expect("made of the texts of the command")
}

/// The same with what stands behind `bench`, which only the benchmarks know, if they are there.
fn with_benchmarks(command: Command) -> Command {
    match benchmarks() {
        Some(grammar) => command.mut_subcommand("bench", |_| grammar.command("bench")),
        None => command,
    }
}

fn benchmarks() -> Option<Grammar> {
    let path = programs::beside(programs::BENCH).ok()?;
    let said = process::Command::new(path).arg("grammar").output().ok()?;
    serde_json::from_slice(&said.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_script_offers_an_option_that_is_hidden() {
        // `stats` has no use for the size of frames, `generate` has.
        for shell in Dialect::value_variants() {
            let of = |name: &str| {
                let mut whole = crate::args::command();
                whole.build();
                let one = whole.find_subcommand(name).expect("a command").clone();
                script(*shell, Grammar::of(&one).command("millrace"))
            };
            assert!(of("generate").contains("size") && !of("stats").contains("size"), "{shell:?}");
        }
    }

    #[test]
    fn scripts_know_every_command_and_its_options() {
        let card = Command::new("card").arg(clap::Arg::new("keep").long("keep-privileges"));
        let root = Command::new("millrace").subcommands([card, Command::new("info")]);
        for shell in Dialect::value_variants() {
            let script = script(*shell, Grammar::of(&root).command("millrace"));
            for word in ["card", "info", "keep-privileges"] {
                assert!(script.contains(word), "{shell:?}: {word}");
            }
        }
    }
}
