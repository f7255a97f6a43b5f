#!/usr/bin/env bash
# Verifies kvbench on a machine with a CUDA device, then measures it there.
#
#   scripts/gpu_check.sh [--only PARTS] [--minutes M] BUILD_DIR OUT_DIR [TRACE...] [-- OPTIONS...]
#
# BUILD_DIR holds kvbench and kvbench_tests. `make gpu-archive` packs them, linked statically, with what
# this script reads, to carry to a machine with a GPU:
#   tar xf kvbench-gpu.tar.gz && kvbench-gpu/scripts/gpu_check.sh --minutes 9 kvbench-gpu/build out
# Needs a driver and python3. Parts that need more are skipped with a message.
#
#   a  the tests that compare device and CPU
#   b  the same tests on small traces under compute-sanitizer: memcheck, racecheck
#   c  configs/all_methods.toml on data/sample.h5 and each TRACE, --device cpu and cuda: equal kept
#      tokens, metrics within 1e-5 (scripts/compare_runs.py), ratio of times
#   d  every method on a synthetic trace of 32768 tokens, likewise
#   e  configs/stream.toml on data/sample.h5, likewise
#   f  every stream on the device only, a synthetic trace of 32768 tokens with 32 query and 8 KV
#      heads, 10 seeds: seconds of each in OUT_DIR/long_streams.tsv
#   g  bench/gpu_peers.py, if PYTHON has PyTorch: its seconds and kvbench's in OUT_DIR/peers.tsv
#
# PARTS: comma-separated letters such as a,c (default: all). They run in the order a c e d g b f; none begins
# or goes on after M minutes (default: no limit). OPTIONS: for every replay, such as
# --layers 0. Tables, logs and times in OUT_DIR replace those of an earlier run; OUT_DIR/runs.tsv has
# the seconds of c, d and e on the CPU and the device, OUT_DIR/report.md all results
# (bench/gpu_report.py OUT_DIR --docs docs/gpu.md puts them into the page).
# Environment: PYTHON, interpreter (default: python3); KVBENCH_CHECK_TOKENS, tokens of d and f (default:
# 32768); KVBENCH_CHECK_SEEDS, seeds of f (default: 10); KVBENCH_SANITIZER_FILTER, tests of b;
# CUDA_VISIBLE_DEVICES, the device.
# Exit code: 0, some parts passed and none failed; 1, a part failed; 2, bad usage; 77, all skipped.
set -euo pipefail

usage() { sed -n '2,30s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
die() {
  echo "gpu_check.sh: $1" >&2
  exit 2
}

only=abcdefg
seconds_left() { echo 1000000; }
while [[ ${1:-} == -* ]]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --only)
      [[ ${2:-} =~ ^[a-g](,[a-g])*$ ]] || die "--only: got '${2:-}', expected some of a,b,c,d,e,f,g"
      only=${2//,/}
      shift 2
      ;;
    --minutes)
      [[ ${2:-} =~ ^[0-9]{1,4}$ ]] || die "--minutes: got '${2:-}', expected a whole number"
      limit=$((60 * 10#$2))
      seconds_left() { echo $((limit > SECONDS ? limit - SECONDS : 0)); }
      shift 2
      ;;
    *) die "$1: no such option; --help lists them" ;;
  esac
done
if [[ $# -lt 2 ]]; then
  usage >&2
  exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$1
out=$2
shift 2
traces=()
while [[ $# -gt 0 && $1 != -- ]]; do
  [[ -f $1 && -r $1 ]] || die "$1: no such file"
  traces+=("$1")
  shift
done
[[ ${1:-} != -- ]] || shift
options=("$@")

kvbench=$build/kvbench
[[ -x $kvbench ]] || die "$kvbench: no such program; build it or copy it here"
sample=$root/data/sample.h5
[[ -r $sample ]] || die "$sample: no such file, expected the source tree"
python=${PYTHON:-python3}
command -v -- "$python" > /dev/null || die "$python: no such program; set PYTHON"
mkdir -p -- "$out" || die "$out: cannot create this folder"
runs=$out/runs.tsv
: > "$runs"
if command -v nvidia-smi > /dev/null; then
  nvidia-smi > "$out/card.txt" 2>&1 || true
fi

# Why the program cannot use a device; empty if it can.
no_device=
if ! no_device=$("$kvbench" replay "$sample" --algorithm exact --device cuda --dry-run \
  -o "$out/none.csv" 2>&1 > /dev/null); then
  no_device=${no_device#kvbench: error: }
  no_device=${no_device:-"$kvbench does not run"}
else
  no_device=
fi

# limited COMMAND...: within the time that is left. Exit code 124: there was not enough.
limited() {
  local left
  left=$(seconds_left)
  ((left > 0)) || return 124
  timeout --kill-after=5 "$left" "$@"
}

# A part ends with one of these; `why` is printed.
why=
pass() {
  why=$1
  return 0
}
fail() {
  why=$1
  return 1
}
skip() {
  why=$1
  return 77
}
# broken CODE TEXT: of a command that failed.
broken() {
  if (($1 == 124 || $1 == 137)); then
    skip 'no time left'
  else
    fail "exit code $1 of $2"
  fi
}

# tests LOG FILTER [COMMAND...]: runs the tests that match FILTER, under COMMAND.
tests() {
  local log=$1 filter=$2 ran skipped code=0
  shift 2
  [[ -x $build/kvbench_tests ]] || { skip "$build/kvbench_tests: no such program" || return; }
  limited "$@" "$build/kvbench_tests" --gtest_filter="$filter" > "$log" 2>&1 < /dev/null || code=$?
  ((code == 0)) || { broken "$code" "kvbench_tests: $log" || return; }
  ran=$(sed -n 's/^\[==========\] \([0-9]*\) tests\{0,1\} from .* ran\..*/\1/p' "$log")
  skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) tests\{0,1\}, listed below:.*/\1/p' "$log")
  [[ -n $ran && $ran != 0 ]] || { fail "no test matches $filter: $log" || return; }
  [[ $ran != "${skipped:-0}" ]] || { fail "every test was skipped: $log" || return; }
  pass "$ran tests, ${skipped:-0} of them skipped"
}

# The tests may have been compiled elsewhere: set their data folder.
export KVBENCH_TEST_DATA_DIR=${KVBENCH_TEST_DATA_DIR:-$root/tests/data}

part_a() { tests "$out/tests.log" 'Gpu*'; }

part_b() {
  local tool filter=${KVBENCH_SANITIZER_FILTER:-Gpu*-*.EveryMethod}
  command -v compute-sanitizer > /dev/null || { skip 'no compute-sanitizer on the PATH' || return; }
  for tool in memcheck racecheck; do
    tests "$out/$tool.log" "$filter" compute-sanitizer --tool "$tool" --error-exitcode 9 || return
  done
  pass "memcheck and racecheck, each $why"
}

seconds_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f", b - a }'; }

# both NAME TRACE OPTIONS...: replays the trace on the CPU and the device and compares the tables.
both() {
  local name=$1 trace=$2 device began code said
  local -A seconds
  shift 2
  for device in cpu cuda; do
    began=$EPOCHREALTIME
    code=0
    limited "$kvbench" replay "$trace" "$@" "${options[@]}" --kept --device "$device" --overwrite \
      -o "$out/$name.$device.csv" > "$out/$name.$device.log" 2>&1 < /dev/null || code=$?
    seconds[$device]=$(seconds_since "$began")
    ((code == 0)) ||
      { broken "$code" "kvbench with --device $device: $name: $out/$name.$device.log" || return; }
  done
  code=0
  said=$("$python" "$root/scripts/compare_runs.py" "$out/$name.cpu.csv" \
    "$out/$name.cuda.csv" 2>&1) || code=$?
  printf '%s\n' "$said" > "$out/$name.compared.log"
  said=$(tail -n 1 <<< "$said")
  ((code == 0)) || { fail "$name: $said: $out/$name.compared.log" || return; }
  printf '%s\t%s\t%s\n' "$name" "${seconds[cpu]}" "${seconds[cuda]}" >> "$runs"
  pass "$name: ${said%% (*}; $(awk -v a="${seconds[cpu]}" -v b="${seconds[cuda]}" \
    'BEGIN { printf "CPU %.1f s, CUDA %.1f s, ratio %.2f", a, b, (b > 0 ? a / b : 0) }')"
}

part_c() {
  local trace said
  both all_methods "$sample" --config "$root/configs/all_methods.toml" || return
  said=$why
  for trace in "${traces[@]}"; do
    both "trace-$(basename -- "${trace%.*}")" "$trace" --config "$root/configs/all_methods.toml" ||
      return
    said+="; $why"
  done
  why=$said
}

part_d() {
  local n=${KVBENCH_CHECK_TOKENS:-32768}
  "$kvbench" synth -o "$out/synth.h5" --layers 1 --q-heads 4 --kv-heads 1 --tokens "$n" --d 128 \
    --dv 128 --gzip 0 > "$out/synth.log" 2>&1 ||
    { fail "exit code $? of synth: $out/synth.log" || return; }
  both "synth-$n" "$out/synth.h5" --algorithm all --budget 0.125
}

part_e() {
  local refused
  if ! refused=$("$kvbench" replay "$sample" --config "$root/configs/stream.toml" --device cuda \
    --dry-run -o "$out/none.csv" 2>&1 > /dev/null); then
    skip "${refused#kvbench: error: }" || return
  fi
  both stream "$sample" --config "$root/configs/stream.toml"
}

part_f() {
  local n=${KVBENCH_CHECK_TOKENS:-32768} streams name began code seconds slowest=0 which=
  "$kvbench" synth -o "$out/long.h5" --layers 1 --q-heads 32 --kv-heads 8 --tokens "$n" --d 128 \
    --dv 128 --gzip 0 > "$out/long.log" 2>&1 ||
    { fail "exit code $? of synth: $out/long.log" || return; }
  streams=$("$kvbench" list | awk '/stream .* cuda / { print $1 }')
  [[ -n $streams ]] || { fail 'kvbench list shows no stream on cuda' || return; }
  : > "$out/long_streams.tsv"
  for name in $streams; do
    began=$EPOCHREALTIME
    code=0
    limited "$kvbench" replay "$out/long.h5" --protocol stream --algorithm "$name" --budget 0.125 \
      --seeds "${KVBENCH_CHECK_SEEDS:-10}" "${options[@]}" --device cuda --overwrite -o "$out/long.csv" \
      >> "$out/long.log" 2>&1 < /dev/null || code=$?
    seconds=$(seconds_since "$began")
    ((code == 0)) || { broken "$code" "$name: $out/long.log" || return; }
    printf '%s\t%s\n' "$name" "$seconds" >> "$out/long_streams.tsv"
    if awk -v a="$seconds" -v b="$slowest" 'BEGIN { exit !(a > b) }'; then
      slowest=$seconds which=$name
    fi
  done
  pass "$(wc -l < "$out/long_streams.tsv") streams, the slowest $which with $slowest s"
}

part_g() {
  local code=0
  limited "$python" "$root/bench/gpu_peers.py" --kvbench "$kvbench" -o "$out/peers.tsv" > "$out/peers.log" 2>&1 \
    < /dev/null || code=$?
  ((code != 77)) || { skip "$(tail -n 1 "$out/peers.log")" || return; }
  ((code == 0)) || { broken "$code" "gpu_peers.py: $out/peers.log" || return; }
  pass "$(tail -n 1 "$out/peers.log")"
}

declare -A titles=([a]='parity tests' [b]='compute-sanitizer' [c]='every method' [d]='long trace'
  [e]='streams' [f]='long streams' [g]='beside PyTorch')
: > "$out/parts.tsv"
rm -f -- "$out/peers.tsv" "$out/long_streams.tsv"
passed=0
failed=0
for part in a c e d g b f; do
  [[ $only == *$part* ]] || continue
  code=0
  if [[ -n $no_device ]]; then
    why="no device: $no_device"
    code=77
  elif (($(seconds_left) == 0)); then
    why='no time left'
    code=77
  else
    "part_$part" || code=$?
  fi
  case $code in
    0)
      word=pass
      passed=$((passed + 1))
      ;;
    77) word=skipped ;;
    *)
      word=FAIL
      failed=$((failed + 1))
      ;;
  esac
  echo "$part ${titles[$part]}: $word: $why"
  printf '%s\t%s\t%s\n' "${titles[$part]}" "$word" "$why" >> "$out/parts.tsv"
done
"$python" "$root/bench/gpu_report.py" "$out" > "$out/report.md"
((failed == 0)) || exit 1
((passed > 0)) || exit 77
