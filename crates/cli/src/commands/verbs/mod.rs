//! `millrace verbs`: becomes a program that is written for verbs, which then finds Millrace's `libibverbs.so.1`.

mod namespace;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;

/// The library, as programs look for it.
const LIBRARY: &str = "libibverbs.so.1";

/// What the library reads: which card, and as whom (docs/rdma.md).
const VARIABLE: &str = "MILLRACE_VERBS";

const HELP: &str = "\
The program uses the verbs library of Millrace instead of the system's, over
two queues of a card, and so do the programs that it starts. Signals and the
exit code are its own. MILLRACE_VERBS stays as it is unless --device or --set
is given; docs/rdma.md explains the words in it.

UCX, and with it MPI, looks for device files in /dev/infiniband. Where there
is no such folder, the program gets a /dev of its own (a mount namespace, and
without root a user namespace) that has one; `--dev host` prevents that, and
root can prevent it for good with `mkdir /dev/infiniband`.

Examples:
  millrace card --queues 2 &
  millrace verbs ibv_devinfo
  millrace verbs --set mtu=4096 ib_write_bw
  millrace verbs --isolate ib_write_bw
  UCX_TLS=rc_v,ud_v,self millrace verbs mpiexec -n 2 ./program";

/// Options of `verbs`.
#[derive(Clone, Debug, Args)]
#[command(after_help = HELP)]
pub struct VerbsArgs {
    /// A word for MILLRACE_VERBS, such as ip=10.0.0.1; may be repeated
    #[arg(long, value_name = "WORD=VALUE", value_parser = word)]
    set: Vec<String>,
    /// The card moves all bytes, and no program reaches into another one's memory: as --set place=card
    #[arg(long)]
    isolate: bool,
    /// Which /dev the program has
    #[arg(long, value_name = "WHICH", default_value = "auto")]
    dev: Dev,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Which `/dev` a program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Dev {
    /// The one that is there, if it has /dev/infiniband, otherwise one of its own
    Auto,
    /// The one that is there
    Host,
    /// One of its own
    Private,
}

fn word(text: &str) -> Result<String, &'static str> {
    let is_word = text.split_once('=').is_some_and(|(key, value)| !key.is_empty() && !value.is_empty());
    if is_word && !text.contains(char::is_whitespace) {
        Ok(text.to_owned())
    } else {
        Err("WORD=VALUE is meant, such as mtu=4096")
    }
}

/// Becomes the program.
pub fn run(shared: &Shared, args: &VerbsArgs) -> Result<(), Failure> {
    let folder = folder(&env::current_exe()?)?;
    let (program, arguments) = args.program.split_first().expect("the grammar asks for a program");
    match args.dev {
        Dev::Host => {}
        Dev::Auto if namespace::has_folder() => {}
        Dev::Auto | Dev::Private => namespace::enter()?,
    }
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", in_front(&folder, env::var_os("LD_LIBRARY_PATH").as_deref()));
    let isolated = args.isolate.then(|| "place=card".to_owned());
    let words: Vec<_> = args.set.iter().cloned().chain(isolated).collect();
    if let Some(text) = configuration(shared.device.as_deref(), &words) {
        command.env(VARIABLE, text);
    }
    let source = command.exec();
    Err(Failure::Program { path: program.into(), source })
}

/// The folder with the library: beside this command where it was built, in `lib` where it was installed.
fn folder(command: &Path) -> Result<PathBuf, Failure> {
    let beside = command.with_file_name("verbs");
    let installed = command.parent().and_then(Path::parent).map(|prefix| prefix.join("lib/millrace"));
    let places = [Some(beside), installed];
    let found = places.iter().flatten().find(|folder| folder.join(LIBRARY).exists());
    found.cloned().ok_or_else(|| {
        let looked: Vec<_> = places.iter().flatten().map(|folder| folder.join(LIBRARY).display().to_string()).collect();
        Failure::Found(format!(
            "the verbs library is not there: neither {} exists; `make build` makes it, `make install` installs it",
            looked.join(" nor ")
        ))
    })
}

/// The folder, and behind it those that are searched already.
fn in_front(folder: &Path, others: Option<&OsStr>) -> OsString {
    let mut all = folder.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

/// What the library is told; nothing when what the environment says shall stay. A card may have been named for all commands
/// (`MILLRACE_DEVICE`), which the library knows too.
fn configuration(device: Option<&str>, words: &[String]) -> Option<String> {
    let named = device.filter(|device| env::var_os("MILLRACE_DEVICE").is_none_or(|usual| usual != *device));
    if named.is_none() && words.is_empty() {
        return None;
    }
    Some(device.into_iter().chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" "))
}

impl From<namespace::NamespaceError> for Failure {
    fn from(error: namespace::NamespaceError) -> Self {
        let source = io::Error::from(error.source);
        Self::Found(format!(
            "{} for a /dev with /dev/infiniband, in which UCX looks for devices: {source}; have root do \
             `mkdir /dev/infiniband`, or leave it with --dev host if the program does not use UCX",
            error.doing
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_searched_first() {
        let folder = Path::new("/a/verbs");
        assert_eq!(in_front(folder, None), "/a/verbs");
        assert_eq!(in_front(folder, Some(OsStr::new(""))), "/a/verbs");
        assert_eq!(in_front(folder, Some(OsStr::new("/b:/c"))), "/a/verbs:/b:/c");
    }

    #[test]
    fn a_library_that_is_missing_is_named_with_both_places() {
        let empty = tempfile::tempdir().unwrap();
        let command = empty.path().join("bin/millrace");
        let said = folder(&command).unwrap_err().to_string();
        assert!(said.contains("bin/verbs/libibverbs.so.1") && said.contains("lib/millrace/libibverbs.so.1"), "{said}");
        let installed = empty.path().join("lib/millrace");
        std::fs::create_dir_all(&installed).unwrap();
        std::fs::write(installed.join(LIBRARY), "").unwrap();
        assert_eq!(folder(&command).unwrap(), installed);
    }

    #[test]
    fn words_become_what_the_library_reads() {
        assert_eq!(configuration(None, &[]), None);
        let words = [word("mtu=4096").unwrap(), word("ip=10.0.0.1").unwrap()];
        assert_eq!(configuration(Some("unix:/x"), &words).as_deref(), Some("unix:/x mtu=4096 ip=10.0.0.1"));
        assert_eq!(configuration(None, &words).as_deref(), Some("mtu=4096 ip=10.0.0.1"));
        assert!(word("mtu").is_err() && word("=1").is_err() && word("a=b c").is_err());
    }
}
