#!/usr/bin/env bash
# Builds a wheel with the static program and the sample trace, for any Linux on x86-64-v3.
#
#   scripts/make_wheel.sh OUT_DIR [PIP_ARG...]
#
# Needs the libraries of `scripts/bootstrap.sh build`; installs scikit-build-core and wheel with pip.
# Prints the path of the wheel. Exit code: 0; 2 on bad usage; otherwise that of pip or the compiler.
set -euo pipefail
root=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")/..")
out=${1:?usage: scripts/make_wheel.sh OUT_DIR [PIP_ARG...]}
shift
work=$root/build/wheel
python=$("$root/scripts/find_python.sh" venv ensurepip)
if [[ ! -x $work/venv/bin/python ]]; then
  mkdir -p "$work"
  "$python" -m venv "$work/venv"
fi
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" 'scikit-build-core>=0.10,<2' wheel
rm -rf "$work/dist"
cd "$root"
"$work/venv/bin/python" -m pip wheel . --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --wheel-dir "$work/dist" -C build-dir="$work/build" -C cmake.define.KVBENCH_STATIC=FULL \
  -C cmake.define.KVBENCH_CUDA=OFF
# A static program needs no libc, so the oldest manylinux tag applies.
"$work/venv/bin/python" -m wheel tags --remove --python-tag py3 --abi-tag none \
  --platform-tag manylinux_2_17_x86_64 "$work/dist"/*.whl > /dev/null
mkdir -p "$out"
mv -f "$work/dist"/*.whl "$out"
ls "$out"/kvbench-*.whl
