#!/usr/bin/env bash
# Which interpreter runs the scripts, where the first python3 on the PATH lacks their packages: by
# scripts/find_python.sh, by the Makefile (whose bootstrap installs the packages first) and by CMake.
# Interpreters here are shell scripts that can import what a file beside them lists.
set -euo pipefail
SRC=$(realpath -- "${SRC:?SRC must be the source folder}")
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
cd "$scratch"
unset PYTHON VIRTUAL_ENV
find_python=$SRC/scripts/find_python.sh

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# program FILE: makes an executable script of stdin.
program() {
  mkdir -p "$(dirname "$1")"
  { echo '#!/usr/bin/env bash'; cat; } > "$1"
  chmod +x "$1"
}

# interpreter FOLDER MODULE...: a python3 there that has these modules.
interpreter() {
  program "$1/python3" << 'SHIM'
if [[ ${1:-} == -P ]]; then
  for module in "${@:4}"; do
    [[ $module == sys ]] || grep -qx -- "$module" "${0%/*}/modules" || exit 1
  done
  exit 0
fi
echo "$0 $*" >> "$RAN"
case "$*" in
  *'plot error'*) : > "${!#}.png" && : > "${!#}.pdf" ;;
  '-m venv '*) mkdir -p "${!#}/bin" && ln -s "$(type -P true)" "${!#}/bin/pip" &&
    ln -s "$(type -P true)" "${!#}/bin/python" ;;
esac
SHIM
  printf '%s\n' "${@:2}" > "$1/modules"
}

# chooses EXPECTED ARGS...: find_python.sh must print it.
chooses() {
  local got
  got=$("$find_python" "${@:2}") || fail "find_python.sh ${*:2}: exit code $?"
  [[ $got == "$1" ]] || fail "find_python.sh ${*:2}: $got, not $1"
}

# ---------------------------------------------------------------------------------- the script
interpreter foreign
interpreter some numpy pandas matplotlib
interpreter all numpy pandas matplotlib h5py scipy sklearn
outer=$PATH
PATH=$scratch/foreign:$scratch/some:$scratch/all:$outer
modules=(numpy pandas matplotlib)
chooses "$scratch/foreign/python3" sys
chooses "$scratch/all/python3"
chooses "$scratch/some/python3" "${modules[@]}"
chooses "$scratch/all/python3" "${modules[@]}" h5py
PYTHON=all/python3 chooses "$scratch/all/python3" "${modules[@]}"
PYTHON=python3 chooses "$scratch/foreign/python3" sys
# An active environment is used, or said to lack them: no other interpreter takes its place.
mkdir -p active/bin && cp some/modules active/bin/ && cp some/python3 active/bin/python
VIRTUAL_ENV=$scratch/active chooses "$scratch/active/bin/python"
PYTHON=all/python3 VIRTUAL_ENV=$scratch/active chooses "$scratch/all/python3"
code=0
VIRTUAL_ENV=$scratch/active "$find_python" h5py > out 2> err || code=$?
[[ $code == 2 && ! -s out && $(< err) == *"$scratch/active/bin/python (from VIRTUAL_ENV) is not a Python"*h5py ]] ||
  fail "an environment without h5py: $code: $(cat out err)"
# A program's interpreter has its modules, or is the first where none has them.
mkdir -p machine/scripts && cp "$find_python" machine/scripts/
interpreter machine/build/dump-venv/bin numpy h5py torch transformers kvpress
mv machine/build/dump-venv/bin/python{3,}
export RAN=$scratch/ran
runs() {
  : > "$RAN"
  PATH=$scratch/foreign:$scratch/some:$scratch/all:/usr/bin:/bin machine/scripts/find_python.sh --run FRONT "${@:2}"
  [[ $(< "$RAN") == "$1 FRONT ${*:2}" ]] || fail "--run ${*:2}: $(< "$RAN"), not $1"
}
runs "$scratch/all/python3" plot error x.csv
if ! /usr/bin/python3 -c 'import torch' 2> /dev/null; then
  for name in dump score press; do
    runs "$scratch/machine/scripts/../build/dump-venv/bin/python" "$name" -o x
  done
  rm -r machine/build
  runs "$scratch/foreign/python3" score -o x
fi
for given in '' foreign/python3 ./none; do
  code=0
  PYTHON=$given "$find_python" numpy no_such_module > out 2> err || code=$?
  [[ $code == 2 && ! -s out && $(wc -l < err) == 1 ]] || fail "PYTHON=$given: $code: $(cat out err)"
  [[ $(< err) == *"with numpy no_such_module"* && $(< err) == *PYTHON* ]] || fail "$(< err)"
done

# -------------------------------------------------------------------------------- the Makefile
# The real one, in a tree where the bootstrap gives the second python3 on the PATH its packages and
# where CMake and the program only say that they were called.
if ! command -v make > /dev/null; then
  echo 'SKIPPED: no make'
  exit 77
fi
program tree/scripts/bootstrap.sh << 'SHIM'
printf '%s\n' numpy pandas matplotlib h5py scipy sklearn venv ensurepip > "$SECOND/modules"
SHIM
cp "$find_python" "$SRC"/scripts/{own_folder,dump_env}.sh tree/scripts/
cp "$SRC/Makefile" tree/
program tools/cmake << 'SHIM'
printf 'cmake %s\n' "$*" >> "$RAN"
SHIM
cp tools/cmake tools/ctest
program tree/build/kvbench << 'SHIM'
for word; do [[ $word != results/*.csv ]] || : > "$word" > "$word.json"; done
SHIM
mkdir -p tree/tests
export SECOND=$scratch/second

# makes PYTHON WORDS ARGS...: the bare machine; `make ARGS` must pass, and what it runs must name
# PYTHON in a line with WORDS.
makes() {
  local python=$1 words=$2
  shift 2
  interpreter second
  : > "$RAN"
  rm -rf tree/build/dump-venv tree/results
  # Not the variables of a make that runs this test.
  env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u CI -u BOOTSTRAP -u CMAKE_ARGS \
    PATH="$scratch/foreign:$scratch/second:$scratch/tools:$outer" \
    make -C tree "$@" > out 2>&1 || fail "make $*: $(cat out)"
  grep -F -- "$words" "$RAN" | grep -qF -- "$python" ||
    fail "make $*: no '$words' with $python: $(cat "$RAN")"
}
makes "$scratch/second/python3" 'scripts/kvbench-py plot error' demo
makes "$scratch/all/python3" 'scripts/kvbench-py plot error' demo PYTHON="$scratch/all/python3"
for goal in test test-slow test-asan; do
  makes "-DKVBENCH_PYTHON=$scratch/second/python3" cmake "$goal"
done
makes "-DKVBENCH_PYTHON=$scratch/all/python3" cmake test PYTHON="$scratch/all/python3"
makes "$scratch/second/python3" '-m venv' test-dump
# A choice that cannot be kept is said before anything is built.
interpreter second
: > "$RAN"
if env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL PATH="$scratch/tools:$outer" \
  make -C tree demo PYTHON="$scratch/foreign/python3" > out 2>&1; then
  fail "make demo with a PYTHON that has nothing: $(cat out)"
fi
grep -qF "$scratch/foreign/python3 (from PYTHON) is not a Python 3.11 or newer with numpy" out || fail "$(cat out)"
[[ ! -s $RAN ]] || fail "built before the refusal: $(cat "$RAN")"

# ---------------------------------------------------------------------------------------- CMake
mkdir project
cat > project/CMakeLists.txt << END
cmake_minimum_required(VERSION 3.22)
project(python NONE)
include("$SRC/cmake/KvbenchPython.cmake")
file(WRITE "\${CMAKE_BINARY_DIR}/chosen" "\${kvbench_python}")
END
# configured EXPECTED ARGS...: CMake must choose it, in the same folder each time.
configured() {
  cmake -S project -B configured "${@:2}" > out 2>&1 || fail "cmake ${*:2}: $(cat out)"
  [[ $(< configured/chosen) == "$1" ]] || fail "cmake ${*:2}: $(< configured/chosen), not $1"
}
PATH=$scratch/foreign:$scratch/second:$outer
configured "$scratch/all/python3" -DKVBENCH_PYTHON="$scratch/all/python3"
configured "$scratch/all/python3"
rm -r configured
printf '%s\n' numpy pandas matplotlib h5py scipy sklearn > second/modules
configured "$scratch/second/python3" -DKVBENCH_PYTHON="$scratch/foreign/python3"
grep -qF "foreign/python3 lacks numpy, pandas or matplotlib" out || fail "not said: $(cat out)"
# One that was good and is gone.
interpreter gone numpy pandas matplotlib h5py scipy sklearn
configured "$scratch/gone/python3" -DKVBENCH_PYTHON="$scratch/gone/python3"
rm -r gone
configured "$scratch/second/python3"
configured "$scratch/second/python3" -DKVBENCH_PYTHON=
echo 'find_python: the first interpreter that has the packages, after they are installed'
