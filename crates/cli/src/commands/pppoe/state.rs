//! The file that says which session there is: for other programs, and for the next start, which ends what a killed program has left.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use millrace_port::spec::InterfaceName;
use millrace_pppoe::Session;
use millrace_tool::failure::Failure;
use millrace_tool::output::note;
use serde::{Deserialize, Serialize};

/// Bytes that a file of ours, or a password's, has at most.
const MOST: u64 = 64 << 10;

/// What is in it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Content {
    /// The Ethernet interface.
    pub interface: String,
    /// The interface for packets.
    pub name: String,
    /// Who has the session.
    pub pid: u32,
    /// The session.
    #[serde(flatten)]
    pub session: Session,
}

/// The file, which goes with the session.
pub(super) struct StateFile {
    path: PathBuf,
    /// It cannot be written, which has been said.
    warned: bool,
}

impl StateFile {
    /// At that place, or where it usually is.
    pub fn new(path: Option<&Path>, name: &InterfaceName) -> Self {
        let usual = || PathBuf::from(format!("/run/millrace/pppoe-{name}.json"));
        Self { path: path.map_or_else(usual, Path::to_owned), warned: false }
    }

    /// What was left there by a program that could not end its session.
    pub fn left(&self) -> Option<Content> {
        serde_json::from_slice(&read(&self.path).ok()?).ok()
    }

    /// Writes it, all at once.
    pub fn write(&mut self, content: &Content) {
        let text = serde_json::to_string(content).expect("names and numbers always have a JSON form");
        if let Err(error) = replace(&self.path, &text)
            && !std::mem::replace(&mut self.warned, true)
        {
            note(format!(
                "cannot write {}: {error}; the next start cannot end the session if this one is killed (--state)",
                self.path.display()
            ));
        }
    }

    /// There is no session.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let beside = path.with_extension("new");
    // Whoever may write to the folder may have put a link there.
    let _ = fs::remove_file(&beside);
    let file = fs::File::options().write(true).create_new(true).mode(0o644).open(&beside)?;
    io::Write::write_all(&mut &file, format!("{text}\n").as_bytes())?;
    fs::rename(&beside, path)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file: Box<dyn Read> =
        if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(fs::File::open(path)?) };
    file.take(MOST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The first line of a file.
pub(super) fn password(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = read(path).map_err(|source| Failure::File { doing: "cannot read", path: path.to_owned(), source })?;
    let line = bytes.split(|byte| matches!(byte, b'\n' | b'\r')).next().unwrap_or_default();
    if line.is_empty() {
        return Err(Failure::Usage(format!("{}: its first line is empty, and is to be the password", path.display())));
    }
    Ok(line.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_the_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        for (text, wanted) in [("geheim", "geheim"), ("ge heim\r\nx\n", "ge heim"), ("a\n", "a")] {
            fs::write(&file, text).unwrap();
            assert_eq!(password(&file).unwrap(), wanted.as_bytes());
        }
        fs::write(&file, "\nx").unwrap();
        assert!(password(&file).is_err());
    }

    #[test]
    fn a_session_is_written_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/state.json");
        let mut file = StateFile::new(Some(&path), &"ppp0".parse().unwrap());
        assert!(file.left().is_none());
        let session: Session = serde_json::from_str(
            r#"{"session":7,"ac":"02:00:00:00:00:01","ac_name":"x","own":"02:00:00:00:00:02","mtu":1492,"mru":1492,
                "ipv4":null,"ipv6":null,"dns":["192.0.2.53"],"method":"pap"}"#,
        )
        .unwrap();
        file.write(&Content { interface: "eth0".into(), name: "ppp0".into(), pid: 1, session: session.clone() });
        assert_eq!(file.left().unwrap().session, session);
        file.remove();
        assert!(file.left().is_none() && !file.warned);
    }
}
