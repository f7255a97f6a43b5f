"""Tables of rows, of layers and of scores that tests of kvbench-study correlate share."""

import itertools

from plot_tables import FigureTest
from study_case import missing

from kvbench import tables as kt

SCIPY = not missing("scipy")
if SCIPY:
    from kvbench_study.correlate import cells as cc
    from kvbench_study.correlate import main as correlate

ROW_COLUMNS = [*kt.HEAD_COLUMNS, *kt.SETTINGS, "schema", "kv_head", "algorithm", "params", "seed",
               "budget_requested", "status"]
LAYER_COLUMNS = ["schema", "trace", "prompt", "layer", "algorithm", "params", *kt.SETTINGS, "seed",
                 "budget_requested", "out_rel_error", "residual_rel_error"]
SCORE_COLUMNS = ["trace", "prompt", "algorithm", "params", "budget_requested", "seed", "layers",
                 "n_tokens", "n_queries", "loss", "loss_exact", "loss_change", "kl", "kl_p95",
                 "top_agreement", "answer_exact", "answer", "answer_expected", "answer_exact_right",
                 "answer_right", "status"]
HEADS = tuple(itertools.product((0, 3), (0, 1)))  # layer, query head


class Tables(FigureTest):
    """Writes both sides: a figure by (prompt, method, budget)."""

    def write_rows(self, figures, name="rows.csv", **more):
        """All metrics are the figure, turned ones 1 less it; heads and seeds spread around it."""
        rows = []
        for (prompt, method, budget), value in figures.items():
            for layer, head in HEADS:
                part = value * (1 + (0.5 if layer else -0.5)) * (1 + (0.2 if head else -0.2))
                row = {"trace": f"{prompt}.h5", "prompt": prompt, "algorithm": method,
                       "layer": layer, "q_head": head, "budget_requested": budget,
                       **{m: 1 - part if m in cc.TURNED else part for m in cc.HEAD_METRICS}}
                rows.append({**row, **{key: make(row) for key, make in more.items()}})
        return self.write(rows, name, columns=[*ROW_COLUMNS, *cc.HEAD_METRICS])

    def write_layers(self, figures, name="layers.csv", drop=(), residual=None):
        """residual: of every row, or a function of (its key, its layer)."""
        rows = [{"trace": f"{prompt}.h5", "prompt": prompt, "algorithm": method, "layer": layer,
                 "budget_requested": budget, "out_rel_error": value,
                 "residual_rel_error": value / 2 if residual is None else
                 residual((prompt, method, budget), layer) if callable(residual) else residual}
                for (prompt, method, budget), value in figures.items()
                for layer in sorted({layer for layer, _ in HEADS}) if (prompt, layer) not in drop]
        return self.write(rows, name, columns=LAYER_COLUMNS)

    def write_scores(self, figures, name="scores.csv", columns=SCORE_COLUMNS, **more):
        rows = []
        for (prompt, method, budget), value in figures.items():
            row = dict.fromkeys(SCORE_COLUMNS, "") | {
                "trace": f"{prompt}.h5", "prompt": prompt, "algorithm": method, "params": "",
                "budget_requested": budget, "seed": 0, "kl": value, "loss_change": value - 1,
                "top_agreement": 1 - value / 10, "status": "ok"}
            rows.append({**row, **{key: make(row) for key, make in more.items()}})
        return self.write(rows, name, columns=columns)

    def correlate(self, *arguments, code=0):
        return self.must(correlate, "--resamples", "200", *arguments, code=code)

    def lines(self, *arguments, metric="rel_error", reduction="mean"):
        """{(score, scope): line} of a metric, and what was said."""
        _, said = self.correlate(*arguments, "--csv", self.path("c.csv"))
        return {(line["score"], line["scope"]): line for line in self.table("c.csv")
                if (line["metric"], line["reduction"]) == (metric, reduction)}, said


def grid(values, prompts=("p0", "p1"), budgets=(0.5, 0.25)):
    """{(prompt, method, budget): figure}: `values` by method, doubled at each smaller budget."""
    return {(prompt, method, budget): value * 2**b * (1 + p / 8)
            for b, budget in enumerate(budgets) for method, value in values.items()
            for p, prompt in enumerate(prompts)}


UP = {"a": 0.01, "b": 0.02, "c": 0.03, "d": 0.05}
MANY = tuple(f"p{i}" for i in range(6))
SEVEN = {**UP, "e": 0.06, "f": 0.07, "g": 0.08}  # the fewest methods that rank 39 correlations
REVERSED = dict(zip(SEVEN, reversed(SEVEN.values())))
