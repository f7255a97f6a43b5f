#!/usr/bin/env bash
# scripts/gpu_check.sh without a device: every part says aloud that it is skipped. Then with
# programs in the place of those that need one: a pass, and each kind of failure, is called so.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
check=$SRC/scripts/gpu_check.sh
export PYTHON=${PYTHON:-python3} KVBENCH_CHECK_TOKENS=640

# checks CODE ARGS...: gpu_check.sh must end with CODE; sets out.
checks() {
  local expected=$1
  shift
  code=0
  "$check" "$@" > "$scratch/out" 2> "$scratch/err" || code=$?
  out=$(cat "$scratch/out" "$scratch/err")
  [[ $code == "$expected" ]] || fail "exit code $code, not $expected, of: gpu_check.sh $*: $out"
}
says() {
  local words
  for words; do
    [[ $out == *"$words"* ]] || fail "'$words' is not said: $out"
  done
}

# program FILE: makes an executable script of stdin.
program() {
  { echo '#!/usr/bin/env bash'; cat; } > "$1"
  chmod +x "$1"
}

checks 0 --help
says 'scripts/gpu_check.sh [--only PARTS] [--minutes M] BUILD_DIR OUT_DIR' 'Exit code: 0' ' 130, a signal.'
checks 2
says 'BUILD_DIR OUT_DIR'
mkdir build
checks 2 build results
says 'build/kvbench: no such program'
ln -s "$KVBENCH" build/kvbench
checks 2 --only a,z build results
says "--only: got 'a,z'"
checks 2 --minutes x build results
says "--minutes: got 'x'"
checks 2 --all build results
says '--all: no such option'
checks 2 build results none.h5
says 'none.h5: no such file'
[[ ! -e results ]] || fail 'a refused run made a folder'

# Hidden, where there is one.
CUDA_VISIBLE_DEVICES='' checks 77 build results
[[ $(grep -c ': skipped: no device: ' "$scratch/out") == 8 ]] || fail "not eight parts skipped: $out"
grep -q '| whole runs | skipped | no device' results/report.md || fail "report: $(< results/report.md)"
[[ $(ls results) == $'card.txt\nlog.txt\nparts.tsv\nreport.md\ntimes.tsv' ]] || fail "files: $(ls results)"
CUDA_VISIBLE_DEVICES='' checks 77 --only b,f build results
[[ $(wc -l < "$scratch/out") == 2 ]] || fail "not two parts: $out"

# A device that computes as the CPU does, since it is the CPU. WRONG: what awk does to its table.
rm build/kvbench
program build/kvbench << 'SHIM'
arguments=() table= last=
for word; do
  [[ $last == --device && $word == cuda ]] && word=cpu cuda=1
  [[ $last == -o ]] && table=$word
  arguments+=("$word")
  last=$word
done
if [[ -n ${HANG:-} && ${cuda:-} == 1 && $* != *--dry-run* ]]; then
  echo $$ > "$HANG"
  exec sleep 1000
fi
"$KVBENCH" "${arguments[@]}" || exit
if [[ ${cuda:-} == 1 && -n ${WRONG:-} && -s $table ]]; then
  awk -F, -v OFS=, "$WRONG" "$table" > "$table.wrong" && mv "$table.wrong" "$table"
fi
SHIM
export KVBENCH
small=(-- --layers 0 --heads 0 --queries 16 --budget 0.25 --seeds 1)

checks 0 --only c,f build results "$SRC/tests/data/small.h5" "${small[@]}"
says 'c every method: pass: all_methods: same: ' 'trace-small: same: ' ', CUDA ' ', ratio ' \
  'f streams: pass: stream: same: '
[[ $(grep -c ^run results/times.tsv) == 3 ]] || fail "times of $(grep -c ^run results/times.tsv) runs, not 3"
checks 0 --only e build results "${small[@]}"
says 'e long trace: pass: synth-640: same: '
# Elsewhere than in a source tree.
mkdir -p alone/scripts
ln -s "$SRC"/{bench,configs,python} alone
cp "$check" alone/scripts
code=0
alone/scripts/gpu_check.sh --only a,c,f build results > said 2>&1 || code=$?
[[ $code == 77 && $(grep -c 'skipped: no .*/data/sample.h5, expected to run in the source tree' said) == 3 ]] ||
  fail "exit code $code: $(< said)"
for wrong in 'NR == 5 { $26 = $26 * 1.001 } { print }' 'NR == 5 { $26 = "nan" } { print }' \
  'NR != 5'; do
  WRONG=$wrong checks 1 --only c build results "${small[@]}"
  says 'c every method: FAIL: all_methods: '
done
WRONG='{ exit 1 }' checks 1 --only c build results "${small[@]}"
says 'FAIL: exit code 1 of all_methods, --device cuda: see log.txt'

export KVBENCH_CHECK_SEEDS=2
checks 0 --only g build results -- --heads 0 --queries 4 --eval-every 320
says 'g long streams: pass: ' ' streams, the slowest '
while read -r kind name seconds; do
  [[ $kind == stream && -n $name && $seconds =~ ^[0-9]+\.[0-9]+$ ]] || fail "a time: $kind $name $seconds"
done < results/times.tsv
"$KVBENCH" list > listed  # read whole: a closed pipe fails the program
grep -q '^kvreviver .*stream' listed || fail 'kvreviver is no stream any more'
grep -q '^stream.kvreviver' results/times.tsv || fail "$(< results/times.tsv)"
WRONG='{ exit 1 }' checks 1 --only g build results -- --heads 0 --queries 4 --eval-every 320
says 'FAIL: exit code 1 of exact as a stream'

# Programs that need a device, by what they would say.
checks 77 --only a,b,h build results
says 'kvbench_gpu_tests: no such program'
checks 2 --list build
program build/kvbench_gpu_tests << 'SHIM'
echo "$*" >> asked
[[ $1 != --gtest_list_tests ]] || { printf 'GpuRows.\n  NoRows\n'; exit; }
sleep "${TEST_SECONDS:-0}"
for ((i = 0; i < RAN - SKIPPED; ++i)); do echo '[       OK ] Some.Test (1 ms)'; done
echo "[==========] $RAN tests from 1 test suite ran. (5 ms total)"
((SKIPPED == 0)) || echo "[  SKIPPED ] $SKIPPED tests, listed below:"
exit "${CODE:-0}"
SHIM
checks 0 --list build
says 'a whole runs' '  GpuRows.NoRows' 'h compute-sanitizer'
: > asked
RAN=4 SKIPPED=1 checks 0 --only a,b build results
says 'a whole runs: pass: 4 tests, 1 of them skipped' 'b operations: pass: 4 tests'
[[ $(< asked) == '--gtest_filter=GpuReplay.*:GpuStreams.*:GpuCluster.*
--gtest_filter=-GpuReplay.*:GpuStreams.*:GpuCluster.*' ]] || fail "tests asked for: $(< asked)"
RAN=4 SKIPPED=4 checks 1 --only a build results
says 'FAIL: every test was skipped'
RAN=0 SKIPPED=0 checks 1 --only a build results
says 'FAIL: no test matches GpuReplay'
CODE=1 RAN=4 SKIPPED=0 checks 1 --only b build results
says 'FAIL: exit code 1 of kvbench_gpu_tests: operations: see log.txt'
grep -q '4 tests from 1 test suite' results/log.txt || fail "log: $(< results/log.txt)"

mkdir tools
program tools/compute-sanitizer << 'SHIM'
[[ $* != "--tool ${BROKEN:-none} "* ]] || exit 9
[[ -z ${ABSENT:-} ]] || { echo 'Internal Sanitizer Error: no permission'; exit 1; }
shift 4
exec "$@"
SHIM
export RAN=2 SKIPPED=0
PATH=$PWD/tools:$PATH checks 0 --only h build results
says 'h compute-sanitizer: pass: memcheck: 2 tests; racecheck: 2 tests'
BROKEN=racecheck PATH=$PWD/tools:$PATH checks 1 --only h build results
says 'FAIL: an error of racecheck: see log.txt'
ABSENT=1 PATH=$PWD/tools:$PATH checks 77 --only h build results
says 'skipped: compute-sanitizer does not work here: Internal Sanitizer Error: no permission'

# No time left: nothing begins, and what runs is stopped.
checks 77 --only a --minutes 0 build results
says 'a whole runs: skipped: no time left'
mkdir slow
program slow/timeout << 'SHIM'
[[ $* != *gtest_filter* && $* != *' long.csv'* ]] || exit 124
shift 2
exec "$@"
SHIM
PATH=$PWD/slow:$PATH checks 77 --only a,b --minutes 9 build results
says 'a whole runs: skipped: no time left in kvbench_gpu_tests: whole runs'

# Stopped: what is finished stands in the report, and nothing goes on.
export HANG=$PWD/hanging
RAN=3 "$check" --only b,c,e build results "${small[@]}" > said 2>&1 &
for ((i = 0; i < 600; ++i)); do
  [[ ! -s hanging ]] || break
  sleep 0.1
done
kill -TERM $!
code=0
wait $! || code=$?
unset HANG
[[ $code == 130 ]] || fail "exit code $code after SIGTERM: $(< said)"
! kill -0 "$(< hanging)" 2> /dev/null || fail 'the stopped command goes on'
for line in '| operations | pass | 3 tests' '| every method | stopped | in all_methods, --device cuda' \
  '| long trace | not begun |'; do
  grep -qF -- "$line" results/report.md || fail "no '$line' in: $(< results/report.md)"
done

# Beside PyTorch: without it, and its table in the report.
program without << 'SHIM'
[[ $1 != */gpu_peers.py ]] || { echo 'gpu_peers.py: no PyTorch here'; exit 77; }
exec "$REAL" "$@"
SHIM
program with << 'SHIM'
[[ $1 != */gpu_peers.py ]] || { printf 'sums | a\t2.0\t0.5\n' > "${@: -1}"; echo 'sums: ratio 0.25'; exit; }
exec "$REAL" "$@"
SHIM
export REAL=$PYTHON
PYTHON=$PWD/without checks 77 --only d build results
says 'd beside PyTorch: skipped: gpu_peers.py: no PyTorch here'
PYTHON=$PWD/with checks 0 --only d build results
says 'd beside PyTorch: pass: sums: ratio 0.25'
printf 'before\n<!-- gpu_check -->\nold\n<!-- end of gpu_check -->\nafter\n' > page.md
"$PYTHON" "$SRC/bench/gpu_report.py" results --docs page.md > /dev/null
for line in before after 'Device: ' '| sums \| a | 2.0 | 0.5 | 0.25 |'; do
  grep -qF -- "$line" page.md || fail "no '$line' in: $(< page.md)"
done
! grep -q '^old' page.md || fail "the old report stands: $(< page.md)"
code=0
"$PYTHON" "$SRC/bench/gpu_report.py" nowhere 2> said || code=$?
[[ $code == 2 && $(< said) == *'nowhere: no parts.tsv'* ]] || fail "exit code $code: $(< said)"

# The archive: a program that needs other libraries than a driver's machine has is no good.
mkdir bare
cp "$KVBENCH" bare/kvbench
code=0
"$SRC/scripts/gpu_archive.sh" "$PWD/bare" "$PWD/a.tar.gz" 2> said || code=$?
[[ $code == 1 && ! -e a.tar.gz ]] || fail "exit code $code of gpu_archive.sh: $(< said)"
