"""Registry of the programs of `kvbench-study`, as kvbench.programs has those of `kvbench-py`."""

from kvbench.programs import FIGURES, TABLES, Commands, Program

PROGRAMS = {
    "reference": Program("reference.main", "make the reference results", ()),
    "model": Program("model.main", "make a real model from the package index", ()),
    "prompts": Program("prompts.make", "make the prompts of the reference results", ()),
    "needles": Program("prompts.needles", "make prompts with a passkey to find", ()),
    "tasks": Program("prompts.tasks", "make prompts of tasks with a known answer", ()),
    "claims": Program("claims.main", "test the papers' claims on measured rows", (*FIGURES, "scipy")),
    "answers": Program("answers.main", "test whether a model still answers its tasks, with controls",
                       (*FIGURES, "scipy")),
    "correlate": Program("correlate.main", "correlate replay metrics with the model's loss", (*FIGURES, "scipy")),
    "ablate": Program("ablate.main", "split the error by ingredient: tokens, weights, values, bits, queries",
                      (*FIGURES, "scipy")),
    "atlas": Program("atlas.main", "describe KV heads, and which method serves each best",
                     (*FIGURES, "scipy", "sklearn")),
    "scaling": Program("scaling.main", "fit a law of errors: bytes, tokens, entropy", (*TABLES, "scipy")),
    "kinds": Program("kinds", "compare losses with one method by kind of text", (*TABLES, "scipy")),
    "rules": Program("rules", "write a policy by a simple rule, a control", (*TABLES, "scipy")),
    "page-tables": Program("page_tables", "fill the tables of a page from result files", TABLES),
    "site": Program("site.main", "make a static site of the reference results", ()),
}

COMMANDS = Commands("kvbench-study", "kvbench_study", PROGRAMS)
