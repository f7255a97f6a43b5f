"""kvpress presses measured by kvbench, and kvbench's methods as presses (docs/python.md).

expression.py   parses `SnapKVPress(0.875)` without running it
classes.py      properties of kvpress's classes
windows.py      keeps the protocol's windows out of a press
run.py          runs a press in a model: what it kept per layer and KV head
groups.py       writes the result as a group of a caches file
main.py         the program; its command line is options.py
adapter.py      kvbench.as_press
"""

from kvbench.press.expression import Expression, PressError, parse

__all__ = ["Expression", "PressError", "parse"]
