//! Files of rules.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use millrace_flow::language::{ParseError, RuleFile};
use millrace_flow::version::{Limits, Writer};
use millrace_tool::failure::Failure;

/// The longest file: a million rules of a hundred letters fit.
const MAX_LEN: u64 = 256 << 20;

/// The rules of a file (`-` is standard input), whether or not tables can have them: a card may have what they need.
pub fn load_only(path: &Path) -> Result<RuleFile, Failure> {
    let text = read(path)?;
    RuleFile::parse(&text).map_err(|error| Failure::Found(format!("{}: {error}", path.display())))
}

/// The rules of a file (`-` is standard input), and tables that have them. With `queues`, rules may name only so many.
pub fn load(path: &Path, queues: Option<u32>) -> Result<(RuleFile, Writer), Failure> {
    let mut writer = Writer::new(1, Limits::default());
    let file = add(&mut writer, path, queues)?;
    Ok((file, writer))
}

/// Adds the rules of a file to tables, in one transaction.
pub fn add(writer: &mut Writer, path: &Path, queues: Option<u32>) -> Result<RuleFile, Failure> {
    let text = read(path)?;
    let wrong = |error: ParseError| Failure::Found(format!("{}: {error}", path.display()));
    let file = RuleFile::parse(&text).map_err(wrong)?;
    if let Some(queues) = queues {
        file.check_queues(queues).map_err(wrong)?;
    }
    file.load(writer, 0).map_err(wrong)?;
    Ok(file)
}

/// The text of a file of rules; `-` is standard input.
pub fn read(path: &Path) -> Result<String, Failure> {
    let cannot = |source| Failure::File { doing: "cannot read", path: path.to_owned(), source };
    let mut text = String::new();
    let mut source: Box<dyn Read> =
        if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(path).map_err(cannot)?) };
    let len = source.by_ref().take(MAX_LEN + 1).read_to_string(&mut text).map_err(cannot)?;
    if len as u64 > MAX_LEN {
        return Err(Failure::Found(format!("{}: a file of rules has at most {MAX_LEN} bytes", path.display())));
    }
    Ok(text)
}
