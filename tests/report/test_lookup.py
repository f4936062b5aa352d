"""Any text may be asked for as a row: it is a row, or one sentence says that there is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contract.errors import DataError
from stages.report.lookup import explain
from tests.artifacts import SEEDED
from tests.report.hostile import FILE, Evil

NUMBERS = ["9" * 18, "9" * 19, "9" * 25, "9" * 5000, str(2**63 - 1), str(2**63)]


@pytest.mark.parametrize("number", NUMBERS, ids=len)
@pytest.mark.parametrize("before", ["", "uid:", f"{FILE}:"], ids=["id", "uid", "line"])
def test_a_number_that_no_row_has_is_no_row(evil: Evil, before: str, number: str) -> None:
    with pytest.raises(DataError, match="is no row of this run"):
        explain(evil.artifacts, evil.manifest, before + number)


@SEEDED
@given(
    before=st.sampled_from(["", "uid:", f"{FILE}:", ":"]),
    text=st.one_of(
        st.text(st.characters(), max_size=9), st.from_regex(r"\d{1,30}", fullmatch=True)
    ),
)
def test_any_text_is_a_row_or_one_sentence(evil: Evil, before: str, text: str) -> None:
    try:
        told = explain(evil.artifacts, evil.manifest, before + text)
    except DataError as error:
        told = str(error)
        assert "\n" not in told
    assert told.encode()
