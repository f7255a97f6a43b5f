"""Other people's dumps as traces: kvbench-py convert."""
