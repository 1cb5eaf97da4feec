//! One set of values, two outputs: a table for people, or one JSON object per line.
//!
//! Only results go to standard output. Notes, progress and errors go to standard error.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

/// One value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A whole number.
    Count(u64),
    /// A number with that many decimals.
    Number(f64, usize),
    /// Several words; a table separates them by commas.
    List(Vec<String>),
    /// Words in a table, and something else in JSON: what other commands print for the same.
    Both(String, serde_json::Value),
    /// Nothing to say: `-` in a table, `null` in JSON.
    Missing,
}

/// The values of one result, in the order in which they are shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row(Vec<Field>);

#[derive(Clone, Debug, PartialEq)]
struct Field {
    name: &'static str,
    cell: Cell,
    /// Shown in tables too, and not in JSON alone.
    in_table: bool,
}

impl Row {
    /// A row without values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value.
    #[must_use]
    pub fn cell(mut self, name: &'static str, cell: Cell) -> Self {
        self.0.push(Field { name, cell, in_table: true });
        self
    }

    /// Adds words that a table has in its title already.
    #[must_use]
    pub fn tag(self, name: &'static str, text: impl ToString) -> Self {
        self.beside(name, Cell::Text(text.to_string()))
    }

    /// Adds a value that tables leave out.
    #[must_use]
    pub fn beside(mut self, name: &'static str, cell: Cell) -> Self {
        self.0.push(Field { name, cell, in_table: false });
        self
    }

    /// Adds words.
    #[must_use]
    pub fn text(self, name: &'static str, text: impl ToString) -> Self {
        self.cell(name, Cell::Text(text.to_string()))
    }

    /// Adds a whole number.
    #[must_use]
    pub fn count(self, name: &'static str, count: u64) -> Self {
        self.cell(name, Cell::Count(count))
    }

    /// Adds a whole number that may be missing.
    #[must_use]
    pub fn maybe_count(self, name: &'static str, count: Option<u64>) -> Self {
        self.cell(name, count.map_or(Cell::Missing, Cell::Count))
    }

    /// Adds a number with `decimals` decimals; infinities and such are shown as missing.
    #[must_use]
    pub fn number(self, name: &'static str, value: f64, decimals: usize) -> Self {
        self.cell(name, if value.is_finite() { Cell::Number(value, decimals) } else { Cell::Missing })
    }

    /// Adds a number that may be missing.
    #[must_use]
    pub fn maybe(self, name: &'static str, value: Option<f64>, decimals: usize) -> Self {
        self.number(name, value.unwrap_or(f64::NAN), decimals)
    }

    /// Adds what a table shows in words, and JSON in the form of the library.
    #[must_use]
    pub fn both(self, name: &'static str, shown: impl ToString, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).expect("names and numbers always have a JSON form");
        self.cell(name, Cell::Both(shown.to_string(), value))
    }

    /// Adds several words.
    #[must_use]
    pub fn list(self, name: &'static str, words: Vec<String>) -> Self {
        self.cell(name, Cell::List(words))
    }

    fn shown(&self) -> impl Iterator<Item = &Field> {
        self.0.iter().filter(|field| field.in_table)
    }

    /// The row as one JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("names and numbers always have a JSON form")
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for field in &self.0 {
            map.serialize_entry(field.name, &field.cell)?;
        }
        map.end()
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cell::Text(text) => serializer.serialize_str(text),
            Cell::Count(count) => serializer.serialize_u64(*count),
            Cell::Number(value, decimals) => serializer.serialize_f64(rounded(*value, *decimals)),
            Cell::List(words) => {
                let mut list = serializer.serialize_seq(Some(words.len()))?;
                words.iter().try_for_each(|word| list.serialize_element(word))?;
                list.end()
            }
            Cell::Both(_, value) => value.serialize(serializer),
            Cell::Missing => serializer.serialize_none(),
        }
    }
}

impl Cell {
    /// For a table: what a card or a file says of itself cannot move the cursor or begin another line.
    fn shown(&self) -> String {
        printable(&self.in_words(), &[])
    }

    fn in_words(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Count(count) => grouped(*count),
            Cell::Number(value, decimals) => format!("{:.decimals$}", rounded(*value, *decimals)),
            Cell::List(words) if words.is_empty() => "-".to_owned(),
            Cell::List(words) => words.join(", "),
            Cell::Both(shown, _) if shown.is_empty() => "-".to_owned(),
            Cell::Both(shown, _) => shown.clone(),
            Cell::Missing => "-".to_owned(),
        }
    }

    fn is_numeric(&self) -> bool {
        matches!(self, Cell::Count(_) | Cell::Number(..) | Cell::Missing)
    }
}

fn rounded(value: f64, decimals: usize) -> f64 {
    let scale = 10_f64.powi(decimals as i32);
    (value * scale).round() / scale
}

/// The text with its control characters but those of `allowed` escaped, so that a terminal shows them and obeys none.
pub fn printable(text: &str, allowed: &[char]) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() && !allowed.contains(&letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// Digits in groups of three, so that people can read ten of them.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Where results go, in which form.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
}

impl Output {
    /// Results as JSON lines, or as tables.
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether results are JSON lines.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Prints rows of one kind: a titled table, or one line each.
    pub fn rows(self, title: &str, rows: &[Row]) -> io::Result<()> {
        let mut text = String::new();
        if self.json {
            rows.iter().for_each(|row| text.extend([&row.to_json(), "\n"]));
        } else {
            write_table(&mut text, title, rows);
        }
        put(&text)
    }

    /// Prints one object, if the output is JSON.
    pub fn object(self, value: &impl Serialize) -> io::Result<()> {
        if !self.json {
            return Ok(());
        }
        let line = serde_json::to_string(value).map_err(io::Error::other)?;
        put(&format!("{line}\n"))
    }

    /// Prints text that is for people, if the output is.
    pub fn text(self, text: &str) -> io::Result<()> {
        if self.json { Ok(()) } else { put(text) }
    }
}

/// Prints text as it is, whatever the form.
pub fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whether somebody watches standard output.
pub fn is_screen() -> bool {
    io::stdout().is_terminal()
}

/// A remark on standard error.
pub fn note(text: impl AsRef<str>) {
    // Nobody can be told that standard error is gone.
    let _ = writeln!(io::stderr().lock(), "millrace: {}", printable(text.as_ref(), &['\n']));
}

/// Whether somebody watches standard error.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

fn write_table(text: &mut String, title: &str, rows: &[Row]) {
    if !title.is_empty() {
        let _ = writeln!(text, "{}", printable(title, &[]));
    }
    let Some(first) = rows.first() else {
        let _ = writeln!(text, "  (none)\n");
        return;
    };
    let columns: Vec<Column> =
        first.shown().enumerate().map(|(at, field)| Column::measure(field.name, at, rows)).collect();
    write_line(text, columns.iter().map(|column| column.padded(&column.heading)));
    for row in rows {
        write_line(text, columns.iter().zip(row.shown()).map(|(column, field)| column.padded(&field.cell.shown())));
    }
    text.push('\n');
}

fn write_line(text: &mut String, cells: impl Iterator<Item = String>) {
    let line = cells.fold(String::new(), |line, cell| line + "  " + &cell);
    let _ = writeln!(text, "{}", line.trim_end());
}

struct Column {
    heading: String,
    width: usize,
    to_the_right: bool,
}

impl Column {
    fn measure(name: &str, at: usize, rows: &[Row]) -> Self {
        let heading = name.replace('_', " ");
        let cells = || rows.iter().filter_map(|row| row.shown().nth(at).map(|field| &field.cell));
        let widest = cells().map(|cell| cell.shown().chars().count()).max().unwrap_or(0);
        Self { width: widest.max(heading.chars().count()), to_the_right: cells().all(Cell::is_numeric), heading }
    }

    fn padded(&self, text: &str) -> String {
        let width = self.width;
        if self.to_the_right { format!("{text:>width$}") } else { format!("{text:<width$}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(engine: &str, mean: f64, count: u64) -> Row {
        Row::new()
            .tag("bench", "latency")
            .text("engine", engine)
            .number("mean_ns", mean, 1)
            .count("count", count)
            .maybe("peer", None, 2)
            .list("notes", vec!["a".into(), "b".into()])
    }

    #[test]
    fn both_outputs_show_the_same_values() {
        let rows = [row("sze", 512.25, 1_000_000), row("medusa", 96.0, 7)];
        assert_eq!(
            rows[0].to_json(),
            r#"{"bench":"latency","engine":"sze","mean_ns":512.3,"count":1000000,"peer":null,"notes":["a","b"]}"#
        );
        let mut text = String::new();
        write_table(&mut text, "Round trips", &rows);
        let wanted = "Round trips\n\
            \x20 engine  mean ns      count  peer  notes\n\
            \x20 sze       512.3  1,000,000     -  a, b\n\
            \x20 medusa     96.0          7     -  a, b\n\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn a_value_may_have_words_for_people_and_a_form_for_programs() {
        let row = Row::new().both("link", "up", true).both("drops", "", [0; 0]);
        assert_eq!(row.to_json(), r#"{"link":true,"drops":[]}"#);
        assert_eq!(row.0.iter().map(|field| field.cell.shown()).collect::<Vec<_>>(), ["up", "-"]);
    }

    #[test]
    fn what_is_shown_cannot_command_a_terminal() {
        let evil = "\u{1b}[2J\r\nmillrace: fake\u{9b}";
        let list = Row::new().text("spec", evil).list("names", vec![evil.to_owned()]).both("port", evil, 1);
        let mut text = String::new();
        write_table(&mut text, evil, std::slice::from_ref(&list));
        assert_eq!(text.matches(r"\u{1b}[2J\r\nmillrace: fake\u{9b}").count(), 4, "{text:?}");
        assert!(text.lines().count() == 4 && !text.replace('\n', "").contains(char::is_control), "{text:?}");
        // JSON has its own way to say the same, from which the text comes back.
        assert!(list.to_json().contains(r"\u001b[2J"));
        assert_eq!(printable("é, two\nlines\t", &['\n']), "é, two\nlines\\t");
    }

    #[test]
    fn what_is_not_a_number_is_missing() {
        assert_eq!(Row::new().number("x", f64::INFINITY, 1).to_json(), r#"{"x":null}"#);
    }

    #[test]
    fn digits_come_in_threes() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
