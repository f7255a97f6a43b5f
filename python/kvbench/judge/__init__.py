"""Replays methods and scores them with the model in one run: kvbench-py judge."""

import os

# Set before torch is loaded: spinning threads would take the replay's cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
