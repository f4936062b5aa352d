"""What the docs say of a benchmark is what its file says."""

import pytest

from benchmarks.results import DOCS, plain_tables, table_of


@pytest.mark.parametrize("name", plain_tables())
def test_the_table_in_the_docs_is_the_one_of_the_file(name: str) -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert f"<!-- {name}: begin -->\n{table_of(name)}\n<!-- {name}: end -->" in text


def test_there_are_tables_to_hold_against_their_files() -> None:
    assert {"compare", "trainers"} <= set(plain_tables())
