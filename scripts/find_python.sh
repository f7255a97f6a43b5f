#!/usr/bin/env bash
# Chooses the Python of kvbench's scripts, at least 3.11, and prints its path: $PYTHON if set, otherwise
# that of the active virtual environment, otherwise the first with the modules of the python3s on the
# PATH, /usr/bin/python3 and the environment of `make model`.
#
#   scripts/find_python.sh [MODULE...]
#   scripts/find_python.sh --run FILE [ARG...]     runs FILE, a command line of kvbench.programs
#
# Without MODULE: numpy, pandas and matplotlib; an interpreter that also has h5py, scipy and sklearn takes
# precedence. --run looks for the modules of the program ARG, and without them takes any interpreter,
# where the program says what it lacks.
# Exit code: 0; 2 and one line on stderr if no interpreter has the modules; with --run that of FILE.
set -euo pipefail

run=()
needed=(numpy pandas matplotlib)
preferred=()
if [[ ${1:-} == --run ]]; then
  run=("${@:2}")
  case ${3:-} in
    dump | score) needed=(numpy h5py torch transformers) ;;
    press) needed=(numpy h5py torch transformers kvpress) ;;
    *) preferred=(h5py scipy sklearn) ;;
  esac
elif (($# > 0)); then
  needed=("$@")
else
  preferred=(h5py scipy sklearn)
fi

candidates=()
from=
if [[ -n ${PYTHON:-} ]]; then
  candidates=("$PYTHON")
  from=PYTHON
elif [[ -n ${VIRTUAL_ENV:-} ]]; then
  candidates=("$VIRTUAL_ENV/bin/python")
  from=VIRTUAL_ENV
else
  mapfile -t candidates < <(type -ap python3 || true)
  candidates+=(/usr/bin/python3 "$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")/../build/dump-venv/bin/python")
fi

# has PYTHON MODULE...: whether it finds them. Imports nothing, which would take a second. -P came with 3.11.
has() {
  "$1" -P -c 'import sys; from importlib.util import find_spec; sys.exit(None in map(find_spec, sys.argv[1:]))' \
    "${@:2}" < /dev/null > /dev/null 2>&1
}

# Not realpath: the link identifies a virtual environment.
found() {
  local path
  path=$(command -v -- "$1")
  [[ $path == /* ]] || path=$PWD/$path
  if ((${#run[@]})); then exec "$path" "${run[@]}"; fi
  echo "$path"
  exit 0
}

first=
any=
for candidate in "${candidates[@]}"; do
  if has "$candidate" "${needed[@]}"; then
    if has "$candidate" "${preferred[@]}"; then found "$candidate"; fi
    first=${first:-$candidate}
  elif [[ -z $any ]] && has "$candidate"; then
    any=$candidate
  fi
done
if [[ -n $first ]]; then found "$first"; fi
if ((${#run[@]})) && [[ -n $any ]]; then found "$any"; fi

if [[ -n $from ]]; then
  echo "find_python.sh: ${candidates[0]} (from $from) is not a Python 3.11 or newer with ${needed[*]}" >&2
else
  echo "find_python.sh: found no python3 of 3.11 or newer with ${needed[*]}; run scripts/bootstrap.sh (Debian)" \
    "or set PYTHON" >&2
fi
exit 2
