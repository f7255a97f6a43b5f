"""All methods by the model's own predictions, in one run: kvbench-py judge."""

import os

# Before torch is loaded: threads that wait in a loop would take the replay's cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
