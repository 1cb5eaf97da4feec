#!/usr/bin/env python3
"""Prints JSON lines, as `millrace --json` writes them, as one table."""
import json
import sys

rows = [json.loads(line) for line in sys.stdin if line.strip()]
names = list(dict.fromkeys(name for row in rows for name in row))
cells = [names] + [[("-" if row.get(name) is None else str(row[name])) for name in names] for row in rows]
widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
for line in cells:
    print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))
