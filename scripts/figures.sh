#!/usr/bin/env bash
# Draws every figure from one trace, and a page that shows them: OUT/index.html.
#
#   scripts/figures.sh TRACE OUT [SELECTION...]
#
# SELECTION: options shared by `kvbench replay` and `kvbench cluster`, such as --layers 0,15,31,
# --prompts ID or --threads 8. Select layers of large models. OUT receives tables, manifests, pictures
# (PNG, PDF) and measured captions (STEM.txt). It must be new, empty or of an earlier run, whose files
# are overwritten. To save time, streams evaluate the last 64 queries instead of 256; docs/figures.md
# has the full commands.
# KVBENCH: program (default: build/kvbench). PYTHON: interpreter (default: scripts/find_python.sh,
# with scikit-learn).
# Exit code: that of the first failed step; 1 if only some rows failed.
set -euo pipefail

say() { echo "figures.sh: $*"; }
die() {
  echo "figures.sh: $2" >&2
  exit "$1"
}

if [[ $# -lt 2 ]]; then
  sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
trace_given=$1
out=$2
shift 2
selection=("$@")

# Check programs and files before the replays.
kvbench=$(command -v "${KVBENCH:-$root/build/kvbench}") ||
  die 2 "${KVBENCH:-$root/build/kvbench}: no such program; build it or set KVBENCH"
kvbench=$(realpath -- "$kvbench")
[[ -r $trace_given && -f $trace_given ]] || die 2 "$trace_given: no such file"
trace=$(realpath -- "$trace_given")
python=$("$root/scripts/find_python.sh" numpy pandas matplotlib sklearn 2>&1) || die 2 "$python"

# Folders of earlier versions have no mark but the same page title.
if ! grep -qs '<title>kvbench: figures of' "$out/index.html"; then
  refusal=$("$root/scripts/own_folder.sh" "$out" 2>&1) || die 2 "$refusal"
fi
cd -- "$out"
started=$SECONDS
failed_rows=0
page=

# The command without paths of this machine, quoted only if needed.
typed() {
  local word line=
  for word; do
    case $word in
      "$kvbench") word=kvbench ;;
      "$python") continue ;;
      "$trace") word=$(basename -- "$trace") ;;
      "$root"/*) word=${word#"$root"/} ;;
    esac
    [[ $word =~ ^[a-zA-Z0-9_.,:/=+@%-]+$ ]] || word=$(printf '%q' "$word")
    line+=" $word"
  done
  echo "${line# }"
}

escaped() {
  local text=${1//&/&amp;}
  text=${text//</&lt;}
  text=${text//>/&gt;}
  echo "${text//\"/&quot;}"
}

# run COMMAND...: prints and runs the command, stops if it fails. Exit code 1 of kvbench: some rows
# failed, and the others are plotted.
run() {
  local code=0
  say "$(typed "$@")"
  "$@" < /dev/null || code=$?
  if ((code == 1)) && [[ $1 == "$kvbench" ]]; then
    failed_rows=1
  elif ((code != 0)); then
    die "$code" "stopped, exit code $code of: $(typed "$@")"
  fi
}

# replay NAME OPTIONS...: NAME.csv by configs/NAME.toml; sets `made` to the command.
replay() {
  local command=("$kvbench" replay "$trace" --config "$root/configs/$1.toml" "${@:2}"
    "${selection[@]}" -o "$1.csv" --overwrite)
  run "${command[@]}"
  made=$(typed "${command[@]}")
}

section() { page+="<h2>$(escaped "$1")</h2>"$'\n'; }

# figure STEM TITLE TABLES CAPTION ALT -- PROGRAM ARGUMENTS...: makes STEM.{png,pdf,txt} and its entry.
# CAPTION: what is drawn and what the paper claims; the measured caption STEM.txt follows on the page.
# TABLES: files to link, separated by spaces. `made`: the commands that made them.
figure() {
  local stem=$1 title=$2 tables=$3 caption=$4 alt=$5 links='' file
  shift 6
  local command=("$python" "$root/scripts/kvbench-py" "$@" -o "$stem" --caption "$stem.txt")
  run "${command[@]}"
  for file in $tables "$stem.png" "$stem.pdf" "$stem.txt"; do
    [[ -s $file ]] || die 3 "$file: not written by: $(typed "${command[@]}")"
    links+=" <a href=\"$file\">$file</a>"
  done
  page+="<figure id=\"$stem\">
<h3>$(escaped "$title")</h3>
<a href=\"$stem.pdf\"><img src=\"$stem.png\" alt=\"$(escaped "$alt")\"></a>
<figcaption><p>$(escaped "$caption")</p>
<p class=\"measured\">$(escaped "$(< "$stem.txt")")</p>
<pre>$(escaped "$made")
$(escaped "$(typed "${command[@]}")")</pre>
<p>Files:$links</p></figcaption>
</figure>
"
}

section 'BalanceKV'
replay balancekv_fig2
figure balancekv_fig2 'Relative error against compression (BalanceKV, figure 2)' \
  'balancekv_fig2.csv balancekv_fig2.csv.json' \
  'Relative error per layer over T halvings of the middle: BalanceKV against uniform sampling and
simple baselines at the same number of tokens. In the paper BalanceKV lies below uniform sampling at
every layer and T.' \
  'Line plots of relative error over T, a line per method; a panel or a row of a map per layer.' \
  -- plot error balancekv_fig2.csv

section 'BumbleBee'
replay bumblebee_lambda
figure bumblebee_lambda 'Error against lambda (BumbleBee, sensitivity to the mixture weight)' \
  'bumblebee_lambda.csv bumblebee_lambda.csv.json' \
  'Relative error over lambda, the weight of facility location against importance, per budget and
concave function phi; horizontal lines: methods without lambda. In the paper scores are best at 0.2 to
0.4.' \
  'Line plot of relative error over lambda, with horizontal lines of baselines.' \
  -- plot lambda bumblebee_lambda.csv
replay stream_kept
figure kept_map 'Tokens held over time (BumbleBee, figures 6 and 7)' \
  'stream_kept.kept.csv stream_kept.csv stream_kept.csv.json' \
  'Which tokens (x) the cache held at which step of the stream (y, downwards). A vertical line is a
token held for long, the diagonal the recent window. In the paper H2O holds on to the first keys,
BumbleBee to keys of all times.' \
  'Maps of token position against step, a column per algorithm, a row per head.' \
  -- plot kept-map stream_kept.kept.csv
replay kept
run "$kvbench" cluster "$trace" "${selection[@]}" --kept-by kept.kept.csv -o cluster --overwrite
made+=$'\n'$(typed "$kvbench" cluster "$trace" "${selection[@]}" --kept-by kept.kept.csv \
  -o cluster --overwrite)
figure tsne_kept 't-SNE of keys with kept tokens (BumbleBee, figure 8)' \
  'kept.kept.csv cluster/points.csv cluster/cluster.json' \
  'Keys of heads in the plane, triangles: the tokens that H2O and BumbleBee kept. The paper finds
that those of BumbleBee represent all regions of the keys.' \
  'Scatter plots of keys, a row per algorithm, a column per head; kept tokens are triangles.' \
  -- plot tsne cluster --marked h2o,bumblebee --max-points 800

section 'ClusterGen'
made=$(typed "$kvbench" cluster "$trace" "${selection[@]}" --kept-by kept.kept.csv -o cluster \
  --overwrite)
figure tsne 't-SNE of keys and values with k-center centres (ClusterGen, figure 1)' \
  'cluster/points.csv cluster/cluster.json' \
  'Keys (above) and values (below) of heads in the plane; green: the 16 centres of greedy k-center.
In the paper keys cluster better than values.' \
  'Scatter plots of keys and values, a column per head, centres in green.' \
  -- plot tsne cluster --max-points 800
figure coverage 'Coverage curves (ClusterGen, section 3: clusterability)' \
  'cluster/coverage.csv cluster/cluster.json' \
  'Distance of the farthest token to its nearest of k centres, as a fraction of the distance at k =
1. The lower curve clusters better: in the paper keys.' \
  'Line plots of relative radius over the number of centres, keys and values; a panel or a row of a
map per layer.' \
  -- plot coverage cluster
figure growth 'Growth of the number of clusters (ClusterGen, theorem B.4)' \
  'cluster/delta.csv cluster/growth.csv cluster/coverage.csv cluster/cluster.json' \
  'Clusters m opened by online clustering at radius delta over prefixes of n tokens. The theorem
needs m to grow slower than n (dotted): a fitted exponent below 1. R: radius of one centre.' \
  'Log-log plots of clusters over tokens, rows keys and values, columns layers.' \
  -- plot growth cluster
figure norms 'Norms of queries, keys and values (ClusterGen, appendix C.1)' \
  'cluster/norms.csv cluster/cluster.json' \
  'Median, 95th percentile and largest norm over the layers: means over heads, bands from the least
to the largest head. The theorem assumes queries within a small constant r.' \
  'Line plots of norms over layers, a panel each for queries, keys and values.' \
  -- plot norms cluster

section 'KVReviver'
replay kvreviver_amnesia
figure kvreviver_amnesia 'Contextual amnesia (KVReviver, figure 2)' \
  'kvreviver_amnesia.csv kvreviver_amnesia.csv.json' \
  'Tokens that are no heavy hitters and yet get more than 0.5 % of attention, and the attention that
they get, over the share of tokens kept as heavy hitters. In the paper some remain at a share of 0.4.' \
  'Line plots of counts and of attention mass over the heavy-hitter ratio, a line per method.' \
  -- plot amnesia kvreviver_amnesia.csv
replay kvreviver_reconstruction
figure kvreviver_reconstruction 'Reconstruction from the sketch (KVReviver, table 2 and proofs)' \
  'kvreviver_reconstruction.csv kvreviver_reconstruction.csv.json' \
  'Squared error of the keys and values that the count sketch gives back over their mean square: sum
against mean estimate. Dashed: the variance bound of the paper, below which the sum should stay.' \
  'Line plots of relative reconstruction error, keys and values, with a dashed bound.' \
  -- plot reconstruction kvreviver_reconstruction.csv

section 'All methods'
replay all_methods
figure pareto 'Error against memory, the ten methods of the smallest error' 'all_methods.csv all_methods.csv.json' \
  'Relative error against the share of the middle held, everything counted, both axes logarithmic;
the grey steps are the front of the smallest errors at each requested budget.' \
  'Line plot of relative error over memory with the Pareto front, a label per method.' \
  -- plot pareto all_methods.csv
figure heatmap 'Error by layer and head, every method' 'all_methods.csv all_methods.csv.json' \
  'Relative error of every query head at a quarter of the middle.' \
  'Heat maps of layer against head, a panel per method.' \
  -- plot heatmap all_methods.csv --budget 0.25
replay stream --queries 64
figure stream 'Error and memory along a stream' 'stream.csv stream.steps.csv stream.csv.json' \
  'Relative error of the query at each step and bytes held, ten streaming methods, a column per
budget. Grey: the full cache and the budget.' \
  'Line plots over the steps of a stream: errors above, bytes below.' \
  -- plot stream stream.csv

section 'Reads'
replay recall
figure reads 'Recall of what queries read, and the price of one set for all' 'recall.csv recall.csv.json' \
  'Left: share of the heaviest tokens of each query that it read, over the bytes read. Right: relative
error over that of topk, which reads the largest logits of each query, at the same budget.' \
  'Line plots over the share of bytes read: recall on the left, errors over those of topk on the right.' \
  -- plot reads recall.csv

cat > index.html.tmp << HTML
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>kvbench: figures of $(escaped "$(basename -- "$trace")")</title>
<style>
body { font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
figure { margin: 2rem 0; border-top: 1px solid #ccc; }
img { max-width: 100%; height: auto; }
p.measured { color: #333; font-size: 14px; }
pre { background: #f4f4f4; padding: 0.5rem; white-space: pre-wrap; font-size: 13px; }
</style>
</head>
<body>
<h1>Figures of $(escaped "$(basename -- "$trace")")</h1>
<p>Made by <code>scripts/figures.sh</code> with $(escaped "$("$kvbench" --version | head -1)").
Commands run in this folder; configs/ and scripts/ are those of the source. A manifest
(<code>.json</code>) describes the run of each table.</p>
$page</body>
</html>
HTML
mv -- index.html.tmp index.html
say "$(grep -c '<figure' index.html) figures in $((SECONDS - started)) s: $out/index.html"
exit "$failed_rows"
