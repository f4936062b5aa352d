"""Artifacts written by hand, and the real stages run on them in this process."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from stages.allocate.selectors.cluster_balanced import ClusterBalanced
from stages.allocate.stage import ALLOCATE_STAGE, AllocateConfig
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.contract.draft import Draft
from stages.contract.parts import Outcome, cut
from stages.contract.schemas import ROWS, SCREEN, SIGNALS, TOKENS, embed_schema
from stages.contract.tables import Layout
from stages.embed.worker import embed_layout

CONF = Path(__file__).parents[2] / "conf"
CASES = Path(__file__).parents[3] / "shared" / "cases"


def in_this_process(make, parts, *, uses_gpu):
    yield from map(make(), parts)


def commit(outcome, draft, *, parent=None, params=None):
    return draft.commit(
        outcome,
        params=params or {},
        inputs={},
        version=1,
        parent=parent,
        keeps_order=True,
    )


def write_artifact(store, stage, table, num_ids, *, rows_per_part, layout=None, parent=None):
    """Write a table whose column row_id lies in 0..num_ids-1, cut into parts by id."""
    draft = Draft.create(store, stage, "hand")
    parts = cut(num_ids, rows_per_part)
    row_ids = table["row_id"].to_numpy()
    for spec in parts:
        first, last = np.searchsorted(row_ids, [spec.start, spec.stop])
        draft.write_part(spec, table.slice(first, last - first), layout=layout or Layout())
    return commit(Outcome(parts, {}), draft, parent=parent)


def write_rows(store, num_rows, rows_per_part):
    columns = {
        "row_id": list(range(num_rows)),
        "source_file": ["data.jsonl"] * num_rows,
        "source_line": list(range(1, num_rows + 1)),
        "source": ["data.jsonl"] * num_rows,
        "uid": [str(i) for i in range(num_rows)],
        "messages": [[{"role": "user", "content": f"row {i}"}] for i in range(num_rows)],
        "meta": ["{}"] * num_rows,
        "multiplicity": [1] * num_rows,
    }
    table = pa.table(columns, schema=ROWS)
    return write_artifact(store, "rows", table, num_rows, rows_per_part=rows_per_part)


def write_screen(store, rows, rows_per_part):
    """Keep every row, each for itself."""
    columns = {"row_id": rows.array("row_id"), "multiplicity": [1] * rows.num_rows}
    table = pa.table(columns, schema=SCREEN)
    return write_artifact(
        store, "screen", table, rows.num_rows, rows_per_part=rows_per_part, parent=rows
    )


def write_tokens(store, rows, input_ids, labels, rows_per_part):
    columns = {
        "row_id": list(range(len(input_ids))),
        "input_ids": input_ids,
        "labels": labels,
        "num_tokens": [len(ids) for ids in input_ids],
        "num_targets": [sum(label != -100 for label in row[1:]) for row in labels],
    }
    table = pa.table(columns, schema=TOKENS)
    return write_artifact(
        store, "tokens", table, len(input_ids), rows_per_part=rows_per_part, parent=rows
    )


def embedded(store, embeddings, *, refused=(), rows_per_part=100):
    """Give inputs of the stages whose embed table holds `embeddings`.

    Ids in `refused` have rows and tokens but no embedding, as rows that the model refused.
    """
    num_ids = len(embeddings) + len(refused)
    row_ids = np.setdiff1d(np.arange(num_ids), refused)
    rows = write_rows(store, num_ids, rows_per_part)
    lengths = np.random.default_rng(1).integers(5, 50, num_ids).tolist()
    ids = [[1] * length for length in lengths]
    tokens = write_tokens(store, rows, ids, ids, rows_per_part)
    embeddings = np.asarray(embeddings, np.float32)
    norms = np.linalg.norm(embeddings, axis=1)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(embeddings.ravel()), embeddings.shape[1])
    signals = [pa.array(norms if name == "embedding_norm" else 0 * norms) for name in SIGNALS]
    table = pa.table(
        [pa.array(row_ids), vectors, *signals],
        schema=embed_schema({"embedding": embeddings.shape[1]}),
    )
    embed = write_artifact(
        store,
        "embed",
        table,
        num_ids,
        rows_per_part=rows_per_part,
        layout=embed_layout(["embedding"]),
        parent=tokens,
    )
    return {
        "rows": rows,
        "screen": write_screen(store, rows, rows_per_part),
        "tokens": tokens,
        "embed": embed,
    }


def run_stage(stage, settings, inputs, store, key):
    draft = Draft.create(store, stage.name, key)
    steps = stage.run(settings, inputs, draft, in_this_process)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome = end.value
            break
    params = stage.identity(settings)
    return commit(outcome, draft, parent=inputs[stage.reads[0]], params=params)


def run_cluster(settings, inputs, store):
    key = "-".join(str(value) for value in asdict(settings).values())
    return run_stage(CLUSTER_STAGE, settings, inputs, store, key)


def run_allocate(settings, inputs, cluster, store):
    return run_stage(ALLOCATE_STAGE, settings, {**inputs, "cluster": cluster}, store, "allocate")


def paper_preset():
    """Read conf/experiment/paper.yaml, as it stands."""
    from omegaconf import OmegaConf

    return OmegaConf.load(CONF / "experiment" / "paper.yaml")


def paper_cluster(num_clusters, **changes):
    from omegaconf import OmegaConf

    section = OmegaConf.to_container(paper_preset().cluster, resolve=False)
    return ClusterConfig(**{**section, "num_clusters": num_clusters, **changes})


def paper_allocate(num_workers, keep="farthest", **changes):
    from omegaconf import OmegaConf

    section = OmegaConf.to_container(paper_preset().allocate, resolve=False)
    changes = {"num_workers": num_workers, "selector": ClusterBalanced(keep=keep), **changes}
    return AllocateConfig(**{**section, **changes})
