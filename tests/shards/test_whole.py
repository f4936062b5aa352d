"""Any settings that are let through make a set that passes the check a user would run."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

import evenshard
from stages.allocate.selectors.cluster_balanced import ClusterBalanced
from stages.allocate.selectors.uniform import Uniform
from stages.contract.artifact import Artifact
from stages.contract.errors import DataError
from tests.artifacts import FEW
from tests.shards.sets import clustered, finish


@cache
def inputs() -> dict[str, Artifact]:
    return clustered(Path(mkdtemp()), num_rows=200, rejects=True)


SELECTORS = st.one_of(
    st.builds(Uniform),
    st.builds(ClusterBalanced, keep=st.sampled_from(["farthest", "random", "kcenter"])),
)
BUDGETS = st.one_of(
    st.integers(1, 200).map(lambda rows: {"budget": f"{rows}rows"}),
    st.integers(1, 100).map(lambda percent: {"budget": f"{percent}%"}),
    st.integers(100, 8000).map(lambda tokens: {"budget": f"{tokens}tokens"}),
    st.floats(0.05, 1.0).map(lambda ratio: {"ratio": ratio}),
)


@FEW
@given(
    SELECTORS,
    BUDGETS,
    st.fixed_dictionaries(
        {
            "num_workers": st.integers(1, 5),
            "micro_batch": st.integers(1, 3),
            "accumulation": st.integers(1, 2),
            "schedule": st.sampled_from(["auto", "dealt"]),
            "objective": st.sampled_from(["sample", "token", "rank"]),
            "seed": st.integers(0, 99),
        }
    ),
)
def test_any_set_passes_its_own_check_and_asks_for_no_more_than_was_asked(
    selector: object, budget: dict[str, object], keys: dict[str, object]
) -> None:
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        try:
            made = finish(Path(folder), inputs(), selector=selector, **budget, **keys)
        except DataError:
            return  # no whole step: told in its own tests
        manifest = made.publish(out)
        assert [str(problem) for problem in evenshard.verify(out)] == []
        tables = [pq.read_table(out / worker["file"]) for worker in manifest["workers"]]
        assert len({table.num_rows for table in tables}) == 1
        weights = np.concatenate([table["weight"].to_numpy() for table in tables])
        assert abs(weights.mean(dtype=np.float64) - 1) < 1e-5
        asked = made.allocate.asked
        if asked.kind == "rows":
            assert manifest["rows"] <= asked.amount
        elif asked.kind == "tokens":
            assert manifest["tokens"] <= asked.amount
        else:
            assert manifest["rows"] <= asked.amount * 196 + 1e-6
