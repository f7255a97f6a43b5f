#!/usr/bin/env bash
# Every figure from a small trace by scripts/figures.sh: the page is whole, stands on its own, and
# every picture and table that it names is there. And its refusals.
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
figures=$SRC/scripts/figures.sh
export KVBENCH

# stops CODE WORDS -- COMMAND...: must end with CODE and WORDS in the last line on stderr.
stops() {
  local expected=$1 words=$2 last
  shift 3
  code=0
  "$@" > "$scratch/out" 2> "$scratch/err" || code=$?
  last=$(tail -n 1 "$scratch/err")
  [[ $code == "$expected" ]] || fail "exit code $code, not $expected, of: $*: $(< "$scratch/err")"
  [[ $last == "figures.sh: "*"$words"* ]] || fail "'$words' is not said last for: $*: $last"
}

if ! python=$("$SRC/scripts/find_python.sh" numpy pandas matplotlib sklearn); then
  echo 'SKIPPED: no python3 with numpy, pandas, matplotlib and scikit-learn'
  exit 77
fi
export PYTHON=$python

# The default windows of 256 sinks and 256 recent tokens leave a middle of 128.
good synth -o t.h5 --layers 1 --q-heads 2 --kv-heads 1 --n 640 --d 16 --dv 8
stops 2 'none.h5: no such file' -- "$figures" none.h5 out
stops 2 'no such program' -- env KVBENCH=./none "$figures" t.h5 out
[[ ! -e out ]] || fail 'a refused run made a folder'
mkdir users
echo precious > users/index.html
stops 2 'users: index.html exists, and kvbench did not make this folder' -- "$figures" t.h5 users
[[ $(ls users) == index.html && $(< users/index.html) == precious ]] || fail "users: $(ls users)"
stops 2 'stopped, exit code 2 of: kvbench replay t.h5' -- "$figures" t.h5 stopped --layers 7
[[ ! -e stopped/index.html ]] || fail 'a page of a run that stopped'

"$figures" t.h5 out > "$scratch/out" 2> "$scratch/err" || fail "$(tail -n 3 "$scratch/err")"
page=out/index.html
count=0
while read -r file; do
  [[ -s out/$file ]] || fail "the page names $file, which is not there"
  count=$((count + 1))
done < <(grep -oE '(href|src)="[^"]*"' "$page" | cut -d '"' -f 2 | sort -u)
# 14 figures, PNG and PDF each, and tables beside them.
((count > 14 * 2)) || fail "the page names $count files"
[[ $(grep -c '<figure ' "$page") == 14 ]] || fail "$(grep -c '<figure ' "$page") figures"
[[ $(grep -c '<img [^>]*alt="[^"]' "$page") == 14 ]] || fail 'an image without a text in its place'
# Below every figure, what was measured in this trace, as the text beside it says.
[[ $(grep -c '^<p class="measured">Measured' "$page") == 14 ]] || fail 'a figure without numbers'
for text in out/*.txt; do
  grep -qF "$(sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g; s/"/\&quot;/g' "$text")" "$page" ||
    fail "the page lacks $text: $(< "$text")"
done
[[ $(grep -ci 'trace t.h5' "$page") -ge 14 ]] || fail 'a figure that does not name its trace'
# Relative and self-contained: no address, no folder of this machine.
! grep -qE 'https?:|file:|="/' "$page" || fail "$(grep -E 'https?:|file:|="/' "$page")"
! grep -qF -e "$SRC" -e "$scratch" "$page" || fail 'the page names folders of this machine'
