#!/usr/bin/env bash
# Replaces the text between the markers of docs/cli.md by the output of `kvbench --help-all`.
#
# usage: scripts/update_cli_docs.sh [PROGRAM] [FILE]      (default: build/kvbench docs/cli.md)
# Exit code 2: the program failed, or the file lacks the markers.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
program=${1:-$root/build/kvbench}
file=${2:-$root/docs/cli.md}
begin='<!-- help-all: begin -->'
end='<!-- help-all: end -->'

die() {
  echo "update_cli_docs: $*" >&2
  exit 2
}
for marker in "$begin" "$end"; do
  [[ $(grep -cxF -e "$marker" "$file") == 1 ]] || die "$file: expected one line '$marker'"
done
help=$("$program" --help-all) || die "$program --help-all failed"

new=$(mktemp)
trap 'rm -f -- "$new"' EXIT
{
  sed "/^$begin\$/q" "$file"
  printf '```text\n%s\n```\n' "$help"
  sed -n "/^$end\$/,\$p" "$file"
} > "$new"
cat -- "$new" > "$file"
