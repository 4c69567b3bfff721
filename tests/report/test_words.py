"""Every class of evidence has words, whatever a file holds in its fields."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec import inspect

from kernelgauge.judge import STRUCTURE, Status, Verdict
from kernelgauge.judge import evidence as e
from kernelgauge.report.findings import brief, in_full, in_one_line, with_words
from kernelgauge.report.html import html
from kernelgauge.report.stored import doubt_text, review_lines
from kernelgauge.report.summary import summary, summary_markdown
from kernelgauge.report.words import reason_line
from kernelgauge.results import decode_results, encode_results
from tests.builders import HOSTILE, results, workload

CONCLUSIONS = e.Conclusion.__subclasses__()
REASONS = [each for each in (*e.Reason.__subclasses__(), *e.Doubt.__subclasses__()) if each is not e.Doubt]
OF_REVIEWS = [e.MeasuredTime, e.FileNote, e.RunDoubt, e.ImpossibleTime]
PLAIN: dict[type, tuple[Any, ...]] = {
    inspect.BoolType: (False, True),
    inspect.IntType: (0, 1, 2, 10**12),
    inspect.FloatType: (1e-9, 0.5, 1.0, 1e12),
    inspect.StrType: ("", "a", "fused", "moved", *HOSTILE),
    inspect.NoneType: (None,),
}


def value(rng: random.Random, kind: Any) -> Any:
    """A value of this type, as a file may hold it."""
    match kind:
        case inspect.UnionType(types):
            return value(rng, rng.choice(types))
        case inspect.StructType(cls=cls):
            return made(rng, cls if cls is not e.Doubt else rng.choice(e.Doubt.__subclasses__()))
        case inspect.VarTupleType(item):
            return tuple(value(rng, item) for _ in range(rng.randrange(4)))
        case inspect.TupleType(items):
            return tuple(value(rng, item) for item in items)
        case inspect.LiteralType(values):
            return rng.choice(values)
        case inspect.EnumType(cls):
            return rng.choice(list(cls))
    return rng.choice(PLAIN[type(kind)])


def made(rng: random.Random, cls: type) -> Any:
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return cls(**{each.name: value(rng, each.type) for each in info.fields if each.name != "said"})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [*CONCLUSIONS, *REASONS], ids=lambda kind: kind.__name__)
def test_evidence_of_a_file_has_words_in_every_form(kind: type, seed: int) -> None:
    rng = random.Random(seed)
    conclusion = made(rng, kind if kind in CONCLUSIONS else rng.choice(CONCLUSIONS))
    reasons = tuple(made(rng, kind if kind in REASONS else rng.choice(REASONS)) for _ in range(4))
    change = e.RelativeChange(1.0, None, 0.5, 0.9, rng.choice((None, 0.01)))
    times = rng.choice(((None, None, None), (1.0, 2.0, change)))
    status, subject = rng.choice(list(Status)), rng.choice((STRUCTURE, "GPU time", "end to end", "numerics", "<b>"))
    found = Verdict(status, "a", subject, conclusion, reasons, *times, rng.choice(("", "HEAD~1")))
    told = results(workload(found, name="a"))
    assert decode_results(encode_results(with_words(told)), where="").workloads[0].verdicts[0].reasons == reasons
    shown = [in_full(found), brief(found, width=60), in_one_line(found)]
    shown.append(summary(told, width=80, color=False, failures=True))
    assert all(character.isprintable() or character == "\n" for text in shown for character in text)
    assert html([told])
    assert summary_markdown([told])


@pytest.mark.parametrize("kind", OF_REVIEWS, ids=lambda kind: kind.__name__)
def test_evidence_of_a_review_has_words(kind: type) -> None:
    for seed in range(9):
        one = made(random.Random(seed), kind)
        assert [line.text for line in review_lines([one])] == [doubt_text(one)]


def test_each_next_step_has_words_without_a_command() -> None:
    assert all(reason_line(e.Next(step)).text is not None for step in e.Step)


def test_no_class_of_evidence_is_left_out() -> None:
    known = {e.Conclusion, e.Reason, e.Doubt, *CONCLUSIONS, *REASONS, *OF_REVIEWS}
    found = {each for each in vars(e).values() if isinstance(each, type) and issubclass(each, e.Evidence)}
    assert found - {e.Evidence} == known
