import os

# Before anything imports torch: spinning OpenMP threads slow a busy machine down many times over.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
