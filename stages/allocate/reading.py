"""What selectors choose from, gathered from the artifacts of earlier stages."""

import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.allocate.candidates import Candidates, IntArray
from stages.allocate.quality import ReadJudge
from stages.contract.artifact import Artifact
from stages.contract.errors import ConfigurationError, DataError
from stages.contract.schemas import ALONE_LOSS, JUDGE, SIGNALS
from stages.embed.reading import Space, column_of, matrix, space_of
from stages.trajectory.stage import GRADIENTS

# Further passes; a row that the reference or the warm-up could not score is no candidate.
REFERENCE, TARGETS, TRAJECTORY = ("reference", "targets", "trajectory")
TARGET_GRADIENTS = "target_gradients"
SECOND = (REFERENCE, TARGETS, TRAJECTORY, TARGET_GRADIENTS)
# A score with fewer values over more rows than that says nothing, and is not ranked by.
LEAST_VALUES, FEW_ROWS = 3, 20


def read_candidates(inputs: Mapping[str, Artifact]) -> tuple[Candidates, IntArray]:
    """Gather what selectors choose from, and the row id of each candidate.

    Rows that the reference model or the warm-up could not score are left out; see `unscored`.
    """
    embed, cluster, tokens = inputs["embed"], inputs["cluster"], inputs["tokens"]
    screen = inputs["screen"]
    embedded = embed.array("row_id")
    scored = np.flatnonzero(~np.isin(embedded, list(unscored(inputs))))
    row_ids = embedded[scored]
    params = cluster.manifest["params"]
    space = space_of(embed, params["feature"], params["normalize"], params["center"])
    centers = np.stack(cluster.side("centers.parquet")["center"].to_numpy()).astype(np.float32)
    candidates = Candidates(
        row_ids=row_ids,
        cluster=cluster.array("cluster")[scored],
        distance=cluster.array("distance")[scored],
        multiplicity=of_rows(screen, "multiplicity", row_ids).astype(np.int64),
        num_tokens=of_rows(tokens, "num_tokens", row_ids).astype(np.int64),
        source=read_sources(inputs["rows"], row_ids),
        centers=centers,
        read_signal=functools.partial(read_signal, inputs, row_ids),
        read_embeddings=lambda places: space.read_rows(row_ids[places]),
        read_feature=functools.partial(read_feature, inputs, row_ids),
        read_targets=functools.partial(read_targets, inputs),
    )
    return candidates, row_ids


def unscored(inputs: Mapping[str, Artifact]) -> dict[int, str]:
    """Find embedded rows that a further pass could not score, with the word for the reason."""
    reasons = {REFERENCE: "no_reference_score", TRAJECTORY: "no_trajectory"}
    found: dict[int, str] = {}
    for name, reason in reasons.items():
        if name in inputs:
            row_ids = inputs["embed"].array("row_id")
            missing = np.setdiff1d(row_ids, inputs[name].array("row_id"), assume_unique=True)
            found |= dict.fromkeys(missing.tolist(), reason)
    return dict(sorted(found.items()))


def of_rows(artifact: Artifact, column: str, row_ids: IntArray) -> npt.NDArray[np.generic]:
    """Read a column of numbers for some rows, all of which the artifact holds."""
    values: npt.NDArray[np.generic] = artifact.array(column)
    return values[np.searchsorted(artifact.array("row_id"), row_ids)]


def num_targets_of(inputs: Mapping[str, Artifact], row_ids: IntArray) -> IntArray:
    """Count the trained tokens of each candidate, above 0."""
    return of_rows(inputs["tokens"], "num_targets", row_ids).astype(np.int64)


def judge_of(embed: Artifact, row_ids: IntArray) -> ReadJudge | None:
    """Give the reader of the judge sketches by position, or None where the pass made none."""
    if JUDGE not in embed.schema().names:
        return None
    space = Space(embed, normalize=False, mean=None, column=JUDGE)
    return lambda places: space.read_rows(row_ids[places])


def read_sources(rows: Artifact, row_ids: IntArray) -> npt.NDArray[np.int32]:
    """Give each row the number of its source, in the order in which they first appear."""
    numbers: dict[str, int] = {}
    codes = []
    for table in rows.iter_parts(["source"]):
        coded = table["source"].combine_chunks().dictionary_encode()
        names = [numbers.setdefault(str(s), len(numbers)) for s in coded.dictionary.to_pylist()]
        codes.append(np.array(names, np.int32)[coded.indices.fill_null(0).to_numpy()])
    return np.concatenate(codes)[row_ids]


def read_feature(
    inputs: Mapping[str, Artifact], row_ids: IntArray, name: str, places: IntArray
) -> npt.NDArray[np.float32]:
    """Read a raw feature of the pass, or losses or gradients of the warm-up, of some candidates.

    Raises
    ------
    ConfigurationError
        If no pass made it.
    """
    if name == TRAJECTORY:
        if TRAJECTORY not in inputs:
            raise ConfigurationError(
                "the feature trajectory is needed, and there was no warm-up; "
                "set trajectory.steps=60"
            )
        table, column = inputs[TRAJECTORY], TRAJECTORY
    elif name == GRADIENTS:
        table, column = with_gradients(inputs, TRAJECTORY), GRADIENTS
    else:
        table, column = inputs["embed"], column_of(inputs["embed"], name)
    return Space(table, normalize=False, mean=None, column=column).read_rows(row_ids[places])


def read_signal(
    inputs: Mapping[str, Artifact], row_ids: IntArray, name: str
) -> npt.NDArray[np.float32]:
    """Read a number of every candidate: of the pass, of the tokens, or of the second model.

    Raises
    ------
    ConfigurationError
        If no pass made it.
    DataError
        If it has fewer than 3 values over more than 20 rows: nothing can be ranked by it.
    """
    table, column = inputs["embed"], name
    if name == "num_targets":
        table = inputs["tokens"]
    elif name.startswith(f"{REFERENCE}."):
        if REFERENCE not in inputs:
            raise ConfigurationError(
                f"the signal {name} is needed, and there is no second model; "
                f"set reference.path=<a second model>"
            )
        table, column = inputs[REFERENCE], name.removeprefix(f"{REFERENCE}.")
    known = table.schema()
    if column not in known.names or not pa.types.is_primitive(known.field(column).type):
        needed = {ALONE_LOSS: "set embed.answer_alone=true"}
        raise ConfigurationError(
            f"the signal {name} is needed, and the pass did not make it; "
            f"{needed.get(name, 'choose one of ' + ', '.join(SIGNALS))}"
        )
    values = of_rows(table, column, row_ids).astype(np.float32)
    check_varies(name, values)
    return values


def check_varies(name: str, values: npt.NDArray[np.float32]) -> None:
    """Stop where a score says nothing, as one does that stands in for failures.

    Raises
    ------
    DataError
        If it has fewer than 3 values over more than 20 rows.
    """
    found = np.unique(values)
    if values.size > FEW_ROWS and found.size < LEAST_VALUES:
        raise DataError(
            f"signal {name} has {found.size} distinct values over {values.size} rows "
            f"({', '.join(f'{value:g}' for value in found)}), too few to choose by; choose by "
            f"another signal, or look at model.path and tokens.template"
        )


def read_targets(inputs: Mapping[str, Artifact], name: str) -> npt.NDArray[np.float32]:
    """Read a raw feature, or the gradients, of the rows that the user wants to do well on.

    Raises
    ------
    ConfigurationError
        If none were given, or it was not made.
    """
    if not {TARGETS, TARGET_GRADIENTS} & inputs.keys():
        raise ConfigurationError(
            f"allocate.selector needs {name} of target rows, and none were given; "
            f"set targets.path=<rows to do well on>"
        )
    if name == GRADIENTS:
        table, column = with_gradients(inputs, TARGET_GRADIENTS), GRADIENTS
    else:
        table, column = inputs[TARGETS], column_of(inputs[TARGETS], name)
    pieces = [matrix(piece, column) for piece in table.iter_parts([column])]
    return np.concatenate(pieces).astype(np.float32, copy=False)


def with_gradients(inputs: Mapping[str, Artifact], name: str) -> Artifact:
    """Pick a pass of the warm-up that took gradients.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    if name not in inputs or GRADIENTS not in inputs[name].schema().names:
        raise ConfigurationError(
            "the feature gradients is needed, and no warm-up made it; "
            "set trajectory.steps=60 and trajectory.gradient_dim=1024"
        )
    return inputs[name]
