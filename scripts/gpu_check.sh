#!/usr/bin/env bash
# Verifies kvbench on a machine with a CUDA device, then measures it there.
#
#   scripts/gpu_check.sh [--only PARTS] [--minutes M] BUILD_DIR OUT_DIR [TRACE...] [-- OPTIONS...]
#   scripts/gpu_check.sh --list BUILD_DIR
#
# BUILD_DIR holds kvbench and kvbench_gpu_tests. `make gpu-archive` packs them, linked statically, with what
# this script reads, to carry to a machine with a GPU. There, in the source tree (for data/sample.h5, tests/data):
#   tar xf kvbench-gpu.tar.gz && kvbench-gpu/scripts/gpu_check.sh --minutes 9 kvbench-gpu/build out
# Needs a driver, python3 and glibc 2.36 or later. Parts that need more are skipped with a message.
#
#   a  whole runs on tests/data, device against CPU (tests/gpu/test_*_runs.cpp)
#   b  each operation, device against CPU (the other tests of tests/gpu)
#   c  configs/all_methods.toml on data/sample.h5 and each TRACE, --device cpu and cuda: equal kept
#      tokens, metrics within 1e-5 (scripts/compare_runs.py), ratio of times
#   d  bench/gpu_peers.py, if PYTHON has PyTorch: its seconds and kvbench's
#   e  every method on a synthetic trace of 32768 tokens, as c
#   f  configs/stream.toml on data/sample.h5, as c
#   g  every stream on the device only, a synthetic trace of 32768 tokens with 32 query and 8 KV
#      heads, 10 seeds: seconds of each
#   h  tests of b under compute-sanitizer (memcheck, racecheck), at most 120 s, if it works here
#
# Parts run in this order; none begins or goes on after M minutes (default: no limit). PARTS: comma-separated
# letters such as a,c (default: all). OPTIONS: for every replay, such as --layers 0. --list prints the parts
# and the tests of a and b.
#
# OUT_DIR gets report.md (bench/gpu_report.py OUT_DIR --docs docs/gpu.md puts it into the page), parts.tsv,
# times.tsv (kind, what, seconds), card.txt and log.txt (the last 500 kB of each command), which replace those
# of an earlier run. They are written after every part and on SIGINT, SIGTERM and SIGHUP. Traces and tables
# lie in KVBENCH_CHECK_WORK, by default a temporary folder that is removed.
# Environment: PYTHON, interpreter (default: python3); KVBENCH_CHECK_TOKENS, tokens of e and g (default:
# 32768); KVBENCH_CHECK_SEEDS, seeds of g (default: 10); CUDA_VISIBLE_DEVICES, the device.
# Exit code: 0, some parts passed and none failed; 1, a part failed; 2, bad usage; 77, all skipped; 130, a signal.
set -euo pipefail

usage() { sed -n '2,38s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
die() {
  echo "gpu_check.sh: $1" >&2
  exit 2
}

parts=(a b c d e f g h)
declare -A titles=([a]='whole runs' [b]='operations' [c]='every method' [d]='beside PyTorch' [e]='long trace'
  [f]='streams' [g]='long streams' [h]='compute-sanitizer')
runs='GpuReplay.*:GpuStreams.*:GpuCluster.*'
only=${parts[*]}
list=
seconds_left() { echo 1000000; }
while [[ ${1:-} == -* ]]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --list)
      list=1
      shift
      ;;
    --only)
      [[ ${2:-} =~ ^[a-h](,[a-h])*$ ]] || die "--only: got '${2:-}', expected some of a,b,c,d,e,f,g,h"
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
if [[ $# -lt 1 || (-z $list && $# -lt 2) ]]; then
  usage >&2
  exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$1
kvbench=$build/kvbench
gpu_tests=$build/kvbench_gpu_tests
if [[ -n $list ]]; then
  [[ -x $gpu_tests ]] || die "$gpu_tests: no such program"
  for part in "${parts[@]}"; do
    echo "$part ${titles[$part]}"
    case $part in
      a) "$gpu_tests" --gtest_list_tests --gtest_filter="$runs" ;;
      b) "$gpu_tests" --gtest_list_tests --gtest_filter="-$runs" ;;
    esac | awk '/^[^ ]+\.$/ { suite = $1 } /^  / { print "  " suite $1 }'
  done
  exit 0
fi
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
[[ -x $kvbench ]] || die "$kvbench: no such program; build it or copy it here"
python=${PYTHON:-python3}
command -v -- "$python" > /dev/null || die "$python: no such program; set PYTHON"
mkdir -p -- "$out" || die "$out: cannot create this folder"
if [[ -n ${KVBENCH_CHECK_WORK:-} ]]; then
  work=$KVBENCH_CHECK_WORK
  mkdir -p -- "$work" || die "$work: cannot create this folder"
else
  work=$(mktemp -d)
  trap 'rm -rf -- "$work"' EXIT
fi

# The source tree: this script's, or the current folder.
tree=$root
[[ -r $tree/data/sample.h5 ]] || tree=$PWD
sample=$tree/data/sample.h5
export KVBENCH_TEST_DATA_DIR=${KVBENCH_TEST_DATA_DIR:-$tree/tests/data}

: > "$out/times.tsv"
: > "$out/log.txt"
nvidia-smi > "$out/card.txt" 2>&1 || : > "$out/card.txt"

# Results of the parts, by letter.
declare -A words=() whys=()
save() {
  local part
  for part in "${parts[@]}"; do
    [[ $only != *$part* ]] || printf '%s\t%s\t%s\n' "${titles[$part]}" "${words[$part]:-not begun}" "${whys[$part]:-}"
  done > "$work/parts.tsv"
  mv -- "$work/parts.tsv" "$out/parts.tsv"
  "$python" "$root/bench/gpu_report.py" "$out" > "$work/report.md"
  mv -- "$work/report.md" "$out/report.md"
}

child=
running=
part=
keep_log() { # NAME: the end of what the last command wrote
  printf '\n== %s\n' "$1" >> "$out/log.txt"
  tail -c 500000 -- "$work/last.log" >> "$out/log.txt"
}
stopped() {
  trap '' INT TERM HUP
  if [[ -n $child ]]; then
    kill -TERM "$child" 2> /dev/null || true
    wait "$child" 2> /dev/null || true
    keep_log "$running"
  fi
  [[ -z $part ]] || { words[$part]=stopped whys[$part]="in $running"; }
  save
  exit 130
}
trap stopped INT TERM HUP

# logged NAME COMMAND...: runs it within the time that is left, and within `most` seconds if the caller sets
# that; its output is in last.log. Exit code 124: there was not enough time.
logged() {
  local left code=0
  running=$1
  shift
  left=$(seconds_left)
  [[ -z ${most:-} ]] || ((left < most)) || left=$most
  : > "$work/last.log"
  ((left > 0)) || return 124
  timeout --kill-after=5 "$left" "$@" > "$work/last.log" 2>&1 < /dev/null &
  child=$!
  wait "$child" || code=$?
  child=
  keep_log "$running"
  return "$code"
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
    skip "no time left in $2"
  else
    fail "exit code $1 of $2: see log.txt"
  fi
}
needs_tree() { [[ -r $sample ]] || skip "no $sample, expected to run in the source tree"; }

# tests NAME FILTER: runs the tests that match FILTER.
tests() {
  local ran skipped code=0
  [[ -x $gpu_tests ]] || { skip "$gpu_tests: no such program" || return; }
  logged "$1" "$gpu_tests" --gtest_filter="$2" || code=$?
  ((code == 0)) || { broken "$code" "$1" || return; }
  ran=$(sed -n 's/^\[==========\] \([0-9]*\) tests\{0,1\} from .* ran\..*/\1/p' "$work/last.log")
  skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) tests\{0,1\}, listed below:.*/\1/p' "$work/last.log")
  [[ -n $ran && $ran != 0 ]] || { fail "no test matches $2" || return; }
  [[ $ran != "${skipped:-0}" ]] || { fail 'every test was skipped' || return; }
  pass "$ran tests, ${skipped:-0} of them skipped"
}

part_a() {
  needs_tree || return
  tests 'kvbench_gpu_tests: whole runs' "$runs"
}

part_b() { tests 'kvbench_gpu_tests: operations' "-$runs"; }

seconds_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f", b - a }'; }

# both NAME TRACE OPTIONS...: replays the trace on the CPU and the device and compares the tables.
both() {
  local name=$1 trace=$2 device began code said
  local -A seconds
  shift 2
  for device in cpu cuda; do
    began=$EPOCHREALTIME
    code=0
    logged "$name, --device $device" "$kvbench" replay "$trace" "$@" "${options[@]}" --kept \
      --device "$device" --overwrite -o "$work/$name.$device.csv" || code=$?
    seconds[$device]=$(seconds_since "$began")
    ((code == 0)) || { broken "$code" "$running" || return; }
  done
  code=0
  logged "$name, compared" "$python" "$root/scripts/compare_runs.py" "$work/$name.cpu.csv" \
    "$work/$name.cuda.csv" || code=$?
  said=$(tail -n 1 "$work/last.log")
  ((code != 124)) || { broken "$code" "$running" || return; }
  ((code == 0)) || { fail "$name: $said" || return; }
  printf 'run\t%s\t%s\t%s\n' "$name" "${seconds[cpu]}" "${seconds[cuda]}" >> "$out/times.tsv"
  pass "$name: ${said%% (*}; $(awk -v a="${seconds[cpu]}" -v b="${seconds[cuda]}" \
    'BEGIN { printf "CPU %.1f s, CUDA %.1f s, ratio %.2f", a, b, (b > 0 ? a / b : 0) }')"
}

part_c() {
  local trace said
  needs_tree || return
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
  local code=0 row
  : > "$work/peers.tsv"
  logged 'gpu_peers.py' "$python" "$root/bench/gpu_peers.py" --kvbench "$kvbench" \
    -o "$work/peers.tsv" || code=$?
  while IFS= read -r row; do
    printf 'peer\t%s\n' "$row" >> "$out/times.tsv"
  done < "$work/peers.tsv"
  ((code != 77)) || { skip "$(tail -n 1 "$work/last.log")" || return; }
  ((code == 0)) || { broken "$code" gpu_peers.py || return; }
  pass "$(tail -n 1 "$work/last.log")"
}

# synth FILE QUERY_HEADS KV_HEADS: a trace of one layer.
synth() {
  local code=0
  logged "synth of $1" "$kvbench" synth -o "$work/$1" --layers 1 --q-heads "$2" --kv-heads "$3" \
    --tokens "${KVBENCH_CHECK_TOKENS:-32768}" --d 128 --dv 128 --gzip 0 || code=$?
  ((code == 0)) || broken "$code" "$running"
}

part_e() {
  synth synth.h5 4 1 || return
  both "synth-${KVBENCH_CHECK_TOKENS:-32768}" "$work/synth.h5" --algorithm all --budget 0.125
}

part_f() {
  needs_tree || return
  both stream "$sample" --config "$root/configs/stream.toml"
}

part_g() {
  local streams name began code seconds slowest=0 which= count=0
  synth long.h5 32 8 || return
  streams=$("$kvbench" list | awk '/stream .* cuda / { print $1 }')
  [[ -n $streams ]] || { fail 'kvbench list shows no stream on cuda' || return; }
  for name in $streams; do
    began=$EPOCHREALTIME
    code=0
    logged "$name as a stream" "$kvbench" replay "$work/long.h5" --protocol stream --algorithm "$name" \
      --budget 0.125 --seeds "${KVBENCH_CHECK_SEEDS:-10}" "${options[@]}" --device cuda --overwrite \
      -o "$work/long.csv" || code=$?
    seconds=$(seconds_since "$began")
    ((code == 0)) || { broken "$code" "$running" || return; }
    printf 'stream\t%s\t%s\n' "$name" "$seconds" >> "$out/times.tsv"
    count=$((count + 1))
    if awk -v a="$seconds" -v b="$slowest" 'BEGIN { exit !(a > b) }'; then
      slowest=$seconds which=$name
    fi
  done
  pass "$count streams, the slowest $which with $slowest s"
}

part_h() {
  local tool code most=120 began said=
  command -v compute-sanitizer > /dev/null || { skip 'no compute-sanitizer on the PATH' || return; }
  [[ -x $gpu_tests ]] || { skip "$gpu_tests: no such program" || return; }
  for tool in memcheck racecheck; do
    code=0
    began=$SECONDS
    logged "compute-sanitizer, $tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$gpu_tests" \
      --gtest_filter="-$runs" || code=$?
    most=$((most - (SECONDS - began)))
    # Errors are printed as they are found, as lines that begin with =====.
    if grep -q '^=========     at \|hazard detected\|Invalid __' "$work/last.log" || ((code == 9)); then
      fail "an error of $tool: see log.txt" || return
    elif ((code != 0 && code != 124 && code != 137)) && ! grep -q '^\[       OK \]' "$work/last.log"; then
      skip "compute-sanitizer does not work here: $(tail -n 1 "$work/last.log")" || return
    elif ((code != 0 && code != 124 && code != 137)); then
      broken "$code" "$running" || return
    fi
    said+="${said:+; }$tool: $(grep -c '^\[       OK \]' "$work/last.log" || true) tests"
    ((code == 0)) || { said+=', then no time left' && break; }
  done
  pass "$said"
}

# Why the program cannot use a device; empty if it can.
no_device=
{ "$kvbench" synth -o "$work/small.h5" --layers 1 --q-heads 1 --kv-heads 1 --tokens 16 &&
  "$kvbench" replay "$work/small.h5" --algorithm exact --device cuda --dry-run -o "$work/none.csv"; } \
  > /dev/null 2> "$work/last.log" || no_device=$(grep -m1 . "$work/last.log" || echo "$kvbench does not run")
no_device=${no_device#kvbench: error: }

passed=0
failed=0
for part in "${parts[@]}"; do
  [[ $only == *$part* ]] || continue
  code=0
  words[$part]=running
  save
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
      words[$part]=pass
      passed=$((passed + 1))
      ;;
    77) words[$part]=skipped ;;
    *)
      words[$part]=FAIL
      failed=$((failed + 1))
      ;;
  esac
  whys[$part]=$why
  echo "$part ${titles[$part]}: ${words[$part]}: $why"
  save
done
((failed == 0)) || exit 1
((passed > 0)) || exit 77
