"""Claims of the papers, judged by tables of replay and cluster: scripts/paper_claims.py."""
