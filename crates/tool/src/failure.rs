//! Why a command did not do what was asked, and the exit code that says so.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use millrace_driver::ClientError;

use crate::output::note;
use crate::stop;

/// What went wrong. The text is the last line on standard error, so it says what to do next where that is known.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The card, the driver or the host library refused.
    #[error("{doing}: {source}")]
    Host {
        /// What was being done.
        doing: String,
        /// What the host library says.
        source: Box<crate::host::Error>,
    },
    /// A capture cannot be read, or not further.
    #[error(transparent)]
    Read(#[from] millrace_port::pcap::ReadError),
    /// A capture cannot be written, or not further.
    #[error(transparent)]
    Write(#[from] millrace_port::pcap::WriteError),
    /// The card's device tree is not one.
    #[error("the card's device tree cannot be used: {0}")]
    Tree(#[from] millrace_abi::tree::TreeError),
    /// A file, socket or process.
    #[error("{doing} {path}: {source}", path = path.display())]
    File {
        /// What was being done, such as "cannot read".
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A program that is to be run in the place of this one. The exit codes are those of shells.
    #[error("cannot run {path}: {source}", path = path.display())]
    Program {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Standard output is gone or full.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    /// Ctrl-C cannot be caught.
    #[error("cannot catch Ctrl-C: {0}")]
    Signals(#[from] ctrlc::Error),
    /// The command cannot be carried out as it was given.
    #[error("{0}")]
    Usage(String),
    /// The command ran, and what it looked for was not so: loss, corruption, a card that fell silent.
    #[error("{0}")]
    Found(String),
    /// Ctrl-C before the end. The results so far have been printed.
    #[error("interrupted before the end; the results above are those so far")]
    Interrupted,
}

impl Failure {
    /// The exit code of the process.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Usage(_) | Failure::Signals(_) => 2,
            Failure::Interrupted => stop::INTERRUPTED,
            Failure::Program { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => 127,
                _ => 126,
            },
            Failure::Host { source, .. } if stop::caught() && is_silence(source) => stop::INTERRUPTED,
            _ => 1,
        })
    }

    /// Says so on standard error; what the process is to end with.
    pub fn report(&self) -> ExitCode {
        if !self.is_broken_pipe() {
            note(self.to_string());
        }
        self.exit_code()
    }

    /// Whether the reader of standard output simply left, as `head` does.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Whether the card did not answer: after Ctrl-C it was not waited for.
fn is_silence(error: &crate::host::Error) -> bool {
    matches!(error, crate::host::Error::Client(ClientError::Silent { .. }))
}

/// Says what was being done when the host library refused.
pub trait While<T> {
    /// Adds the words in front of the library's own.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T> While<T> for Result<T, crate::host::Error> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|source| Failure::Host { doing: what(), source: Box::new(source) })
    }
}
