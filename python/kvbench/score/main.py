"""Main function of kvbench-py score. The command line is in options.py.

The model reads each prompt once, except its last tokens. These are decoded over each compressed
cache, which measures the loss of likelihood, the change of predictions, and whether the model still
answers the prompt's question. See docs/score.md.
"""

import logging
import os
import time

import torch
import transformers
from transformers import AutoTokenizer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvbench.caches.reader import CacheReader
from kvbench.dump.capture import ATTENTION, note
from kvbench.dump.main import load_model, model_name
from kvbench.dump.prompts import check_tokenizer, load
from kvbench.progress import Progress
from kvbench.score.attention import CompressedAttention
from kvbench.score.options import parse_arguments
from kvbench.score.prompts import check_model, check_prompts, read_plan
from kvbench.score.questions import read_answers, with_tokens
from kvbench.score.scorer import Scorer
from kvbench.score.table import Manifest, Table, key_of
from kvbench.trace.writer import TraceError


def score_prompt(scorer, prompt, question, missing, table, progress):
    args, begin = scorer.args, time.monotonic()
    scorer.begin(prompt.ids, set(prompt.layers), question)
    deviation = check_model(args, prompt, scorer.attention.exact, scorer.prefix)
    kl = scorer.self_check(prompt.layers, args.self_check)
    read = time.monotonic() - begin
    said = f", KL over a whole cache {kl:.1e}" if args.self_check else ""
    for group, row in scorer.rows(prompt, missing):
        table.write(row)
        progress.step(1, f"{progress.done + 1}/{progress.total} rows  {prompt.name} {group}")
    layers = len(scorer.attention.seen)
    progress.write(f"{prompt.name}: {len(missing)} rows in {time.monotonic() - begin:.0f} s "
                 f"({read:.0f} s to read the prompt); {len(prompt.layers)} of {layers} layers "
                 f"replaced; keys within {deviation:.1e} of the trace's{said}")


def prepare(args):
    """Registers the attention function with transformers, and silences transformers."""
    args.dtype, args.name = args.compute_dtype, None  # read by load_model and model_name
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, ALL_ATTENTION_FUNCTIONS["sdpa"])


def load_tokenizer(args, answers, prompts):
    """Returns the model's tokenizer, and the questions of these prompts with their tokens; None
    without any.
    """
    asked = {name: answers[name] for name in prompts if name in answers}
    if not asked:
        return None, {}
    check_tokenizer(args)
    tokenizer = load(AutoTokenizer.from_pretrained, "tokenizer", args)
    return tokenizer, with_tokens(asked, tokenizer)


def versions(args):
    """Returns what may differ between runs of a table."""
    return {"torch": torch.__version__, "transformers": transformers.__version__,
            "device": args.device, "threads": torch.get_num_threads()}


def main():
    args = parse_arguments()
    prepare(args)
    with CacheReader(args.caches) as reader:
        if reader.protocol != "prefill":
            raise TraceError(f"{', '.join(args.caches)}: protocol: got {reader.protocol}, expected "
                             "prefill: the model decodes over caches of a prompt's end")
        prompts, answers = read_plan(args, reader), read_answers(args)
        model, dtype, _ = load_model(args)
        check_prompts(args, model, prompts, reader)
        tokenizer, answers = load_tokenizer(args, answers, [prompt.name for prompt in prompts])
        attention = CompressedAttention(args, model, dtype)
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention)
        scorer = Scorer(args, model, attention, tokenizer, reader)
        settings = {"model": model_name(args, model.config), "compute_dtype": args.compute_dtype,
                    "answer_tokens": args.answer_tokens, "sink": reader.sink,
                    "recent": reader.recent, "queries": reader.queries}
        manifest = Manifest(args, settings, versions(args))
        with Table(args.output, args.resume, args.overwrite) as table, torch.inference_mode():
            manifest.write()
            plan = [(prompt, [group for group in prompt.groups if key_of(
                os.path.basename(prompt.trace), prompt.name, group) not in table.done])
                for prompt in prompts]
            progress = Progress(sum(len(missing) for _, missing in plan))
            try:
                for prompt, missing in plan:
                    if missing:
                        score_prompt(scorer, prompt, answers.get(prompt.name), missing, table,
                                     progress)
            except torch.OutOfMemoryError:
                raise MemoryError from None
            except RuntimeError as error:
                raise OSError(f"{args.model}: {str(error).splitlines()[0]}") from None
        manifest.write(rows=progress.done, failed=table.failed)
    if table.failed:
        note(f"kvbench-py score: {table.failed} rows failed: {args.output}")
        return 1
