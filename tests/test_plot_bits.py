"""Error by bits, tokens and bytes (kvbench-py plot bits), by hand: what is drawn is what the table says."""

import math

from plot_tables import FigureTest, np

from kvbench import tables as kt
from kvbench.plot.kinds import bits as plot_bits
from kvbench.plot.kinds import bits_maps as kbm
from kvbench.plot.kinds import bits_rows as kb

KIVI = "group_size=32;keys=post"
METHODS = ("h2o", "snapkv")
QUANTIZERS = ("quant-kivi", "quant-rotated")
BITS = (2, 4, 8)
BUDGETS = (0.25, 0.125)


def held(share):
    """Columns of a row that keeps this share of the middle's 80 tokens."""
    return {"tokens_kept": 20 + 80 * share}


def stored(method, quantizer, k, v, budget, **more):
    """A row of A@Q; its error is worth(...), its tokens as many as fit."""
    share = min(1.0, budget * 16 / ((k + v) / 2))
    return {"algorithm": f"{method}@{quantizer}", "budget_requested": budget,
            "params": f"T=auto;{KIVI};{method}.reduce=mean;k_bits={k};tokens=auto;v_bits={v}",
            "middle_ratio": share * (k + v) / 32, "rel_error": worth(method, quantizer, k, v, budget),
            **held(share), **more}


def worth(method, quantizer, k, v, budget):
    scale = (1 + METHODS.index(method)) * (2 + QUANTIZERS.index(quantizer))
    return scale * (0.01 / k + 0.002 / v + 0.001 / budget)


def plain(method, budget, **more):
    return {"algorithm": method, "params": "T=auto;reduce=mean;tokens=auto", "middle_ratio": budget,
            "budget_requested": budget, "rel_error": (0.1 + 0.1 * METHODS.index(method)) / budget,
            **held(budget), **more}


def whole(quantizer, k, v, **more):
    """All tokens in so many bits."""
    return {"algorithm": f"exact@{quantizer}", "params": f"{KIVI};k_bits={k};v_bits={v}",
            "budget_requested": "", "middle_ratio": (k + v) / 32 + 0.01,
            "rel_error": 0.5 / k + 0.05 / v, **held(1), **more}


def everything(heads=(0,)):
    return [{**row, "q_head": head} for head in heads for row in (
        *(plain(method, budget) for method in METHODS for budget in BUDGETS),
        *(stored(method, quantizer, bits, bits, budget) for method in METHODS
          for quantizer in QUANTIZERS for bits in BITS for budget in BUDGETS),
        *(whole(quantizer, bits, bits) for quantizer in QUANTIZERS for bits in BITS))]


def rows_of(path):
    return kt.read_results([path], [])


def load_lines(path):
    return plot_bits.load_lines(rows_of(path))


class BitsOfRowsTest(FigureTest):
    def frame(self, rows):
        return kt.pd.DataFrame([{"params": params, "diag": diag} for params, diag in rows])

    def test_bits_are_those_of_params_or_of_diag(self):
        k, v = kb.explicit_bits(self.frame([
            ("k_bits=4;v_bits=3", "k_error=0.1"), ("bits=8;k_bits=auto;v_bits=auto", "bits=8;group=32"),
            ("bits=auto;k_bits=auto;v_bits=auto", "bits=3;group=64;k_error=0.1"),
            ("k_bits=auto;v_bits=auto", "k_bits=5;v_bits=4;k_error=0.2"),
            ("bits=auto;k_bits=auto;v_bits=auto", "group=1;bits=4/2"), ("T=1", ""),
            ("k_bits=auto;v_bits=auto", "my.k_bits=5")]))
        np.testing.assert_array_equal(k, [4, 8, 3, 5, 4, math.nan, math.nan])
        np.testing.assert_array_equal(v, [3, 8, 3, 4, 2, math.nan, math.nan])

    def test_plain_methods_have_the_bits_of_the_trace(self):
        for dtype, bits in (("bfloat16", 16), ("float32", 32), ("", 16)):
            rows = [{**row, "dtype": dtype} for row in everything()]
            table = load_lines(self.write(rows))
            self.assertEqual(set(table.loc[table["quantizer"] == "", "k"]), {bits})

    def test_shares_of_tokens_and_of_entries(self):
        # 100 tokens of 20 bytes, of which 20 are outside of the middle: 400 bytes of them.
        rows = kt.pd.DataFrame({"n_tokens": 100, "sink": 10, "recent": 10, "tokens_kept": [60, 20, 20],
                                "full_bytes": 2000, "bytes": [0, 400 + 100 + 8, 400 + 100 + 8],
                                "aux_bytes": [0, 8, 8], "k": [4, 4, 16], "v": [4, 4, 16],
                                "dtype": "float16"})
        # 100 bytes are 20 entries of 5 bytes (4 bits), or 5 of 20.
        self.near(kb.shares(rows), [0.5, 20 / 80, 5 / 80])
        self.near(kb.shares(rows.drop(columns="aux_bytes")), [0.5, 0, 0])


class LinesTest(FigureTest):
    def points(self, rows):
        """{(panel, line, bits): (x, mean)} of the lines of these rows, in order of x."""
        table = load_lines(self.write(rows)).sort_values("x")
        return {place: part[["x", "mean"]].to_numpy() for place, part in table.groupby(["panel", "line", "bits"])}

    def test_lines(self):
        found = self.points(everything((0, 1)))
        self.assertEqual(len(found), len(METHODS) * (1 + len(QUANTIZERS) * len(BITS)) + len(QUANTIZERS) * len(BITS))
        for method in METHODS:
            self.near(found["", method, "16"], [(b, plain(method, b)["rel_error"]) for b in (0.125, 0.25)])
            for quantizer in QUANTIZERS:
                for bits in (4, 8):
                    self.near(found[quantizer, method, str(bits)],
                              [(b, worth(method, quantizer, bits, bits, b)) for b in (0.125, 0.25)])
                # At 2 bits 1/8 of the bytes are all tokens, and 1/4 as well: one point.
                self.near(found[quantizer, method, "2"], [(0.125, worth(method, quantizer, 2, 2, 0.25))])
        for quantizer in QUANTIZERS:
            for bits in BITS:
                row = whole(quantizer, bits, bits)
                self.near(found[quantizer, "all tokens", str(bits)], [[row["middle_ratio"], row["rel_error"]]])

    def test_quantizers_alone_are_in_one_panel(self):
        rows = [whole(quantizer, k, v) for quantizer in QUANTIZERS for k in BITS for v in BITS]
        rows += [{"algorithm": "quant-kivi", "params": f"bits=auto;{KIVI};k_bits=auto;v_bits=auto",
                  "budget_requested": budget, "middle_ratio": 0.9 * budget, "rel_error": 0.02 / budget,
                  "diag": f"bits={bits};group=32"} for budget, bits in ((0.3, 4), (0.2, 2))]
        found, said = self.quiet(self.points, rows)
        self.assertEqual({place[:2] for place in found},
                         {("", line) for line in (*QUANTIZERS, "quant-kivi from a budget")})
        for bits, budget in ((4, 0.3), (2, 0.2)):
            self.near(found["", "quant-kivi", str(bits)][:, 1], [whole("quant-kivi", bits, bits)["rel_error"]])
            self.near(found["", "quant-kivi from a budget", str(bits)], [[0.9 * budget, 0.02 / budget]])
        self.assertIn("note: points of all tokens with other bits of keys than of values are left out: 12", said)

    def test_settings_of_methods_and_quantizers(self):
        rows = [{**row, "params": row["params"].replace("reduce=mean", f"reduce={reduce}").replace(
            "keys=post", f"keys={keys}")} for row in everything() for reduce in ("mean", "max")
            for keys in ("post", "pre")]
        rows = list({(row["algorithm"], row["params"], row["budget_requested"]): row for row in rows}.values())
        table = load_lines(self.write(rows))
        self.assertEqual(set(table["panel"]), {"", *(f"{q} keys={keys}" for q in QUANTIZERS
                                                     for keys in ("post", "pre"))})
        self.assertEqual(set(table["line"]), {"all tokens", *(f"{name} reduce={reduce}" for name in
                                                              METHODS for reduce in ("mean", "max"))})

    def test_points_that_some_heads_lack(self):
        rows = [*everything((0, 1)), *(stored("h2o", "quant-kivi", 3, 3, b) for b in BUDGETS)]
        table, said = self.quiet(load_lines, self.write(rows))
        self.assertNotIn("3", set(table["bits"]))
        self.assertIn("note: h2o@quant-kivi: points left out because some heads are missing: 2", said)


class MapTest(FigureTest):
    def cells(self, rows):
        """{panel: {(k, v): errors by ascending share of tokens}}"""
        table = kbm.load_map(rows_of(self.write(rows))).sort_values("share", kind="stable")
        return {panel: {pair: cells["mean"].tolist() for pair, cells in part.groupby(["k", "v"])}
                for panel, part in table.groupby("panel")}

    def test_map(self):
        panels = self.cells(everything((0, 1)))
        self.assertEqual({*panels}, {f"{m} @ {q}" for m in METHODS for q in QUANTIZERS})
        for method in METHODS:
            for quantizer in QUANTIZERS:
                cells = panels[f"{method} @ {quantizer}"]
                self.assertEqual([*cells], [(2, 2), (4, 4), (8, 8), (16, 16)])
                # At 2 bits both budgets keep all: the smaller error stays. All tokens are another row.
                self.near(sorted(cells[2, 2]), [worth(method, quantizer, 2, 2, 0.25), 0.275])
                for bits in (4, 8):
                    self.near(cells[bits, bits], [worth(method, quantizer, bits, bits, b)
                                                  for b in (0.125, 0.25)] + [0.55 / bits])
                self.near(cells[16, 16], [plain(method, b)["rel_error"] for b in (0.125, 0.25)])

    def test_other_bits_of_keys_and_values_are_columns(self):
        cells = self.cells([*everything(), stored("h2o", "quant-kivi", 4, 2, 0.125)])["h2o @ quant-kivi"]
        self.near(cells[4, 2], [worth("h2o", "quant-kivi", 4, 2, 0.125)])


class KeysValuesTest(FigureTest):
    def maps(self, path, budget=None):
        """{label: errors [bits of keys, bits of values]}, and what was said."""
        table, said = self.quiet(kbm.load_keys_values, rows_of(path), budget=budget)
        return {label: part.pivot(index="k", columns="v", values="mean")
                for label, part in table.groupby("label")}, said

    def test_map(self):
        rows = [whole("quant-kivi", k, v, q_head=head, rel_error=(0.5 / k + 0.05 / v) * (1 + head))
                for k in BITS for v in (*BITS, 3) if (k, v) != (8, 3) for head in (0, 1)]
        ((title, cells),) = self.maps(self.write(rows))[0].items()
        self.assertEqual((title, [*cells.index], [*cells.columns]), ("exact@quant-kivi", [2, 4, 8], [2, 3, 4, 8]))
        want = [[1.5 * (0.5 / k + 0.05 / v) for v in (2, 3, 4, 8)] for k in BITS]
        want[2][1] = math.nan  # hatched
        np.testing.assert_allclose(cells, want, rtol=1e-12)
        self.picture(plot_bits, self.path("t.csv"), "--kind", "keys-values")

    def test_one_budget(self):
        rows = [stored("h2o", "quant-kivi", k, v, budget) for k in BITS for v in BITS for budget in BUDGETS]
        path = self.write(rows)
        for budget, shown, says in ((None, 0.125, "budget 0.125 is shown"), (0.25, 0.25, "")):
            maps, said = self.maps(path, budget)
            self.near(maps["h2o@quant-kivi"],
                      [[worth("h2o", "quant-kivi", k, v, shown) for v in BITS] for k in BITS])
            self.assertIn(says, said)


class FormatsTest(FigureTest):
    BITS = {"f16": 16, "q8_0": 8.5, "q4_0": 4.5}

    def formats(self, **more):
        return [{"algorithm": "exact@quant-format", "budget_requested": "", "q_head": head,
                 "params": f"fp8_scale=one;k_type={k};rotate=none;v_type={v}",
                 "rel_error": (1 + head) * (4 / self.BITS[k] + 1 / self.BITS[v]),
                 "middle_ratio": (self.BITS[k] + self.BITS[v]) / 32, **held(1), **more}
                for k in self.BITS for v in self.BITS for head in (0, 1)]

    def test_a_line_per_type_of_values(self):
        path = self.write([*self.formats(), plain("h2o", 0.5)])
        figure = self.picture(plot_bits, path, "--kind", "formats")
        lines = [line for line in figure.axes[0].lines if line.get_linestyle() != "None"]
        self.assertEqual(len(lines), 3)
        for line, bits in zip(lines, sorted(self.BITS.values()), strict=True):
            np.testing.assert_allclose(line.get_xdata(), [(k + bits) / 32 for k in (4.5, 8.5, 16)], rtol=1e-12)
            np.testing.assert_allclose(line.get_ydata(), [1.5 * (4 / k + 1 / bits) for k in (4.5, 8.5, 16)], rtol=1e-12)
        self.assertIn("q8_0/q4_0", self.caption(plot_bits, path, "--kind", "formats"))
        self.refused("no rows of quant-format or exact@quant-format", plot_bits, path, "--kind", "formats",
                     "--algorithm", "h2o")

    def test_other_settings_have_panels_of_their_own(self):
        rows = self.formats() + self.formats(params="fp8_scale=one;k_type=q8_0;rotate=hadamard;v_type=q8_0")[:2]
        figure = self.picture(plot_bits, self.write(rows), "--kind", "formats")
        self.assertEqual([axes.get_title() for axes in figure.axes],
                         ["fp8_scale=one rotate=hadamard", "fp8_scale=one rotate=none"])
