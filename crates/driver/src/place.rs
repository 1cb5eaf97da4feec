//! Where a card listens that was not told where, and which card a command uses that was not told which.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// The environment variable that names the usual socket; empty names nothing.
pub const VARIABLE: &str = "MILLRACE_SOCKET";

/// That of a card of root, which everybody finds.
const OF_THE_SYSTEM: &str = "/run/millrace.sock";

/// The socket of a card that is started without `--listen`.
pub fn usual() -> PathBuf {
    match env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => path.into(),
        None => of_user(geteuid().as_raw(), env::var_os("XDG_RUNTIME_DIR")),
    }
}

/// Without a variable: in a folder that others cannot write to, if there is one.
fn of_user(uid: u32, runtime: Option<OsString>) -> PathBuf {
    match (uid, runtime.filter(|folder| !folder.is_empty())) {
        (0, _) => OF_THE_SYSTEM.into(),
        (_, Some(folder)) => PathBuf::from(folder).join("millrace.sock"),
        (_, None) => env::temp_dir().join(format!("millrace-{uid}.sock")),
    }
}

/// The sockets at which a command looks for a card: one's own, then the system's.
pub fn candidates() -> Vec<PathBuf> {
    let me = geteuid().as_raw();
    places().into_iter().filter(|path| is_trusted(path, me)).collect()
}

/// What is at such a place but was put there by somebody else: where, and whose it is.
pub fn strangers() -> Option<(PathBuf, u32)> {
    let me = geteuid().as_raw();
    places().into_iter().find_map(|path| stranger(&path, me).map(|uid| (path, uid)))
}

/// The places at which a card is looked for.
pub fn places() -> Vec<PathBuf> {
    let mut all = vec![usual()];
    if env::var_os(VARIABLE).is_none_or(|path| path.is_empty()) && all[0] != Path::new(OF_THE_SYSTEM) {
        all.push(OF_THE_SYSTEM.into());
    }
    all
}

/// Whose it is that is there, if that is not trusted.
fn stranger(path: &Path, uid: u32) -> Option<u32> {
    fs::symlink_metadata(path).ok().filter(|_| !is_trusted(path, uid)).map(|there| there.uid())
}

/// Whether nobody but root and this user can have put there what is there: in a folder for all, anybody could listen.
pub fn is_trusted(path: &Path, uid: u32) -> bool {
    is_folder_trusted(path, uid) || fs::symlink_metadata(path).is_ok_and(|there| is_ours(there.uid(), uid))
}

/// Whether nobody but root and this user can put something into the folder of `path`.
pub fn is_folder_trusted(path: &Path, uid: u32) -> bool {
    let folder = path.parent().and_then(|folder| fs::metadata(folder).ok());
    folder.is_some_and(|folder| is_ours(folder.uid(), uid) && folder.mode() & 0o022 == 0)
}

fn is_ours(owner: u32, uid: u32) -> bool {
    owner == 0 || owner == uid
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_user_has_a_usual_place() {
        assert_eq!(of_user(0, Some("/run/user/0".into())), Path::new("/run/millrace.sock"));
        assert_eq!(of_user(7, Some("/run/user/7".into())), Path::new("/run/user/7/millrace.sock"));
        assert!(of_user(7, Some("".into())).ends_with("millrace-7.sock"));
    }

    #[test]
    fn a_socket_in_a_folder_for_all_is_trusted_only_if_it_is_ours() {
        let folder = tempfile::tempdir().unwrap();
        let open_to_all = fs::Permissions::from_mode(0o1777);
        fs::set_permissions(folder.path(), open_to_all).unwrap();
        let path = folder.path().join("card.sock");
        fs::write(&path, "").unwrap();
        let me = geteuid().as_raw();
        assert!(is_trusted(&path, me));
        assert!(!is_trusted(&folder.path().join("nothing"), me));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(is_trusted(&path, me));
        if me != 0 {
            assert!(!is_trusted(&path, me + 1));
        }
    }

    #[test]
    fn it_is_said_whose_an_untrusted_socket_is() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let path = folder.path().join("card.sock");
        fs::write(&path, "").unwrap();
        let me = geteuid().as_raw();
        assert_eq!(stranger(&path, me), None);
        assert_eq!(stranger(&folder.path().join("nothing"), me), None);
        // What root has made everybody trusts, so it has to be somebody else's.
        if me != 0 {
            assert_eq!(stranger(&path, me + 1), Some(me));
        } else {
            std::os::unix::fs::chown(&path, Some(64_001), None).unwrap();
            assert_eq!(stranger(&path, 64_002), Some(64_001));
            assert_eq!(stranger(&path, 64_001), None);
        }
    }
}
