#!/bin/bash
# Builds the documents as a site (mkdocs.yml), by default in ./site. A broken link is an error.
#     tools/docs.sh [FOLDER]          then open FOLDER/index.html, or python3 -m http.server --directory FOLDER
# Its pages load nothing from other sites.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.test-python
export PYTHONPATH=$python${PYTHONPATH:+:$PYTHONPATH}
python3 -c 'import mkdocs' 2>/dev/null ||
  python3 -m pip install --quiet --target "$python" 'mkdocs>=1.6,<2' >&2 ||
  { echo "docs: mkdocs is neither there nor to be had by pip; where there is no network, put it into PYTHONPATH" >&2; exit 1; }
exec python3 tools/docs_site.py "${1:-site}"
