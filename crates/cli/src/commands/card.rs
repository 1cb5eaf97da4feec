//! `millrace card`: a card daemon.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use millrace_abi::name::{CardOptions, DeviceName, MAX_PATH, OPTIONS, OptionHelp};
use millrace_abi::tree::CardDescription;
use millrace_driver::Policy;
use millrace_flow::language::RuleFile;
use millrace_pci::Kept;
use millrace_port::{PortSpec, notice};
use millrace_rdma::number::Gid;
use millrace_tool::cores;
use millrace_tool::failure::Failure;
use millrace_tool::options::Shared;
use millrace_tool::output::{self, Output, Row};
use millrace_tool::place;
use millrace_tool::stop;

use crate::policy::{self, PolicyArgs};
use crate::privileges::{self, Plan, SocketAccess, Who};
use crate::rules;
use crate::serve::{Daemon, MessageEngine, PciFunctions, RdmaEngine, RdmaOptions, Wire};

const HELP: &str = "\
Runs until Ctrl-C. Prints the name under which other programs find the card,
as soon as they can use it. Kinds of ports: loopback, null, generator, pcap,
tap, af_packet, af_xdp, vhost-user, virtio-user, and trace and fault around one
of them (docs/ports.md); without --port what is sent comes back.
Only the user who runs the card, and root, may use it; others what --grant says.

Examples:
  millrace card --listen /tmp/card.sock
  millrace card --queues 8 --engine sze@0-3 --workers 2 --cpu 2-3
  millrace card --port tap:mill0 --rx 4 --tx 1
  millrace card --port pcap:in.pcap,speed=recorded,loop=forever
  millrace card --poll --cpu 1      lowest latency; keeps core 1 busy
  millrace card --queues 4 --grant user:bob=use:rx0-1,tx0-1 --quota queues=8
  millrace card --queues 4 --rules rules.txt
  millrace card --rdma-cpu          RDMA engine for verbs programs (place=card)
  millrace card --rdma-cpu 1 --rdma-wire af_xdp:eth1 --rdma-ip 192.0.2.1
  millrace card --message-cpu       engine of messages for programs (message --card)
  millrace card --vfio-user /tmp/pci.sock      a PCI function for a virtual machine
  millrace card --vfio-user /tmp/pci.sock --take-over    go on with it from the card that runs
  millrace card --vfio-user /tmp/pci.sock --keep         go on with another card if this one is killed
  millrace card --config /etc/millrace/lab.toml --poll";

/// Says to a card that a keeper has it.
pub const KEPT: &str = "--kept";

/// How often the daemon looks whether it is to end.
const NAP: Duration = Duration::from_millis(50);

/// Words of card options that are shared options of all commands.
const SHARED_WORDS: [&str; 2] = ["engine", "poll"];

/// Options of `card`: those of [`CardOptions`], whose table makes the flags, and where to listen.
#[derive(Clone, Debug, Default)]
pub struct CardArgs {
    /// The file that holds further options.
    pub config: Option<PathBuf>,
    /// Where to listen.
    pub listen: Option<PathBuf>,
    until_eof: bool,
    /// The file of rules that it begins with.
    rules: Option<PathBuf>,
    /// Whether there is an RDMA engine for programs, and on which core it works.
    rdma: Option<Core>,
    rdma_address: Option<IpAddr>,
    rdma_wire: Option<Wire>,
    rdma_mtu: Option<u16>,
    /// Whether there is an engine of messages for programs, and on which core it works.
    messages: Option<Core>,
    /// The sockets of its PCI functions, if it has some.
    functions: Option<FunctionsSpec>,
    /// Whether it takes over from the card that runs there.
    take_over: bool,
    /// Whether a keeper is to have it, and whether one has.
    keep: bool,
    kept: bool,
    /// Who else may use the card.
    pub policy: PolicyArgs,
    /// Word and value of each flag given.
    given: Vec<(&'static str, Option<String>)>,
}

impl Args for CardArgs {
    fn augment_args(command: Command) -> Command {
        let listen = Arg::new("listen")
            .long("listen")
            .value_name("PATH")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Unix socket to listen on [default: where commands without --device look for it]");
        let config =
            Arg::new("config").long("config").value_name("FILE").value_parser(clap::value_parser!(PathBuf)).help(
                "Take options from this file: TOML, by the same names; those given here win. --config=-FILE: only if \
                 it is there",
            );
        let until_eof = Arg::new("until-eof")
            .long("until-eof")
            .action(ArgAction::SetTrue)
            .help("End also when standard input is closed, so that the card never outlives who started it");
        let rules = Arg::new("rules").long("rules").value_name("FILE").value_parser(clap::value_parser!(PathBuf)).help(
            "Rules, RSS groups and meters that are there before the first frame (see `millrace flow`, \
                 docs/classifier.md)",
        );
        let rdma =
            Arg::new("rdma-cpu").long("rdma-cpu").value_name("CORE").num_args(0..=1).default_missing_value("any");
        let rdma = rdma.value_parser(Core::parse).help(
            "Run an RDMA engine that verbs programs share (place=card, docs/rdma.md), on this core; without a number, on any",
        );
        let messages =
            Arg::new("message-cpu").long("message-cpu").value_name("CORE").num_args(0..=1).default_missing_value("any");
        let messages = messages.value_parser(Core::parse).help(
            "Do the messages of programs that use this card for it (message --card, docs/message.md), on this core; without a number, on any",
        );
        let functions = Arg::new("vfio-user").long("vfio-user").value_name("PATH[,functions=N]");
        let functions = functions.value_parser(FunctionsSpec::parse).help(
            "Give virtual machines the card as a PCI function, at this socket, or as N functions with a share of the queues each, at PATH.0 and so on \
             (docs/guests.md)",
        );
        let take_over = Arg::new("take-over").long("take-over").action(ArgAction::SetTrue).help(
            "Take over from the card that runs with the same options and --vfio-user: its machines go on with this one, and it ends \
             (docs/guests.md)",
        );
        let keep = Arg::new("keep").long("keep").action(ArgAction::SetTrue).help(
            "Start another card when this one is killed: machines of --vfio-user go on with it where they were (docs/guests.md)",
        );
        let kept = Arg::new("kept").long("kept").action(ArgAction::SetTrue).hide(true);
        let option = |id: &'static str, value: &'static str, help: &'static str| {
            Arg::new(id).long(id).value_name(value).help(help)
        };
        let wire = option(
            "rdma-wire",
            "WIRE",
            "What leads from that engine to other hosts: queue:N, the TX and RX queue N of this card; or a port of the engine's own, as --port has them",
        );
        let address = option("rdma-ip", "ADDRESS", "The address of programs of that engine [default: 198.19.255.254]");
        let mtu = option(
            "rdma-mtu",
            "BYTES",
            "Payload of a packet of that engine: 256, 512, 1024, 2048 or 4096 [default: what fits; 1024 for a port]",
        );
        let wire = wire.value_parser(wire_of);
        let address = address.value_parser(address_of);
        let mtu = mtu.value_parser(mtu_of);
        let command = command.after_help(HELP).args([
            config, listen, until_eof, rules, functions, take_over, keep, kept, rdma, wire, address, mtu, messages,
        ]);
        let command = flags().fold(command, |command, option| command.arg(flag(option)));
        PolicyArgs::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for CardArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Vec::new();
        for option in flags() {
            if option.value.is_empty() {
                given.extend(matches.get_flag(option.word).then_some((option.word, None)));
            } else {
                let values = matches.get_many::<String>(option.word).unwrap_or_default();
                given.extend(values.map(|value| (option.word, Some(value.clone()))));
            }
        }
        let policy = PolicyArgs::from_arg_matches(matches)?;
        let path = |id| matches.get_one::<PathBuf>(id).cloned();
        let until_eof = matches.get_flag("until-eof");
        let rdma = matches.get_one::<Core>("rdma-cpu").copied();
        let rdma_address = matches.get_one::<IpAddr>("rdma-ip").copied();
        let rdma_wire = matches.get_one::<Wire>("rdma-wire").cloned();
        let rdma_mtu = matches.get_one::<u16>("rdma-mtu").copied();
        let messages = matches.get_one::<Core>("message-cpu").copied();
        let functions = matches.get_one::<FunctionsSpec>("vfio-user").cloned();
        let take_over = matches.get_flag("take-over");
        let (keep, kept) = (matches.get_flag("keep"), matches.get_flag("kept"));
        let (config, listen, rules) = (path("config"), path("listen"), path("rules"));
        Ok(Self {
            config,
            listen,
            until_eof,
            rules,
            rdma,
            rdma_address,
            rdma_wire,
            rdma_mtu,
            messages,
            functions,
            take_over,
            keep,
            kept,
            policy,
            given,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// On which core an engine works; on any without a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Core(Option<u32>);

impl Core {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "any" => Ok(Self(None)),
            _ => text
                .parse()
                .map(|core| Self(Some(core)))
                .map_err(|_| "the number of a core is meant, or any".to_owned()),
        }
    }
}

/// Where the PCI functions of a card are, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionsSpec {
    /// Where the first is.
    pub path: PathBuf,
    /// How many there are.
    pub count: u32,
}

impl FunctionsSpec {
    fn parse(text: &str) -> Result<Self, String> {
        let (path, count) = match text.rsplit_once(",functions=") {
            Some((path, count)) => (path, count.parse().ok().filter(|&count| count > 0)),
            // A slip of the pen would be a part of the path.
            None => match text.rsplit_once(',') {
                Some((_, part)) if part.contains('=') => {
                    return Err(format!(
                        "there is no option `{part}`, only functions=N; where the path is meant to end like that, say ,functions=1 behind it"
                    ));
                }
                _ => (text, Some(1)),
            },
        };
        let count = count.ok_or("functions takes a number, from 1 on")?;
        if path.is_empty() {
            return Err("the path of a socket is meant, such as /tmp/pci.sock".to_owned());
        }
        Ok(Self { path: path.into(), count })
    }
}

/// What leads from the RDMA engine to other hosts.
fn wire_of(text: &str) -> Result<Wire, String> {
    match text.strip_prefix("queue:") {
        Some(number) => {
            number.parse().map(Wire::Queue).map_err(|_| "the number of a queue is meant: queue:0".to_owned())
        }
        None => {
            let checked: Result<PortSpec, _> = text.parse();
            checked.map(|_| Wire::Port(text.to_owned())).map_err(|error: millrace_port::SpecError| error.to_string())
        }
    }
}

/// The address of an end: others answer to it by its MAC address.
fn address_of(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| "expected an IP address, such as 192.0.2.1".to_owned())?;
    if Gid::from_ip(address).is_end() {
        return Ok(address);
    }
    Err("expected the address of one host, such as 192.0.2.1: choose a free one of the network that the wire leads to"
        .to_owned())
}

fn mtu_of(text: &str) -> Result<u16, String> {
    let sizes = [256, 512, 1024, 2048, 4096];
    let mtu = text.parse().ok().filter(|mtu| sizes.contains(mtu));
    mtu.ok_or_else(|| "256, 512, 1024, 2048 or 4096 is meant".to_owned())
}

fn flags() -> impl Iterator<Item = &'static OptionHelp> {
    OPTIONS.iter().filter(|option| !SHARED_WORDS.contains(&option.word))
}

fn flag(option: &'static OptionHelp) -> Arg {
    let arg = Arg::new(option.word).long(option.word).help(capitalised(option.meaning));
    if option.value.is_empty() {
        arg.action(ArgAction::SetTrue)
    } else {
        arg.value_name(option.value).action(ArgAction::Append)
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + letters.as_str())
}

impl CardArgs {
    /// Refuses values that no card could take, whatever the other options are.
    pub fn check_values(&self, shared: &Shared) -> Result<(), Failure> {
        self.unchecked(shared)?;
        self.policy.given().map(drop)
    }

    /// The RDMA engine that the flags describe, if there is to be one.
    fn rdma(&self) -> Option<RdmaOptions> {
        let Core(core) = self.rdma?;
        Some(RdmaOptions { core, address: self.rdma_address, wire: self.rdma_wire.clone(), mtu: self.rdma_mtu })
    }

    /// Whether this process is to be a keeper.
    pub fn wants_keeper(&self) -> bool {
        self.keep && !self.kept
    }

    /// Whether it ends with its standard input.
    pub fn until_eof(&self) -> bool {
        self.until_eof
    }

    /// The card that a keeper is to have, and its functions.
    pub fn to_keep(&self, shared: &Shared) -> Result<(CardOptions, FunctionsSpec), Failure> {
        let usage = |problem: &str| Failure::Usage(problem.to_owned());
        let functions =
            self.functions.clone().ok_or_else(|| usage("--keep is about machines: it takes --vfio-user"))?;
        if self.take_over {
            return Err(usage("--keep listens itself, and cannot be taken over from: leave --take-over out"));
        }
        Ok((self.options(shared)?, functions))
    }

    /// Who the card is to run as, and how its sockets are made his.
    pub fn plan(&self) -> Result<(Plan, Option<SocketAccess>), Failure> {
        let (_, plan) = self.policy.read()?;
        let access = SocketAccess::new(&plan);
        Ok((plan, access))
    }

    /// The card that the flags describe.
    pub fn options(&self, shared: &Shared) -> Result<CardOptions, Failure> {
        let options = self.unchecked(shared)?;
        options.validate().map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(options)
    }

    /// The same, and the options may contradict each other.
    fn unchecked(&self, shared: &Shared) -> Result<CardOptions, Failure> {
        let mut options = CardOptions { poll: shared.poll, ..CardOptions::default() };
        options.engines.extend(shared.engine_rules());
        if self.given.iter().any(|(word, _)| *word == "port") {
            options.ports.clear();
        }
        // `--queues` first, so that `--rx` and `--tx` refine it whatever the order on the command line.
        let (queues, others): (Vec<_>, Vec<_>) = self.given.iter().partition(|(word, _)| *word == "queues");
        for (word, value) in queues.into_iter().chain(others) {
            options.set(word, value.as_deref()).map_err(|error| Failure::Usage(error.to_string()))?;
        }
        Ok(options)
    }
}

/// What is settled before the first thread: the card, who may use it, and what it keeps of root's privileges.
pub struct Prepared {
    options: CardOptions,
    policy: Policy,
    plan: Plan,
    socket_access: Option<SocketAccess>,
    rules: RuleFile,
    rdma: Option<RdmaOptions>,
    messages: Option<Core>,
    functions: Option<FunctionsSpec>,
    take_over: bool,
    kept: Option<Kept>,
}

/// Reads the options and gives up privileges. To be called before any thread is made.
pub fn prepare(shared: &Shared, args: &CardArgs) -> Result<Prepared, Failure> {
    let options = args.options(shared)?;
    let (policy, plan) = args.policy.read()?;
    policy::check(&policy, &options)?;
    check_cores(&options, cores::can_be_had)?;
    for (core, option) in [(args.rdma, "--rdma-cpu"), (args.messages, "--message-cpu")] {
        if let Some(Core(Some(core))) = core
            && !cores::can_be_had(core as usize)
        {
            return Err(Failure::Usage(format!("{option} {core}: this machine has no such core, or not for the card")));
        }
    }
    // While the file can still be read.
    let rules = args.rules.as_deref().map_or_else(
        || Ok(RuleFile::default()),
        |path| {
            let loaded = stop::at_once(|| rules::load(path, Some(options.rx_queues)));
            loaded.map(|(file, _)| file).map_err(|failure| Failure::Usage(format!("--rules {failure}")))
        },
    )?;
    let socket_access = SocketAccess::new(&plan);
    let rdma = args.rdma();
    if rdma.is_none() && (args.rdma_wire.is_some() || args.rdma_address.is_some() || args.rdma_mtu.is_some()) {
        let problem = "--rdma-wire, --rdma-ip and --rdma-mtu are about the RDMA engine: it takes --rdma-cpu";
        return Err(Failure::Usage(problem.to_owned()));
    }
    let kept = args.kept.then(Kept::from_standard_input).transpose().map_err(Failure::Usage)?;
    if args.take_over && args.functions.is_none() {
        return Err(Failure::Usage("--take-over is about machines: it takes --vfio-user".to_owned()));
    }
    if args.take_over && (rdma.is_some() || args.messages.is_some()) {
        let problem = "--take-over: connections of programs with --rdma-cpu or --message-cpu cannot be taken over; end that card, and start this one without";
        return Err(Failure::Usage(problem.to_owned()));
    }
    if args.take_over {
        check_files(&options.ports)?;
    }
    let mut ports = options.ports.clone();
    if let Some(RdmaOptions { wire: Some(Wire::Port(port)), .. }) = &rdma {
        ports.push(port.clone());
    }
    privileges::narrow(&plan, &ports)?;
    Ok(Prepared {
        options,
        policy,
        plan,
        socket_access,
        rules,
        rdma,
        messages: args.messages,
        functions: args.functions.clone(),
        take_over: args.take_over,
        kept,
    })
}

/// Refuses files that the card that runs still writes to: opening them would destroy what it has written, even if it goes on.
fn check_files(ports: &[String]) -> Result<(), Failure> {
    for port in ports {
        // What is wrong with it is said by who opens it.
        let Ok(spec) = port.parse::<PortSpec>() else { continue };
        if let Some(file) = spec.overwrites() {
            return Err(Failure::Usage(format!(
                "--take-over: the port {port} would begin {file} anew while the card that runs writes to it; end that card, or start this one with another port in its place"
            )));
        }
    }
    Ok(())
}

/// Refuses cores to which no worker can be pinned: it would run on any other.
fn check_cores(options: &CardOptions, can_be_had: impl Fn(usize) -> bool) -> Result<(), Failure> {
    match options.cpus.iter().find(|&&cpu| !can_be_had(cpu as usize)) {
        Some(cpu) => Err(Failure::Usage(format!("--cpu {cpu}: this machine has no such core, or not for the card"))),
        None => Ok(()),
    }
}

/// Runs the command.
pub fn run(shared: &Shared, args: &CardArgs, prepared: Prepared) -> Result<(), Failure> {
    let Prepared { options, policy, plan, socket_access, rules, rdma, messages, functions, take_over, kept } = prepared;
    let path = args.listen.clone().unwrap_or_else(place::usual);
    if path.as_os_str().len() > MAX_PATH {
        return Err(Failure::Usage(format!("--listen {}: longer than {MAX_PATH} bytes", path.display())));
    }
    // Before anybody finds the card: it may not be divided so.
    let (mut functions, socket) = match functions {
        Some(spec) if take_over => {
            let (functions, socket) = PciFunctions::take_over(&options, &spec.path, spec.count, &path)?;
            (Some(functions), socket)
        }
        Some(spec) if let Some(kept) = kept => {
            (Some(PciFunctions::kept(&options, &spec.path, spec.count, kept)?), None)
        }
        Some(spec) => (Some(PciFunctions::listen(&options, &spec.path, spec.count)?), None),
        None => (None, None),
    };
    let daemon = match &socket {
        Some(_) => Daemon::start_unheard(&options, policy.clone(), &rules)?,
        None if args.kept => Daemon::start_deaf(&path, &options, policy.clone(), &rules)?,
        None => Daemon::start(&path, &options, policy.clone(), &rules)?,
    };
    if let Some(functions) = &mut functions {
        let listener = socket.as_ref().map_or_else(|| daemon.listener(), |socket| socket.try_clone().map(Some));
        functions.listen_also(&path, listener)?;
    }
    let mut engine = rdma.as_ref().map(|options| RdmaEngine::listen(&path, options)).transpose()?;
    let mut message_engine = messages.map(|_| MessageEngine::listen(&path)).transpose()?;
    if let (Some(socket_access), Some(own)) = (socket_access, daemon.socket()) {
        socket_access.open(&path, own, Who::Users)?;
        if let Some((path, own)) = message_engine.as_ref().map(MessageEngine::socket) {
            socket_access.open(path, own, Who::Users)?;
        }
        if let Some((path, own)) = engine.as_ref().map(RdmaEngine::socket) {
            socket_access.open(path, own, Who::Users)?;
        }
        for (path, own) in functions.iter().flat_map(PciFunctions::sockets) {
            socket_access.open(path, own, Who::Owner)?;
        }
    }
    let was_root = rustix::process::geteuid().is_root();
    privileges::become_user(&plan)?;
    if was_root {
        output::note(format!("privileges of root that the card keeps: {}", privileges::kept()));
    }
    // Threads have the rights that they begin with.
    if let (Some(engine), Some(Core(core))) = (&mut message_engine, messages) {
        engine.start(core, policy.clone())?;
    }
    if let (Some(engine), Some(options)) = (&mut engine, &rdma) {
        engine.start(&path, options, policy)?;
    }
    if let Some(functions) = &mut functions {
        functions.start(&daemon)?;
    }
    if args.kept {
        daemon.hear()?;
    }
    socket.into_iter().for_each(|socket| daemon.listen_on(socket, &path));
    let announced = announce(shared, &path, &options, rdma.as_ref(), functions.as_ref());
    // A card that has taken over has machines by now, which nobody else has: it does not end because nobody reads what it says.
    match announced {
        Err(why) if args.take_over => notice::warn(format!("it cannot be said that this card listens: {why}")),
        announced => announced?,
    }
    // A card that is kept ends with its keeper.
    if args.until_eof || args.kept {
        thread::spawn(stop::with_standard_input);
    }
    while !stop::asked() && !functions.as_ref().is_some_and(PciFunctions::are_given) {
        thread::sleep(NAP);
    }
    // Another card may be about to have everything: whether it has is known when the thread that gives it has ended.
    if functions.is_some_and(PciFunctions::end) {
        daemon.leave_socket();
    }
    drop(engine);
    drop(message_engine);
    drop(daemon);
    Ok(())
}

fn announce(
    shared: &Shared,
    path: &Path,
    options: &CardOptions,
    rdma: Option<&RdmaOptions>,
    functions: Option<&PciFunctions>,
) -> Result<(), Failure> {
    let device = DeviceName::Unix(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()));
    let description = CardDescription::new(options);
    let row = Row::new()
        .tag("event", "listening")
        .text("device", device)
        .count("pid", u64::from(std::process::id()))
        .count("rx_queues", description.rx_queues.len() as u64)
        .count("tx_queues", description.tx_queues.len() as u64)
        .list("ports", options.ports.clone())
        .tag("privileges", privileges::kept());
    let row = match rdma {
        Some(engine) => row.text("rdma", engine.ip()),
        None => row,
    };
    let row = match functions {
        Some(functions) => row.list("functions", functions.paths()),
        None => row,
    };
    Ok(Output::new(shared.json).rows("listening", &[row])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use millrace_abi::queue::{Engine, QueueId};

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        args: CardArgs,
        #[command(flatten)]
        shared: Shared,
    }

    fn options(line: &str) -> Result<CardOptions, Failure> {
        let only = Only::try_parse_from(line.split(' ')).unwrap();
        only.args.options(&only.shared)
    }

    #[test]
    fn flags_make_the_card_that_the_device_name_makes() {
        let card = options(
            "card --queues 4 --rx 6 --engine sze@0-1 --port null --port generator:size=64,rate=1k --poll \
             --cpu 1-2 --buffers 512 --buffer 4096 --discard",
        )
        .unwrap();
        let name = "embedded:rx=6,tx=4,engine=sze@0-1,port=null,port=(generator:size=64,rate=1k),poll,cpu=1-2,\
                    buffers=512,buffer=4096,discard";
        assert_eq!(name.parse(), Ok(DeviceName::Embedded(card.clone())));
        assert_eq!((card.engine_of(QueueId::rx(1)), card.engine_of(QueueId::tx(2))), (Engine::Sze, Engine::Medusa));
    }

    #[test]
    fn cores_that_are_not_there_are_refused() {
        let card = options("card --cpu 1,77").unwrap();
        let said = check_cores(&card, |core| core < 2).unwrap_err().to_string();
        assert!(said.starts_with("--cpu 77: "), "{said}");
        check_cores(&options("card --cpu 0-1").unwrap(), |core| core < 2).unwrap();
    }

    #[test]
    fn the_rdma_engine_has_a_core_any_or_is_not_there() {
        let rdma = |line: &str| Only::try_parse_from(line.split(' ')).map(|only| only.args.rdma).map_err(drop);
        assert_eq!(rdma("card --poll"), Ok(None));
        assert_eq!(rdma("card --rdma-cpu"), Ok(Some(Core(None))));
        assert_eq!(rdma("card --rdma-cpu 1 --poll"), Ok(Some(Core(Some(1)))));
        assert_eq!(rdma("card --rdma-cpu one"), Err(()));
        for address in ["192.0.2.1", "2001:db8::1", "fe80::1"] {
            assert!(rdma(&format!("card --rdma-cpu --rdma-ip {address}")).is_ok(), "{address}");
        }
        for address in ["224.0.0.1", "127.0.0.1", "0.0.0.0", "255.255.255.255", "ff02::1", "::1", "::", "host"] {
            assert!(rdma(&format!("card --rdma-cpu --rdma-ip {address}")).is_err(), "{address}");
        }
    }

    #[test]
    fn functions_have_a_path_and_a_number() {
        let functions =
            |line: &str| Only::try_parse_from(line.split(' ')).map(|only| only.args.functions).map_err(drop);
        assert_eq!(functions("card --poll"), Ok(None));
        let spec = |path: &str, count| Ok(Some(FunctionsSpec { path: path.into(), count }));
        assert_eq!(functions("card --vfio-user /tmp/a"), spec("/tmp/a", 1));
        assert_eq!(functions("card --vfio-user /tmp/a,b,functions=4"), spec("/tmp/a,b", 4));
        assert_eq!(functions("card --vfio-user /tmp/a=b,c"), spec("/tmp/a=b,c", 1));
        for wrong in
            ["/tmp/a,functions=0", "/tmp/a,functions=many", ",functions=2", "/tmp/a,functions=", "/tmp/a,function=2"]
        {
            assert_eq!(functions(&format!("card --vfio-user {wrong}")), Err(()), "{wrong}");
        }
    }

    #[test]
    fn a_card_without_flags_is_the_default_one() {
        assert_eq!(options("card").unwrap(), CardOptions::default());
        assert!(matches!(options("card --buffers 1000"), Err(Failure::Usage(_))));
    }
}
