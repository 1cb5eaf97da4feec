//! Rules: which frames go to which queues and ports. Their language is in docs/classifier.md.

use super::arguments::{array, give_new, give_text, opened, string};
use super::{millrace_device, millrace_flow_tap, millrace_flow_watch};
use crate::failure::Failure;
use crate::flow;
use crate::guard;
use crate::tap::Tap;
use crate::types::{millrace_flow_done, millrace_flow_frame, millrace_flow_keys_done, millrace_flow_tap_options};
use core::mem::MaybeUninit;
use core::time::Duration;
use std::ffi::{c_char, c_int, c_void};

/// Does changes to the rules of the card, all of them or none. Frames that come in after it returns meet the new version.
///
/// changes: one on a line: "add RULE", "modify FILTER,actions=...", "delete FILTER", "delete group=N", "delete meter=N"; what
/// begins with none of these words is added: a rule, a group, a meter or miss, as text or JSON. # begins a comment.
/// flags: MILLRACE_FLOW_..., or 0.
/// done: where to put what was done, or NULL.
///
/// Returns 0; -EINVAL: an argument is NULL, or a change cannot be, which the text names, from 1 on; -EACCES: this program has
/// not the right `configure:rules`, or a rule or group is somebody else's; -EDQUOT: too many rules; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_change(
    device: Option<&millrace_device>,
    changes: *const c_char,
    flags: u32,
    done: Option<&mut MaybeUninit<millrace_flow_done>>,
) -> c_int {
    guard::run(|| {
        // SAFETY: the caller's promise.
        let changes = unsafe { string(changes, "changes") }?;
        let committed = flow::change(&opened(device)?.device, changes, flags)?;
        if let Some(done) = done {
            done.write(millrace_flow_done {
                version: committed.version,
                added: committed.added,
                modified: committed.modified,
                removed: committed.removed,
            });
        }
        Ok(0)
    })
}

/// The rules that a filter means, as a JSON array: each has "line", "owner", and "rule" with what it has had. With an empty
/// filter miss, groups and meters come before them.
///
/// json: where to put the string, NULL after an error. To be freed with millrace_free_string().
///
/// Returns 0; -EINVAL: an argument is NULL, or the filter cannot be; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_list_json(
    device: Option<&millrace_device>,
    filter: *const c_char,
    json: Option<&mut MaybeUninit<*mut c_char>>,
) -> c_int {
    give_text(json, || {
        // SAFETY: the caller's promise.
        let filter = unsafe { string(filter, "filter") }?;
        flow::json(&opened(device)?.device.flows().list(filter)?)
    })
}

/// What becomes of a frame that comes in at a port, and why, in words.
///
/// frame, len: the frame without FCS; at most 16384 bytes.
/// version: of the rules; UINT64_MAX is the newest.
/// text: where to put the string, NULL after an error. To be freed with millrace_free_string().
///
/// Returns 0; -EINVAL: an argument is NULL, or the frame is too long; -ENOENT: that version is not kept any more; -ENODEV: the
/// card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_explain(
    device: Option<&millrace_device>,
    frame: *const c_void,
    len: usize,
    port: u32,
    version: u64,
    text: Option<&mut MaybeUninit<*mut c_char>>,
) -> c_int {
    give_text(text, || {
        // SAFETY: the caller's promise.
        let frame: &[u8] = unsafe { array(frame.cast(), len, "frame") }?;
        let version = (version != u64::MAX).then_some(version);
        flow::text(opened(device)?.device.flows().explain(frame, port, version, flow::BETTER)?.text)
    })
}

/// Hands over keys of QUIC connections, so that a group with `keys` can steer by their streams. The card forgets them with their
/// connection, with the group, and when the device is closed or the program ends; nobody can read them from it.
///
/// group: the number of a QUIC group.
/// log: lines of SSLKEYLOGFILE; secrets that are not of packets behind the handshake are passed over.
/// done: where to put what became of them, or NULL.
///
/// Returns 0, also when secrets were not taken, which done says; -EINVAL: an argument is NULL, or the group takes no keys;
/// -ENOENT: there is no such group; -EACCES: this program has not the right `configure:rules`, or the group is somebody else's;
/// -EDQUOT: too many, each connection with keys counts as a rule; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_keys(
    device: Option<&millrace_device>,
    group: u32,
    log: *const c_char,
    done: Option<&mut MaybeUninit<millrace_flow_keys_done>>,
) -> c_int {
    guard::run(|| {
        // SAFETY: the caller's promise.
        let log = unsafe { string(log, "log") }?;
        let keys = opened(device)?.device.flows().hand_over_keys(group, log)?;
        if let Some(done) = done {
            done.write(millrace_flow_keys_done {
                taken: keys.taken,
                unknown: keys.unknown,
                full: keys.full,
                foreign: keys.foreign,
                malformed: keys.malformed,
                connections: keys.connections,
            });
        }
        Ok(0)
    })
}

/// Watches what happens to the rules of the card from now on. Of the watches of one device, the last one alone is woken.
///
/// watch: where to put it, NULL after an error. To be closed with millrace_flow_watch_close().
///
/// Returns 0; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_watch_open(
    device: Option<&millrace_device>,
    watch: Option<&mut MaybeUninit<*mut millrace_flow_watch>>,
) -> c_int {
    give_new(watch, "watch", || Ok(millrace_flow_watch(opened(device)?.device.flows().watch()?)))
}

/// What has happened since the last call, as JSON: {"events": [...], "lost": N, ...}; waits at most timeout_ns for something.
/// An event has "kind" (added, modified, removed), "line", "owner", "version", "time_ns", and of a rule that has gone "reason"
/// (idle, hard, delete, owner-gone) and "rule" with what it has had. lost is how many events this program was too slow for.
///
/// json: where to put the string, NULL after an error. To be freed with millrace_free_string().
///
/// Returns 0, also when nothing has happened; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_watch_next(
    watch: Option<&mut millrace_flow_watch>,
    timeout_ns: u64,
    json: Option<&mut MaybeUninit<*mut c_char>>,
) -> c_int {
    give_text(json, || {
        let watch = watch.ok_or_else(|| Failure::null("watch"))?;
        flow::json(&watch.0.next(Duration::from_nanos(timeout_ns))?)
    })
}

/// Ends a watch; NULL has ended already.
///
/// Returns 0.
#[no_mangle]
pub extern "C" fn millrace_flow_watch_close(watch: Option<Box<millrace_flow_watch>>) -> c_int {
    guard::run(|| {
        drop(watch);
        Ok(0)
    })
}

/// Hears frames on which rules decide, from now on; takes the right `capture`. Of the taps of one device, the last one alone
/// hears something.
///
/// options: what it hears.
/// tap: where to put it, NULL after an error. To be closed with millrace_flow_tap_close().
///
/// Returns 0; -EINVAL: an argument is NULL, or the options cannot be; -EACCES: this program has not the right `capture`;
/// -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_tap_open(
    device: Option<&millrace_device>,
    options: Option<&millrace_flow_tap_options>,
    tap: Option<&mut MaybeUninit<*mut millrace_flow_tap>>,
) -> c_int {
    give_new(tap, "tap", || {
        let options = options.ok_or_else(|| Failure::null("options"))?;
        Ok(millrace_flow_tap(Tap::new(&opened(device)?.device, options)?))
    })
}

/// The next frame; waits at most timeout_ns for one.
///
/// frame: where to put it.
///
/// Returns 1; 0: there was none; -EINVAL: an argument is NULL; -ENODEV: the card is gone.
#[no_mangle]
pub extern "C" fn millrace_flow_tap_next(
    tap: Option<&mut millrace_flow_tap>,
    timeout_ns: u64,
    frame: Option<&mut MaybeUninit<millrace_flow_frame>>,
) -> c_int {
    guard::run(|| {
        let place = frame.ok_or_else(|| Failure::null("frame"))?;
        let tap = tap.ok_or_else(|| Failure::null("tap"))?;
        Ok(match tap.0.next(Duration::from_nanos(timeout_ns))? {
            Some(frame) => {
                place.write(frame);
                1
            }
            None => 0,
        })
    })
}

/// How many frames were not brought, as of the last time that millrace_flow_tap_next() had to ask the card.
///
/// lost: those for which there was no room, because this program was too slow. limited: those beyond the rate. Each may be NULL.
///
/// Returns 0; -EINVAL: tap is NULL.
#[no_mangle]
pub extern "C" fn millrace_flow_tap_missed(
    tap: Option<&millrace_flow_tap>,
    lost: Option<&mut MaybeUninit<u64>>,
    limited: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    guard::run(|| {
        let missed = tap.ok_or_else(|| Failure::null("tap"))?.0.missed();
        lost.map(|lost| lost.write(missed.0));
        limited.map(|limited| limited.write(missed.1));
        Ok(0)
    })
}

/// Ends a tap; NULL has ended already.
///
/// Returns 0.
#[no_mangle]
pub extern "C" fn millrace_flow_tap_close(tap: Option<Box<millrace_flow_tap>>) -> c_int {
    guard::run(|| {
        drop(tap);
        Ok(0)
    })
}
