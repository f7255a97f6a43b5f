#!/usr/bin/env bash
# The results site; the program is python/kvbench/site/main.py (--help). Needs no packages.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
PYTHONPATH=$root/python exec "${PYTHON:-python3}" -m kvbench.site.main "$@"
