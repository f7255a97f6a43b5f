#!/usr/bin/env bash
# No input is ever an output, no file of somebody else's is written over; full disks and closed
# streams end in one line and a right exit code.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
small_trace t.h5
base=(--algorithm exact "${windows[@]}")
shards=(replay t.h5 --algorithm uniform:T=1 --seeds 2 "${windows[@]}")
good replay t.h5 -o out.csv "${base[@]}"
good "${shards[@]}" -o a.csv --shard 1/2
good "${shards[@]}" -o b.csv --shard 2/2
printf '%s\n' 'algorithm = "exact"' > c.toml
printf '%s\n' 'seed = 1' > synth.toml
echo precious > notes.txt
mkdir real other
ln -s real way
ln -s ../t.h5 real/link.h5
ln t.h5 hard.h5
cp t.h5 real/in.csv.json
cp t.h5 real/points.csv

# kept WORDS -- ARGS...: refused with 2 and one line of these words, and no byte of any file differs.
everything() { find . -type f -exec sha256sum {} + | sort; }
kept() {
  local words=$1 before
  shift 2
  before=$(everything)
  refused 2 "$words" -- "$@"
  [[ $(everything) == "$before" ]] || fail "files differ after: kvbench $*"
}
reads='is also what the run reads'
for target in t.h5 ./t.h5 hard.h5 real/link.h5 way/link.h5 "$PWD/t.h5"; do
  kept "$reads" -- replay t.h5 -o "$target" --overwrite "${base[@]}"
  kept "$reads" -- replay t.h5 -o free.csv --export-caches "$target" --overwrite "${base[@]}"
done
kept "$reads" -- replay real/in.csv.json -o way/in.csv "${base[@]}"
# Standard output is no file; a file of that name is ./-.
kept 'cannot go to standard output' -- replay t.h5 -o - "${base[@]}"
kept 'cannot go to standard output' -- replay t.h5 -o free.csv --export-caches - "${base[@]}"
kept 'cannot go to standard output' -- synth -o - --n 64
kept 'cannot go to standard output' -- summarize a.csv --csv -
good replay t.h5 -o ./- "${base[@]}"
[[ -s ./- && -s ./-.json ]] || fail 'no file of the name -'
rm ./- ./-.json
kept "$reads" -- replay t.h5 --config c.toml -o c.toml --overwrite "${windows[@]}"
kept "$reads" -- replay t.h5 --config c.toml --export-caches c.toml -o free.csv "${windows[@]}"
kept "$reads" -- summarize a.csv out.csv --csv ./out.csv
kept "$reads" -- synth --config synth.toml -o synth.toml
kept "$reads" -- merge a.csv b.csv -o a.csv --overwrite
kept "$reads" -- merge a.csv b.csv -o ./b.csv --overwrite
kept "$reads" -- cluster real/points.csv -o way --overwrite
kept "$reads" -- cluster real/points.csv -o real --overwrite
kept 'is also a manifest' -- replay t.h5 -o free.csv --export-caches free.csv.json "${base[@]}"
kept 'is also a table OUT.kept.csv' -- \
  replay t.h5 -o real/free.csv --export-caches way/free.kept.csv "${base[@]}"

# Foreign files and nodes that are no files.
for target in notes.txt a.csv; do
  kept 'is not a synthetic trace' -- synth -o "$target"
  kept 'is not a summary' -- summarize out.csv --csv "$target"
done
kept 'is not a result table' -- replay t.h5 -o notes.txt --overwrite "${base[@]}"
kept 'is not a result table' -- replay t.h5 -o notes.txt "${base[@]}"
kept 'is not a result table' -- merge a.csv b.csv -o notes.txt --overwrite
kept 'is not a caches file' -- replay t.h5 -o free.csv --export-caches notes.txt --overwrite "${base[@]}"
mkfifo pipe
nodes=(real pipe)
# A device of its own: who may make one could also replace those in /dev.
if mknod device c 1 3 2> "$scratch/err"; then nodes+=(device); elif [[ ! -w /dev ]]; then nodes+=(/dev/null); fi
for node in "${nodes[@]}"; do
  kept 'not a regular file' -- synth -o "$node"
  kept 'not a regular file' -- summarize out.csv --csv "$node"
  kept 'not a regular file' -- replay t.h5 -o "$node" --overwrite "${base[@]}"
  kept 'not a regular file' -- merge a.csv b.csv -o "$node" --overwrite
done
mkdir tables
cp notes.txt tables/coverage.csv
kept 'is not a table coverage.csv' -- cluster t.h5 -o tables --overwrite
for beside in tmp lock; do
  cp notes.txt "mine.h5.$beside"
  kept expected -- synth -o mine.h5
done
rm mine.h5.*
# What the shell has opened for stdout is gone once another file takes its name.
code=0
"$KVBENCH" summarize out.csv --csv log > log 2> "$scratch/err" || code=$?
[[ $code == 2 ]] || fail "exit code $code of a summary onto standard output"
grep -q 'where standard output goes' "$scratch/err" || fail "$(cat "$scratch/err")"

# Its own files are replaced.
good synth -o other/s.h5 --layers 1 --q-heads 1 --kv-heads 1 --n 32 --d 16
good synth -o other/s.h5 --layers 1 --q-heads 1 --kv-heads 1 --n 16 --d 16
good summarize out.csv --csv s.csv
good summarize a.csv --csv s.csv --by layer
[[ $(head -1 s.csv) == *,layer,* ]] || fail "the summary was not replaced: $(head -1 s.csv)"
good merge a.csv b.csv -o m.csv
good replay t.h5 -o m.csv --overwrite --kept --per-query "${base[@]}"
good merge a.csv b.csv -o m.csv --overwrite
[[ $(ls m.*) == $'m.csv\nm.csv.json' ]] || fail "tables of another run stand beside: $(ls m.*)"

# full COMMAND...: no file may grow beyond 8 KiB. Exit code 3, one line, no unfinished file.
full() {
  code=0
  (
    ulimit -f 8
    exec "$KVBENCH" "$@"
  ) > "$scratch/out" 2> "$scratch/err" || code=$?
  [[ $code == 3 && $(wc -l < "$scratch/err") == 1 && $(cat "$scratch/err") == 'kvbench: error: '* ]] ||
    fail "exit code $code of a full disk: kvbench $*: $(cat "$scratch/err")"
  [[ -z $(find . -name '*.tmp' -o -name '*.lock') ]] ||
    fail "unfinished files: $(find . -name '*.tmp')"
}
good synth -o long.h5 --layers 3 --q-heads 2 --kv-heads 1 --n 700 --d 16 --dv 8
long=(replay long.h5 --algorithm uniform:T=1 --seeds 20 "${windows[@]}")
for i in 1 2; do good "${long[@]}" -o "long$i.csv" --shard "$i/2"; done
full synth -o full.h5 --layers 3 --q-heads 2 --kv-heads 1 --n 700 --d 16 --dv 8
full synth -o full.h5 --layers 3 --q-heads 2 --kv-heads 1 --n 700 --d 16 --dv 8 --gzip 0
full cluster long.h5 -o full --points csv
full merge long1.csv long2.csv -o full.csv
[[ ! -e full.csv ]] || fail "a table of $(wc -l < full.csv) lines after a merge that failed"
good merge a.csv b.csv -o full.csv
cp full.csv "$scratch/old"
full merge long1.csv long2.csv -o full.csv --overwrite
cmp full.csv "$scratch/old" || fail 'a merge that failed took the earlier table away'
rm full.csv*
full replay t.h5 -o full.csv --export-caches full.h5 "${base[@]}"
[[ ! -e full.h5 ]] || fail 'a file that is not whole has its name'
# What is finished stays: a head's tables are small, the points of all are not.
good synth -o heads.h5 --layers 8 --q-heads 1 --kv-heads 1 --n 32 --d 16 --dv 8
rm -rf full
full cluster heads.h5 -o full --points csv --pca 2 --max-k 2 --deltas 1
heads=$(column full/coverage.csv layer | sort -u | wc -l)
((heads > 0 && heads < 8)) || fail "$heads heads before the disk was full"
grep -q '"end": null' full/cluster.json || fail 'the manifest of a run that failed has an end'

# Closed streams. A file must not get the number of stderr, else messages would go into it.
for close in '2>&-' '1>&- 2>&-' '0>&- 1>&- 2>&-' '2> /dev/full'; do
  rm -rf closed*
  code=0
  eval "\"\$KVBENCH\" replay t.h5 -o closed.csv \"\${base[@]}\" $close" || code=$?
  [[ $code == 0 ]] || fail "exit code $code of a replay with $close"
  same closed.csv out.csv
  eval "\"\$KVBENCH\" cluster t.h5 -o closed $close" || fail "cluster with $close"
  eval "\"\$KVBENCH\" merge a.csv b.csv -o closed.m.csv $close" || fail "merge with $close"
  [[ $(wc -l < closed.m.csv) == 5 ]] || fail "a message in the table: $(cat closed.m.csv)"
  code=0
  eval "\"\$KVBENCH\" replay nowhere.h5 -o no.csv \"\${base[@]}\" $close" || code=$?
  [[ $code == 2 ]] || fail "exit code $code of a bad replay with $close"
done
# A reader that went away: of messages no matter.
mkfifo gone
(exec 3< gone) &
"$KVBENCH" replay t.h5 -o gone.csv "${base[@]}" 2> gone || fail "exit code $? of a reader that left"
wait
same gone.csv out.csv
for command in list 'list balancekv' --help --help-all --version 'info t.h5' 'summarize out.csv' \
  'replay t.h5 --dry-run --algorithm exact --sink 4 --recent 16 --queries 8'; do
  code=0
  # shellcheck disable=SC2086
  "$KVBENCH" $command 1>&- 2> "$scratch/err" || code=$?
  [[ $code == 3 && $(wc -l < "$scratch/err") == 1 ]] ||
    fail "exit code $code of $command >&-: $(cat "$scratch/err")"
done
