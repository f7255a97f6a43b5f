"""How a press leaves the protocol's windows alone: sinks and recent tokens are exact in any case."""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any

import torch
from kvpress import (
    AdaKVPress,
    CompactorPress,
    CriticalAdaKVPress,
    MergingPress,
    PerLayerCompressionPress,
    PrefillDecodingPress,
    PyramidKVPress,
    ScorerPress,
)

MODES = ("kept", "as-is")
_SHARES_OVER_HEADS = (AdaKVPress, CriticalAdaKVPress)


@dataclasses.dataclass(frozen=True)
class Windows:
    """Where the middle lies in what a press is given.

    tokens  of the part of the prompt that is compressed: all before the evaluated queries
    sink    its first tokens that stay exact; recent: its last ones
    """

    tokens: int
    sink: int
    recent: int

    @property
    def first(self) -> int:
        return self.sink

    @property
    def end(self) -> int:
        return self.tokens - self.recent

    @property
    def middle(self) -> int:
        """Tokens between the windows."""
        return self.end - self.first

    def size(self, share: float) -> int:
        """How many tokens of the middle a share of it is."""
        return math.floor(share * self.middle + 1e-9)

    def ratio(self, size: int) -> float:
        """The compression ratio at which kvpress keeps the windows and `size` tokens more."""
        kept = self.tokens - self.middle + size
        # The half is for kvpress's int(): no rounding reaches the next number.
        return 0.0 if kept >= self.tokens else 1 - (kept + 0.5) / self.tokens


def share_of(ratio: float) -> float:
    """What a compression ratio leaves, 1 - ratio, without the noise of the difference."""
    return round(1 - ratio, 12)


def keep_windows(press: Any, windows: Windows) -> float | None:
    """Makes a press keep all of the windows, and of the middle what its compression ratio leaves.

    The scores of the windows' tokens become the highest, and the ratio is changed so that it is of the
    middle. Returns the budget, a fraction of the middle; None where this press has no scores that
    could be raised, or no ratio: it is then left as it is.
    """
    if isinstance(press, PrefillDecodingPress):
        inner = press.prefilling_press
        return None if inner is None else keep_windows(inner, windows)
    if isinstance(press, PerLayerCompressionPress):
        if type(press.press).compress is not ScorerPress.compress:
            return None
        shares = [share_of(ratio) for ratio in press.compression_ratios]
        press.compression_ratios = [windows.ratio(windows.size(share)) for share in shares]
        _raise_scores(press.press, windows, True)
        return share_of(1 - sum(shares) / len(shares))
    scorer = _scorer(press)
    if scorer is None:
        return None
    ratio = float(press.compression_ratio)
    share = share_of(ratio)
    if ratio == 0:
        return share
    if isinstance(scorer, CompactorPress) and scorer.blending is None:
        scorer.blending = ratio  # What it would take from the ratio, which changes.
    if isinstance(press, PyramidKVPress):
        press.get_layer_budget = _layer_budget(press, windows)
    else:
        press.compression_ratio = windows.ratio(windows.size(share))
    _raise_scores(scorer, windows, not isinstance(press, _SHARES_OVER_HEADS))
    return share


def _scorer(press: Any) -> Any:
    """The press whose scores choose what stays; None where scores alone do not."""
    if isinstance(press, ScorerPress):
        plain = type(press).compress in (ScorerPress.compress, PyramidKVPress.compress)
        return press if plain else None
    return press.press if type(press) in (*_SHARES_OVER_HEADS, MergingPress) else None


def _raise_scores(scorer: Any, windows: Windows, by_rank: bool) -> None:
    """Replaces `score` of one press. by_rank: only the order of a head's scores counts."""
    score = scorer.score

    def raised(*args: Any, **kwargs: Any) -> torch.Tensor:
        scores = score(*args, **kwargs)
        if by_rank:
            return ranks(scores, windows)
        top = torch.finfo(scores.dtype).max
        scores = scores.clone()
        scores[..., :windows.first] = top
        scores[..., windows.end:] = top
        return scores
    scorer.score = raised


def ranks(scores: torch.Tensor, windows: Windows) -> torch.Tensor:
    """Ranks [1, heads, tokens], float32, of scores of that shape: larger is better, windows are best.

    torch leaves the order of equal scores open. Here the newest of the highest score comes first, and
    of any other score the lowest position, as in kvbench's methods.
    """
    out = torch.full(scores.shape, float(windows.middle + 1), dtype=torch.float32,
                     device=scores.device)
    falling = torch.arange(windows.middle, 0, -1, dtype=torch.float32, device=scores.device)
    for head, own in enumerate(scores[0, :, windows.first:windows.end]):
        order = torch.argsort(own, descending=True, stable=True)
        top = int((own == own.max()).sum())
        order[:top] = order[:top].flip(0)
        out[0, head, windows.first + order] = falling
    return out


def _layer_budget(press: Any, windows: Windows) -> Any:
    """PyramidKV's formula for the middle alone; no more in all than equal layers would have."""
    formula, total = press.get_layer_budget, windows.size(share_of(press.compression_ratio))

    def budget(module: Any, _: int) -> int:
        layers = module.config.num_hidden_layers
        sizes = [min(windows.middle, formula(types.SimpleNamespace(config=module.config, layer_idx=at),
                                             windows.middle)) for at in range(layers)]
        over = sum(sizes) - layers * total
        for step in range(max(over, 0)):  # What its roundings are too many.
            sizes[step % layers] -= 1
        return windows.tokens - windows.middle + sizes[module.layer_idx]
    return budget
