"""The colour and marker of every method. Nothing is imported: the results site reads it as well.

Families differ in hue, the methods of one in lightness and marker. Any two colours are at least 12
apart in CIELAB for common vision, protanopia and deuteranopia, those of one marker at least 40.
"""

FAMILIES = {
    "reference": {"exact": ("#000000", "o")},
    "oracle": {"oracle": ("#4B4549", "s"), "oracle-matching": ("#939299", "X")},
    "position": {"uniform": ("#7A5C39", "o"), "local": ("#6B6156", ">"),
                 "random-local": ("#5A422E", "p"), "streamingllm": ("#CC968A", "*")},
    "attention": {"h2o": ("#0244A8", "X"), "snapkv": ("#52A3FF", "o"),
                  "pyramidkv": ("#5F9BBC", "p"), "adakv": ("#5494D1", "v"),
                  "tova": ("#4A4F7C", "P"), "expected-attention": ("#3A86FF", "D"),
                  "criticalkv": ("#54C0FE", "*"), "duoattention": ("#2375A9", "d")},
    "keys": {"knorm": ("#98CA5C", "s"), "keydiff": ("#A7C580", "D"), "lagkv": ("#59A252", "v"),
             "leverage": ("#2E9968", "P"), "compactor": ("#294B00", "d"),
             "curdkv": ("#79CBAE", "^")},
    "merging": {"cam": ("#532D56", "*"), "d2o": ("#9B4AD2", "s"), "count-merge": ("#67017D", "^"),
                "value-merge": ("#BB0E92", "<"), "attention-matching": ("#935879", "D")},
    "clustering": {"bumblebee": ("#E69227", "X"), "clustergen": ("#F2B006", "d"),
                   "clustergen-kcenter": ("#B47801", "p"), "kmeans": ("#7A6006", "^")},
    "balancing": {"balancekv": ("#D3613B", "<")},
    "sketch, quantization": {"kvreviver": ("#5ECCCB", "s"), "quant-kivi": ("#54CAE7", ">"),
                             "quant-rotated": ("#002936", "v")},
}
KNOWN = {name: look for family in FAMILIES.values() for name, look in family.items()}
STREAM = "-stream"  # a method's form for streams has its colour and marker


def first_part(name):
    """The method A of a composition A+B and of A@Q, which keeps A's tokens in fewer bits."""
    return name.partition("+")[0].partition("@")[0]
