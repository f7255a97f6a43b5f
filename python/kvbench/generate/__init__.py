"""Generation over compressed caches (docs/generation.md).

chosen.py     one method, or a policy, with its setting: checked, and replayed on a trace
functions.py  kvbench.compress, kvbench.load_cache
cache.py      a transformers cache that holds compressed caches, and the attention that sees it
"""
