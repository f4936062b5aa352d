"""Groups of equal digests, by hand and by dictionaries."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stages.screen.duplicates import first_of_equals, group_facts, sum_multiplicity
from tests.artifacts import SEEDED


def test_the_first_row_of_a_digest_stands_for_it() -> None:
    high = np.array([5, 1, 5, 1, 5, 0], np.uint64)
    low = np.array([7, 1, 7, 2, 7, 0], np.uint64)
    first = first_of_equals(high, low)
    assert first.tolist() == [0, 1, 0, 3, 0, 5]
    assert sum_multiplicity(first, np.array([1, 1, 2, 1, 4, 1])).tolist() == [7, 1, 0, 1, 0, 1]
    everyone = np.ones(6, np.bool_)
    assert group_facts(first, everyone) == {"rows": 2, "groups": 1, "largest_group": 3}
    assert group_facts(first, ~everyone) == {"rows": 0, "groups": 0, "largest_group": 0}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))))
@SEEDED
def test_digests_group_as_a_dictionary_does(digests: list[tuple[int, int]]) -> None:
    halves = np.array(digests, np.uint64).reshape(-1, 2)
    seen: dict[tuple[int, int], int] = {}
    expected = [seen.setdefault(digest, place) for place, digest in enumerate(digests)]
    first = first_of_equals(halves[:, 0], halves[:, 1])
    assert first.tolist() == expected
    sums = sum_multiplicity(first, np.ones(len(digests), np.int64))
    assert sums.sum() == len(digests)
    assert sorted(np.flatnonzero(sums).tolist()) == sorted(seen.values())
