"""Properties of the classes of kvpress 0.5.5; unknown classes get the defaults."""

from __future__ import annotations

import dataclasses

from kvbench.press.expression import Expression, PressError

DECODES = "it compresses while the model decodes; caches hold a prompt's end (protocol prefill)"
MOVES = ("it moves the kept keys to new positions, and the queries with them; the protocol's queries "
         "and windows stay at theirs")
ABSTRACT = "it is an abstract base class"


@dataclasses.dataclass(frozen=True)
class Known:
    """One class.

    refused    why it is never run; "" if it is
    downloads  what it loads from the network; "" for nothing
    scores     queries that it sees: "past" or "none", as in docs/trace_format.md
    eager      whether it needs attention weights, which only eager attention returns
    tokenizer  whether it needs the model's tokenizer
    """

    refused: str = ""
    downloads: str = ""
    scores: str = "past"
    eager: bool = False
    tokenizer: bool = False


CLASSES: dict[str, Known] = {
    **dict.fromkeys(("AdaKVPress", "BlockPress", "CapPress", "ChunkKVPress", "ChunkPress", "CompactorPress",
                     "ComposedPress", "CriticalAdaKVPress", "CriticalKVPress", "DMSPress", "EntropyGatedChunkKVPress",
                     "ExpectedAttentionPress", "KVComposePress", "MergingPress", "NonCausalAttnPress",
                     "PerLayerCompressionPress", "PrefillDecodingPress", "PyramidKVPress", "SimLayerKVPress",
                     "SnapKVPress", "TOVAPress", "ThinKPress"), Known()),
    **dict.fromkeys(("CURPress", "KeyDiffPress", "KnormPress", "LagKVPress", "LeverageScorePress", "RandomPress",
                     "StreamingLLMPress"), Known(scores="none")),
    **dict.fromkeys(("KVgradPress", "KVzipPress"), Known(tokenizer=True)),
    **dict.fromkeys(("BasePress", "ScorerPress"), Known(refused=ABSTRACT)),
    **dict.fromkeys(("CAMPress", "CompressionRatioDecodingPress", "DecodingPress"), Known(refused=DECODES)),
    "DuoAttentionPress": Known(downloads="attention patterns, or texts to score heads with"),
    "ExpectedAttentionStatsPress": Known(downloads="statistics of queries (or stats_folder=...)"),
    "FastKVzipPress": Known(downloads="trained gates"),
    "FinchPress": Known(refused="it needs a delimiter token before the question, and re-rotates keys: "
                                + MOVES),
    "KVzapPress": Known(downloads="a trained scorer"),
    "KeyRerotationPress": Known(refused=MOVES),
    "LUKVPress": Known(downloads="a budget curve"),
    "ObservedAttentionPress": Known(eager=True),
    "QFilterPress": Known(downloads="trained filters", scores="none"),
    "RestoreKVPress": Known(downloads="trained restore tokens and an adapter", tokenizer=True),
}
# Wrappers see no queries themselves; the inner press may.
WRAPPERS = ("AdaKVPress", "BlockPress", "ChunkPress", "ChunkKVPress", "ComposedPress",
            "CriticalKVPress", "CriticalAdaKVPress", "DMSPress", "EntropyGatedChunkKVPress",
            "MergingPress", "PerLayerCompressionPress", "PrefillDecodingPress")


def known(name: str) -> Known:
    return CLASSES.get(name, Known())


def check(expression: Expression) -> None:
    """Raises PressError if a press of the expression is never run."""
    for one in expression.tree():
        reason = known(one.name).refused
        if one.name == "PrefillDecodingPress" and one.named.get("decoding_press") is not None:
            reason = f"its decoding_press: {DECODES}"
        if one.name == "DMSPress" and one.named.get("decoding"):
            reason = f"decoding=True: {DECODES}"
        if reason:
            raise PressError(f"--press: {expression}: {one.name} is not run: {reason}")


def scores_of(expression: Expression) -> str:
    """Returns "past" if a press of the expression sees queries, otherwise "none"."""
    own = [known(one.name).scores for one in expression.tree() if one.name not in WRAPPERS]
    return "past" if "past" in own or not own else "none"
