#!/usr/bin/env bash
# Builds the results site (python/kvbench/site/main.py, --help). Needs no packages.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
PYTHONPATH=$root/python exec "${PYTHON:-python3}" -m kvbench.site.main "$@"
