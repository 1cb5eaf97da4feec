//! Configuration files: the options of `millrace card`, or of `millrace router start`, by the same names, in TOML.
//!
//! What a file says is turned into words of a command line, and parsed together with those that were typed. Names, kinds
//! and values are therefore those of the options, and cannot differ from them.

use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, FromArgMatches};
use millrace_tool::failure::Failure;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::args::{self, Cli, Command};
use crate::commands::router::{RouterArgs, RouterCommand};
use crate::policy::read_file;

/// A command whose options can be in a file.
struct Kind {
    /// Its name, word by word.
    path: &'static [&'static str],
    /// Options that a file cannot set, and why.
    not_in_files: &'static [(&'static str, &'static str)],
    /// Options of which one on the command line also takes the place of another in the file.
    instead: &'static [(&'static str, &'static str)],
    /// Whether values fit together that clap looks at one by one.
    check: fn(&Cli) -> Result<(), Failure>,
}

static CARD: Kind = Kind { path: &["card"], not_in_files: &NOT_OF_CARDS, instead: &INSTEAD, check: check_card };
static ROUTER: Kind =
    Kind { path: &["router", "start"], not_in_files: &NOT_OF_ROUTERS, instead: &[], check: |_| Ok(()) };

/// Options of `router start` that a file cannot set.
const NOT_OF_ROUTERS: [(&str, &str); 12] = [
    ("config", "a file names no other file"),
    ("until-eof", "whoever starts the router says how long it lives"),
    ("json", "whoever reads the output says how it is written"),
    ("help", "it is a question"),
    ("version", "it is a question"),
    ("device", "a router uses no card"),
    ("queue", "a router uses no card"),
    ("engine", "a router uses no card"),
    ("size", "a router uses no card"),
    ("count", "a router uses no card"),
    ("burst", "a router uses no card"),
    ("poll", "a router uses no card"),
];

/// Options of `card` that a file cannot set, and why.
const NOT_OF_CARDS: [(&str, &str); 14] = [
    ("config", "a file names no other file"),
    ("until-eof", "whoever starts the card says how long it lives"),
    ("keep", "whoever starts the card says whether a keeper has it"),
    ("kept", "a keeper says so"),
    ("take-over", "whoever starts the card says whether another one runs"),
    ("json", "whoever reads the output says how it is written"),
    ("help", "it is a question"),
    ("version", "it is a question"),
    ("device", "a card uses no other card"),
    ("queue", "it chooses among the queues of a card; how many a card has is rx, tx and queues"),
    ("mode", "programs choose it"),
    ("size", "programs choose it"),
    ("count", "programs choose it"),
    ("burst", "programs choose it"),
];

/// Options of which one on the command line also takes the place of another in the file.
const INSTEAD: [(&str, &str); 4] =
    [("queues", "rx"), ("queues", "tx"), ("user", "keep-privileges"), ("keep-privileges", "user")];

/// Adds what the configuration file says, if these `words` name one.
pub fn complete(cli: Cli, words: impl Iterator<Item = OsString>) -> Result<Cli, Failure> {
    let (kind, config) = match &cli.command {
        Command::Card(card) => (&CARD, &card.config),
        Command::Router(RouterArgs { command: RouterCommand::Start(start) }) => (&ROUTER, &start.config),
        _ => return Ok(cli),
    };
    let read = |path: &Path| File::read(kind, path);
    let Some(file) = config.as_deref().map(read).transpose()?.flatten() else { return Ok(cli) };
    let mut words: Vec<OsString> = words.collect();
    // Behind it there would be no options, and these commands take nothing else.
    if words.last().is_some_and(|word| word == "--") {
        words.pop();
    }
    let typed = args::command().try_get_matches_from(&words).map_err(|error| Failure::Usage(first_line(&error)))?;
    let below = |typed: &ArgMatches, word: &&str| typed.subcommand_matches(word).expect("it is that command").clone();
    let typed = &kind.path.iter().fold(typed, |typed, word| below(&typed, word));
    words.extend(file.words(typed)?.into_iter().map(OsString::from));
    parsed(words).map_err(|error| Failure::Usage(format!("{}: {}", file.name, first_line(&error))))
}

fn parsed(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&args::command().try_get_matches_from(words)?)
}

/// What clap says, without the advice about the command line.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// A configuration file.
struct File {
    /// Of which command.
    kind: &'static Kind,
    /// Its path, for people.
    name: String,
    text: String,
}

impl File {
    /// `None`: there is none, and a `-` in front says that there need not be.
    fn read(kind: &'static Kind, path: &Path) -> Result<Option<Self>, Failure> {
        let optional = path.to_str().and_then(|path| path.strip_prefix('-')).map(PathBuf::from);
        let path = optional.as_deref().unwrap_or(path);
        match read_file("--config", path) {
            Ok(text) => Ok(Some(Self { kind, name: path.display().to_string(), text })),
            Err(Failure::File { source, .. }) if optional.is_some() && source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// The options of the file that were not `typed`, as on a command line.
    fn words(&self, typed: &ArgMatches) -> Result<Vec<String>, Failure> {
        let table = DeTable::parse(&self.text)
            .map_err(|error| self.wrong(error.span().unwrap_or_default(), error.message()))?
            .into_inner();
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let options = self.kind.options();
        let is_typed = |option: &Arg| typed.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine);
        let typed: Vec<&str> = options.iter().filter(|option| is_typed(option)).filter_map(Arg::get_long).collect();
        let mut words = Vec::new();
        for (key, value) in entries {
            let option = self.option(&options, key)?;
            let new = self.checked(option, value)?;
            let name = key.get_ref().as_ref();
            let replaced = self.kind.instead.iter().any(|(one, other)| *other == name && typed.contains(one));
            if !replaced && !typed.contains(&name) {
                words.extend(new);
            }
        }
        Ok(words)
    }

    fn option<'a>(&self, options: &'a [Arg], key: &Spanned<std::borrow::Cow<'_, str>>) -> Result<&'a Arg, Failure> {
        let name = key.get_ref().as_ref();
        if let Some((_, why)) = self.kind.not_in_files.iter().find(|(option, _)| *option == name) {
            return Err(self.wrong(key.span(), &format!("{name} cannot be set in a file: {why}")));
        }
        let unknown = || {
            let known = self.kind.settable(options).collect::<Vec<_>>().join(", ");
            self.wrong(key.span(), &format!("{name:?} is not an option; there are {known}"))
        };
        options.iter().find(|option| option.get_long() == Some(name)).ok_or_else(unknown)
    }

    /// The words of one option, each of which the command could take if it were alone.
    fn checked(&self, option: &Arg, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, Failure> {
        let words = spelled(option, value.get_ref()).ok_or_else(|| self.wrong(value.span(), &expected(option)))?;
        for word in &words {
            self.kind.check(word).map_err(|text| self.wrong(value.span(), &text))?;
        }
        Ok(words)
    }

    fn wrong(&self, place: Range<usize>, text: &str) -> Failure {
        let line = 1 + self.text.bytes().take(place.start).filter(|&byte| byte == b'\n').count();
        Failure::Usage(format!("{}:{line}: {text}", self.name))
    }
}

impl Kind {
    /// All options of the command.
    fn options(&self) -> Vec<Arg> {
        let mut command = args::command();
        command.build();
        let found = self
            .path
            .iter()
            .fold(&command, |command, word| command.find_subcommand(word).expect("there is such a command"));
        found.get_arguments().cloned().collect()
    }

    /// Names of those that a file can set.
    fn settable<'a>(&self, options: &'a [Arg]) -> impl Iterator<Item = &'a str> {
        let names = options.iter().filter_map(Arg::get_long);
        names.filter(|name| self.not_in_files.iter().all(|(other, _)| other != name))
    }

    fn check(&self, word: &str) -> Result<(), String> {
        let words = ["millrace"].iter().chain(self.path).copied().chain([word]);
        let cli = parsed(words).map_err(|error| first_line(&error))?;
        (self.check)(&cli).map_err(|failure| failure.to_string())
    }
}

fn check_card(cli: &Cli) -> Result<(), Failure> {
    let Command::Card(card) = &cli.command else { return Ok(()) };
    card.check_values(&cli.shared)
}

/// The words that say the same on a command line. `None`: the option takes something else.
fn spelled(option: &Arg, value: &DeValue<'_>) -> Option<Vec<String>> {
    let name = option.get_long()?;
    let scalar = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Some(format!("--{name}={text}")),
        DeValue::Integer(number) => Some(format!("--{name}={number}")),
        _ => None,
    };
    match (option.get_action(), value) {
        (ArgAction::SetTrue, DeValue::Boolean(set)) => Some(set.then(|| format!("--{name}")).into_iter().collect()),
        (ArgAction::SetTrue, _) => None,
        (ArgAction::Append, DeValue::Array(values)) => values.iter().map(|value| scalar(value.get_ref())).collect(),
        (_, value) => scalar(value).map(|word| vec![word]),
    }
}

/// What the option takes, for people.
fn expected(option: &Arg) -> String {
    let name = option.get_long().unwrap_or_default();
    let value = option.get_value_names().and_then(|names| names.first()).map_or("VALUE", |value| value.as_str());
    match option.get_action() {
        ArgAction::SetTrue => format!("{name} takes true or false"),
        ArgAction::Append => {
            format!("{name} takes {value} as a text or a number, or a list of such: [\"...\", \"...\"]")
        }
        _ => format!("{name} takes {value} as a text or a number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const EXAMPLE: &str = include_str!("../../../packaging/card.toml");
    const EXAMPLE_OF_ROUTER: &str = include_str!("../../../packaging/router.toml");

    /// The card of a file, and of what was typed behind `--config FILE`.
    fn card(text: &str, typed: &str) -> Result<Cli, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.toml");
        std::fs::write(&path, text).unwrap();
        let line = format!("millrace card --config {} {typed}", path.display());
        read(&line).map_err(|failure| failure.to_string().replace(&path.display().to_string(), "FILE"))
    }

    fn read(line: &str) -> Result<Cli, Failure> {
        let words = || line.split_whitespace();
        complete(parsed(words()).unwrap(), words().map(OsString::from))
    }

    fn assert_same(text: &str, typed: &str, line: &str) {
        let seen = |cli: Cli| {
            let Command::Card(args) = &cli.command else { panic!("another command") };
            (args.options(&cli.shared).unwrap(), args.listen.clone(), format!("{:?}", args.policy))
        };
        assert_eq!(seen(card(text, typed).unwrap()), seen(read(line).unwrap()), "{text}");
    }

    #[test]
    fn a_file_makes_the_card_that_the_options_make() {
        let text = "listen = \"/tmp/x\"\nqueues = 4\nrx = \"6\"\nengine = [\"medusa\", \"sze@0-1\"]\nport = [\"null\", \
                    \"pcap:a b.pcap,speed=full\"]\ndiscard = true\ntsu = false\npoll = true\nframe-max = 9_000\n\
                    buffer = 16384\ngrant = \"everyone=use:rx0\"\nquota = [\"queues=8\", \"memory=1G\"]\n\
                    keep-privileges = true\ncpu = 1";
        let mut file = card(text, "").unwrap();
        let Command::Card(args) = &mut file.command else { panic!("another command") };
        let options = args.options(&file.shared).unwrap();
        assert_eq!(options.ports, ["null", "pcap:a b.pcap,speed=full"]);
        assert_same(
            &text.replace("a b.pcap", "a.pcap"),
            "",
            "millrace card --listen /tmp/x --queues 4 --rx 6 -e medusa -e sze@0-1 --port null --port \
             pcap:a.pcap,speed=full --discard --poll --frame-max 9000 --buffer 16384 --grant everyone=use:rx0 \
             --quota queues=8 --quota memory=1G --keep-privileges --cpu 1",
        );
    }

    #[test]
    fn what_is_typed_wins() {
        assert_same(
            "queues = 4\nport = [\"null\", \"null\"]",
            "--port loopback",
            "millrace card --queues 4 --port loopback",
        );
        assert_same("rx = 6\ntx = 2\npoll = true", "--queues 3 --", "millrace card --queues 3 --poll");
        assert_same("queues = 4", "--rx 1", "millrace card --rx 1 --tx 4");
        assert_same("engine = \"sze\"", "-e dd", "millrace card -e dd");
        assert_same("keep-privileges = true", "--user 1", "millrace card --user 1");
        assert_same("user = \"1\"", "--keep-privileges", "millrace card --keep-privileges");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_what_would_be_right() {
        for (text, said) in [
            ("queues = 4\n\nprot = \"null\"", "FILE:3: \"prot\" is not an option; there are "),
            ("queues = true", "FILE:1: queues takes N as a text or a number"),
            ("# one\npoll = \"yes\"", "FILE:2: poll takes true or false"),
            ("port = [\n  \"null\",\n  [\"null\"]\n]", "FILE:1: port takes SPEC as a text or a number, or a list"),
            ("listen = [\"a\"]", "FILE:1: listen takes PATH as a text"),
            ("[card]\nqueues = 4", "FILE:1: \"card\" is not an option"),
            ("[port]\nkind = 4", "FILE:1: port takes SPEC"),
            ("rx = 4\nrx = 5", "FILE:2: duplicate key"),
            ("rx = 4\ntx = ", "FILE:2: "),
            ("\nrx = \"many\"", "FILE:2: "),
            ("\nengine = \"wood\"", "FILE:2: invalid value 'wood' for '--engine"),
            ("\ngrant = [\"everyone=use:rx0\", \"everyone=fly\"]", "FILE:2: --grant: "),
            ("\nquota = \"wood=1\"", "FILE:2: --quota: "),
            ("json = true", "FILE:1: json cannot be set in a file: whoever reads"),
            ("config = \"x\"", "FILE:1: config cannot be set in a file: a file names no other"),
            ("user = \"1\"\nkeep-privileges = true", "FILE: the argument '--"),
        ] {
            let error = card(text, "").map(|_| ()).unwrap_err();
            assert!(error.starts_with(said), "{text:?}: {error:?}");
        }
        assert!(card("prot = 1", "").unwrap_err().contains(" port, "));
    }

    #[test]
    fn a_file_that_is_not_there_is_an_error_unless_a_dash_says_otherwise() {
        let said = read("millrace card --config=/nowhere/card.toml").map(|_| ()).unwrap_err().to_string();
        assert!(said.starts_with("cannot read /nowhere/card.toml"), "{said}");
        read("millrace card --config=-/nowhere/card.toml").unwrap();
    }

    /// Lines of an example that set something, without the `#` of those that are only shown.
    fn examples(text: &'static str) -> impl Iterator<Item = &'static str> {
        let lines = text.lines().map(|line| line.strip_prefix('#').unwrap_or(line));
        lines.filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()))
    }

    #[test]
    fn the_example_works_as_it_is_and_line_by_line() {
        card(EXAMPLE, "").unwrap();
        for line in examples(EXAMPLE) {
            card(line, "").unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn every_option_is_in_the_example_or_has_a_reason_not_to_be() {
        for (kind, example) in [(&CARD, EXAMPLE), (&ROUTER, EXAMPLE_OF_ROUTER)] {
            let shown: BTreeSet<&str> = examples(example).map(|line| line.split(' ').next().unwrap()).collect();
            assert_eq!(shown, kind.settable(&kind.options()).collect());
        }
    }

    #[test]
    fn a_file_makes_the_router_that_the_options_make() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("router.toml");
        let start = |text: &str, typed: &str| {
            std::fs::write(&path, text).unwrap();
            let cli = read(&format!("millrace router start --config {} {typed}", path.display()));
            let cli = cli.map_err(|failure| failure.to_string().replace(&path.display().to_string(), "FILE"))?;
            let Command::Router(RouterArgs { command: RouterCommand::Start(start) }) = cli.command else {
                panic!("another command")
            };
            Ok::<_, String>(format!("{:?}", start.options().map_err(|failure| failure.to_string())?))
        };
        let typed = start("", "--interfaces eth0,eth* --mode tc --shadow all --off").unwrap();
        assert_eq!(
            start("interfaces = [\"eth0\", \"eth*\"]\nmode = \"tc\"\nshadow = \"all\"\noff = true", ""),
            Ok(typed.clone())
        );
        assert_eq!(
            start(
                "interfaces = \"x\"\nmode = \"xdp\"\nshadow = \"all\"\noff = true",
                "--interfaces eth0,eth* --mode tc"
            ),
            Ok(typed)
        );
        assert!(start("\nmode = \"wood\"", "").unwrap_err().starts_with("FILE:2: invalid value 'wood'"));
        assert!(start("", "").unwrap_err().contains("--interfaces"));
        start(EXAMPLE_OF_ROUTER, "").unwrap();
        for line in examples(EXAMPLE_OF_ROUTER) {
            start(line, "--interfaces eth0").unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
