"""Verdicts on the papers' claims from tables of replay and cluster: kvbench-py claims."""
