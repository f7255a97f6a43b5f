"""Verdicts on the papers' claims from tables of replay and cluster: kvbench-study claims."""
