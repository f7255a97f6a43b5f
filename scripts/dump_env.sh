#!/usr/bin/env bash
# Makes the Python environments of `make model`, `make test-dump`, `make bench` and `make ruff` with pip.
#
#   scripts/dump_env.sh VENV PACKAGE... [--also PACKAGE...] [-- PIP_ARG...]
#
# PACKAGE: NAME, NAME==VERSION or NAME>=VERSION. A new or empty VENV is created with all packages and
# the file .made-by-kvbench. Any other VENV belongs to the user: it must have the packages before --also,
# and is never changed. Nothing is removed.
# Environment: BOOTSTRAP=no, install no Debian package; TORCH, the package to install instead of torch,
# such as torch==2.9.1+cpu (default: the CPU build if pip's index has one and the machine has no NVIDIA
# GPU).
# Exit code: 0; 2, the user's VENV lacks packages; otherwise that of pip.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
mark=.made-by-kvbench

if [[ $# -lt 2 || $1 == -* ]]; then
  sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
venv=$1
shift
needed=()
also=()
while [[ $# -gt 0 && $1 != -- && $1 != --also ]]; do needed+=("$1") && shift; done
if [[ ${1:-} == --also ]]; then
  shift
  while [[ $# -gt 0 && $1 != -- ]]; do also+=("$1") && shift; done
fi
[[ ${1:-} != -- ]] || shift
pip_args=("$@")
python=$venv/bin/python

say() { echo "dump_env.sh: $*" >&2; }

# lacking PACKAGE...: prints the packages that the environment lacks, one per line.
lacking() {
  "$python" - "$@" << 'END'
import re
import sys
from importlib.metadata import PackageNotFoundError, version


def number(text):
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


for asked in sys.argv[1:]:
    name, relation, wanted = re.fullmatch(r"([\w.-]+)(?:(==|>=)(.+))?", asked).groups()
    try:
        got = version(name)
    except PackageNotFoundError:
        print(asked)
        continue
    if relation == ">=" and number(got) < number(wanted) or relation == "==" and got != wanted:
        print(f"{asked} (has {got})")
END
}

# quoted WORD...: quoted for a shell.
quoted() {
  local word line=
  for word; do
    [[ $word =~ ^[a-zA-Z0-9_.,:/=+@%-]+$ ]] || word="'$word'"
    line+=" $word"
  done
  echo "${line# }"
}

# ------------------------------------------------------------------------- the user's environment
# Earlier versions marked environments by a file ready-kvpress-...
if [[ -e $venv && ! -f $venv/$mark && -n $(ls -A -- "$venv") ]] &&
  ! compgen -G "$venv/ready-*" > /dev/null; then
  if [[ ! -x $python ]]; then
    say "$venv: exists without bin/python and was not made by kvbench; expected a virtual environment" \
      "(python3 -m venv) or a new folder"
    exit 2
  fi
  absent=$(lacking "${needed[@]}")
  [[ -n $absent ]] || exit 0
  say "$venv: lacks $(paste -sd, <<< "$absent" | sed 's/,/, /g'). It was not made by kvbench and is" \
    "not changed. Install the packages with"
  say "    $(quoted "$python" -m pip install "${needed[@]}")"
  say 'or use a new folder (default: build/dump-venv)'
  exit 2
fi

# ------------------------------------------------------------------------------------ one of ours
mapfile -t all < <(printf '%s\n' "${needed[@]}" "${also[@]}" | awk '!seen[$0]++')
if [[ -f $venv/$mark && -x $python && -z $(lacking "${all[@]}") ]] &&
  [[ ! -e $venv/incomplete ]]; then
  exit 0
fi
[[ ${BOOTSTRAP:-yes} == no ]] || "$here/bootstrap.sh" dump
mkdir -p -- "$venv"
echo 'Made by kvbench, which installs packages here.' > "$venv/$mark"
touch -- "$venv/incomplete"  # Until pip is done: it may be interrupted.
# venv also completes an interrupted environment.
"$("$here/find_python.sh" venv ensurepip)" -m venv "$venv"

torch=${TORCH:-}
if [[ -z $torch && " ${all[*]} " == *' torch '* ]]; then
  torch=torch
  if [[ -z $(lacking torch) ]]; then
    : # Keep the installed one.
  elif ! command -v nvidia-smi > /dev/null; then
    version=$("$python" -m pip index versions torch "${pip_args[@]}" 2> /dev/null |
      grep -oE '[0-9][0-9.]*\+cpu' | head -n 1) || true
    torch=torch${version:+==$version}
  fi
fi
for i in "${!all[@]}"; do [[ ${all[i]} != torch ]] || all[i]=$torch; done
say "pip install $(quoted "${all[@]}") into $venv"
if [[ $torch == torch && -n $(lacking torch) && $(uname -sm) == 'Linux x86_64' ]]; then
  say "PyPI's torch includes CUDA: 3 GB to download, 6 GB on disk. For the CPU build, without 4 GB of" \
    "CUDA: PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'"
fi
"$python" -m pip install --quiet "${pip_args[@]}" "${all[@]}"
rm -f -- "$venv/incomplete"
