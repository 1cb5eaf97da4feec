//! `millrace tree`: the device tree.

use std::path::Path;

use millrace_abi::tree::Tree;
use millrace_tool::failure::{Failure, While};
use millrace_tool::options::Shared;
use millrace_tool::output::{Cell, Output, Row, printable, put};
use millrace_tool::session::Session;
use millrace_tool::stop;

/// Runs the command.
pub fn run(shared: &Shared, dtb: Option<&Path>) -> Result<(), Failure> {
    let blob = blob(&Session::open(shared)?)?;
    match dtb {
        Some(file) => stop::at_once(|| std::fs::write(file, &blob)).map_err(|source| Failure::File {
            doing: "cannot write",
            path: file.to_owned(),
            source,
        }),
        None => print(shared, &Tree::parse(&blob)?),
    }
}

/// The blob of an open card.
pub fn blob(session: &Session<'_>) -> Result<Vec<u8>, Failure> {
    session.device.device_tree().doing(|| "cannot read the device tree".to_owned())
}

fn print(shared: &Shared, tree: &Tree<'_>) -> Result<(), Failure> {
    if !shared.json {
        return Ok(put(&printable(&format!("{tree}\n"), &['\n', '\t']))?);
    }
    let rows: Vec<Row> = tree.nodes().flat_map(|node| node.properties().map(move |it| (node, it)).map(row)).collect();
    Ok(Output::new(true).rows("", &rows)?)
}

/// One property as an object. Its bytes are always there; as text too if they are text, as a list if they are cells.
fn row((node, (name, value)): (millrace_abi::tree::Node<'_>, (&str, &[u8]))) -> Row {
    let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = node.string(name).ok().filter(|text| text.chars().all(|letter| !letter.is_control()));
    Row::new()
        .text("node", node.path())
        .text("property", name)
        .cell("text", text.filter(|text| !text.is_empty()).map_or(Cell::Missing, |text| Cell::Text(text.to_owned())))
        .text("bytes", hex)
}
