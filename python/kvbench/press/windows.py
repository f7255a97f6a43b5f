"""Keeps the protocol's windows out of a press: sinks and recent tokens are exact anyway."""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any

import kvpress
import torch

_SHARES_OVER_HEADS = (kvpress.AdaKVPress, kvpress.CriticalAdaKVPress)


@dataclasses.dataclass(frozen=True)
class Windows:
    """The middle within the tokens given to a press.

    tokens  of the compressed part of the prompt: all before the evaluated queries
    sink    its first exact tokens; recent: its last ones
    """

    tokens: int
    sink: int
    recent: int

    @property
    def end(self) -> int:
        return self.tokens - self.recent

    @property
    def middle(self) -> int:
        return self.end - self.sink

    def size(self, share: float) -> int:
        """Returns the number of tokens for a share of the middle."""
        return math.floor(share * self.middle + 1e-9)

    def ratio(self, size: int) -> float:
        """Returns the compression ratio at which kvpress keeps the windows and `size` tokens more."""
        kept = self.tokens - self.middle + size
        # The half keeps kvpress's int() from rounding down.
        return 0.0 if kept >= self.tokens else 1 - (kept + 0.5) / self.tokens


def share_of(ratio: float) -> float:
    """Returns 1 - ratio, without rounding noise."""
    return round(1 - ratio, 12)


def keep_windows(press: Any, windows: Windows) -> float | None:
    """Makes a press keep the windows, and of the middle what its compression ratio leaves.

    Raises the scores of the windows' tokens above all others, and converts the ratio. Returns the budget, a fraction
    of the middle; None if this press has no such scores, or no ratio: it is then unchanged.
    """
    if isinstance(press, kvpress.PrefillDecodingPress):
        inner = press.prefilling_press
        return None if inner is None else keep_windows(inner, windows)
    if isinstance(press, kvpress.PerLayerCompressionPress):
        if type(press.press).compress is not kvpress.ScorerPress.compress:
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
    if isinstance(scorer, kvpress.CompactorPress) and scorer.blending is None:
        scorer.blending = ratio  # what it would take from the changed ratio
    if isinstance(press, kvpress.PyramidKVPress):
        press.get_layer_budget = _layer_budget(press, windows)
    else:
        press.compression_ratio = windows.ratio(windows.size(share))
    _raise_scores(scorer, windows, not isinstance(press, _SHARES_OVER_HEADS))
    return share


def _scorer(press: Any) -> Any:
    """Returns the press whose scores alone choose what is kept, or None."""
    if isinstance(press, kvpress.ScorerPress):
        plain = type(press).compress in (kvpress.ScorerPress.compress, kvpress.PyramidKVPress.compress)
        return press if plain else None
    return press.press if type(press) in (*_SHARES_OVER_HEADS, kvpress.MergingPress) else None


def _raise_scores(scorer: Any, windows: Windows, by_rank: bool) -> None:
    """Replaces `score` of one press. by_rank: only the order of a head's scores counts."""
    score = scorer.score

    def raised(*args: Any, **kwargs: Any) -> torch.Tensor:
        scores = score(*args, **kwargs)
        if by_rank:
            return ranks(scores, windows)
        top = torch.finfo(scores.dtype).max
        scores = scores.clone()
        scores[..., :windows.sink] = top
        scores[..., windows.end:] = top
        return scores
    scorer.score = raised


def ranks(scores: torch.Tensor, windows: Windows) -> torch.Tensor:
    """Returns ranks [1, heads, tokens], float32, of scores: larger is better, windows are best.

    torch does not order equal scores. Here the newest of the highest score comes first, and the
    lowest position of any other score, as in kvbench's methods.
    """
    out = torch.full(scores.shape, float(windows.middle + 1), dtype=torch.float32, device=scores.device)
    falling = torch.arange(windows.middle, 0, -1, dtype=torch.float32, device=scores.device)
    for head, own in enumerate(scores[0, :, windows.sink:windows.end]):
        order = torch.argsort(own, descending=True, stable=True)
        top = int((own == own.max()).sum())
        order[:top] = order[:top].flip(0)
        out[0, head, windows.sink + order] = falling
    return out


def _layer_budget(press: Any, windows: Windows) -> Any:
    """PyramidKV's formula for the middle, with at most the total of equal layers."""
    formula, total = press.get_layer_budget, windows.size(share_of(press.compression_ratio))

    def budget(module: Any, _: int) -> int:
        layers = module.config.num_hidden_layers
        sizes = [min(windows.middle, formula(types.SimpleNamespace(config=module.config, layer_idx=at),
                                             windows.middle)) for at in range(layers)]
        over = sum(sizes) - layers * total
        for step in range(max(over, 0)):  # what its rounding adds
            sizes[step % layers] -= 1
        return windows.tokens - windows.middle + sizes[module.layer_idx]
    return budget
