#!/usr/bin/env bash
# kvbench cluster writes tables that agree with each other, and refuses in one line what it cannot
# do.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
good synth -o t.h5 --layers 2 --q-heads 2 --kv-heads 1 --n 96 --d 16 --dv 8

good cluster t.h5 -o dir/clusters --delta-rel 0.3,0.6
[[ -z $out ]] || fail "stdout: $out"
[[ $(wc -l <<< "$err") == 1 && $err == "dir/clusters: 2 KV heads, "*" rows in "* ]] ||
  fail "stderr: $err"
# The tables that docs/schema.md describes, and no other file.
tables=$(sed -nE '/^## Clusterability tables/,/^## / s/^<!-- columns: (.*\.csv) -->$/\1/p' "$SRC/docs/schema.md")
(($(wc -l <<< "$tables") >= 5)) || fail "tables of docs/schema.md: $tables"
[[ $(ls -A dir/clusters) == $(printf '%s\n' cluster.json $tables | sort) ]] ||
  fail "files: $(ls -A dir/clusters)"

header() { # header TABLE COLUMNS: its first line begins with COLUMNS
  [[ $(head -1 "dir/clusters/$1") == "$2"* ]] || fail "header of $1: $(head -1 "dir/clusters/$1")"
}
header coverage.csv trace,prompt,layer,kv_head,what,k,radius,radius_rel,center
header delta.csv trace,prompt,layer,kv_head,what,delta,n_prefix,clusters
header growth.csv trace,prompt,layer,kv_head,what,delta,alpha,r2
for table in coverage delta growth norms; do
  [[ $(head -1 dir/clusters/$table.csv) == *,run_id,row_crc,model,dtype ]] || fail "end of $table.csv"
  [[ $(awk -F, 'NR > 1 { print $NF }' dir/clusters/$table.csv | sort -u) == float16 ]] ||
    fail "element type in $table.csv"
done
header norms.csv trace,prompt,layer,head,what,min,p25,p50,p75,p95,max
header points.csv trace,prompt,layer,kv_head,what,token,is_center,kept_by,x0,x1,
[[ $(head -1 dir/clusters/points.csv) == *,x15,run_id,row_crc ]] || fail 'not 16 components'

# 96 tokens: k = 1 to 32, so 16 is no row of its own; the first centre is token 0.
ks=$(awk -F, '$3 == 1 && $5 == "keys" { print $6 }' dir/clusters/coverage.csv | paste -sd' ')
[[ $ks == '1 2 4 8 16 32' ]] || fail "k: $ks"
awk -F, 'NR > 1 && $6 == 1 && !($8 == 1 && $9 == 0) { exit 1 }' dir/clusters/coverage.csv ||
  fail 'the first centre'
prefixes=$(column dir/clusters/delta.csv n_prefix | sort -nu | paste -sd' ')
[[ $prefixes == '16 32 64 96' ]] || fail "prefixes: $prefixes"
[[ $(column dir/clusters/points.csv is_center | grep -c 1) == 64 ]] || fail 'not 16 centres'
[[ $(column dir/clusters/points.csv kept_by | sort -u) == '' ]] || fail 'kept by somebody'

# The same from a file of options, with other threads; the command line wins.
printf '%s\n' 'delta-rel = [0.3, 0.6]' 'threads = 1' 'k = 3' > c.toml
good cluster t.h5 -o again --config c.toml --k 16 --memory-limit 512M
for table in $tables; do
  cmp "dir/clusters/$table" "again/$table" || fail "$table differs"
done

# What a replay kept.
good replay t.h5 "${windows[@]}" -o out.csv --algorithm local --algorithm uniform:T=1 --seeds 2 \
  --budget 0.5 --kept
good cluster t.h5 -o kept --kept-by out.kept.csv --points csv
labels=$(column kept/points.csv kept_by | tr ';' '\n' | sort -u | sed '/^$/d' | paste -sd,)
[[ $labels == 'local,uniform seed=0,uniform seed=1' ]] || fail "labels: $labels"
# Sinks are everybody's.
[[ $(awk -F, '$6 == 0 { print $8 }' kept/points.csv | sort -u) == \
  'local;uniform seed=0;uniform seed=1' ]] || fail 'token 0 is not kept by all'

# Points elsewhere, or nowhere.
good cluster t.h5 -o keys --what keys
[[ $(column keys/coverage.csv what | sort -u) == keys ]] || fail 'sets of --what keys'
[[ $(column keys/norms.csv what | sort -u | paste -sd' ') == 'keys queries values' ]] ||
  fail 'norms of --what keys'
good cluster t.h5 -o keys --points none --overwrite
[[ ! -e keys/points.csv ]] || fail 'points of an earlier run are left'

# One token.
good synth -o one.h5 --layers 1 --q-heads 2 --kv-heads 1 --n 1 --d 16 --dv 8 --sinks 0
good cluster one.h5 -o one --threads 1
[[ $(column one/coverage.csv radius | sort -u) == 0 ]] || fail 'radius of one token'
[[ $(column one/growth.csv alpha | sort -u) == nan ]] || fail 'growth of one token'

refused 2 exists -- cluster t.h5 -o again
refused 2 -o -- cluster t.h5
refused 2 "no trace" -- cluster -o no
refused 2 nowhere.h5 -- cluster nowhere.h5 -o no
refused 2 'is no folder' -- cluster t.h5 -o t.h5
refused 3 no/proc -- cluster t.h5 -o /proc/no/proc
refused 3 cuda -- cluster t.h5 -o no --device cuda:99
refused 2 --device -- cluster t.h5 -o no --device tpu
refused 2 --what -- cluster t.h5 -o no --what queries
refused 2 'csv or none' -- cluster t.h5 -o no --points png
refused 2 --delta-rel -- cluster t.h5 -o no --delta-rel=-1
refused 2 --deltas -- cluster t.h5 -o no --deltas nan
refused 2 --memory-limit -- cluster t.h5 -o no --memory-limit 8Q
refused 2 --memory-limit -- cluster t.h5 -o no --memory-limit 1K
refused 2 --layers -- cluster t.h5 -o no --layers 2
refused 2 --kv-heads -- cluster t.h5 -o no --kv-heads 1
refused 2 nosuch.csv -- cluster t.h5 -o no --kept-by nosuch.csv
refused 2 'expected the column `kv_head`' -- cluster t.h5 -o no --kept-by out.csv
refused 2 'no kept set' -- cluster one.h5 -o no --kept-by out.kept.csv

# An interrupted run keeps finished heads, whole.
good synth -o long.h5 --layers 40 --q-heads 2 --kv-heads 2 --n 768 --d 16 --dv 8
"$KVBENCH" cluster long.h5 -o int --threads 1 > "$scratch/out" 2> "$scratch/err" &
pid=$! tries=0
rows=int/coverage.csv.tmp
until [[ -f $rows ]] && (($(wc -l < "$rows") > 20)); do
  kill -0 "$pid" 2> /dev/null || fail "ended before it was interrupted: $(cat "$scratch/err")"
  ((++tries < 30000)) || fail 'no rows after ten minutes'
  sleep 0.02
done
kill -INT "$pid"
code=0
wait "$pid" || code=$?
[[ $code == 130 ]] || fail "exit code $code of an interrupt: $(cat "$scratch/err")"
heads=$(sed -nE 's/^int: ([0-9]+) KV heads.*/\1/p' "$scratch/err")
((heads > 0 && heads < 80)) || fail "heads: $(cat "$scratch/err")"
for table in coverage growth norms points; do
  seen=$(awk -F, 'NR > 1 && $5 == "keys" { print $3, $4 }' "int/$table.csv" | sort -u | wc -l)
  [[ $seen == "$heads" ]] || fail "$seen heads in $table.csv, not $heads"
done
[[ -z $(ls -A int | grep -E 'lock|tmp') ]] || fail "files of an interrupted run: $(ls -A int)"

# A full disk leaves the finished heads, the same in all tables.
code=0
(
  ulimit -f $((3 * $(stat -c %s dir/clusters/points.csv) / 4096)) # in KiB: the points of a head and a half
  exec "$KVBENCH" cluster t.h5 -o full --delta-rel 0.3,0.6
) 2> "$scratch/err" || code=$?
[[ $code == 3 ]] || fail "exit code $code of a full disk: $(cat "$scratch/err")"
for table in $tables; do
  seen=$(awk -F, 'NR > 1 { print $3 }' "full/$table" | sort -u | wc -l)
  [[ $seen == 1 ]] || fail "$seen heads in $table"
done
