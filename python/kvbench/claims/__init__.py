"""Claims of the papers, judged by tables of replay and cluster: kvbench-py claims."""
