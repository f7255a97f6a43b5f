# Sourced by the tests beside it: a scratch folder to stand in, and ways to run kvbench and judge it.
# (Not called .sh, so that it is not taken for a test.)
set -euo pipefail
: "${KVBENCH:?KVBENCH must be the program}" "${SRC:?SRC must be the source folder}"
KVBENCH=$(realpath -- "$KVBENCH")
SRC=$(realpath -- "$SRC")
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
mkdir "$scratch/here"
cd "$scratch/here"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# run ARGS...: kvbench with ARGS; sets code, out and err.
run() {
  code=0
  "$KVBENCH" "$@" > "$scratch/out" 2> "$scratch/err" || code=$?
  out=$(cat "$scratch/out")
  err=$(cat "$scratch/err")
}

# good ARGS...: must end with 0.
good() {
  run "$@"
  [[ $code == 0 ]] || fail "exit code $code of: kvbench $*: $err"
}

# refused CODE WORDS -- ARGS...: must end with CODE and one line on stderr that says WORDS, and
# leave stdout empty and the folder as it was.
refused() {
  local expected=$1 words=$2 before after
  shift 3
  before=$(ls -A)
  run "$@"
  after=$(ls -A)
  [[ $code == "$expected" ]] || fail "exit code $code, not $expected, of: kvbench $*: $err"
  [[ ! -s $scratch/out ]] || fail "stdout of a refusal of: kvbench $*: $out"
  [[ $(wc -l < "$scratch/err") == 1 ]] || fail "not one line on stderr of: kvbench $*: $err"
  [[ $err == "kvbench: error: "* ]] || fail "stderr of: kvbench $*: $err"
  [[ $err == *"$words"* ]] || fail "'$words' is not said for: kvbench $*: $err"
  [[ $after == "$before" ]] || fail "files of a refused run: kvbench $*: $after"
}

# small_trace FILE [OPTIONS...]: a trace of one layer, two query heads and one KV head.
small_trace() {
  good synth -o "$1" --layers 1 --q-heads 2 --kv-heads 1 --n 96 --d 16 --dv 8 "${@:2}"
}

# untimed FILE: its rows without the timing columns.
untimed() {
  "${PYTHON:-python3}" -I -c '
import csv, sys
left_out = ("compress_ms", "attend_us_per_query", "compress_ms_iqr", "attend_us_per_query_iqr")
with open(sys.argv[1], newline="", encoding="utf-8") as file:
    for row in csv.DictReader(file):
        print(*(repr(value) for name, value in row.items() if name not in left_out), sep=",")' "$1"
}

# column FILE NAME: the values of a column that stands before any quoted field.
column() {
  awk -F, -v name="$2" '
    NR == 1 { for (i = 1; i <= NF; ++i) if ($i == name) at = i; next } { print $at }' "$1"
}

same() {
  untimed "$1" > "$scratch/first" || fail "$1 cannot be read"
  untimed "$2" > "$scratch/second" || fail "$2 cannot be read"
  [[ -s $scratch/first ]] || fail "$1 has no rows"
  diff "$scratch/first" "$scratch/second" > "$scratch/diff" ||
    fail "$1 and $2 differ: $(head -4 "$scratch/diff")"
}

# Windows that leave a middle in a small trace.
windows=(--sink 4 --recent 16 --queries 8)
