//! Open vSwitch: its userspace datapath on dummy ports, without rights, in a folder of its own.

use std::fmt::Write;
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Ports of the switch. Frames come in at the first; only marks go out of the last.
pub const PORTS: u32 = 5;
/// The longest frame that the switch sends with any number of tags.
pub const LONGEST: usize = 8900;
/// At most 100 frames wait at a dummy port; behind each is a mark.
const BATCH: usize = 40;
/// An EtherType for experiments (RFC 9542). Marks go out of every port, so that what lies between two of them belongs to one frame.
const MARK: [u8; 14] = [2, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0, 6, 0x88, 0xb5];
const MARKS: &str = "priority=65000,dl_type=0x88b5,actions=output:2,output:3,output:4,in_port,output:5\n";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// The switch, which ends with this.
pub struct Switch {
    folder: PathBuf,
    programs: Vec<Child>,
}

impl Drop for Switch {
    fn drop(&mut self) {
        for program in &mut self.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(180), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Switch {
    /// A bridge with dummy ports and these rules, or `None` where Open vSwitch is not installed.
    pub fn start(rules: &str) -> Option<Self> {
        let switch = Self::empty()?;
        let mut words = "set Open_vSwitch . other_config:vlan-limit=2 -- add-br br0".to_owned();
        write!(words, " -- set bridge br0 datapath_type=dummy fail-mode=secure").unwrap();
        for port in 1..=PORTS {
            write!(words, " -- {}", switch.port("br0", &format!("p{port}"), port)).unwrap();
        }
        switch.configure(&words)?;
        switch.rules("br0", &(MARKS.to_owned() + &in_its_words(rules)))?;
        Some(switch)
    }

    /// Without a bridge.
    pub fn empty() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !Path::new(SCHEMA).exists() {
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("millrace-execute-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut switch = Self { folder, programs: Vec::new() };
        let (database, control) = (switch.unix("db.sock"), switch.path("switch.ctl"));
        switch.run("ovsdb-tool", &["create", &switch.path("conf.db"), SCHEMA])?;
        let listen = format!("--remote=p{database}");
        let own = format!("--unixctl={}", switch.path("database.ctl"));
        switch.launch("ovsdb-server", &[&switch.path("conf.db"), &listen, &own])?;
        until("the database listens", || Path::new(&switch.path("db.sock")).exists());
        let db = format!("--db={database}");
        switch.run("ovs-vsctl", &[&db, "--no-wait", "init"])?;
        let own = format!("--unixctl={control}");
        switch.launch(
            "ovs-vswitchd",
            &["--enable-dummy", "--disable-system", "--disable-system-route", &database, &own],
        )?;
        Some(switch)
    }

    /// Does what `ovs-vsctl` is told.
    pub fn configure(&self, words: &str) -> Option<()> {
        let words = format!("--db={} --timeout=60 {words}", self.unix("db.sock"));
        self.run("ovs-vsctl", &words.split(' ').collect::<Vec<_>>())
    }

    /// The words that add a dummy port, which writes what it sends to a file.
    pub fn port(&self, bridge: &str, name: &str, number: u32) -> String {
        let pcap = self.path(&format!("{name}.pcap"));
        let add = format!("add-port {bridge} {name} -- set Interface {name} type=dummy ofport_request={number}");
        format!("{add} mtu_request=9000 options:tx_pcap={pcap}")
    }

    /// Gives a bridge these rules.
    pub fn rules(&self, bridge: &str, rules: &str) -> Option<()> {
        std::fs::write(self.path("rules"), rules).unwrap();
        let bridge = self.unix(&format!("{bridge}.mgmt"));
        self.run("ovs-ofctl", &["set-frags", &bridge, "nx-match"])?;
        self.run("ovs-ofctl", &["-O", "OpenFlow13", "add-flows", &bridge, &self.path("rules")])
    }

    /// Gives the bridge those of these rules that it takes; which they are.
    pub fn offer(&self, rules: &str) -> String {
        let bridge = self.unix("br0.mgmt");
        let takes = |line: &&str| {
            let line = in_its_words(line);
            let output = self.command("ovs-ofctl", &["-O", "OpenFlow13", "add-flow", &bridge, line.trim()]).output();
            output.unwrap().status.success()
        };
        rules.lines().filter(takes).fold(String::new(), |taken, line| taken + line + "\n")
    }

    /// Does what `ovs-appctl` is told.
    pub fn control(&self, words: &str) {
        let mut words = words.split(' ').map(str::to_owned);
        let command = words.next().unwrap();
        Control::open(&self.path("switch.ctl")).ask(&command, words.collect());
    }

    /// Lets frames come in at one port; what goes out of another, which is as many.
    pub fn pass(&self, frames: &[Vec<u8>], into: &str, out_of: &str) -> Vec<Vec<u8>> {
        let mut control = Control::open(&self.path("switch.ctl"));
        let mut file = Output::open(&self.path(&format!("{out_of}.pcap")));
        let before = file.read().open_group();
        for (number, batch) in frames.chunks(BATCH).enumerate() {
            let words = [into.to_owned()].into_iter().chain(batch.iter().map(|frame| hex(frame)));
            control.ask("netdev-dummy/receive", words.collect());
            let wanted = before + number * BATCH + batch.len();
            until("as many frames are out", || file.read().open_group() >= wanted);
        }
        file.groups.pop().unwrap().split_off(before)
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    fn unix(&self, name: &str) -> String {
        format!("unix:{}", self.path(name))
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        command.args(arguments).env("PATH", path).stdin(Stdio::null()).stdout(Stdio::null());
        for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(name, &self.folder);
        }
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Option<()> {
        let output = self.command(program, arguments).output().ok()?;
        assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Some(())
    }

    fn launch(&mut self, program: &str, arguments: &[&str]) -> Option<()> {
        let log = std::fs::File::create(self.folder.join(format!("{program}.log"))).ok()?;
        let child = self.command(program, arguments).arg("--no-chdir").stderr(log).spawn().ok()?;
        self.programs.push(child);
        Some(())
    }

    /// Lets frames come in at port 1. For each of them: what came out of ports 1 to 4, in order.
    pub fn feed(&self, frames: &[Vec<u8>]) -> Vec<[Vec<Vec<u8>>; PORTS as usize - 1]> {
        let mut control = Control::open(&self.path("switch.ctl"));
        let mut files: Vec<_> = (1..=PORTS).map(|port| Output::open(&self.path(&format!("p{port}.pcap")))).collect();
        // Its cache of flows leaves out the second tag where a rule takes the first one away, so that frames with one tag and
        // frames with two are treated alike. Without masks in the cache they are not.
        control.ask("upcall/disable-megaflows", Vec::new());
        for batch in frames.chunks(BATCH) {
            let mut words = vec!["p1".to_owned()];
            words.extend(batch.iter().flat_map(|frame| [hex(frame), hex(&MARK)]));
            control.ask("netdev-dummy/receive", words);
            let wanted = files[0].marks() + batch.len();
            until("the marks are out", || files.iter_mut().all(|file| file.read().marks() >= wanted));
        }
        let mut ports: Vec<_> =
            files.into_iter().take(PORTS as usize - 1).map(|file| file.groups.into_iter()).collect();
        let of_one = |_: &Vec<u8>| std::array::from_fn(|port| ports[port].next().unwrap());
        frames.iter().map(of_one).collect()
    }
}

/// The same rules as `ovs-ofctl` takes them: of version 3.1, `set_field` to `dl_vlan` and to `dl_vlan_pcp` writes something else.
fn in_its_words(rules: &str) -> String {
    let word = |action: &str| match action.strip_prefix("set_field:").and_then(|rest| rest.split_once("->")) {
        Some((value, "dl_vlan")) => format!("mod_vlan_vid:{value}"),
        Some((value, "dl_vlan_pcp")) => format!("mod_vlan_pcp:{value}"),
        None if action == "pppoe" => "dl_type=0x8864".to_owned(),
        _ => action.to_owned(),
    };
    let line = |line: &str| line.split(',').map(word).collect::<Vec<_>>().join(",") + "\n";
    rules.lines().map(|text| line(&text.replace("actions=", "actions=,")).replace("actions=,", "actions=")).collect()
}

pub fn hex(frame: &[u8]) -> String {
    frame.iter().fold(String::with_capacity(2 * frame.len()), |hex, byte| {
        let digit = |number: u8| char::from_digit(number.into(), 16).unwrap();
        hex + &String::from_iter([digit(byte >> 4), digit(byte & 15)])
    })
}

/// Commands to the switch, as JSON-RPC.
struct Control {
    stream: UnixStream,
    answers: serde_json::StreamDeserializer<'static, serde_json::de::IoRead<UnixStream>, serde_json::Value>,
}

impl Control {
    fn open(path: &str) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        let answers = serde_json::Deserializer::from_reader(stream.try_clone().unwrap()).into_iter();
        Self { stream, answers }
    }

    fn ask(&mut self, method: &str, words: Vec<String>) {
        let ask = serde_json::json!({"id": 0, "method": method, "params": words});
        self.stream.write_all(ask.to_string().as_bytes()).unwrap();
        let answer = self.answers.next().unwrap().unwrap();
        assert!(answer["error"].is_null(), "{answer}");
    }
}

/// What a port has sent: a file that grows.
struct Output {
    file: std::fs::File,
    rest: Vec<u8>,
    /// Frames between marks; the last group is open.
    groups: Vec<Vec<Vec<u8>>>,
}

impl Output {
    fn open(path: &str) -> Self {
        let mut file = std::fs::File::open(path).unwrap();
        file.seek(SeekFrom::Start(24)).unwrap();
        Self { file, rest: Vec::new(), groups: vec![Vec::new()] }
    }

    /// Frames behind the last mark.
    fn open_group(&self) -> usize {
        self.groups.last().map_or(0, Vec::len)
    }

    fn marks(&self) -> usize {
        self.groups.len() - 1
    }

    fn read(&mut self) -> &Self {
        self.file.read_to_end(&mut self.rest).unwrap();
        let mut done = 0;
        while let Some((head, behind)) = self.rest[done..].split_first_chunk::<16>() {
            let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
            let Some(frame) = behind.get(..len) else { break };
            if frame == MARK {
                self.groups.push(Vec::new());
            } else {
                self.groups.last_mut().unwrap().push(frame.to_vec());
            }
            done += 16 + len;
        }
        self.rest.drain(..done);
        self
    }
}
