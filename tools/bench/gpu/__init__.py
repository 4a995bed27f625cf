"""Checks and measurements on a GPU: `tools/bench/gpu.sh`. The same code runs small on a CPU in the tests."""
