#!/usr/bin/env bash
# docs/cli.md holds what kvbench --help-all prints.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"

good --help-all
cp "$SRC/docs/cli.md" cli.md
bash "$SRC/scripts/update_cli_docs.sh" "$KVBENCH" cli.md
diff "$SRC/docs/cli.md" cli.md ||
  fail 'docs/cli.md does not show what --help-all prints; scripts/update_cli_docs.sh PROGRAM puts it in'
# The block is there and is the program's own words: a script that does nothing would pass above.
while IFS= read -r line; do
  grep -qxF -e "$line" cli.md || fail "docs/cli.md lacks the line: $line"
done <<< "$out"

# A stale block is noticed.
sed 's/--dry-run/--dry-walk/' cli.md > stale.md
cp stale.md fresh.md
bash "$SRC/scripts/update_cli_docs.sh" "$KVBENCH" fresh.md
cmp -s stale.md fresh.md && fail 'a stale block is not noticed'
echo 'no markers' > none.md
if bash "$SRC/scripts/update_cli_docs.sh" "$KVBENCH" none.md 2> /dev/null; then
  fail 'a file without markers was accepted'
fi
