"""Names and positions of a layer's extra queries and scores (docs/trace_format.md).

A set of extra queries follows the prompt: a repetition of it (KVzip), a second question. Its
segments have their own keys. Scores come from other programs.
"""

import re

NAME = re.compile("[A-Za-z0-9._-]{1,100}")
MAX_POSITION = 2**31 - 1
