"""The list of all checks."""
from dataclasses import dataclass
from typing import Callable

from .lab import Lab


@dataclass
class Check:
    """A check returns what it saw, or raises `Failed` or `Skipped`. Its number is that of docs/spec/nfb-card.md section 7,
    or a word where that has none."""

    number: str
    title: str
    do: Callable[[Lab], str]


CHECKS: list[Check] = []


def check(number: str, title: str):
    def add(do: Callable[[Lab], str]) -> Callable[[Lab], str]:
        CHECKS.append(Check(number, title, do))
        return do

    return add
