"""Colour and marker of every method. Imports nothing, since the results site reads it too.

Families differ in hue, their methods in lightness and marker. Any two colours are at least 12 apart
in CIELAB for common vision, protanopia and deuteranopia, those of one marker at least 40
(tests/test_palette.py, which also requires a look for every method of `kvbench list`). Methods of
the retrieval protocol are in other pictures than most: their colours are apart from each other's and
from those of BESIDE_RETRIEVAL.
"""

FAMILIES = {
    "reference": {"exact": ("#000000", "o")},
    "oracle": {"oracle": ("#453E43", "s"), "oracle-matching": ("#ABA3A0", "X")},
    "position": {"uniform": ("#876640", "o"), "local": ("#635B59", ">"),
                 "random-local": ("#6D5843", "p"), "streamingllm": ("#C99281", "*")},
    "attention": {"h2o": ("#0042A8", "X"), "snapkv": ("#3C9AFB", "o"), "chunkkv": ("#042BD9", "P"),
                  "pyramidkv": ("#60A7D1", "p"), "adakv": ("#4E93D3", "v"),
                  "tova": ("#3D4776", "P"), "rkv": ("#2E2C6A", ">"),
                  "expected-attention": ("#3382FB", "D"), "criticalkv": ("#4BBDFD", "*"),
                  "kvzip": ("#0F17FC", "<"), "duoattention": ("#0272B0", "d"),
                  "simlayerkv": ("#2F55FD", "v")},
    "keys": {"knorm": ("#98CA5C", "s"), "keydiff": ("#ABC984", "D"), "lagkv": ("#59A252", "v"),
             "q-filters": ("#2F5C1E", "D"), "leverage": ("#2F9761", "P"),
             "compactor": ("#163D00", "d"), "curdkv": ("#8FD3A7", "^")},
    "other programs": {"external-scores": ("#A80020", "X")},
    "merging": {"cam": ("#522B52", "*"), "d2o": ("#9749D2", "s"), "count-merge": ("#540082", "^"),
                "value-merge": ("#AB0290", "<"), "attention-matching": ("#8C5882", "D"),
                "wildcat": ("#B4A6BD", "o")},
    "clustering": {"bumblebee": ("#EC962A", "X"), "clustergen": ("#F4B20A", "d"),
                   "clustergen-kcenter": ("#B87B04", "p"), "kmeans": ("#846700", "^")},
    "balancing": {"balancekv": ("#D56439", "<")},
    "sketch, quantization": {"kvreviver": ("#51D6E2", "s"), "quant-kivi": ("#4DD3F9", ">"),
                             "quant-rotated": ("#002531", "v"), "think": ("#4E8A7D", "d"),
                             "lowrank": ("#548EA8", "^")},
    "retrieval": {"topk": ("#00A54B", "<"), "topp": ("#F087D2", "*"), "quest": ("#691EF0", "^"),
                  "double-sparsity": ("#2D2D5A", "P"), "pq": ("#4B4B1E", "p"),
                  "magicpig": ("#0FE14B", "v"), "static": ("#964BA5", "d")},
}
BESIDE_RETRIEVAL = ("exact", "oracle", "oracle-matching", "h2o", "snapkv", "expected-attention",
                    "attention-matching", "quant-kivi", "local")
KNOWN = {name: look for family in FAMILIES.values() for name, look in family.items()}
STREAM = "-stream"  # a stream form shares colour and marker


def first_part(name):
    """Returns the method A of A+B and A@Q."""
    return name.partition("+")[0].partition("@")[0]
