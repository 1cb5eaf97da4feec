#!/usr/bin/env python3
"""Reads `cargo metadata` and fails if a dependency has a licence that this project may not be combined with.

An expression is accepted if one of its alternatives needs nothing but licences of the list.
"""
import json
import re
import sys

# Permissive: attribution is all they ask for.
ACCEPTED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-1-Clause", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0",
    "CC0-1.0", "ISC", "MIT", "MIT-0", "NCSA", "Unicode-3.0", "Unicode-DFS-2016", "Unlicense", "Zlib",
}


def accepted(expression: str) -> bool:
    """Evaluates an SPDX expression; `/` is how old manifests wrote OR."""
    words = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    at = 0

    def either() -> bool:
        nonlocal at
        value = both()
        while at < len(words) and words[at].upper() == "OR":
            at += 1
            value = both() or value
        return value

    def both() -> bool:
        nonlocal at
        value = one()
        while at < len(words) and words[at].upper() == "AND":
            at += 1
            value = one() and value
        return value

    def one() -> bool:
        nonlocal at
        word = words[at]
        at += 1
        if word == "(":
            value = either()
            at += 1
            return value
        if at < len(words) and words[at].upper() == "WITH":
            word += " WITH " + words[at + 1]
            at += 2
        return word in ACCEPTED

    return bool(words) and either()


def main() -> int:
    metadata = json.load(sys.stdin)
    bad = 0
    for package in metadata["packages"]:
        licence = package.get("license")
        if not licence or not accepted(licence):
            print(f"{package['name']} {package['version']}: {licence or 'no licence'} is not on the list")
            bad += 1
    print(f"{len(metadata['packages'])} packages, {bad} with a licence that is not on the list")
    return 1 if bad else 0


sys.exit(main())
