#!/usr/bin/env python3
"""Checks what can be checked of the documents, and of comments that lead to them: links, files, sections, decisions and
names of the code exist; files of tests belong to a program; the program in the README is one that is run; examples can be pasted; the change log has its shape."""
import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPECIFICATIONS = ROOT / "docs/spec"
# In a path that says where something new goes.
PLACEHOLDER = re.compile(r"\b(?:KIND|NAME|NNNN)\b")
problems: list[str] = []


def tracked(pattern: str) -> list[pathlib.Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [ROOT / name for name in sorted(set(names)) if (ROOT / name).exists()]


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", "")).replace(" ", "-")


def report(file: pathlib.Path, text: str, position: int, what: str) -> None:
    problems.append(f"{file.relative_to(ROOT)}:{text.count(chr(10), 0, position) + 1}: {what}")


def blank(match: re.Match[str]) -> str:
    """A block of code as empty lines, so that what stands behind it keeps its line number."""
    return "\n" * match[0].count("\n")


def links(document: pathlib.Path, text: str) -> None:
    text = re.sub(r"```.*?```", blank, text, flags=re.S)
    for match in re.finditer(r"\]\(([^)\s]+)\)", text):
        link = match[1]
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists():
            report(document, text, match.start(), f"{link} is not there")
        elif fragment and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.M)
            if fragment not in map(anchor, headings):
                report(document, text, match.start(), f"no heading for #{fragment} in {target.name}")


def tests() -> None:
    """Where the tests of a crate are one program, each of its files is a module of it, or a program of its own."""
    for manifest in tracked("crates/*/Cargo.toml"):
        settings, main = manifest.read_text(), manifest.parent / "tests/main.rs"
        if "autotests = false" not in settings or not main.exists():
            continue
        modules = main.read_text()
        for file in tracked(f"{manifest.parent.relative_to(ROOT)}/tests/*.rs"):
            place = file.relative_to(manifest.parent / "tests")
            name = place.parts[0].removesuffix(".rs")
            if name != "main" and f"mod {name};" not in modules and not re.search(rf'name = "{name}"|tests/{name}/', settings):
                report(file, "", 0, "no test program has it: a line `mod` in tests/main.rs, or [[test]] in Cargo.toml")


def named_files(file: pathlib.Path, text: str) -> None:
    """Files of the project that are named are there. Decisions are not rewritten, and name what was there then."""
    if file.parent == ROOT / "docs/decisions":
        return
    for match in re.finditer(r"`((?:crates|docs|scripts|tests|bench|fuzz|examples|include)/[\w./-]+)`", text):
        if not (ROOT / match[1]).exists() and not PLACEHOLDER.search(match[1]):
            report(file, text, match.start(), f"{match[1]} is not there")


def machine_paths(file: pathlib.Path, text: str) -> None:
    for match in re.finditer(r"(?<![\w.])/(?:work|home|root)/", text):
        report(file, text, match.start(), "a path of somebody's machine")


@functools.cache
def sections(document: pathlib.Path) -> set[str]:
    """The numbers of a document's sections, those of the entries of a numbered list in a section included: 8, 8.3."""
    found: set[str] = set()
    section = ""
    for line in document.read_text().splitlines():
        if heading := re.match(r"#+ (\d+(?:\.\d+)*)\.? ", line):
            section = heading[1]
            found.add(section)
        elif section and (entry := re.match(r"(\d+)\. ", line)):
            found.add(f"{section}.{entry[1]}")
    return found


def cited(file: pathlib.Path, name: str) -> pathlib.Path | None:
    """The document that a comment or a page means by a name such as `docs/spec/sze.md`, or `sze.md` beside it."""
    places = [ROOT / name, file.parent / name]
    places += [ROOT / "docs" / name, SPECIFICATIONS / name] if "/" not in name else []
    return next((place.resolve() for place in places if place.exists()), None)


# A section: `§3.2`, or `NAME.md section 3.2`.
SECTION = re.compile(r"(?:§ ?|(?P<named>[\w./-]+\.md)[`)]*\s+(?://[/!]?\s+|[#*]\s+)?section )(?P<number>\d+(?:\.\d+)*)")
NAME_BEFORE = re.compile(r"([\w./-]+\.md)(?:[`)\]]|\([^)]*\))*,? ?$")
# Of a list, such as `§2.4, §2.5` or `§2 to §4`.
SECTION_BEFORE = re.compile(r"§ ?[\d.]*\d(?:,|,? and|,? or| to)? ?$")
FOREIGN_BEFORE = re.compile(r"(?:SFF-\d+|virtio [\d.]+|RFC ?\d+|IEEE [\d.]+|Specification [\d.]+),? ?$")


def citations(file: pathlib.Path, text: str) -> None:
    """Sections exist. One without a name belongs to the page itself in `docs/spec`, to nfb-card.md anywhere else."""
    own = file if file.parent == SPECIFICATIONS else SPECIFICATIONS / "nfb-card.md"
    document: pathlib.Path | None = own
    for match in SECTION.finditer(text):
        before = re.sub(r"\s*\n\s*(?://[/!]?|#|\*)?\s*", " ", text[max(0, match.start() - 200) : match.start()])
        name = match["named"] or ((found := NAME_BEFORE.search(before)) and found[1])
        if FOREIGN_BEFORE.search(before):
            document = None
        elif name:
            document = cited(file, name)
            if document is None:
                report(file, text, match.start(), f"{name} is not there")
        elif not SECTION_BEFORE.search(before):
            document = own
        if document is not None and match["number"] not in sections(document):
            report(file, text, match.start(), f"{document.name} has no section {match['number']}")
    for match in re.finditer(r'^\s*block "\w+", section "([\d.]+)"', text, flags=re.M):
        if match[1] not in sections(SPECIFICATIONS / "nfb-card.md"):
            report(file, text, match.start(), f"nfb-card.md has no section {match[1]}")


def pages(file: pathlib.Path, text: str) -> None:
    """Pages that are named by their path, decisions that are named by their number, and traps are there."""
    for match in re.finditer(r"(?<![\w./-])(?:\.\./)*(?:docs|specs?|shared|decisions)/[\w./-]*\.md\b", text):
        there = cited(file, match[0]) is not None or (ROOT / "docs" / match[0]).exists()
        if not there and not PLACEHOLDER.search(match[0]):
            report(file, text, match.start(), f"{match[0]} is not there")
    for match in re.finditer(r"\b[Dd]ecision (\d+)\b(?:\]\(([^)\s]*))?", text):
        number = f"{int(match[1]):04}"
        if not list((ROOT / "docs/decisions").glob(f"{number}-*.md")):
            report(file, text, match.start(), f"there is no decision {match[1]}")
        if match[2] and f"{number}-" not in match[2]:
            report(file, text, match.start(), f"decision {match[1]} links to {match[2]}")
    known = set(re.findall(r"^\| (T\d+) \|", (SPECIFICATIONS / "nfb-card.md").read_text(), flags=re.M))
    for match in re.finditer(r"\btraps? (T\d+)\b", text):
        if match[1] not in known:
            report(file, text, match.start(), f"nfb-card.md has no trap {match[1]}")


@functools.cache
def code() -> dict[pathlib.Path, str]:
    return {file: file.read_text() for file in tracked("crates/*.rs")}


def names_in_code(document: pathlib.Path) -> None:
    """Names that look like Rust, `Type::method`, `module::function` or `file.rs`, are somewhere in the code."""
    files = code()
    text = re.sub(r"```.*?```", blank, document.read_text(), flags=re.S)
    for match in re.finditer(r"`([\w/]+\.rs|\w+(?:::\w+)+(?:\(\))?)`", text):
        name = match[1].removesuffix("()")
        if name.endswith(".rs"):
            there = any(str(file).endswith(f"/{name}") for file in files)
            if not there and not PLACEHOLDER.search(name):
                report(document, text, match.start(), f"no file of the code is named {name}")
            continue
        owner, item = name.split("::")[-2:]
        kind = re.compile(rf"\b(?:struct|enum|union|trait|type|mod) {owner}\b|\bimpl\b[^\n{{]*\b{owner}\b")
        words = "fn|const|static|struct|enum|trait|type|mod"
        # The second: a variant or a field.
        defined = re.compile(rf"\b(?:{words}) {item}\b|^\s*{item}\b ?[,({{=]", flags=re.M)
        # The plain search first: it is a hundred times as fast.
        found = any(
            item in source
            and (owner in (file.stem, file.parent.name) or (owner in source and kind.search(source)))
            and defined.search(source)
            for file, source in files.items()
        )
        if not found:
            report(document, text, match.start(), f"the code has no {name}")


def readme_program() -> None:
    """The program in the README is the one in the host library's documentation, which is compiled and run as a test.

    There its frame is hidden (`# `) and it stops early, so that the test does not wait for packets that do not come.
    """
    documentation = (ROOT / "crates/host/src/lib.rs").read_text()
    text = "\n".join(line[3:].strip() for line in documentation.splitlines() if line.startswith("//!"))
    program = re.search(r"```\n(.*?)```", text, flags=re.S)
    shown = re.search(r"```rust\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    if not program or not shown:
        problems.append("README.md or crates/host/src/lib.rs has no program")
        return
    wanted = [line.removeprefix("#").strip() for line in program[1].splitlines()]
    wanted = [line for line in wanted if line and line != "break;"]
    if [line.strip() for line in shown[1].splitlines() if line.strip()] != wanted:
        problems.append("README.md: the program is not the one in crates/host/src/lib.rs, which is compiled and run")


# A command that others find only after a moment, put into the background.
BACKGROUND = re.compile(r"(?:^|[\s/])millrace (?:card|agent|clock follow)\b[^#]*[^&#]&\s*(?:#.*)?$")


def pasted(document: pathlib.Path, text: str) -> None:
    """An example works also when it is pasted: what others need has begun when they do."""
    at = 0
    fenced, waits = False, 0
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        is_code = (fenced and not line.startswith("```")) or line.startswith("    ")
        if is_code and line.strip() and waits:
            report(document, text, waits - 1, "the next command needs this one: let it end in `& sleep 1`")
        if line.strip():
            waits = at + 1 if is_code and BACKGROUND.search(line) else 0
        at += len(line) + 1


def change_log() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## (.*)$", text, flags=re.M)
    if not sections or sections[0] != "[Unreleased]":
        problems.append("CHANGELOG.md: the first section must be [Unreleased]")
    for section in sections[1:]:
        if not re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", section):
            problems.append(f"CHANGELOG.md: '{section}' is not '[1.2.3] - 2026-01-31'")
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for kind in re.findall(r"^### (.*)$", text, flags=re.M):
        if kind not in kinds:
            problems.append(f"CHANGELOG.md: '{kind}' is none of {', '.join(sorted(kinds))}")


def decisions() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text()
    # Gaps are numbers of decisions that have not landed yet.
    numbers: set[str] = set()
    for document in tracked("docs/decisions/0*.md"):
        number = document.name[:4]
        if number in numbers:
            problems.append(f"docs/decisions: there are two of number {number}")
        numbers.add(number)
        if document.name not in index:
            problems.append(f"docs/decisions/README.md does not list {document.name}")
        headings = re.findall(r"^## (.*)$", document.read_text(), flags=re.M)
        if headings != ["Context", "Decision", "Why", "Consequences"]:
            problems.append(f"{document.name}: headings are {headings}")


documents = tracked("*.md")
sources = [file for kind in ["rs", "c", "h", "py", "sh", "toml"] for file in tracked(f"*.{kind}")] + tracked("Makefile")
sources.remove(pathlib.Path(__file__).resolve())  # Its patterns look like citations.
for document in documents:
    links(document, document.read_text())
    if document.parent != ROOT / "docs/decisions":
        pasted(document, document.read_text())
for file in documents + sources:
    text = file.read_text()
    named_files(file, text)
    machine_paths(file, text)
    citations(file, text)
    pages(file, text)
for document in [ROOT / "docs/architecture.md", ROOT / "CONTRIBUTING.md"]:
    names_in_code(document)
tests()
readme_program()
change_log()
decisions()
problems = list(dict.fromkeys(problems))
for problem in problems:
    print(problem)
print(f"{len(documents)} documents, {len(sources)} sources, {len(problems)} problems")
sys.exit(1 if problems else 0)
