import os

# Before anything imports torch: spinning OpenMP threads slow a busy machine down many times over.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from hypothesis import settings

# The same examples each time, so that a change is judged by what it changes; `make fuzz` looks for new ones. How long
# an example takes says how busy the machine is, nothing else.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("repeatable")
