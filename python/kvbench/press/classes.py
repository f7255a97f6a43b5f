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


_NONE = Known(scores="none")
CLASSES: dict[str, Known] = {
    "AdaKVPress": Known(),
    "BasePress": Known(refused=ABSTRACT),
    "BlockPress": Known(),
    "CAMPress": Known(refused=DECODES),
    "CURPress": _NONE,
    "CapPress": Known(),
    "ChunkKVPress": Known(),
    "ChunkPress": Known(),
    "CompactorPress": Known(),
    "ComposedPress": Known(),
    "CompressionRatioDecodingPress": Known(refused=DECODES),
    "CriticalAdaKVPress": Known(),
    "CriticalKVPress": Known(),
    "DMSPress": Known(),
    "DecodingPress": Known(refused=DECODES),
    "DuoAttentionPress": Known(downloads="attention patterns, or texts to score heads with"),
    "EntropyGatedChunkKVPress": Known(),
    "ExpectedAttentionPress": Known(),
    "ExpectedAttentionStatsPress": Known(downloads="statistics of queries (or stats_folder=...)"),
    "FastKVzipPress": Known(downloads="trained gates"),
    "FinchPress": Known(refused="it needs a delimiter token before the question, and re-rotates keys: "
                                + MOVES),
    "KVComposePress": Known(),
    "KVgradPress": Known(tokenizer=True),
    "KVzapPress": Known(downloads="a trained scorer"),
    "KVzipPress": Known(tokenizer=True),
    "KeyDiffPress": _NONE,
    "KeyRerotationPress": Known(refused=MOVES),
    "KnormPress": _NONE,
    "LUKVPress": Known(downloads="a budget curve"),
    "LagKVPress": _NONE,
    "LeverageScorePress": _NONE,
    "MergingPress": Known(),
    "NonCausalAttnPress": Known(),
    "ObservedAttentionPress": Known(eager=True),
    "PerLayerCompressionPress": Known(),
    "PrefillDecodingPress": Known(),
    "PyramidKVPress": Known(),
    "QFilterPress": Known(downloads="trained filters", scores="none"),
    "RandomPress": _NONE,
    "RestoreKVPress": Known(downloads="trained restore tokens and an adapter", tokenizer=True),
    "ScorerPress": Known(refused=ABSTRACT),
    "SimLayerKVPress": Known(),
    "SnapKVPress": Known(),
    "StreamingLLMPress": _NONE,
    "TOVAPress": Known(),
    "ThinKPress": Known(),
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
