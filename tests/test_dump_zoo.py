"""Every causal language model of the installed transformers that a small configuration builds: it is
dumped with --attn-check, its trace replays, and an exact cache has a KL of 0 in it; or kvbench-py says in
one line what zoo_models.py names. Types that this table does not know must pass.

Needs torch and transformers (`make test-dump`); without them the test is skipped.
Environment: KVBENCH, the program; without it, models are dumped only.
"""

import tempfile

import zoo_models as zoo
from dump_models import MISSING, DumpCase
from script_case import KVBENCH, call, read_rows

if not MISSING:
    import numpy as np
    import torch
    import transformers
    from dump_models import command
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from kvbench.score import main as score

TOKENS = 48
PARAMETERS = 3e6  # of a small model
# float32 sums of an exact cache, in units of the output (1.7e-7 at most).
EXACT = 2e-6
# Of its predictions (1.4e-12 at most): the square of what rounding to float32 does to logits of about 10.
KL = 1e-9


def build(kind, path):
    """Saves a small random model of a type; returns why that is not possible, or None."""
    sizes = {name: size for name, size in (zoo.SIZES | zoo.OVERRIDES.get(kind, {})).items() if size is not None}
    try:
        config = transformers.CONFIG_MAPPING[kind](**sizes)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if parameters > PARAMETERS:
            return f"{parameters} parameters"
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases and norms start at zero and one
                torch.nn.init.normal_(parameter, parameter.data.mean().item(), 0.1)
        model.save_pretrained(path)
    except Exception as error:  # a model's code may raise anything
        return f"{type(error).__name__}: {error}"
    return None


class ZooTest(DumpCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.addClassCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # the models are too small for more
        transformers.utils.logging.set_verbosity(transformers.utils.logging.CRITICAL)
        cls.ids_file = cls.file("ids.jsonl", str(
            np.random.default_rng(5).integers(3, zoo.SIZES["vocab_size"], TOKENS).tolist()) + "\n")

    def passes(self, what, result, refusals):
        """Whether a program passed; it may refuse in one line with one of the texts, if there are any."""
        self.assertNotIn("Traceback", result.err)
        if result.code == 0:
            self.assertTrue(not refusals or "" in refusals, f"{what} passes, but zoo_models.py says that it is refused")
            return True
        last = result.err.strip().splitlines()[-1]
        self.assertEqual(result.code, 2, f"{what}: {result.err}")
        self.assertTrue(last.startswith("kvbench-py ") and any(text and text in last for text in refusals),
                        f"{what}: {last}: not in zoo_models.py")
        return False

    def walk(self, kind, folder):
        """Builds, dumps, replays and scores one type."""
        model = f"{folder}/{kind}"
        reason = build(kind, model)
        if reason is not None:
            self.assertIn(kind, zoo.NOT_SMALL, f"{kind} is not built ({reason}): not in zoo_models.py")
            return
        trace, caches, rows, scores = (f"{model}{end}" for end in (".h5", ".c.h5", ".csv", ".s.csv"))
        result = self.run_script("--model", model, "-o", trace, "--token-ids", self.ids_file, "--dtype",
                                 "float32", "--attn-check")
        if not self.passes(f"dump of {kind}", result, zoo.NOT_DUMPED.get(kind, ())) or not KVBENCH:
            return
        self.done("replay", trace, "-o", rows, "--algorithm", "exact", "--sink", "4", "--recent", "16", "--queries",
                  "8", "--export-caches", caches)
        for row in read_rows(rows):
            self.assertTrue(float(row["rel_error"]) <= EXACT, row)
        result = call(lambda: command.run_main(score.main), "kvbench-py score", "--model", model,
                      trace, "--caches", caches, "-o", scores)
        if self.passes(f"score of {kind}", result, zoo.NOT_SCORED.get(kind, ())):
            for row in read_rows(scores):
                self.assertEqual(row["status"], "ok")
                self.assertTrue(abs(float(row["kl"])) <= KL, row)

    def test_every_causal_model(self):
        kinds = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        self.assertGreater(len(kinds), 100)
        for kind in kinds:
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                self.walk(kind, folder)
