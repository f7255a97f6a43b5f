"""Other people's dumps as traces: scripts/convert_traces.py."""
