"""kvpress presses judged by kvbench, and kvbench's methods as presses (docs/press.md).

expression.py   reads `SnapKVPress(0.875)` without running it; nothing but the standard library
classes.py      what is known of each class of kvpress
windows.py      how a press leaves the protocol's windows alone
run.py          a press in a model: what it kept of a prompt, per layer and KV head
groups.py       the same as a group of a caches file
main.py         the program; its command line is options.py
adapter.py      kvbench.as_press
"""

from kvbench.press.expression import Expression, PressError, parse

__all__ = ["Expression", "PressError", "parse"]
