#!/usr/bin/env bash
# The Python environment of `make model`, `make test-dump` and `make bench`, and that of `make ruff`:
# packages from pip.
#
#   scripts/dump_env.sh VENV PACKAGE... [--also PACKAGE...] [-- PIP_ARG...]
#
# PACKAGE: NAME, NAME==VERSION or NAME>=VERSION. A VENV that is not there, or is an empty folder, is
# made: it has the file .made-by-kvbench from then on, and gets all packages. Any other VENV is the
# user's: it is used where it has the packages before --also, else what is missing is said. Nothing
# is installed into it, and no file of it is changed. No VENV is ever removed.
# Environment: BOOTSTRAP=no, install no Debian package; TORCH, what pip is asked for in place of torch,
# such as torch==2.9.1+cpu (default: torch for the CPU alone where pip's index has one and the machine
# has no NVIDIA GPU).
# Exit code: 0; 2, the user's VENV lacks something; that of pip where it fails.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
mark=.made-by-kvbench

if [[ $# -lt 2 || $1 == -* ]]; then
  sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
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

# lacking PACKAGE...: those that the environment does not have, one a line.
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

# quoted WORD...: as a shell takes it.
quoted() {
  local word line=
  for word; do
    [[ $word =~ ^[a-zA-Z0-9_.,:/=+@%-]+$ ]] || word="'$word'"
    line+=" $word"
  done
  echo "${line# }"
}

# ------------------------------------------------------------------------- the user's environment
# Those of earlier versions had a file ready-kvpress-... in place of the mark.
if [[ -e $venv && ! -f $venv/$mark && -n $(ls -A -- "$venv") ]] &&
  ! compgen -G "$venv/ready-*" > /dev/null; then
  if [[ ! -x $python ]]; then
    say "$venv: is there, has no bin/python, and was not made by kvbench: it is left as it is. Expected" \
      "an environment (python3 -m venv), or the name of a new folder"
    exit 2
  fi
  absent=$(lacking "${needed[@]}")
  [[ -n $absent ]] || exit 0
  say "$venv: lacks $(paste -sd, <<< "$absent" | sed 's/,/, /g'). It was not made by kvbench, so nothing" \
    "is installed into it. Install them with"
  say "    $(quoted "$python" -m pip install "${needed[@]}")"
  say 'or name a new folder, or none: build/dump-venv'
  exit 2
fi

# ------------------------------------------------------------------------------------ one of ours
mapfile -t all < <(printf '%s\n' "${needed[@]}" "${also[@]}" | awk '!seen[$0]++')
if [[ -f $venv/$mark && -x $python && -z $(lacking "${all[@]}") ]] &&
  [[ ! -e $venv/unfinished ]]; then
  exit 0
fi
[[ ${BOOTSTRAP:-yes} == no ]] || "$here/bootstrap.sh" dump
mkdir -p -- "$venv"
echo 'Made by kvbench, which installs packages here.' > "$venv/$mark"
touch -- "$venv/unfinished"  # Until pip is done: it may be stopped within a package.
# The same for one that was interrupted: venv completes what is there.
"$("$here/find_python.sh" venv ensurepip)" -m venv "$venv"

torch=${TORCH:-}
if [[ -z $torch && " ${all[*]} " == *' torch '* ]]; then
  torch=torch
  if [[ -z $(lacking torch) ]]; then
    : # Whatever was chosen before.
  elif ! command -v nvidia-smi > /dev/null; then
    version=$("$python" -m pip index versions torch "${pip_args[@]}" 2> /dev/null |
      grep -oE '[0-9][0-9.]*\+cpu' | head -n 1) || true
    torch=torch${version:+==$version}
  fi
fi
for i in "${!all[@]}"; do [[ ${all[i]} != torch ]] || all[i]=$torch; done
say "pip install $(quoted "${all[@]}") into $venv"
if [[ $torch == torch && -n $(lacking torch) && $(uname -sm) == 'Linux x86_64' ]]; then
  say "that is some 3 GB to download and 6 GB on the disk: PyPI's torch comes with CUDA. Where it is" \
    "reachable, PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu' gets one for the" \
    'CPU alone, without the 4 GB of CUDA'
fi
"$python" -m pip install --quiet "${pip_args[@]}" "${all[@]}"
rm -f -- "$venv/unfinished"
