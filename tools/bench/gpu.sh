#!/usr/bin/env bash
# Checks and measurements on a GPU: tools/bench/gpu.sh first|correctness|qwen|llama|tiles|all [--device cpu
# --size small] [--out FOLDER]; --help says what each stage does.
#
# Needs python3 (or $PYTHON) with torch 2.11 or newer, triton 3.6 or newer, numpy, safetensors, tokenizers and
# llguidance; transformers for the reference, vLLM as a peer where it is there. Without msgspec a stand-in serves all
# but the server. For packages that are missing on a machine without network, fill a folder with wheels elsewhere:
#   pip download --no-deps --only-binary :all: --python-version 3.12 -c constraints.txt -d wheels msgspec fastapi \
#     starlette pydantic pydantic-core annotated-types typing-inspection uvicorn httptools opentelemetry-api \
#     llguidance cryptography cffi pycparser
#   WHEELS=wheels tools/bench/gpu.sh first
# Results: JSON and Markdown in $OUT, else ./gpu-results.
set -euo pipefail
python=${PYTHON:-python3}
wheels=${WHEELS:+$(realpath "$WHEELS")}
out=$(realpath -m "${OUT:-gpu-results}")
cd "$(dirname "$0")/../.."
packages=${XDG_CACHE_HOME:-$HOME/.cache}/inflight/bench/gpu-packages
if [ -n "$wheels" ]; then
  "$python" -m pip install --quiet --no-deps --no-index --upgrade --target "$packages" "$wheels"/*.whl
fi
export PYTHONPATH="$PWD:$PWD/common:$PWD/engine_image:$packages${PYTHONPATH:+:$PYTHONPATH}"
if ! "$python" -c 'import msgspec' 2>/dev/null; then
  export PYTHONPATH="$PYTHONPATH:$PWD/tools/bench/gpu/stand_in"
fi
if ! "$python" -c 'from importlib.metadata import version; version("inflight")' 2>/dev/null; then
  # The engine asks for its version, which only an installation has.
  mkdir -p "$packages/inflight-0.dist-info"
  printf 'Metadata-Version: 2.1\nName: inflight\nVersion: 0\n' >"$packages/inflight-0.dist-info/METADATA"
fi
exec "$python" -m tools.bench.gpu --out "$out" "$@"
