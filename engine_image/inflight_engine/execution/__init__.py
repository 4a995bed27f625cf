"""What a step plan becomes: one packed forward pass over a paged KV cache, and a token for each sequence due.

Importing this package decides how torch's CPU threads wait for each other, and has to come before torch is imported.
By default they spin, which is a little quicker on an idle machine; where anything else wants the CPUs (the API process
does, and so do a pod's neighbours) a spinning thread keeps its partner from running, and a step was seen to take ten
times as long. An `OMP_WAIT_POLICY` from outside is left as it is.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
