"""What selectors choose from, gathered from the artifacts of earlier stages."""

import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from stages.allocate.candidates import Candidates, IntArray
from stages.allocate.quality import ReadJudge
from stages.contract.artifact import Artifact
from stages.contract.errors import ConfigurationError
from stages.contract.schemas import ALONE_LOSS, JUDGE, SIGNALS
from stages.embed.reading import Space, column_of, space_of


def read_candidates(inputs: Mapping[str, Artifact]) -> tuple[Candidates, IntArray]:
    """Gather what selectors choose from, and the row id of each candidate."""
    embed, cluster, tokens = inputs["embed"], inputs["cluster"], inputs["tokens"]
    screen = inputs["screen"]
    row_ids = embed.array("row_id")
    token_places = np.searchsorted(tokens.array("row_id"), row_ids)
    screen_places = np.searchsorted(screen.array("row_id"), row_ids)
    params = cluster.manifest["params"]
    space = space_of(embed, params["feature"], params["normalize"], params["center"])

    def read_feature(name: str, places: IntArray) -> npt.NDArray[np.float32]:
        raw = Space(embed, normalize=False, mean=None, column=column_of(embed, name))
        return raw.read_rows(row_ids[places])

    centers = np.stack(cluster.side("centers.parquet")["center"].to_numpy()).astype(np.float32)
    candidates = Candidates(
        row_ids=row_ids,
        cluster=cluster.array("cluster"),
        distance=cluster.array("distance"),
        multiplicity=screen.array("multiplicity")[screen_places].astype(np.int64),
        num_tokens=tokens.array("num_tokens")[token_places].astype(np.int64),
        source=read_sources(inputs["rows"], row_ids),
        centers=centers,
        read_signal=functools.partial(read_signal, embed, tokens, token_places),
        read_embeddings=lambda places: space.read_rows(row_ids[places]),
        read_feature=read_feature,
        read_targets=no_targets,
    )
    return candidates, row_ids


def judge_of(embed: Artifact, row_ids: IntArray) -> ReadJudge | None:
    """Give the reader of the judge sketches by position, or None where the pass made none."""
    if JUDGE not in pq.read_schema(embed.path / embed.parts[0].name).names:
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


def read_signal(
    embed: Artifact, tokens: Artifact, token_places: IntArray, name: str
) -> npt.NDArray[np.float32]:
    """Read a column of numbers of the embed table, or the number of trained tokens.

    Raises
    ------
    ConfigurationError
        If the pass did not make it.
    """
    if name == "num_targets":
        return tokens.array(name)[token_places].astype(np.float32)
    known = pq.read_schema(embed.path / embed.parts[0].name).names
    if name not in known:
        needed = {ALONE_LOSS: "set embed.answer_alone=true"}
        raise ConfigurationError(
            f"the signal {name} is needed, and the pass did not make it; "
            f"{needed.get(name, 'choose one of ' + ', '.join(SIGNALS))}"
        )
    return embed.array(name).astype(np.float32)


def no_targets(name: str) -> npt.NDArray[np.float32]:
    """Refuse a selector that compares with target rows where none were given."""
    raise ConfigurationError(
        f"allocate.selector needs {name} of target rows, and none were given; choose another "
        f"selector"
    )
