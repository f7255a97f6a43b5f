#!/usr/bin/env bash
# What a user has stays: `make` and the scripts are given folders, environments and files that they
# did not make, and each must leave them as they were. pip, CMake, CPack and the program are scripts
# that only say that they were called.
set -euo pipefail
SRC=$(realpath -- "${SRC:?SRC must be the source folder}")
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
cd "$scratch"
unset PYTHON VIRTUAL_ENV TORCH

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
if ! command -v make > /dev/null; then
  echo 'SKIPPED: no make'
  exit 77
fi

# program FILE: makes an executable script of stdin.
program() {
  mkdir -p "$(dirname "$1")"
  { echo '#!/usr/bin/env bash'; cat; } > "$1"
  chmod +x "$1"
}

# ------------------------------------------------------------------------------------ the tree
mkdir tree
cp "$SRC/Makefile" tree/
mkdir tree/scripts tree/tests
for script in find_python own_folder dump_env; do
  [[ ! -f $SRC/scripts/$script.sh ]] || cp "$SRC/scripts/$script.sh" tree/scripts/
done
program tree/scripts/bootstrap.sh <<< ''
program tree/tests/package/run.sh <<< 'ls "$1"/*.deb "$1"/*.tar.gz > /dev/null'
export RAN=$scratch/ran VENV_PYTHON=$scratch/venv_python REAL_PYTHON
REAL_PYTHON=$(type -P python3)
# The interpreter of an environment. Packages are empty folders NAME-VERSION.dist-info beside it, as
# importlib.metadata finds them.
program venv_python << 'SHIM'
echo "$0 $*" >> "$RAN"
packages=$(dirname -- "$0")/../packages
case "$*" in
  '-m pip index '*)
    [[ -n ${CPU_TORCH:-} ]] || exit 1
    printf 'torch (%s)\nAvailable versions: %s, 2.9.1, 2.8.0+cpu\n' "$CPU_TORCH" "$CPU_TORCH"
    ;;
  '-m pip install '*)
    [[ -z ${PIP_FAILS:-} ]] || exit 7
    mkdir -p "$packages"
    for word in "${@:4}"; do
      name=${word%%[=>]*}
      [[ $word == -* ]] || PACKAGES=$packages "${0%/*}/add" "$name" "${word#"$name"}"
    done
    ;;
  - | '- '*) PYTHONPATH=$packages exec "$REAL_PYTHON" -I -c '
import os, sys
sys.path.insert(0, os.environ["PYTHONPATH"])
exec(sys.stdin.read())' "${@:2}" ;;
esac
SHIM
program add << 'SHIM'
version=${2#[=>]=}
folder=${PACKAGES:-$scratch}/$1-${version:-9.9}.dist-info
mkdir -p "$folder" && printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$1" "${version:-9.9}" > "$folder/METADATA"
SHIM
program tools/python3 << 'SHIM'
echo "python3 $*" >> "$RAN"
case "$*" in
  '-m venv '*)
    mkdir -p "${!#}/bin"
    cp "$VENV_PYTHON" "${!#}/bin/python"
    cp "${VENV_PYTHON%/*}/add" "${!#}/bin/add"
    printf '#!/bin/sh\n"%s" -m pip "$@"\n' "${!#}/bin/python" > "${!#}/bin/pip"
    chmod +x "${!#}/bin/pip"
    ;;
  *'plot error'*) : > "${!#}.png" && : > "${!#}.pdf" ;;
esac
SHIM
program tools/cmake <<< 'printf "cmake %s\n" "$*" >> "$RAN"'
program tools/cpack << 'SHIM'
for word; do [[ $word != build/* || $word == *.cmake ]] || folder=$word; done
mkdir -p "$folder"
case $folder in
  */static) echo new > "$folder/kvbench-1.tar.gz" ;;
  *) echo new > "$folder/kvbench_1.deb" ;;
esac
SHIM
for build in . native; do
  program "tree/build/$build/kvbench" <<< 'for word; do [[ $word != *.csv ]] || echo new > "$word"; done
for word; do [[ $word != *.csv ]] || echo new > "$word.json"; done'
done
mkdir -p tree/build/static tree/build/deb

# run ARGS...: make with these, in the tree; sets code, and what it says is in the file `said`.
run() {
  : > "$RAN"
  code=0
  # Not the variables of a make that runs this test.
  env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u CI -u CMAKE_ARGS -u DEMO_BUILD \
    PATH="$scratch/tools:$PATH" make -C tree "$@" > said 2>&1 < /dev/null || code=$?
}
good() {
  run "$@"
  [[ $code == 0 ]] || fail "make $*: exit code $code: $(< said)"
}
# keeps FOLDER ARGS...: whatever make does, the folder is as it was.
keeps() {
  local before
  before=$(state "$1")
  run "${@:2}"
  [[ $(state "$1") == "$before" ]] || fail "make ${*:2}: $1 was: $before; is: $(state "$1"): $(< said)"
}
state() { (cd "$1" && find . -type f -exec sha256sum {} + | sort -k 2; find . -type d | sort); }

# ------------------------------------------------------------------------------ environments
needed=(torch transformers h5py numpy gguf accelerate sentencepiece pandas scipy)
# A folder of the user that is no environment.
mkdir mine
echo precious > mine/notes.txt
keeps mine model DUMP_VENV="$scratch/mine"
[[ $code != 0 ]] || fail "make model took a folder of notes for an environment"
grep -q 'mine: exists without bin/python' said || fail "$(< said)"
# An environment of the user that lacks packages: what is missing, how to get it, nothing done.
PATH="$scratch/tools:$PATH" python3 -m venv "$scratch/own"
echo precious > own/notes.txt
for name in torch h5py numpy gguf accelerate; do PACKAGES=own/packages ./add "$name"; done
PACKAGES=own/packages ./add transformers 4.45.2
keeps own model DUMP_VENV="$scratch/own"
[[ $code != 0 ]] || fail 'make model used an environment without its packages'
for words in 'lacks transformers>=4.56 (has 4.45.2), sentencepiece, pandas, scipy' "own/bin/python -m pip install torch"; do
  grep -qF "$words" said || fail "'$words' is not said: $(< said)"
done
! grep -q 'pip install' "$RAN" || fail "installed into the user's environment: $(< "$RAN")"
# With all packages it is used, and still nothing is installed.
rm -r own/packages
for name in "${needed[@]}"; do PACKAGES=own/packages ./add "$name"; done
keeps own model DUMP_VENV="$scratch/own"
[[ $code == 0 ]] || fail "an environment with all packages: $(< said)"
grep -qF "own/bin/python studies/reference/kvbench-study model" "$RAN" || fail "not used: $(< "$RAN")"
! grep -q 'pip install' "$RAN" || fail "installed into the user's environment: $(< "$RAN")"
# What only tests need is asked for by these alone.
keeps own test-dump DUMP_VENV="$scratch/own"
[[ $code != 0 ]] && grep -qF 'lacks kvpress==0.5.5' said || fail "$(< said)"

# One that is not there is made; an interrupted one is completed; a file in it stays.
PIP_FAILS=1 run model DUMP_VENV="$scratch/new"
[[ $code != 0 ]] || fail "pip failed: $(< said)"
echo precious > new/notes.txt
good model DUMP_VENV="$scratch/new"
grep -q 'pip install' "$RAN" || fail "not completed: $(< "$RAN")"
[[ $(< new/notes.txt) == precious ]] || fail 'a file in an environment is gone'
good model DUMP_VENV="$scratch/new"
! grep -q 'pip install' "$RAN" || fail "installed again: $(< "$RAN")"
rm -r new/packages/torch-*
good model DUMP_VENV="$scratch/new"
grep -q 'pip install' "$RAN" && [[ -d new/packages/torch-9.9.dist-info ]] || fail "$(< "$RAN")"
good test-dump DUMP_VENV="$scratch/new"
# Torch for the CPU alone where the index has it, none is asked for and there is no GPU.
asks() {  # asks TORCH ARGS...: what pip is asked for
  rm -rf chosen
  good model DUMP_VENV="$scratch/chosen" "${@:2}"
  grep 'pip install' "$RAN" | grep -qF -- " $1 transformers" || fail "not $1: $(grep pip "$RAN")"
}
type -P nvidia-smi > /dev/null || CPU_TORCH=2.9.1+cpu asks torch==2.9.1+cpu
CPU_TORCH=2.9.1+cpu asks torch TORCH=torch
asks torch==2.8.0+cpu TORCH=torch==2.8.0+cpu
program tools/nvidia-smi <<< ''
CPU_TORCH=2.9.1+cpu asks torch
rm tools/nvidia-smi
# The usual one, as earlier versions left it: with a file `ready-...`, without a mark.
good model
rm tree/build/dump-venv/.made-by-kvbench
touch tree/build/dump-venv/ready-kvpress-0.5.5-gguf
good model

# ---------------------------------------------------------------- folders for what make writes
mkdir packages demo
for file in packages/kvbench_0.deb packages/other.tar.gz packages/static packages/deb demo/fig2.csv \
  demo/fig2.notes; do echo precious > "$file"; done
run package PACKAGES="$scratch/packages"
[[ $code == 0 ]] || fail "make package: $(< said)"
for file in kvbench_0.deb other.tar.gz static deb; do
  [[ $(< packages/$file) == precious ]] || fail "make package: $file is gone"
done
[[ $(< packages/kvbench_1.deb) == new && $(< packages/kvbench-1.tar.gz) == new ]] ||
  fail "make package: $(ls packages)"
keeps demo demo DEMO="$scratch/demo"
[[ $code != 0 ]] && grep -qF "$scratch/demo: fig2.csv exists" said || fail "make demo: $(< said)"
rm demo/fig2.*
echo precious > demo/notes.txt
good demo DEMO="$scratch/demo"
good demo DEMO="$scratch/demo"
[[ $(< demo/notes.txt) == precious && $(< demo/fig2.csv) == new ]] || fail "make demo: $(ls demo)"

good demo
mkdir -p tree/results/bench
echo made | tee tree/results/bench/bench_walk.json > tree/results/bench/peers.json
echo precious | tee tree/results/mine.csv tree/results/demo/mine.csv > tree/results/bench/mine.json
good clean
[[ ! -e tree/build ]] || fail 'make clean left build/'
left=$(cd tree/results && find . -type f | sort | paste -sd' ')
[[ $left == './bench/mine.json ./demo/mine.csv ./mine.csv' ]] || fail "make clean left: $left"

# ------------------------------------------------------------------------------- the scripts
own_folder=$SRC/scripts/own_folder.sh
for folder in 'a folder' './-dash'; do
  "$own_folder" "$folder"
  touch -- "$folder/any"
  "$own_folder" "$folder"
done
mkdir other
touch other/.hidden
"$own_folder" other 'x*'
rm other/.made-by-kvbench
code=0
"$own_folder" other 2> said || code=$?
[[ $code == 2 && $(< said) == 'other: .hidden exists'* && ! -e other/.made-by-kvbench ]] ||
  fail "own_folder.sh: $code: $(< said)"
touch plain
if "$own_folder" plain 2> said; then fail 'own_folder.sh took a file'; fi
echo 'own_files: environments, folders and files that kvbench did not make are left as they are'
