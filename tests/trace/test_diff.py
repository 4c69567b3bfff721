"""Two launch sequences side by side, short or long."""

from __future__ import annotations

import random
import time

import pytest

from kernelgauge.trace import KernelRecord, align
from kernelgauge.trace import difference as module
from tests.builders import launched


def sequence(generator: random.Random, length: int, names: str = "abcde") -> list[KernelRecord]:
    return [launched(generator.choice(names), generator.uniform(0.5, 80)) for _ in range(length)]


@pytest.mark.parametrize("most_pairs", [0, 2_000_000], ids=["long", "short"])
@pytest.mark.parametrize("seed", range(20))
def test_every_launch_is_in_one_pair_whichever_way_they_are_paired(
    monkeypatch: pytest.MonkeyPatch, seed: int, most_pairs: int
) -> None:
    monkeypatch.setattr(module, "_MOST_PAIRS", most_pairs)
    generator = random.Random(seed)
    before, after = sequence(generator, generator.randrange(30)), sequence(generator, generator.randrange(30))
    changes = align(before, after)
    old = [change.before for change in changes if change.before]
    new = [change.after for change in changes if change.after]
    assert sorted(map(id, old)) == sorted(map(id, before))
    assert sorted(map(id, new)) == sorted(map(id, after))
    assert all(
        change.before.identity.name == change.after.identity.name
        for change in changes
        if change.before and change.after
    )


def test_two_long_sequences_of_few_names_are_paired_in_seconds() -> None:
    generator = random.Random(1)
    before, after = sequence(generator, 20_000), sequence(generator, 20_000)
    start = time.perf_counter()
    changes = align(before, after)
    assert time.perf_counter() - start < 5  # difflib alone takes minutes
    paired = sum(change.before is not None and change.after is not None for change in changes)
    assert paired > 19_000


def test_what_two_long_sequences_share_at_both_ends_is_not_compared_with_anything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_PAIRS", 0)
    same = [launched("a", 1.0) for _ in range(5)]
    changes = align([*same, launched("b", 2.0), *same], [*same, launched("c", 3.0), *same])
    told = [(c.before and c.before.identity.name, c.after and c.after.identity.name) for c in changes]
    assert told == [("a", "a")] * 5 + [("b", None), (None, "c")] + [("a", "a")] * 5
