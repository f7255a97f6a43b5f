"""The reference study: it makes, scores and describes studies/reference/results with kvbench.

`kvbench-study PROGRAM ...` (programs.py). It works in a checkout of kvbench: paths in its plans start at
ROOT.
"""

import os

# The study's folder, and the root of the checkout.
STUDY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(os.path.dirname(STUDY))
