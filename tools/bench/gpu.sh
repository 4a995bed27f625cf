#!/usr/bin/env bash
# Checks and measurements on a GPU: tools/bench/gpu.sh correctness|qwen|llama|all [--device cpu --size small] [--out FOLDER]
#
# Needs python3 (or $PYTHON) with torch 2.11 or newer, triton, numpy, safetensors and tokenizers; transformers for the
# reference and as a peer, vLLM as a peer where it is there. msgspec, which few machines have, is taken from $WHEELS, a
# folder with its wheel, else from pip's index. Where the machine has no network, fill that folder elsewhere before:
#   pip download --no-deps --only-binary :all: --python-version 3.12 -d wheels msgspec==0.22.0
#   WHEELS=wheels tools/bench/gpu.sh correctness
# A stage takes at most ten minutes. Results: JSON and Markdown in $OUT, else ./gpu-results.
set -euo pipefail
stage=${1:?which stage: correctness, qwen, llama or all}
shift
python=${PYTHON:-python3}
wheels=${WHEELS:+$(realpath "$WHEELS")}
out=$(realpath -m "${OUT:-gpu-results}")
cd "$(dirname "$0")/../.."
packages=${XDG_CACHE_HOME:-$HOME/.cache}/inflight/bench/gpu-packages
export PYTHONPATH="$PWD:$PWD/common:$PWD/engine_image:$packages${PYTHONPATH:+:$PYTHONPATH}"
if ! "$python" -c 'import msgspec' 2>/dev/null; then
  "$python" -m pip install --quiet --no-deps --upgrade --target "$packages" ${wheels:+--no-index --find-links "$wheels"} msgspec==0.22.0
fi
exec "$python" -m tools.bench.gpu "$stage" --out "$out" "$@"
