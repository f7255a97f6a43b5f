#!/usr/bin/env python3
"""Prints what scripts/gpu_check.sh found, as Markdown.

  bench/gpu_report.py OUT_DIR [--docs docs/gpu.md]

--docs puts it between the lines `<!-- gpu_check -->` and `<!-- end of gpu_check -->` of that page. Needs only
Python. Exit code: 0; 2, OUT_DIR has no parts.tsv, or the page lacks the lines.
"""

import argparse
import os
import re

from pages import refuse, renew


def rows(folder, name):
    """The rows of a table of tab-separated values; none without the file."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        return [line.rstrip("\n").split("\t") for line in file if line.strip()]


def table(head, found):
    cells = [head, ["---"] * len(head), *([text.replace("|", "\\|") for text in row] for row in found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"


def ratio(slow, fast):
    return f"{float(slow) / float(fast):.2f}" if float(fast) > 0 else "-"


def card(folder):
    """Name and driver of the card, as nvidia-smi said; empty without."""
    path = os.path.join(folder, "card.txt")
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    driver = re.search(r"Driver Version: *(\S+)", text)
    name = re.search(r"^\|\s+\d+\s+(.*?)\s+(?:On|Off)\s+\|", text, re.MULTILINE)
    return ", ".join(part for part in (name and name[1].strip(), driver and f"driver {driver[1]}") if part)


def report(folder):
    found = rows(folder, "parts.tsv")
    if not found:
        raise ValueError(f"{folder}: no parts.tsv, expected the OUT_DIR of gpu_check.sh")
    text = [f"Device: {card(folder) or 'unknown'}.\n", table(["part", "result", "what"], found)]
    times = rows(folder, "times.tsv")
    runs = [row[1:] for row in times if row[0] == "run"]
    if runs:
        text.append(table(["run", "CPU, s", "device, s", "ratio"],
                          [[name, cpu, device, ratio(cpu, device)] for name, cpu, device in runs]))
    peers = [row[1:] for row in times if row[0] == "peer"]
    if peers:
        text.append(table(["work", "PyTorch, s", "kvbench, s", "ratio"],
                          [[work, theirs, ours, ratio(ours, theirs)] for work, theirs, ours in peers]))
    streams = [row[1:] for row in times if row[0] == "stream"]
    if streams:
        text.append(table(["stream of 32768 tokens", "s"], streams))
    return "\n".join(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="OUT_DIR")
    parser.add_argument("--docs", metavar="PAGE.md")
    options = parser.parse_args()
    try:
        text = report(options.folder)
        if options.docs:
            renew(options.docs, "gpu_check", text)
    except (OSError, ValueError) as error:
        refuse(str(error))
    print(text, end="")


if __name__ == "__main__":
    main()
