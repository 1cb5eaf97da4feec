//! Ports that are plugged, unplugged and connected, and queues that change their worker, while traffic goes on.

use crate::common::{
    Daemon, PATIENCE, Process, argument, check_equations, receive_all, rx, say, send_all, settled, tx, within,
};
use millrace::{Device, Mode, QueueId, Sharing};
use millrace_port::pcap::{CaptureTime, Reader, Writer};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

fn capture(path: &Path, frames: usize) -> Vec<Vec<u8>> {
    let mut writer = Writer::create(path).unwrap();
    let frames: Vec<Vec<u8>> = (0..frames).map(|at| vec![(2 + 4 * (at % 60)) as u8; 60 + at * 13 % 1400]).collect();
    for (at, frame) in frames.iter().enumerate() {
        writer.write(CaptureTime::from_nanos(at as u64), frame).unwrap();
    }
    writer.flush().unwrap();
    frames
}

fn frames_in(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(path).unwrap();
    let mut frames = Vec::new();
    while let Some(frame) = reader.peek().unwrap() {
        frames.push(frame.data.to_vec());
        reader.take();
    }
    frames
}

fn passed(device: &Device, queue: QueueId) -> u64 {
    device.stats().unwrap().queues.iter().find(|entry| entry.queue == queue).unwrap().passed
}

#[test]
fn connected_ports_hand_over_every_frame() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.pcap"), folder.path().join("b.pcap"));
    let (to_a, to_b) = (folder.path().join("to_a.pcap"), folder.path().join("to_b.pcap"));
    let (sent_a, sent_b) = (capture(&a, 500), capture(&b, 300));
    let port = |read: &Path, write: &Path| format!("port=(pcap:{},write={})", read.display(), write.display());
    let (first, second) = (port(&a, &to_a), port(&b, &to_b));
    let device = Device::open(&format!("embedded:{first},{second},connect=0-1,spin=20")).unwrap();
    let stats = settled(&device, |stats| {
        stats.ports.iter().map(|port| (port.rx_frames, port.tx_frames)).eq([(500, 300), (300, 500)])
    });
    assert!(stats.ports.iter().map(|port| port.connected).eq([Some(1), Some(0)]));
    assert!(stats.queues.iter().all(|queue| queue.offered == 0), "nothing goes to queues");
    drop(device);
    assert!(frames_in(&to_b) == sent_a && frames_in(&to_a) == sent_b);
}

#[test]
fn a_port_that_is_connected_with_itself_reflects() {
    let folder = tempfile::tempdir().unwrap();
    let (read, write) = (folder.path().join("read.pcap"), folder.path().join("write.pcap"));
    let sent = capture(&read, 1000);
    let spec = format!("pcap:{},write={}", read.display(), write.display());
    let device = Device::open("embedded:port=none,spin=20").unwrap();
    device.connect(0, 0).unwrap();
    device.plug(0, &spec).unwrap();
    within(PATIENCE, || match device.stats().unwrap().ports[0].tx_frames {
        1000 => Ok(()),
        other => Err(other),
    });
    device.plug(0, "none").unwrap();
    let port = &device.stats().unwrap().ports[0];
    assert_eq!((port.rx_frames, port.tx_frames, port.rx_copies, port.link), (1000, 1000, 1000, false));
    assert!(frames_in(&write) == sent);
}

#[test]
fn wires_are_changed_while_queues_run() {
    let device = Device::open("embedded:rx=1,tx=1,port=none,spin=20").unwrap();
    let mut rx = rx(&device, 0, Mode::Direct, Sharing::Exclusive);
    let mut tx = tx(&device, 0, Mode::Direct, Sharing::Exclusive);
    send_all(&mut tx, 0, 100, 60);
    within(PATIENCE, || (passed(&device, QueueId::tx(0)) == 100).then_some(()).ok_or("not taken"));
    let port = || device.stats().unwrap().ports[0].clone();
    assert_eq!((port().tx_frames, port().tx_drops[0].count, &port().tx_drops[0].reason[..]), (0, 100, "unplugged"));
    device.plug(0, "loopback").unwrap();
    send_all(&mut tx, 100, 200, 60);
    receive_all(&mut rx, 100, 200);
    device.plug(0, "null").unwrap();
    send_all(&mut tx, 200, 300, 60);
    within(PATIENCE, || (port().tx_frames == 200).then_some(()).ok_or("not sent"));
    device.plug(0, "generator:count=50").unwrap();
    within(PATIENCE, || (passed(&device, QueueId::rx(0)) == 150).then_some(()).ok_or("not received"));
    let error = device.plug(0, "pcap:/nowhere/at/all.pcap").unwrap_err().to_string();
    assert!(error.contains("nothing is plugged in there now"), "{error}");
    assert_eq!((&port().spec[..], port().link), ("none", false));
    for (error, text) in [
        (device.plug(1, "null"), "there is no port 1"),
        (device.plug(0, "wood"), "there is no port kind `wood`"),
        (device.connect(0, 7), "there is no port 7"),
        (device.move_queue(QueueId::rx(9), 0), "there is no queue rx9"),
        (device.move_queue(QueueId::rx(0), 99), "there is no worker 99"),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    device.plug(0, "loopback").unwrap();
    assert!(device.connect(0, 0).unwrap_err().to_string().contains("loops back by itself"));
    send_all(&mut tx, 300, 400, 60);
    tx.close().unwrap();
    let (port, received) = (port(), passed(&device, QueueId::rx(0)));
    assert_eq!((port.tx_frames, port.tx_drops[0].count, port.rx_frames), (300, 100, 250));
    assert_eq!((passed(&device, QueueId::tx(0)), received), (400, 250));
}

#[test]
fn queues_change_their_worker_under_traffic() {
    for engine in ["sze", "medusa", "calypte"] {
        let device = Device::open(&format!("embedded:queues=4,engine={engine},workers=3,spin=20")).unwrap();
        std::thread::scope(|scope| {
            let traffic: Vec<_> = (0..4)
                .map(|index| {
                    let mode = if index == 3 { Mode::Mediated } else { Mode::Direct };
                    let mut rx = rx(&device, index, mode, Sharing::Exclusive);
                    let mut tx = tx(&device, index, mode, Sharing::Exclusive);
                    scope.spawn(move || {
                        for round in 0..200 {
                            send_all(&mut tx, round * 50, round * 50 + 50, 200);
                            receive_all(&mut rx, round * 50, round * 50 + 50);
                        }
                        tx.close().unwrap();
                    })
                })
                .collect();
            let mut moves = 0u32;
            while !traffic.iter().all(|thread| thread.is_finished()) {
                let queue = moves % 4;
                let id = if moves.is_multiple_of(2) { QueueId::rx(queue) } else { QueueId::tx(queue) };
                device.move_queue(id, moves / 4 % 3).unwrap();
                let stats = device.stats().unwrap();
                let workers: Vec<u32> =
                    stats.queues.iter().filter(|entry| entry.queue.index == queue).map(|entry| entry.worker).collect();
                assert_eq!(workers, [moves / 4 % 3; 2], "both directions go together");
                moves += 1;
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        check_equations(&device);
    }
}

#[test]
fn queues_go_to_workers_by_cores_and_by_class() {
    let workers = |options: &str| -> Vec<u32> {
        let device = Device::open(&format!("embedded:{options}")).unwrap();
        device.stats().unwrap().queues.iter().map(|queue| queue.worker).collect()
    };
    assert_eq!(workers("rx=4,tx=4,workers=2"), [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(workers("rx=4,tx=4,workers=3,priority=1"), [0, 2, 0, 1, 0, 2, 0, 1]);
    assert_eq!(workers("rx=2,tx=2,workers=2,port=null,port=null"), [0, 1, 0, 1]);
    assert_eq!(workers("rx=2,tx=2,workers=2,port=null,port=null,connect=0-1"), [0, 0, 0, 0], "connected: together");
    assert_eq!(workers("rx=2,tx=2,workers=2,port=null,port=null,priority=tx0"), [1, 0, 1, 0]);
    let connected = "rx=2,tx=2,workers=3,port=null,port=null,connect=0-1,priority=tx0";
    assert_eq!(workers(connected), [2, 2, 2, 2], "connected: together, in the class of either");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let device = Device::open("embedded:queues=64").unwrap();
    assert_eq!(device.stats().unwrap().workers.len(), cores.min(64));
    let device = Device::open("embedded:queues=1").unwrap();
    assert_eq!(device.stats().unwrap().workers.len(), 1);
}

#[test]
fn who_was_granted_nothing_changes_no_port() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become somebody else");
        return;
    }
    let daemon = Daemon::start("rx=1,tx=1");
    let folder = Path::new(daemon.socket()).parent().unwrap();
    for (path, mode) in [(folder, 0o755), (Path::new(daemon.socket()), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut stranger = Process::start("stranger", &[("SOCKET", daemon.socket())]);
    let text = stranger.finish().concat();
    assert!(text.contains("has no rights on this card"), "{text}");
    daemon.device().plug(0, "null").unwrap();
}

pub fn stranger() {
    rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
    let device = Device::open(&format!("unix:{}", argument("SOCKET")));
    let plugged = device.and_then(|device| device.plug(0, "pcap:,write=/not_mine.pcap"));
    say(&plugged.unwrap_err().to_string());
}
