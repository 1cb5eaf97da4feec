#!/usr/bin/env python3
"""Checks what can be checked of the documents: links, files they name, the program in the README, the change log."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
problems: list[str] = []


def tracked(pattern: str) -> list[pathlib.Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [ROOT / name for name in sorted(set(names)) if (ROOT / name).exists()]


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", "")).replace(" ", "-")


def links(document: pathlib.Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists():
            problems.append(f"{document.relative_to(ROOT)}: {link} is not there")
        elif fragment and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.M)
            if fragment not in map(anchor, headings):
                problems.append(f"{document.relative_to(ROOT)}: no heading for #{fragment} in {target.name}")


def named_files(document: pathlib.Path) -> None:
    for name in re.findall(r"`((?:crates|docs|scripts|tests|bench|fuzz)/[\w./-]+)`", document.read_text()):
        if not (ROOT / name).exists():
            problems.append(f"{document.relative_to(ROOT)}: {name} is not there")


def machine_paths(document: pathlib.Path) -> None:
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if re.search(r"(?<![\w.])/(?:work|home|root)/", line):
            problems.append(f"{document.relative_to(ROOT)}:{number}: a path of somebody's machine")


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
for document in documents:
    links(document)
    named_files(document)
for document in documents + tracked("*.rs") + tracked("*.toml") + tracked("*.sh") + tracked("Makefile"):
    machine_paths(document)
readme_program()
change_log()
decisions()
for problem in problems:
    print(problem)
print(f"{len(documents)} documents, {len(problems)} problems")
sys.exit(1 if problems else 0)
