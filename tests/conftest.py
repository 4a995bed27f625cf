import os
import sys

# Before anything imports torch: spinning OpenMP threads slow a busy machine down many times over.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Where bytecode may not be written, each of the hundreds of processes of a run compiles all that it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
