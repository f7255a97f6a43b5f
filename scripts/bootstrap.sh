#!/usr/bin/env bash
# Installs missing packages of kvbench with apt (Debian and derivatives).
#
# usage: scripts/bootstrap.sh [GROUP...]      groups: build plot test notebook slurm bench lint dump package
#                                             all
#                                             default: build plot test; all excludes slurm, whose
#                                             packages install services
# The group lint also installs ruff, which Debian 12 lacks, with pip into build/lint-venv.
# Downloads nothing if all packages are present. On other systems, or without root or sudo, prints the
# missing packages and exits with code 3.
set -euo pipefail

build=(g++ cmake ninja-build pkg-config git libeigen3-dev libhdf5-dev libcli11-dev libfmt-dev
  libtomlplusplus-dev nlohmann-json3-dev librandom123-dev libdeflate-dev libssl-dev zlib1g-dev)
plot=(python3 python3-numpy python3-pandas python3-matplotlib python3-h5py python3-sklearn
  python3-scipy)
test=(libgtest-dev gcovr)
notebook=(python3-nbclient python3-ipykernel)
slurm=(slurm-wlm parallel)
bench=(libbenchmark-dev libopenblas-dev)
lint=(clang clang-format clang-tidy libomp-dev mypy python3-venv)
lint_pip=(ruff==0.17.6)  # .pre-commit-config.yaml names the same
dump=(python3-venv)
package=(dpkg-dev file help2man lintian)

groups=("$@")
if ((${#groups[@]} == 0)); then groups=(build plot test); fi

wanted=()
for group in "${groups[@]}"; do
  case $group in
    build) wanted+=("${build[@]}") ;;
    plot) wanted+=("${plot[@]}") ;;
    test) wanted+=("${test[@]}") ;;
    notebook) wanted+=("${notebook[@]}") ;;
    slurm) wanted+=("${slurm[@]}") ;;
    bench) wanted+=("${bench[@]}") ;;
    lint) wanted+=("${lint[@]}") ;;
    dump) wanted+=("${dump[@]}") ;;
    package) wanted+=("${package[@]}") ;;
    all)
      wanted+=("${build[@]}" "${plot[@]}" "${test[@]}" "${notebook[@]}" "${bench[@]}" "${lint[@]}" "${dump[@]}"
        "${package[@]}")
      ;;
    *)
      echo "bootstrap: got group '$group', expected build, plot, test, notebook, slurm, bench, lint, dump, package or all" >&2
      exit 2
      ;;
  esac
done

has_header() { echo "#include <$1>" | g++ -E -x c++ "${@:2}" - > /dev/null 2>&1; }
has_module() { "$(dirname -- "${BASH_SOURCE[0]}")/find_python.sh" "$1" 2> /dev/null; }
has_library() {
  [[ -f $(g++ -print-file-name="lib$1.so" 2> /dev/null) ]] ||
    [[ -f $(g++ -print-file-name="lib$1.a" 2> /dev/null) ]]
}

# present PACKAGE: whether what the Debian package provides is installed by other means.
present() {
  case $1 in
    g++ | clang | cmake | git | python3 | clang-format | clang-tidy | pkg-config) command -v "$1" ;;
    ninja-build) command -v ninja ;;
    libeigen3-dev) has_header Eigen/Core || has_header eigen3/Eigen/Core ;;
    libhdf5-dev) has_header hdf5.h || has_header hdf5/serial/hdf5.h ;;
    libcli11-dev) has_header CLI/CLI.hpp ;;
    libfmt-dev) has_header fmt/core.h ;;
    libtomlplusplus-dev) has_header toml++/toml.h -std=c++17 ;;
    nlohmann-json3-dev) has_header nlohmann/json.hpp ;;
    librandom123-dev) has_header Random123/philox.h ;;
    libdeflate-dev) has_header libdeflate.h ;;
    libssl-dev) has_header openssl/evp.h ;;
    zlib1g-dev) has_header zlib.h ;;
    libgtest-dev) has_header gtest/gtest.h ;;
    libbenchmark-dev) has_header benchmark/benchmark.h ;;
    libopenblas-dev) has_library openblas ;;
    libomp-dev) has_header omp.h -fopenmp ;;
    gcovr | parallel | file | help2man | lintian | mypy) command -v "$1" ;;
    slurm-wlm) command -v slurmctld ;;
    dpkg-dev) command -v dpkg-shlibdeps ;;
    python3-venv) has_module ensurepip ;;
    python3-*) has_module "${1#python3-}" ;;
    *) return 1 ;;
  esac > /dev/null
}

debian=no
if command -v apt-get > /dev/null && command -v dpkg-query > /dev/null; then debian=yes; fi

missing=()
for package in "${wanted[@]}"; do
  if [[ $debian == yes ]]; then
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null || true)
    if [[ $status == installed ]]; then continue; fi
  elif present "$package"; then
    continue
  fi
  missing+=("$package")
done

from_pip() {
  if [[ " ${groups[*]} " == *' lint '* || " ${groups[*]} " == *' all '* ]]; then
    local root
    root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
    BOOTSTRAP=no "$root/scripts/dump_env.sh" "$root/build/lint-venv" "${lint_pip[@]}" || exit 3
  fi
}

if ((${#missing[@]} == 0)); then
  from_pip
  echo "bootstrap: all ${#wanted[@]} packages present (${groups[*]})"
  exit 0
fi
if [[ $debian == no ]]; then
  echo "bootstrap: not a Debian system; install these packages (Debian names): ${missing[*]}" >&2
  exit 3
fi

as_root=()
if [[ $(id -u) != 0 ]]; then
  if ! command -v sudo > /dev/null; then
    echo "bootstrap: needs root or sudo; run: apt-get install ${missing[*]}" >&2
    exit 3
  fi
  as_root=(sudo)
  if [[ ! -t 0 ]]; then as_root+=(-n); fi
fi

echo "bootstrap: installing ${missing[*]}"
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" \
    < /dev/null
}
if ! { apt update && apt install -y --no-install-recommends "${missing[@]}"; }; then
  echo "bootstrap: cannot install: ${missing[*]}" >&2
  exit 3
fi
from_pip
echo "bootstrap: done"
