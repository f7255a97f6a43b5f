"""Public code of retrieval methods against kvbench on equal inputs: what each query reads.

kvbench prints no selection. The peer's own functions get the trace's keys and the evaluated queries; attention in
float64 over sinks, recent tokens and what the peer selected has to give kvbench's error of each query, its `mass_kept`
and its `read_bytes`. So equal sets are seen as equal errors; that one token less would be seen is checked too.

Peers, and where they differ from kvbench (nothing of them is kept here):

- mit-han-lab/Quest 01c1623, evaluation/quest_attention.py, its `forward` for one new token. Its cache is the middle: in
  use its pages begin at token 0 and hold sinks and recent tokens too. It never reads fewer than 3 pages, whatever the
  budget; the first two layers read all. A short last page counts and is read as here.
- skylight-org/sparse-attention-hub f5abf91 (its predecessor xAlg-ai/sparse-attention-hub 1a048c9 has no PQ, the others
  are equal). Sinks and recent tokens are what its masks already have, so no candidates.
  double-sparsity: channels come from a file, made offline of mean |q_c k_c| of each token with itself, for each query
  head; here from the prompt, mean |q_c| times mean |k_c|, for the KV head. The query is quantised as keys are, and no
  scale is float16: its quantiser is replaced.
  pq: k-means starts at random tokens and fills empty clusters with random ones; its codes are of the centroids before
  their last update; centroids are not rounded; recent tokens are clustered too. It gets kvbench's starts, no recent
  tokens, and its centroids, rounded to the trace's type, to code all keys anew, as it codes new keys. Tokens of one
  code tie: kvbench's rule, the first, is applied to its scores.
  topk, topp: no differences.
  vattention: its base sample is kvbench's draws, and their number of final draws is compared. Its inverse
  probabilities have 1e-6 added, which is left out here; a token drawn twice counts once, so queries whose base sample
  has one are not compared. What is read then is kvbench's own draws, with every draw's weight.
- NVlabs/RocketKV 63637c8, gpt-fast/rocket.py, its second stage with all of the middle, in whole pages (the code leaves
  which tokens of a page are cut to the sort), and its sizes, whose channels it rounds to nearest.
- Infini-AI-Lab/MagicPIG ac9aa36, evaluations/RULER/pred/cache_ref.py, the authors' reference. Layers 0, 16, 32 and 48
  read all; 1e-4 is added to the probabilities, which are float32: sets are compared.

Run by a python that has torch and transformers, as that of `make test-dump`; elsewhere it is skipped, aloud.
Environment: KVBENCH, the program; KVBENCH_QUEST, KVBENCH_SPARSE_HUB, KVBENCH_ROCKETKV, KVBENCH_MAGICPIG, folders of
checkouts of the four; a test whose own is not named is skipped.
"""

import json
import os
import statistics
import sys
import types
import unittest
from unittest import mock

from peer_reads import GROUP, HEADS, KV_HEADS, MISSING, QUERIES, TOKENS, WIDTH, Hub, Problem, load_file, quantise, top
from script_case import FolderCase, read_rows

if not MISSING:
    import numpy as np
    import torch
    from philox import Stream, directions, first_centroids


# Sink and recent tokens. The middle: 468 tokens, no whole number of pages of 16 or 10; 432, 27 pages of 16.
WINDOWS = ((4, 40), (16, 64))

# Both sides sum in float64: some hundred terms of relative rounding 1e-16, and exponentials of logits of some tens.
ROUNDING = 1e-11
# kvbench's weights are float32, each off by 2^-24 of it; an output is a weighted mean of values about as large as it.
WEIGHT_ROUNDING = 1e-6


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
class RetrievalPeerTest(FolderCase):
    def peer(self, variable, *parts):
        """A folder or file of the checkout that the environment names."""
        if not os.environ.get(variable):
            self.skipTest(f"{variable} names no checkout")
        path = os.path.join(os.environ[variable], *parts)
        self.assertTrue(os.path.exists(path), path)
        return path

    def hub(self):
        return Hub(self.peer("KVBENCH_SPARSE_HUB"))

    def synth(self, *options):
        path = self.path("t.h5")
        self.done("synth", "-o", path, "--layers", "1", "--q-heads", str(HEADS), "--kv-heads", str(KV_HEADS),
                  "--n", str(TOKENS), "--nq", "64", "--d", str(WIDTH), "--dv", str(WIDTH), *options)
        return path

    def replay(self, trace, algorithm, window):
        """(rows of query heads, errors [HEADS, QUERIES])."""
        table = self.path("out.csv")
        self.done("replay", trace, "-o", table, "--overwrite", "--protocol", "retrieval",
                  "--algorithm", algorithm, "--sink", str(window[0]), "--recent", str(window[1]),
                  "--queries", str(QUERIES), "--precision", "float64", "--per-query", "all", "--threads", "1")
        rows = read_rows(table)
        self.assertEqual([(row["q_head"], row["status"]) for row in rows], [(str(h), "ok") for h in range(HEADS)])
        errors = np.full((HEADS, QUERIES), np.nan)
        for row in read_rows(self.path("out.queries.csv")):
            errors[int(row["q_head"]), int(row["offset"])] = float(row["rel_error"])
        return rows, errors

    def compare(self, trace, algorithm, window, weights, rounding=ROUNDING, beside=None):
        """kvbench's figures of `algorithm` are those of weights [HEADS, QUERIES, m] of the middle's tokens, and of
        `beside` bytes that a query reads beside them (default: the index)."""
        problem, where = Problem(trace, window), (algorithm, window)
        rows, errors = self.replay(trace, algorithm, window)
        off = np.abs(errors - problem.errors(weights))
        self.assertTrue((off <= rounding).all(), (*where, off.max()))
        read = (weights > 0).sum(2)
        for head, row in enumerate(rows):
            read_bytes = float(row["index_bytes"]) if beside is None else beside
            read_bytes += read[head].sum() * problem.pair_bytes / QUERIES
            self.assertTrue(abs(float(row["read_bytes"]) / read_bytes - 1) <= 1e-12, (*where, head))
            mass = problem.mass_kept(weights)[head]
            self.assertTrue(abs(float(row["mass_kept"]) - mass) <= ROUNDING, (*where, head))
        # Otherwise equal errors would say little. Some tokens weigh less than the rounding of float32 weights;
        # read_bytes and mass_kept, which no weight is in, are exact there too.
        self.assertTrue(0 < read.sum() < weights.size, where)
        seen = np.abs(errors - problem.errors(problem.lightest_left_out(weights)))[read > 0] > rounding
        self.assertTrue(seen.mean() >= (1 if rounding == ROUNDING else 0.95), (*where, seen.mean()))

    # -------------------------------------------------------------------------------------- quest

    def quest_reads(self, quest, problem, budget, page):
        """What quest's forward reads, [HEADS, QUERIES, m]: each query is a step with the middle as cache."""
        k, v = (torch.from_numpy(x[:, problem.sink:problem.end]).float()[None] for x in (problem.k, problem.v))
        masks = []
        select = quest.local_heavy_hitter_mask

        def watched(*arguments):
            masks.append(select(*arguments))
            return masks[-1]

        out = np.zeros((HEADS, QUERIES, k.shape[2]))
        for j in range(QUERIES):
            query = torch.from_numpy(problem.q[:, j]).float()
            layer = types.SimpleNamespace(
                layer_id=2, num_heads=HEADS, num_key_value_heads=KV_HEADS, num_key_value_groups=GROUP, head_dim=WIDTH,
                hidden_size=HEADS * WIDTH, chunk_size=page, token_budget=budget,
                q_proj=lambda _: query.reshape(1, 1, -1), k_proj=lambda _: k[:, :, -1].reshape(1, 1, -1),
                v_proj=lambda _: v[:, :, -1].reshape(1, 1, -1), o_proj=lambda x: x,
                rotary_emb=lambda *_: (None, None))
            with mock.patch.object(quest, "local_heavy_hitter_mask", watched), \
                    mock.patch.object(quest, "apply_rotary_pos_emb", lambda q, k, *_: (q, k)), torch.inference_mode():
                quest.forward(layer, torch.zeros(1, 1, 1), position_ids=torch.tensor([[k.shape[2] - 1]]),
                              past_key_value=(k[:, :, :-1], v[:, :, :-1]))
            out[:, j] = masks[-1][0, :, 0].numpy()
        return out

    def test_quest_reads_what_its_authors_code_reads(self):
        quest = load_file("quest_attention", self.peer("KVBENCH_QUEST", "evaluation", "quest_attention.py"))
        trace = self.synth("--seed", "3")
        for window in WINDOWS:
            problem = Problem(trace, window)
            for page in (16, 10):
                for pages in (3, 8, 20):
                    # What is no whole page of a budget is not used.
                    reads = self.quest_reads(quest, problem, pages * page + page - 1, page)
                    self.compare(trace, f"quest:pages={pages};page={page}", window, reads)

    # --------------------------------------------------------------------------------- topk, topp

    def test_topk_and_topp_read_what_the_hubs_oracles_read(self):
        hub, trace = self.hub(), self.synth("--seed", "5", "--dtype", "float32")
        topk, topp = (hub.masker(f"fixed.implementations.oracle_top_{x}") for x in "kp")
        for window in WINDOWS:
            problem = Problem(trace, window)
            keys = problem.k[:, :problem.end]
            for tokens in (5, 100):
                masker = topk.OracleTopK(topk.OracleTopKConfig(heavy_size=tokens))
                self.compare(trace, f"topk:tokens={tokens}", window, hub.select(masker, problem.q, keys, problem.sink))
            for p in (0.5, 0.9):
                masker = topp.OracleTopPMasker(topp.OracleTopPMaskerConfig(top_p=p))
                self.compare(trace, f"topp:p={p}", window, hub.select(masker, problem.q, keys, problem.sink))

    # ---------------------------------------------------------------------------- double-sparsity

    def double_sparsity_reads(self, hub, problem, channels, tokens, bits):
        module = hub.masker("fixed.implementations.double_sparsity_top_k")
        size = np.abs(problem.past).mean(1).reshape(KV_HEADS, GROUP, -1).mean(1) * np.abs(problem.middle).mean(1)
        order = np.repeat(np.argsort(-size, axis=1, kind="stable"), GROUP, 0)
        file = self.write_file("channels.json", json.dumps({"model.layers.0.self_attn.qk_proj": order.tolist()}))
        config = module.DoubleSparsityTopKMaskerConfig(
            heavy_size=tokens, sorted_channel_file=file, group_factor=WIDTH // channels, label_bits=bits)
        masker = module.DoubleSparsityTopKMasker(config)
        return hub.select(masker, problem.q, problem.k[:, :problem.end], problem.sink)

    def test_double_sparsity_reads_what_the_hubs_reads(self):
        hub, trace = self.hub(), self.synth("--seed", "6")
        module = hub.masker("fixed.implementations.double_sparsity_top_k")
        for window in WINDOWS:
            problem = Problem(trace, window)
            for channels, bits in ((16, 4), (8, 2), (4, 8)):
                def ours(x, asked):
                    self.assertEqual(asked, bits)
                    return x if x.shape[2] == QUERIES else torch.from_numpy(quantise(x.numpy(), bits))
                with mock.patch.object(module, "pseudo_quantize", ours):
                    reads = self.double_sparsity_reads(hub, problem, channels, 60, bits)
                self.compare(trace, f"double-sparsity:tokens=60;channels={channels};bits={bits}", window, reads)

    # ----------------------------------------------------------------------------------------- pq

    def pq_scores(self, hub, problem, dtype, parts, rounds):
        """The hub's scores [HEADS, QUERIES, m], with kvbench's starts."""
        module = hub.masker("fixed.implementations.pq_top_k")
        utils = hub.masker("fixed.implementations.utils.pq_utils")
        masker = module.PQCache(module.PQCacheConfig(
            heavy_size=1, pq_group_factor=parts, pq_bits=6, kmeans_iter=rounds, init_offset=problem.sink,
            metric="euclidean"))

        def starts(x, count, seed=None):
            rows = x.double().numpy().reshape(KV_HEADS, parts, *x.shape[1:])
            out = []
            for head, of_head in enumerate(rows):
                stream = Stream.of("pq", "centroids", head)
                out += [first_centroids(part, count, stream) for part in of_head]
            return torch.from_numpy(np.array(out)).to(x.dtype)
        # No cluster gets empty, where the hub would draw a token.
        data, scores = {}, []
        with mock.patch.object(utils, "initialize_batched", starts), \
                mock.patch.object(torch, "randint", side_effect=AssertionError("an empty cluster")):
            keys = problem.k[:, :problem.end]
            hub.select(masker, problem.q, keys, problem.sink, data)
            data["pq_centroids"][0] = data["pq_centroids"][0].to(getattr(torch, dtype)).double()
            data["pq_codebook"][0] = None
            compute = masker._compute_pq_scores
            masker._compute_pq_scores = lambda *arguments: scores.append(compute(*arguments)) or scores[-1]
            hub.select(masker, problem.q, keys, problem.sink, data)
        return scores[0][0].numpy()

    def test_pq_reads_what_the_hubs_reads(self):
        hub = self.hub()
        for dtype in ("float16", "float32"):
            trace = self.synth("--seed", "8", "--dtype", dtype)
            for window in WINDOWS:
                problem = Problem(trace, window)
                for parts, rounds in ((4, 1), (4, 20), (8, 20), (2, 4))[:4 if dtype == "float16" else 2]:
                    scores = self.pq_scores(hub, problem, dtype, parts, rounds)
                    for tokens in (10, 100):
                        self.compare(trace, f"pq:tokens={tokens};parts={parts};rounds={rounds}", window,
                                     top(scores, tokens))

    # --------------------------------------------------------------------------------- vattention

    def sample_sizes(self, hub, problem, j, base, epsilon, delta, drawn):
        """The hub's number of final draws of each head for query j, with base samples `drawn` [HEADS, base]."""
        module = hub.masker("sampling.implementations.adaptive_sampling")
        order = [*range(problem.sink), *range(problem.end, TOKENS - QUERIES + j + 1), *range(problem.sink, problem.end)]
        taken, sizes = len(order) - (problem.end - problem.sink), []

        def keep_sizes(budgets, sampling_probability, seq_len_keys, start_idx, end_idx, dtype):
            self.assertEqual((start_idx, end_idx), (taken, len(order)))
            sizes.append(budgets[0, :, 0, 0].numpy())
            dense = torch.zeros(1, HEADS, 1, seq_len_keys, dtype=dtype)
            dense[..., start_idx:] = sampling_probability
            return hub.mask.create_mask_from_dense_mask(dense.shape, dense, dtype)

        def inverse_sum(x, mask):
            p = mask.get_dense_mask()
            return torch.where(p > 0, x / p, 0).sum(-1, keepdim=True)
        normal = types.SimpleNamespace(ppf=statistics.NormalDist().inv_cdf)
        with mock.patch.object(module, "norm", normal), mock.patch.object(module, "apply_inv_mask_sum", inverse_sum), \
                mock.patch.object(module, "create_sampling_mask_with_per_head_budget", keep_sizes), \
                mock.patch.object(torch, "randint", lambda **_: torch.from_numpy(drawn)[None, :, None] + taken):
            masker = module.AdaptiveSamplingMasker(module.AdaptiveSamplingMaskerConfig(base, epsilon, delta, taken, 0))
            hub.select(masker, problem.q[:, j:j + 1], problem.k[:, order], taken)
        return sizes[0]

    def test_vattention_draws_as_many_as_the_hubs(self):
        hub, trace = self.hub(), self.synth("--seed", "12", "--dtype", "float32")
        for window in WINDOWS:
            problem = Problem(trace, window)
            m = problem.middle.shape[1]
            for base, epsilon, delta in ((20, 0.1, 0.1), (20, 0.05, 0.1), (9, 0.1, 0.05), (4, 0.02, 0.4)):
                draws = np.array([[[Stream.of("vattention", f"draws {head % GROUP} {j}", head // GROUP).below_all(
                    m, base + m)] for j in range(QUERIES)] for head in range(HEADS)])[:, :, 0]
                weights = np.zeros((HEADS, QUERIES, m))
                sizes = np.zeros((HEADS, QUERIES), int)
                distinct = np.zeros((HEADS, QUERIES), bool)
                for j in range(QUERIES):
                    sizes[:, j] = self.sample_sizes(hub, problem, j, base, epsilon, delta, draws[:, j, :base])
                    for head in range(HEADS):
                        np.add.at(weights[head, j], draws[head, j, base:base + sizes[head, j]], m / sizes[head, j])
                        distinct[head, j] = len(set(draws[head, j, :base])) == base
                self.assertGreater(((sizes > base) & (sizes < m)).sum(), 10)
                self.compare_sizes(trace, problem, window, weights, distinct, f"base={base / m!r};epsilon={epsilon};"
                                   f"delta={delta}")

    def compare_sizes(self, trace, problem, window, weights, distinct, params):
        """The errors of queries whose base samples are `distinct` are those of `weights`."""
        _, errors = self.replay(trace, f"vattention:{params}", window)
        off = np.abs(errors - problem.errors(weights))[distinct]
        self.assertGreater(len(off), 30)
        self.assertTrue((off <= WEIGHT_ROUNDING).all(), (params, window, np.sort(off)[-5:]))
        # One draw more or less, of a random token, would be seen.
        more = weights.copy()
        more[:, :, 0] += weights.max(2)
        self.assertGreater((np.abs(problem.errors(more) - errors)[distinct] > WEIGHT_ROUNDING).mean(), 0.9)

    # ----------------------------------------------------------------------------------- rocketkv

    def rocket_reads(self, rocket, problem, page, channels, tokens):
        """What rocket_attn reads of the middle, [HEADS, QUERIES, m]."""
        middle = torch.from_numpy(problem.middle)[None]
        m = middle.shape[2]
        paged = middle.reshape(1, KV_HEADS, m // page, page, WIDTH)
        index = torch.cat([paged.amin(3), paged.amax(3)], -1) if page > 1 else middle
        config, out, found = rocket.RocketArgs(), np.zeros((HEADS, QUERIES, m)), []
        topk = torch.topk

        def watched(*arguments, **kwargs):
            found.append(topk(*arguments, **kwargs))
            return found[-1]
        for j in range(QUERIES):
            with mock.patch.object(torch, "topk", watched):
                rocket.rocket_attn(torch.from_numpy(problem.q[:, j])[None, :, None], index, middle, middle,
                                   torch.ones(1, 1, 1, m, dtype=bool), page, channels, tokens, config)
            chosen = found[-1].indices.reshape(KV_HEADS, tokens).numpy()
            np.put_along_axis(out[:, j], np.repeat(chosen, GROUP, 0), 1, 1)
        return out

    def test_rocketkv_reads_what_its_authors_code_reads(self):
        rocket = load_file("rocket", self.peer("KVBENCH_ROCKETKV", "gpt-fast", "rocket.py"))
        trace = self.synth("--seed", "13", "--dtype", "float32")
        for window in WINDOWS:
            problem = Problem(trace, window)
            m = problem.middle.shape[1]
            for page, channels, tokens in ((4, 16, 40), (2, 5, 30), (1, 32, 17), (4, WIDTH, 100)):
                reads = self.rocket_reads(rocket, problem, page, channels, tokens)
                self.compare(trace, f"rocketkv:share=1;page={page};channels={channels};tokens={tokens}", window, reads,
                             beside=m // page * channels * 4)
            for tokens in (8, 20, 50, 100):
                kept, _, page, channels, count = rocket.get_params_for_token_budget(2 * tokens, m, 0, WIDTH)
                rows, _ = self.replay(trace, f"rocketkv:tokens={tokens}", window)
                diag = dict(part.split("=") for part in rows[0]["diag"].split(";"))
                self.assertEqual((int(diag["stage1"]), int(diag["page"]), tokens), (kept, page, count))
                self.assertIn(int(diag["channels"]), (channels, channels - 1))

    # ----------------------------------------------------------------------------------- magicpig

    def test_magicpig_reads_what_its_authors_reference_reads(self):
        path = self.peer("KVBENCH_MAGICPIG", "evaluations", "RULER", "pred", "cache_ref.py")
        cache_ref, trace = load_file("cache_ref", path), self.synth("--seed", "11", "--dtype", "float32")
        for window in WINDOWS:
            problem = Problem(trace, window)
            m = problem.middle.shape[1]
            mean = problem.middle.mean(1, keepdims=True)
            cosine = np.einsum("hqd,hmd->hqm", problem.q, problem.repeat(problem.middle - mean))
            cosine /= np.linalg.norm(problem.q, axis=2)[:, :, None]
            cosine /= np.linalg.norm(problem.repeat(problem.middle - mean), axis=2)[:, None]
            for tables, bits in ((2, 2), (8, 4), (40, 8)):
                p = (1 - np.arccos(cosine) / np.pi)**bits
                u = 1 - (1 - p)**tables - tables * p * (1 - p)**(tables - 1)
                matrix = torch.from_numpy(np.array([directions(head, tables * bits) for head in range(KV_HEADS)]))[None]
                shares = np.zeros((HEADS, QUERIES, TOKENS))
                for j in range(QUERIES):
                    at = TOKENS - QUERIES + j
                    cache = cache_ref.SimCache(bits, tables, num_qh=HEADS, num_kh=KV_HEADS, head_dim=WIDTH,
                                               num_layers=2, device="cpu", dtype=torch.float64)
                    cache.hash_matrix = [matrix]
                    # A value for each token says what share of attention it has.
                    keys = torch.from_numpy(problem.k)[None]
                    values = torch.eye(TOKENS, dtype=torch.float64).expand(1, KV_HEADS, -1, -1)
                    for layer, first in enumerate((problem.end - 1, 0)):  # layer 0 must be there, and does nothing
                        cache.update(keys[:, :, first:at], values[:, :, first:at], None, layer)
                        cache.select_kv_cache(problem.sink if layer else 0, layer, at - problem.end)
                    query = torch.from_numpy(problem.q[:, j])[None, :, None]
                    given = cache.update(keys[:, :, at:at + 1], values[:, :, at:at + 1], query, 1)
                    # Sinks, recent tokens, the query's own, the middle.
                    order = [*range(problem.sink), *range(problem.end, at + 1), *range(problem.sink, problem.end)]
                    self.assertEqual(given.shape, (1, HEADS, 1, TOKENS))
                    self.assertEqual(given[..., at + 1:].count_nonzero(), 0)
                    self.assertTrue((given[..., order[:-m]] > 0).all())
                    shares[:, j] = given[0, :, 0].numpy()
                reads = shares[:, :, problem.sink:problem.end] > 0
                self.compare(trace, f"magicpig:tables={tables};bits={bits}", window, np.where(reads, 1 / u, 0),
                             WEIGHT_ROUNDING)
