"""Questions of prompts with right and wrong answers, from --records. Needs no torch."""

import dataclasses

from kvbench.records import read_lines
from kvbench.trace.writer import TraceError


@dataclasses.dataclass(frozen=True)
class Question:
    """answer: the right one; wrong: others, maybe none; tokens: of each after one space, the right one first."""

    answer: str
    wrong: tuple = ()
    tokens: tuple = ()


def read_answers(args):
    """Returns {prompt: Question} of --records."""
    out = {}
    for path in args.records:
        for number, record in read_lines(path):
            if not isinstance(record, dict) or "id" not in record:
                raise TraceError(f"{path}:{number}: expected an object with an `id`")
            if "answer" in record:
                out[str(record["id"])] = question_of(record, f"{path}:{number}")
    return out


def question_of(record, where):
    answer, wrong = str(record["answer"]), record.get("wrong", [])
    if not isinstance(wrong, list) or not all(isinstance(one, str) for one in wrong):
        raise TraceError(f"{where}: wrong: got {wrong!r}, expected a list of texts")
    if answer in wrong or len(set(wrong)) < len(wrong):
        raise TraceError(f"{where}: wrong: got {', '.join(wrong)} beside the answer {answer}, expected different texts")
    return Question(answer, tuple(wrong))


def with_tokens(answers, tokenizer):
    """Adds tokens. Raises TraceError for answers of different lengths, whose log likelihoods are not comparable."""
    out = {}
    for prompt, question in answers.items():
        tokens = [tuple(tokenizer.encode(" " + text, add_special_tokens=False))
                  for text in (question.answer, *question.wrong)]
        for text, one in zip((question.answer, *question.wrong), tokens):
            if not one:
                raise TraceError(f"--records: {prompt}: `{text}`: got no token, expected an answer")
            if len(one) != len(tokens[0]):
                raise TraceError(f"--records: {prompt}: wrong answer `{text}`: got {len(one)} tokens, "
                                 f"expected {len(tokens[0])} as `{question.answer}` has")
        out[prompt] = dataclasses.replace(question, tokens=tuple(tokens))
    return out
