"""Prints a completion script of kvbench-py for a shell, from the programs' parsers.

    source <(kvbench-py completion bash)

Of programs whose packages are not installed the names alone are completed.
"""

import argparse
import contextlib
import sys

from kvbench import command, programs

SHELLS = ("bash", "zsh")
# COMP_WORDS are the words of the line; a program has one word or two.
SCRIPT = """\
_{function}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} options= values=
  local program=
  ((COMP_CWORD > 1)) && program=${{COMP_WORDS[1]}}
  case "$program ${{COMP_WORDS[2]-}}" in
    {pairs}) ((COMP_CWORD > 2)) && program+=" ${{COMP_WORDS[2]}}" ;;
  esac
  case $program in
{options}
  esac
  case "$program:$previous" in
{values}
  esac
  [[ $word == -* ]] && values=$options
  COMPREPLY=($(compgen -W "$values" -- "$word"))
}}
complete -o default -F _{function} {name}
"""


class Found(Exception):
    """A program's parser, instead of what the program would do."""


@contextlib.contextmanager
def only_parsers(name):
    """Parsers raise Found instead of parsing; programs are called `name`."""
    def found(parser, *_, **__):
        raise Found(parser)

    before, argv = argparse.ArgumentParser.parse_args, sys.argv
    argparse.ArgumentParser.parse_args, sys.argv = found, [name]
    try:
        yield
    finally:
        argparse.ArgumentParser.parse_args, sys.argv = before, argv


def parsers_of(commands):
    """Returns {name: parser} of the programs whose packages are installed, and of their subcommands."""
    out = {}
    for name in commands.programs:
        with only_parsers(f"{commands.name} {name}"):
            try:
                commands.main_of(name)()
            except Found as one:
                out[name] = one.args[0]
            except (programs.MissingModules, ModuleNotFoundError):
                continue
    for name, parser in list(out.items()):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                out |= {f"{name} {word}": one for word, one in action.choices.items()}
    return out


def script(commands, shell):
    """Returns the text of the script."""
    parsers = parsers_of(commands)
    after = {"": dict.fromkeys(name.split()[0] for name in commands.programs)}  # {words: those that may follow}
    for name in {**commands.programs, **parsers}:
        first, _, rest = name.partition(" ")
        if rest:
            after.setdefault(first, {})[rest] = None
    options, values = [], []
    for name in {**after, **parsers}:
        actions = parsers[name]._actions if name in parsers else []
        words = [option for action in actions for option in action.option_strings] or ["-h", "--help", "--version"]
        fixed = [str(one) for action in actions if not action.option_strings for one in action.choices or ()]
        follow = " ".join({**after.get(name, {}), **dict.fromkeys(fixed)})
        options.append(f"    '{name}') options='{' '.join(words)}' values='{follow}' ;;")
        for action in actions:
            if action.option_strings and action.choices:
                where = "|".join(f"'{name}:{option}'" for option in action.option_strings)
                values.append(f"    {where}) values='{' '.join(map(str, action.choices))}' ;;")
    text = SCRIPT.format(
        function=commands.name.replace("-", "_"), name=commands.name, options="\n".join(options),
        values="\n".join(values),
        pairs="|".join(f"'{first} {rest}'" for first in after if first for rest in after[first]))
    return ("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + text


def main(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="the shell")
    sys.stdout.write(script(programs.COMMANDS, parser.parse_args(arguments).shell))
