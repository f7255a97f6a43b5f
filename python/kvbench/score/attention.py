"""Attention over compressed caches in a running model, for kvbench-py score.

A layer in the caches attends, per KV head, to the exact sinks, the entries with their log weight as
a bias, the exact recent tokens of the prefix, and the new tokens, causally, and within the layer's
sliding window if it has one. Other layers attend as the model does. Softmax and sums are float32.
"""

import dataclasses
import functools

import torch

from kvbench.dump.capture import Capture
from kvbench.dump.check import CHECK_LIMIT
from kvbench.trace.writer import TraceError

CHECK_ROWS = 16  # queries per layer compared with the model's attention
LOGITS = 1 << 25  # logits in memory at a time
GROWTH = 256  # tokens by which caches grow


@dataclasses.dataclass
class Bucket:
    """KV heads of one layer with caches of equal size.

    heads   indices [h] of the layer's KV heads
    k, v    [h, N + capacity, d], [h, N + capacity, dv]: sinks, entries, recent tokens; then the new tokens
    size    N
    bias    [h, 1, N], log of the weights; None if all weights are 1
    k_den, bias_den   [h, B2, d], [h, 1, B2]: separate entries of the denominator
    entries           [begin, end) of the numerator's entries within N
    position          int64 [h, N + capacity], in the prompt; None: the layer's queries see all tokens
    """

    heads: list
    k: torch.Tensor
    v: torch.Tensor
    size: int
    bias: torch.Tensor | None
    k_den: torch.Tensor | None
    bias_den: torch.Tensor | None
    entries: tuple
    position: torch.Tensor | None

    def grow(self, rows):
        """Makes room for `rows` tokens, and more."""
        missing = rows - self.k.shape[1]
        if missing > 0:
            more = max(missing, GROWTH)
            self.k, self.v = (torch.nn.functional.pad(one, (0, 0, 0, more)) for one in (self.k, self.v))
            if self.position is not None:
                later_ones = torch.arange(1, more + 1, device=self.position.device)
                self.position = torch.cat([self.position, self.position[:, -1:] + later_ones], 1)


@functools.lru_cache(maxsize=4)
def later(rows, device):
    """Returns bool [rows, rows]: the later tokens of each."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).triu(1)


def attend(q, k, v, rows, bias=None, k_den=None, bias_den=None, entries=None, hidden=None):
    """Returns attention [h, group * rows, dv] of queries over weighted tokens, float32.

    q      [h, group * rows, d], scaled: `rows` queries of each query head of a group
    k, v   [h, N, d], [h, N, dv]: the last `rows` of the N tokens are the queries' own, causal
    bias   [h, 1, n] on the first n tokens; k_den, bias_den, entries: see Bucket
    hidden [h, rows, N]: tokens that a query does not see; k_den are then the keys of `entries`
    """
    logits = torch.bmm(q, k.transpose(1, 2))
    if bias is not None:
        logits[..., :bias.shape[-1]] += bias
    if hidden is not None:
        logits.unflatten(1, (-1, rows)).masked_fill_(hidden[:, None], -torch.inf)
    if rows > 1:
        logits[..., -rows:].unflatten(1, (-1, rows)).masked_fill_(later(rows, q.device), -torch.inf)
    if k_den is None:
        return torch.bmm(logits.softmax(-1), v)
    below = torch.bmm(q, k_den.transpose(1, 2)) + bias_den
    begin, end = entries
    if hidden is not None:
        below.unflatten(1, (-1, rows)).masked_fill_(hidden[:, None, :, begin:end], -torch.inf)
    # One shift for numerator and denominator.
    shift = logits.amax(-1, keepdim=True)
    if below.shape[-1]:
        shift = torch.maximum(shift, below.amax(-1, keepdim=True))
    weights, below = (logits - shift).exp(), (below - shift).exp()
    total = (weights[..., :begin].sum(-1) + weights[..., end:].sum(-1) + below.sum(-1))
    return torch.bmm(weights, v) / total[..., None]


class OverCaches:
    """Attention over compressed caches of a prompt, in place of its tokens.

    prefix        tokens that the model has read; the caches' windows are those of a prompt of n >= prefix tokens
    sink, recent  the caches' windows
    caches        per decoded cache: {layer: [Bucket]}; all have the same layers
    exact         layer -> (k [Hkv, m, d], v [Hkv, m, dv]) of the last m tokens: n, or what a window leaves
    windows       layer -> tokens that a query sees, in layers where it does not see all
    """

    def __init__(self, n=0, prefix=0, sink=0, recent=0):
        self.n, self.prefix, self.sink, self.recent = n, prefix, sink, recent
        self.caches, self.exact, self.windows = [], {}, {}

    @staticmethod
    def hidden(position, own, window):
        """Returns bool [h, rows, N]: tokens at `position` [h, N] before the window of a query at `own` [rows]."""
        return position[:, None] <= own[None, :, None] - window

    def middle(self, layer):
        """Returns the range of positions that caches of a layer stand for."""
        sink = min(self.sink, self.prefix)
        if layer in self.windows:
            sink = max(sink, self.prefix - self.windows[layer] + 1)
        return range(sink, max(self.n - self.recent, sink))

    def over_caches(self, layer, query, key, value, scale):
        """Returns [batch, rows, Hq, dv]: attention of the last rows over a layer of `caches`, one for each of the
        batch.

        query [batch, Hq, rows, d]; key, value: of the new tokens, as in NewTokens
        """
        rows, group = query.shape[2], query.shape[1] // key.shape[1]
        out = torch.empty(len(query), query.shape[1], rows, value.shape[3], device=query.device)
        for i, caches in enumerate(self.caches):
            q = query[i].float().unflatten(0, (-1, group)).flatten(1, 2) * scale
            self.over_cache(caches[layer], self.windows.get(layer), q, key[i], value[i], rows,
                            out[i].view(-1, group * rows, value.shape[3]))
        return out.transpose(1, 2).to(query.dtype).contiguous()

    def over_cache(self, buckets, window, q, key, value, rows, out):
        """Computes one cache's part of over_caches: q [Hkv, group * rows, d], out [Hkv, group * rows, dv]."""
        own_positions = torch.arange(self.prefix + key.shape[1] - rows, self.prefix + key.shape[1], device=q.device)
        for bucket in buckets:
            end = bucket.size + key.shape[1]
            bucket.grow(end)
            own = slice(end - rows, end)
            bucket.k[:, own] = key[bucket.heads, -rows:]
            bucket.v[:, own] = value[bucket.heads, -rows:]
            step = max(1, LOGITS // (q.shape[1] * end))
            for at in range(0, len(bucket.heads), step):
                part = slice(at, at + step)
                heads = bucket.heads[part]
                hidden = None
                if bucket.position is not None:
                    hidden = self.hidden(bucket.position[part, :end], own_positions, window)
                out[heads] = attend(
                    q[heads], bucket.k[part, :end], bucket.v[part, :end], rows,
                    *(None if t is None else t[part]
                      for t in (bucket.bias, bucket.k_den, bucket.bias_den)), bucket.entries, hidden)

    def buckets(self, layer, entries, capacity):
        """Returns [Bucket] of a layer. entries: {KV head: CacheEntry}, others are exact; capacity: most new tokens."""
        sizes = {}
        for head in range(len(self.exact[layer][0])):
            entry = entries.get(head)
            size = (len(self.middle(layer)), None) if entry is None else (
                len(entry.k), None if entry.k_den is None and entry.log_weight_den is None
                else len(entry.k if entry.k_den is None else entry.k_den))
            sizes.setdefault(size, []).append(head)
        return [self.bucket(layer, heads, entries, size, capacity) for size, heads in sizes.items()]

    def bucket(self, layer, heads, entries, size, capacity):
        """entries in layers with a window have their `token`."""
        (keys, values), middle, (count, count_den) = self.exact[layer], self.middle(layer), size
        # Tokens before `first` are hidden from all queries; keys and values begin at `begin`.
        first = max(0, self.prefix + 1 - self.windows[layer]) if layer in self.windows else 0
        begin = self.n - keys.shape[1]
        device, sink = keys.device, middle.start - first
        end, total = sink + count, sink + count + self.prefix - middle.stop

        def empty(*shape):
            return torch.empty(*shape, device=device)

        def tensor(array):
            return torch.from_numpy(array).to(device)

        def positions(start, stop):
            return torch.arange(start, stop, device=device)

        k = empty(len(heads), total + capacity, keys.shape[2])
        v = empty(len(heads), total + capacity, values.shape[2])
        bias = torch.zeros(len(heads), 1, total, device=device)
        k_den = bias_den = position = None
        if count_den is not None:
            k_den = empty(len(heads), count_den, keys.shape[2])
            bias_den = torch.zeros(len(heads), 1, count_den, device=device)
        if layer in self.windows:
            position = torch.empty(len(heads), total + capacity, dtype=torch.int64, device=device)
        for i, head in enumerate(heads):
            entry = entries.get(head)
            for to, own, name in ((k, keys, "k"), (v, values, "v")):
                to[i, :sink] = own[head, first - begin:middle.start - begin]
                to[i, sink:end] = (own[head, middle.start - begin:middle.stop - begin] if entry is None
                                   else tensor(getattr(entry, name)))
                to[i, end:total] = own[head, middle.stop - begin:self.prefix - begin]
            if position is not None:
                position[i, :sink] = positions(first, middle.start)
                position[i, sink:end] = (positions(middle.start, middle.stop) if entry is None else tensor(entry.token))
                position[i, end:] = positions(middle.stop, self.prefix + capacity)
            if entry is not None and entry.log_weight is not None:
                bias[i, 0, sink:end] = tensor(entry.log_weight)
            if count_den is not None:
                k_den[i] = tensor(entry.k if entry.k_den is None else entry.k_den)
                weight = entry.log_weight_den
                if weight is None and entry.k_den is None:
                    weight = entry.log_weight
                if weight is not None:
                    bias_den[i, 0] = tensor(weight)
        if not bool((bias != 0).any()):
            bias = None
        return Bucket(heads, k, v, total, bias, k_den, bias_den, (sink, end), position)


class CompressedAttention(OverCaches, Capture):
    """Attention function of the running model. mode:

    plain        the model's attention
    exact        the same; stores keys and values of `wanted_layers`, and checks that attention over an exact
                 cache is the model's
    continued    the same after the prompt's end: checks, stores nothing
    compressed   layers of `caches` attend to these
    """

    def __init__(self, args, model, dtype):
        OverCaches.__init__(self)
        Capture.__init__(self, args, model, dtype)
        self.mode, self.wanted_layers = "plain", set()

    @property
    def replaced(self):
        """Returns the layers that attend to `caches`."""
        return self.caches[0].keys() if self.caches else set()

    def __call__(self, module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
        mask = attention_mask  # some models pass it by this name
        layer = getattr(module, "layer_idx", None)
        scale = query.shape[-1]**-0.5 if scaling is None else float(scaling)
        if layer is None:
            raise TraceError(f"{self.args.model}: {type(module).__name__} does not say which layer it is: unsupported")
        self.seen.add(layer)
        if self.mode == "compressed" and layer in self.replaced:
            return self.over_caches(layer, query, key, value, scale), None
        output, weights = self.attend(module, query, key, value, mask, scaling, options)
        if self.mode in ("exact", "continued") and layer in self.wanted_layers:
            self.verify(layer, query, key, value, scale, output, self.bounds(module, query, key, mask, options))
            if self.mode == "exact":
                self.exact[layer] = key[0], value[0]
        return output, weights

    def verify(self, layer, query, key, value, scale, output, bounds):
        """Raises TraceError unless attention over caches can be that of a layer. Notes its window."""
        reason = bounds.reason
        if bounds.window is not None:
            self.windows[layer] = bounds.window
        if reason is None and bounds.sinks is not None:
            reason = "an attention sink (`s_aux`)"
        if reason is None and self.mode == "exact":
            reason = self.deviates(query, key, value, scale, output, bounds.window)
        if reason is not None:
            raise TraceError(f"{self.args.model}: layer {layer}: {reason}; got {self.start + query.shape[2]} "
                             "tokens, expected plain causal attention over all of them, or over a window, in "
                             "layers that caches replace")

    def deviates(self, query, key, value, scale, output, window):
        """Returns a reason if attention over an exact cache differs from the model's."""
        rows, heads = min(CHECK_ROWS, query.shape[2]), key.shape[1]
        q = query[0, :, -rows:].float().unflatten(0, (heads, -1)).flatten(1, 2) * scale
        own = output[0, -rows:].float()
        hidden = None
        if window is not None:
            at = torch.arange(key.shape[2], device=key.device)
            hidden = self.hidden(at.expand(heads, -1), at[-rows:], window)
        ours = attend(q, key[0].float(), value[0].float(), rows, hidden=hidden).unflatten(1, (-1, rows))
        ours = ours.flatten(0, 1).transpose(0, 1)
        deviation = float((ours - own).norm() / own.norm())
        limit = CHECK_LIMIT[str(query.dtype).removeprefix("torch.")]
        if deviation <= limit:
            return None
        return f"attention that deviates from exact attention by {deviation:.2g}, limit {limit:g}"
