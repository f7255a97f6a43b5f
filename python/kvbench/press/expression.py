"""Parses the text of a press, as `AdaKVPress(SnapKVPress(0.875, window_size=32))`, without running it.

A press is a class name with, in brackets, numbers, texts, True, False, None, lists of these and other presses. It is
parsed by `ast`; only `build` creates objects.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kvbench.errors import TraceError
from kvbench.text import one_line

LONGEST = 2000  # characters
DEEPEST = 8  # nesting of presses and lists
EXAMPLE = "such as `SnapKVPress(0.875, window_size=32)`"


class PressError(TraceError):
    """Invalid expression, or a press that cannot be run. One line."""


@dataclasses.dataclass(frozen=True)
class Expression:
    """One press as written.

    name   of the class
    first  the positional argument, or None: a number, a press or a list
    named  {parameter: value}; values are numbers, texts, None, tuples of values, and Expressions
    """

    name: str
    first: Any = None
    named: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def tree(self) -> Iterator[Expression]:
        """Yields this press and all inner ones, outermost first."""
        yield self
        for value in (self.first, *self.named.values()):
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, Expression):
                    yield from one.tree()

    def __str__(self) -> str:
        parts = [] if self.first is None else [text_of(self.first)]
        parts += [f"{name}={text_of(value)}" for name, value in self.named.items()]
        return f"{self.name}({','.join(parts)})"


def text_of(value: Any) -> str:
    """Formats a value of an Expression without blanks."""
    if isinstance(value, tuple):
        return f"[{','.join(map(text_of, value))}]"
    return str(value) if isinstance(value, Expression) else repr(value)


def parse(text: str, names: Collection[str]) -> Expression:
    """Returns the Expression of a text. names: known classes. Raises PressError, which suggests a name."""
    if len(text) > LONGEST:
        raise PressError(f"--press: got {len(text)} characters, expected at most {LONGEST}")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        raise PressError(one_line(f"--press: `{text}`: cannot be read ({what}), expected a press {EXAMPLE}")) from None
    try:
        value = _value(body, names, DEEPEST)
    except PressError as error:
        raise PressError(one_line(f"--press: `{text}`: {error}")) from None
    if not isinstance(value, Expression):
        raise PressError(one_line(f"--press: `{text}`: not a press, expected one {EXAMPLE}"))
    return value


def _value(node: ast.expr, names: Collection[str], depth: int) -> Any:
    if depth == 0:
        raise PressError(f"more than {DEEPEST} presses and lists within each other")
    if isinstance(node, ast.Constant):
        if node.value is None or isinstance(node.value, (bool, int, float, str)):
            return node.value
        raise PressError(f"got a value of type {type(node.value).__name__}, expected a number, a "
                         "text, True, False or None")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand, names, depth - 1)
        if isinstance(inner, (int, float)) and not isinstance(inner, bool):
            return -inner
    if isinstance(node, (ast.List, ast.Tuple)):
        return tuple(_value(one, names, depth - 1) for one in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _press(node, node.func.id, names, depth)
    if isinstance(node, ast.Name):
        if node.id in names:
            raise PressError(f"got {node.id}, expected its arguments: {node.id}(...)")
        raise PressError(f"got the name {node.id}{_meant(node.id, names)}, expected a press with its "
                         f"arguments, {EXAMPLE}")
    raise PressError(f"got `{ast.unparse(node)[:60]}`, expected presses, numbers, texts and lists alone")


def _press(node: ast.Call, name: str, names: Collection[str], depth: int) -> Expression:
    if name not in names:
        raise PressError(f"kvpress has no press {name}{_meant(name, names)}")
    named = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise PressError(f"{name}: got `**`, expected parameters by name")
        if keyword.arg in named:
            raise PressError(f"{name}: got {keyword.arg} twice")
        named[keyword.arg] = _value(keyword.value, names, depth - 1)
    if len(node.args) > 1:
        raise PressError(f"{name}: got {len(node.args)} arguments without a name, expected one at "
                         "most, the compression ratio or the inner press; others by name")
    return Expression(name, _value(node.args[0], names, depth - 1) if node.args else None, named)


def _meant(name: str, names: Collection[str]) -> str:
    """Returns `; did you mean X?` or nothing."""
    lower = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), [*lower, *(one.removesuffix("press")
                                                              for one in lower)], n=1, cutoff=0.6)
    if not near:
        return ""
    return f"; did you mean {lower.get(near[0]) or lower[near[0] + 'press']}?"


def build(expression: Expression, classes: Mapping[str, type]) -> Any:
    """Returns the press of an Expression. `classes`: {name: class of kvpress}.

    A positional number is the compression ratio; a press or a list is the class's first parameter.
    Raises PressError for an unknown parameter and for errors of the class.
    """
    kind = classes[expression.name]
    takes = [name for name, one in inspect.signature(kind).parameters.items()
             if one.kind is not inspect.Parameter.VAR_KEYWORD]
    given = dict(expression.named)
    if expression.first is not None:
        number = isinstance(expression.first, (int, float))
        if not takes:
            raise PressError(f"{expression.name}: takes no arguments")
        first = "compression_ratio" if number and "compression_ratio" in takes else takes[0]
        if first in given:
            raise PressError(f"{expression.name}: got {first} twice")
        given[first] = expression.first
    unknown = [name for name in given if name not in takes]
    if unknown:
        raise PressError(f"{expression.name}: has no parameter {unknown[0]}"
                         f"{_meant(unknown[0], takes)}; it has {', '.join(takes) or 'none'}")
    made = {name: _made(value, classes) for name, value in given.items()}
    try:
        return kind(**made)
    except (AssertionError, TypeError, ValueError, AttributeError) as error:
        said = one_line(str(error)) or type(error).__name__
        raise PressError(f"{expression}: kvpress rejects it: {said}") from None


def _made(value: Any, classes: Mapping[str, type]) -> Any:
    if isinstance(value, Expression):
        return build(value, classes)
    return [_made(one, classes) for one in value] if isinstance(value, tuple) else value
