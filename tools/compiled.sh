#!/usr/bin/env bash
# Make build/compiled: a copy of the tree whose hot modules (setup.py names them) are compiled. The sources stay as they
# are, so no compiled module is ever older than its source here.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
target=build/compiled
command -v "${CC:-cc}" >/dev/null || { echo "error: no C compiler; on Debian: apt-get install gcc" >&2; exit 1; }
rm -rf "$target"
mkdir -p "$target"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --target-directory="$target"
cd "$target"
MINKA_COMPILED=1 "$python" setup.py --quiet build_ext --inplace --parallel 2
rm -rf build
