//! What becomes of a session.

use crate::ac::{Ac, MAC, OWN, SESSION, packet};
use millrace_pppoe::failure::Refusal;
use millrace_pppoe::{Client, Config, Event, Failure, MacAddress, Method, Received, Session, Unheard, tag};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

pub fn config() -> Config {
    Config { user: "me".into(), password: "secret".into(), ..Config::default() }
}

pub fn client(config: Config) -> Client {
    Client::new(config, OWN, 7, Duration::ZERO).unwrap()
}

/// Carries frames until there are no more; what has happened.
pub fn talk(client: &mut Client, acs: &mut [&mut Ac], now: Duration) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in 0..200 {
        let Some(frame) = client.take_frame() else { break };
        for answer in acs.iter_mut().flat_map(|ac| ac.answer(&frame)) {
            client.receive(now, &answer);
        }
    }
    events.extend(std::iter::from_fn(|| client.take_event()));
    events
}

/// The same for so long.
pub fn wait(client: &mut Client, acs: &mut [&mut Ac], from: Duration, to: Duration) -> Vec<Event> {
    let mut events = talk(client, acs, from);
    while let Some(next) = client.next_tick().filter(|next| *next <= to) {
        client.tick(next);
        events.extend(talk(client, acs, next));
    }
    events
}

fn up(events: &[Event]) -> Session {
    let up = events.iter().find_map(|event| if let Event::Up(session) = event { Some(session.clone()) } else { None });
    up.unwrap_or_else(|| panic!("{events:?}"))
}

fn failure(events: &[Event]) -> &Failure {
    let failed = events.iter().find_map(|event| match event {
        Event::Failed(failure) | Event::Down(failure) => Some(failure),
        _ => None,
    });
    failed.unwrap_or_else(|| panic!("{events:?}"))
}

#[test]
fn from_nothing_to_packets() {
    for method in [None, Some(Method::Pap), Some(Method::Chap)] {
        let (mut client, mut ac) = (client(config()), Ac { method, ..Ac::default() });
        let events = talk(&mut client, &mut [&mut ac], Duration::ZERO);
        assert_eq!(events[..3], [Event::Looking, Event::Asked(MAC, "bras".into()), Event::Given(SESSION)]);
        up(&events);
        let session = client.session().unwrap();
        assert_eq!((session.session, session.ac, session.own, session.method), (SESSION, MAC, OWN, method));
        assert_eq!((session.mtu, session.mru, session.ac_name.as_str()), (1492, 1492, "bras"));
        let ipv4 = session.ipv4.unwrap();
        assert_eq!((ipv4.own, ipv4.peer), ([192, 0, 2, 7].into(), Some([192, 0, 2, 1].into())));
        assert_eq!(session.dns, [53, 54].map(|last| std::net::Ipv4Addr::new(192, 0, 2, last)));
        assert_eq!(session.ipv6.unwrap().peer, Some("fe80::9".parse().unwrap()));
        // Packets of both protocols, and none of others' sessions.
        let ipv4 = [&[0x45, 0, 0, 20][..], &[0; 16]].concat();
        let frame = ac.frame(0x21, &ipv4);
        assert_eq!(client.receive(SECOND, &frame), Received::Packet(&ipv4));
        assert_eq!(client.receive(SECOND, &ac.frame(0x57, &ipv4)), Received::Unheard(Unheard::Packet));
        ac.session += 1;
        assert_eq!(client.receive(SECOND, &ac.frame(0x21, &ipv4)), Received::Unheard(Unheard::Stranger));
    }
}

#[test]
fn a_wrong_password_is_said_and_not_tried_at_once_again() {
    for method in [Method::Pap, Method::Chap] {
        let (mut client, mut ac) = (client(config()), Ac { method: Some(method), password: "other", ..Ac::default() });
        let events = wait(&mut client, &mut [&mut ac], Duration::ZERO, SECOND * 10);
        assert_eq!(*failure(&events), Failure::NotAuthenticated { method, text: "hello".into() });
        assert!(matches!(events.last(), Some(Event::Waiting(wait)) if *wait >= SECOND * 30), "{events:?}");
        // It has said that it is over, in both languages.
        assert!(ac.seen.contains(&0xa7));
    }
}

#[test]
fn a_method_that_was_not_allowed_is_named() {
    let config = Config { methods: vec![Method::MsChapV2], ..config() };
    let (mut client, mut ac) = (client(config), Ac::default());
    let events = talk(&mut client, &mut [&mut ac], Duration::ZERO);
    // It insists, until there are enough words; a real one ends it by itself.
    assert!(events.iter().all(|event| !matches!(event, Event::Up(_))));
    let mut end = ac.frame(0xc021, &packet(5, 1, b"no agreement"));
    end.resize(60, 0);
    client.receive(SECOND, &end);
    let events = wait(&mut client, &mut [&mut ac], SECOND, SECOND * 20);
    assert_eq!(*failure(&events), Failure::NoMethod("PAP".into()));
}

#[test]
fn who_is_wanted_is_chosen_and_who_refuses_is_left() {
    let other = MacAddress([2, 0, 0, 0, 0, 9]);
    let [mut first, mut second] = [Ac::default(), Ac { mac: other, name: "second", ..Ac::default() }];
    let mut by_name = client(Config { ac: Some("second".into()), ..config() });
    let events = talk(&mut by_name, &mut [&mut first, &mut second], Duration::ZERO);
    assert_eq!(up(&events).ac, other);
    let mut by_service = client(Config { service: Some("video".into()), ..config() });
    let events = wait(&mut by_service, &mut [&mut first], Duration::ZERO, SECOND * 40);
    assert!(
        matches!(failure(&events), Failure::NoSuitableOffer(said) if said.contains("bras") && said.contains("internet"))
    );
    first.refuses = Some((tag::AC_SYSTEM_ERROR, "full"));
    let mut any = client(config());
    let events = talk(&mut any, &mut [&mut first, &mut second], Duration::ZERO);
    assert_eq!(up(&events).ac, other);
    let mut only = client(config());
    let events = talk(&mut only, &mut [&mut first], Duration::ZERO);
    assert_eq!(*failure(&events), Failure::Refused { what: Refusal::AcSystem, text: "full".into() });
}

#[test]
fn nobody_is_there() {
    let mut client = client(config());
    let events = wait(&mut client, &mut [], Duration::ZERO, SECOND * 31);
    assert_eq!(events[..2], [Event::Looking, Event::Failed(Failure::NoOffer)]);
    // Back-off doubles, and has an end.
    let events = wait(&mut client, &mut [], SECOND * 31, SECOND * 2000);
    let waits: Vec<_> =
        events.iter().filter_map(|event| if let Event::Waiting(wait) = event { Some(*wait) } else { None }).collect();
    assert!(waits.len() > 10 && waits[0] >= SECOND * 2 && waits.iter().all(|wait| *wait <= SECOND * 75), "{waits:?}");
}

#[test]
fn a_session_that_is_lost_comes_back() {
    let (mut client, mut ac) = (client(config()), Ac::default());
    up(&talk(&mut client, &mut [&mut ac], Duration::ZERO));
    let events = wait(&mut client, &mut [&mut ac], Duration::ZERO, SECOND * 100);
    assert_eq!(events, [], "as long as echoes are answered");
    // It ends the session.
    client.receive(SECOND * 100, &ac.padt());
    assert_eq!(client.session(), None);
    let events = wait(&mut client, &mut [&mut ac], SECOND * 100, SECOND * 110);
    assert!(matches!(events[..2], [Event::Down(Failure::Padt(_)), Event::Waiting(_)]), "{events:?}");
    up(&events);
    // It is not there any more.
    ac.alive = false;
    let events = wait(&mut client, &mut [&mut ac], SECOND * 110, SECOND * 160);
    assert_eq!(*failure(&events), Failure::Gone(3));
    let why = |event: &&Event| matches!(event, Event::Down(_) | Event::Failed(_));
    assert_eq!(events.iter().filter(why).count(), 1, "{events:?}");
    ac.alive = true;
    up(&wait(&mut client, &mut [&mut ac], SECOND * 160, SECOND * 300));
    // It ends PPP, in words.
    let bye = ac.frame(0xc021, &packet(5, 1, b"maintenance\n"));
    client.receive(SECOND * 300, &bye);
    let events = wait(&mut client, &mut [&mut ac], SECOND * 300, SECOND * 320);
    assert_eq!(events[0], Event::Down(Failure::Terminated("maintenance?".into())));
    assert_eq!(events.iter().filter(why).count(), 1, "{events:?}");
    up(&events);
    // It begins again, in the same session.
    let again = ac.frame(0xc021, &packet(1, 1, &[5, 6, 0, 0, 0, 9]));
    client.receive(SECOND * 320, &again);
    let events = wait(&mut client, &mut [&mut ac], SECOND * 320, SECOND * 330);
    assert_eq!(events[0], Event::Down(Failure::Renegotiation));
    up(&events);
}

#[test]
fn we_end_it() {
    let (mut client, mut ac) = (client(config()), Ac::default());
    up(&talk(&mut client, &mut [&mut ac], Duration::ZERO));
    ac.seen.clear();
    client.close(SECOND);
    let events = wait(&mut client, &mut [&mut ac], SECOND, SECOND * 5);
    assert_eq!(events, [Event::Down(Failure::Closed), Event::Closed]);
    assert_eq!((ac.seen, client.next_tick()), (vec![0xc021, 0xa7], None));
    // Also when nobody answers, and before there is anything.
    let mut alone = self::client(config());
    alone.close(SECOND);
    assert_eq!(wait(&mut alone, &mut [], SECOND, SECOND * 9).last(), Some(&Event::Closed));
    let (mut client, mut ac) = (self::client(config()), Ac::default());
    up(&talk(&mut client, &mut [&mut ac], Duration::ZERO));
    ac.alive = false;
    client.close(SECOND);
    assert_eq!(wait(&mut client, &mut [&mut ac], SECOND, SECOND * 5).last(), Some(&Event::Closed));
}

#[test]
fn large_packets_are_agreed_on_and_tried() {
    let config = || Config { mru: 1500, ..config() };
    for (max_payload, mtu) in [(None, 1492), (Some(1500), 1500), (Some(1496), 1496), (Some(9000), 1500)] {
        let (mut client, mut ac) = (client(config()), Ac { max_payload, ..Ac::default() });
        let session = up(&talk(&mut client, &mut [&mut ac], Duration::ZERO));
        assert_eq!((session.mtu, session.mru), (mtu, mtu), "{max_payload:?}");
    }
    let (mut client, mut ac) = (client(config()), Ac { max_payload: Some(1500), longest_echo: 1400, ..Ac::default() });
    let events = wait(&mut client, &mut [&mut ac], Duration::ZERO, SECOND * 30);
    assert_eq!(up(&events).mtu, 1500);
    assert!(events.contains(&Event::SmallOnly), "{events:?}");
    assert_eq!(client.session().unwrap().mtu, 1492);
}

#[test]
fn ipv6_alone() {
    let (mut client, mut ac) = (client(config()), Ac { ipv4: false, ..Ac::default() });
    let session = up(&talk(&mut client, &mut [&mut ac], Duration::ZERO));
    assert!(session.ipv4.is_none() && session.ipv6.is_some());
    let config = Config { ipv6: false, ..config() };
    let (mut client, mut ac) = (self::client(config), Ac { ipv4: false, ..Ac::default() });
    let events = talk(&mut client, &mut [&mut ac], Duration::ZERO);
    assert_eq!(*failure(&events), Failure::NoNetwork);
}
