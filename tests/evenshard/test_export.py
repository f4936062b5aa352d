"""What each rank reads from an export is what the plan gives it, and what is lost is said."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from evenshard.__main__ import main
from evenshard.export import TARGETS, export
from evenshard.plan import Plan
from evenshard.shards import SHARD_SCHEMA, ShardError
from evenshard.shardset import ShardSet
from tests.conftest import ROOT
from tests.evenshard import folders

TEXT = "Grüße, 你好, עברית, 🦆\u2028end"


def make_set(tmp_path: Path, world_size: int = 2, micro_batch: int = 2, accum: int = 2) -> Path:
    """Write a set of four steps with conversations in several scripts."""
    folder = tmp_path / "set"
    total = 4 * world_size * micro_batch * accum
    kept = (total - total // 4 - total // 8, total // 4, total // 8)
    kept = tuple(rows for rows in kept if rows)
    per_step = total // 4
    window = 1 if per_step >= len(kept) else 4
    folders.write_set(
        folder,
        kept=kept,
        world_size=world_size,
        micro_batch=micro_batch,
        accumulation=accum,
        window=window,
    )
    for rank in range(world_size):
        rows = total // world_size
        turns = [
            [
                {"role": "system", "content": None},
                {"role": "user", "content": f"{TEXT} {i}"},
                {"role": "assistant", "content": "first"},
                {"role": "user", "content": "more"},
                {"role": "assistant", "content": TEXT},
                {"role": "user", "content": "thanks"},
            ]
            for i in range(rows)
        ]
        metas = [
            {"weight": "mine", "n": i if i % 2 else i + 0.5, "odd": TEXT if i % 2 else i}
            for i in range(rows)
        ]
        metas[0] = {"only": [1, 2]}
        folders.set_column(folder, rank, "messages", turns)
        texts = [json.dumps(meta, ensure_ascii=False) for meta in metas]
        folders.set_column(folder, rank, "meta", texts)
    return folder


def planned(folder: Path, world_size: int | None, micro_batch: int | None) -> list[Any]:
    """Give the row ids of each rank's micro-batches."""
    shards = ShardSet(folder)
    plan = Plan(shards, world_size, micro_batch)
    ranks = range(plan.world_size)
    return [[shards.row_ids(b).tolist() for b in plan.batches(0, rank)] for rank in ranks]


def row_ids(folder: Path) -> list[int]:
    found: list[int] = pq.read_table(folder / "train.parquet")["row_id"].to_pylist()
    return found


def records(folder: Path) -> list[Any]:
    lines = (folder / "train.jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b""
    return [json.loads(line) for line in lines]


def megatron_deal(num_rows: int, rank: int, world_size: int, micro_batch: int) -> list[list[int]]:
    """Deal as Megatron-LM's sampler does under `--dataloader-type single`."""
    dealt, batch = [], []
    for index in range(num_rows):
        batch.append(index)
        if len(batch) == micro_batch * world_size:
            dealt.append(batch[rank * micro_batch : (rank + 1) * micro_batch])
            batch = []
    return dealt


def accelerate_deal(num_rows: int, rank: int, world_size: int, micro_batch: int) -> list[list[int]]:
    data_loader = pytest.importorskip("accelerate.data_loader")
    from torch.utils.data import BatchSampler, SequentialSampler

    sampler = BatchSampler(SequentialSampler(range(num_rows)), micro_batch, drop_last=False)
    shard = data_loader.BatchSamplerShard(sampler, num_processes=world_size, process_index=rank)
    return list(shard)


def torch_deal(num_rows: int, rank: int, world_size: int, micro_batch: int) -> list[list[int]]:
    from torch.utils.data import BatchSampler, DistributedSampler

    sampler = DistributedSampler(range(num_rows), world_size, rank, shuffle=False)  # type: ignore[arg-type]
    return list(BatchSampler(sampler, micro_batch, drop_last=False))


SIZES = [(w, b, a) for w in (1, 2, 4) for b in (1, 2) for a in (1, 2)]
JOBS = [(size, None, None) for size in SIZES]
JOBS += [((4, 2, 2), 2, None), ((4, 2, 1), 8, None), ((4, 2, 2), 8, 4), ((4, 1, 1), 1, 2)]
JOBS += [((2, 3, 1), 3, 2)]  # three ranks of two rows each: no padding


@pytest.mark.parametrize(("size", "world_size", "micro_batch"), JOBS)
@pytest.mark.parametrize(
    ("to", "deal"),
    [("block", accelerate_deal), ("block", megatron_deal), ("strided", torch_deal)],
)
def test_ranks_read_what_the_plan_gives_them(
    tmp_path: Path, size: Any, world_size: int | None, micro_batch: int | None, to: Any, deal: Any
) -> None:
    folder = make_set(tmp_path, *size)
    done = export(folder, to, world_size=world_size, micro_batch=micro_batch)
    found, ranks = row_ids(done.folder), world_size or size[0]
    assert len(found) == len(set(found)) == ShardSet(folder).num_rows
    for rank, wanted in enumerate(planned(folder, world_size, micro_batch)):
        dealt = deal(len(found), rank, ranks, micro_batch or size[1])
        assert [[found[i] for i in batch] for batch in dealt] == wanted


def test_strided_is_by_hand(tmp_path: Path) -> None:
    folder = make_set(tmp_path, 2, 2, 1)
    first, second = ShardSet(folder).row_id.tolist()
    strided = row_ids(export(folder, "strided").folder)
    assert strided[:4] == [first[0], second[0], first[1], second[1]]
    block = row_ids(export(folder, "block").folder)
    assert block[:6] == [first[0], first[1], second[0], second[1], first[2], first[3]]


@pytest.mark.parametrize("to", ["block", "strided"])
def test_columns_and_rows_are_those_of_the_shards(tmp_path: Path, to: Any) -> None:
    folder = make_set(tmp_path)
    table = pq.read_table(export(folder, to).folder / "train.parquet")
    assert table.schema.equals(SHARD_SCHEMA)
    by_id = {row["row_id"]: row for row in table.to_pylist()}
    shards = [row for rank in range(2) for row in folders.load_table(folder, rank).to_pylist()]
    assert [by_id[row["row_id"]] for row in shards] == shards


def test_rows_of_many_row_groups(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folders.write_set(folder, kept=(2000, 1200), world_size=4, micro_batch=2, accumulation=1)
    done = export(folder, "block", world_size=2)
    with pq.ParquetFile(done.folder / "train.parquet") as file:
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert groups == [1024, 1024, 1024, 128]
    found = np.array(row_ids(done.folder)).reshape(-1, 2, 2)  # (micro-batch, rank, row)
    for rank, wanted in enumerate(planned(folder, 2, None)):
        assert found[:, rank].tolist() == wanted


@pytest.mark.parametrize("to", TARGETS)
def test_datasets_reads_every_export(tmp_path: Path, to: Any) -> None:
    datasets = pytest.importorskip("datasets")
    done = export(make_set(tmp_path), to)
    read = datasets.load_dataset(str(done.folder), split="train", cache_dir=str(tmp_path / "cache"))
    facts = json.loads((done.folder / "export.json").read_text(encoding="utf-8"))
    assert len(read) == facts["rows"]
    assert read[0]["messages"][1]["content"].startswith(TEXT)
    if to == "jsonl":
        assert read[1]["meta_weight"] == "mine" and read[0]["only"] == [1, 2]


def test_datasets_reads_an_export_that_was_made_anew_and_not_its_cache(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    found = []
    for seed, place in enumerate(("a", "b")):
        folder = tmp_path / place / "set"
        folder.parent.mkdir()
        folders.write_set(
            folder, kept=(8 + 8 * seed, 8), world_size=2, micro_batch=2, accumulation=1
        )
        done = export(folder, "block", out=tmp_path / place / "block")
        read = datasets.load_dataset(
            str(done.folder), split="train", cache_dir=str(tmp_path / "cache")
        )
        assert read["row_id"][:] == row_ids(done.folder)
        found.append(read["row_id"][:])
    assert found[0] != found[1]


@pytest.mark.parametrize("to", TARGETS)
def test_folder_says_what_it_is_and_what_is_lost(tmp_path: Path, to: Any) -> None:
    folder = make_set(tmp_path)
    done = export(folder, to)
    assert done.folder == tmp_path / f"set-{to}"
    assert not [path for path in tmp_path.iterdir() if path.name[0] == "."]
    facts = json.loads((done.folder / "export.json").read_text(encoding="utf-8"))
    assert facts["format"] == "evenshard-export" and facts["to"] == to
    assert (facts["world_size"], facts["micro_batch"]) == (2, 2)
    assert facts["set"]["name"] == "small" and facts["set"]["keys"]
    assert len(facts["set"]["manifest_sha256"]) == len(facts["sha256"]) == 64
    assert set(facts["lost"]) == {"coverage", "weights", "resume"}
    _, front, body = (done.folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    card = yaml.safe_load(front)
    assert card["configs"][0]["data_files"] == [{"split": "train", "path": facts["file"]}]
    for text in (*facts["lost"].values(), *done.figures.values()):
        assert text in body


def test_repeats_follow_the_weights(tmp_path: Path) -> None:
    folder = make_set(tmp_path)
    weights = {
        row["row_id"]: row["weight"]
        for rank in range(2)
        for row in folders.load_table(folder, rank).to_pylist()
    }
    done = export(folder, "repeat", repeat_rows=8 * len(weights))
    table = pq.read_table(done.folder / "train.parquet")
    assert set(table["weight"].to_pylist()) == {1.0}
    found, counts = np.unique(table["row_id"].to_numpy(), return_counts=True)
    assert counts.sum() == 8 * len(weights) and set(found.tolist()) == set(weights)
    wanted = np.array([weights[i] for i in found.tolist()])
    facts = json.loads((done.folder / "export.json").read_text(encoding="utf-8"))
    error = np.abs(counts / counts.sum() - wanted / wanted.sum()).sum() / 2
    assert facts["repeat"]["row_total_variation"] == pytest.approx(error, abs=1e-6)
    assert error < 0.03 and not facts["weighted"]
    assert f"{error:.2%}" in (done.folder / "README.md").read_text(encoding="utf-8")


def test_repeat_without_a_length_takes_enough_or_as_many_as_there_are(tmp_path: Path) -> None:
    folder = make_set(tmp_path)
    rows = ShardSet(folder).num_rows
    found = row_ids(export(folder, "repeat").folder)
    assert len(found) % rows == 0 and len(set(found)) == rows
    facts = json.loads((tmp_path / "set-repeat" / "export.json").read_text(encoding="utf-8"))
    assert facts["repeat"]["row_total_variation"] <= 0.05
    found = row_ids(export(folder, "repeat", allow_drop=True).folder)
    assert len(found) == rows
    found = row_ids(export(folder, "repeat", world_size=3, allow_drop=True).folder)
    assert len(found) == -(-rows // 6) * 6


def test_repeat_refuses_lengths_that_ranks_cannot_share(tmp_path: Path) -> None:
    folder = make_set(tmp_path)
    with pytest.raises(ShardError, match=r"repeat_rows=33 must be a multiple of 4.*32 or 36"):
        export(folder, "repeat", repeat_rows=33)
    with pytest.raises(ShardError, match=r"repeat_rows=16 must be >= 32.*--allow-drop"):
        export(folder, "repeat", repeat_rows=16)
    assert len(row_ids(export(folder, "repeat", repeat_rows=16, allow_drop=True).folder)) == 16


def test_ms_swift_answers_carry_the_weight(tmp_path: Path) -> None:
    folder = make_set(tmp_path)
    strided = pq.read_table(export(folder, "strided").folder / "train.parquet")
    done = export(folder, "ms-swift")
    found = records(done.folder)
    for record, weight in zip(found, strided["weight"].to_pylist(), strict=True):
        turns = record["messages"]
        assert [turn["role"] for turn in turns[1:]] == ["user", "assistant", "user", "assistant"]
        scales = [turn.get("loss_scale") for turn in turns]
        assert [np.float32(s) for s in scales if s is not None] == [np.float32(weight)] * 2
        assert scales[2] == scales[4] and turns[4]["content"] == TEXT
    card = (done.folder / "README.md").read_text(encoding="utf-8")
    for words in (
        "--is_binary_loss_scale false",
        "--dataset_shuffle false --train_dataloader_shuffle false",
        "token_hf",
    ):
        assert words in card


def test_llamafactory_says_that_weights_cancel(tmp_path: Path) -> None:
    done = export(make_set(tmp_path), "llamafactory")
    info = json.loads((done.folder / "dataset_info.json").read_text(encoding="utf-8"))
    assert info["small"]["file_name"] == "train.jsonl"
    assert info["small"]["formatting"] == "sharegpt"
    turns = records(done.folder)[0]["messages"]
    assert [("loss_weight" in turn) for turn in turns] == [False] * 4 + [True]
    card = (done.folder / "README.md").read_text(encoding="utf-8")
    for words in ("disable_shuffling: true", "cancels", "evenshard export --to repeat"):
        assert words in card


def test_lines_hold_the_columns_of_meta(tmp_path: Path) -> None:
    folder = make_set(tmp_path)
    block = pq.read_table(export(folder, "block").folder / "train.parquet").to_pylist()
    done = export(folder, "jsonl")
    assert TEXT.encode() in (done.folder / "train.jsonl").read_bytes()  # not escaped
    for record, row in zip(records(done.folder), block, strict=True):
        for name in ("messages", "row_id", "uid", "source", "cluster"):
            assert record[name] == row[name]
        assert np.float32(record["weight"]) == np.float32(row["weight"])
        meta = json.loads(row["meta"])
        assert record["meta_weight"] == meta.get("weight")
        assert record["only"] == meta.get("only")
        assert record["n"] is None or isinstance(record["n"], float)
        assert record["n"] == meta.get("n")
        odd = record["odd"]  # of two kinds: JSON text in every row
        assert odd is None if "odd" not in meta else json.loads(odd) == meta["odd"]


def test_meta_that_is_odd_is_kept(tmp_path: Path) -> None:
    folder = make_set(tmp_path, 1, 1, 1)
    metas = ['{"a": "\\ud800"}', "no JSON", '{"a": null, "meta_uid": 1}', '{"uid": 12}']
    folders.set_column(folder, 0, "meta", metas)
    found = records(export(folder, "jsonl").folder)
    assert [record["a"] for record in found] == ["\ud800", None, None, None]
    assert found[1]["meta_meta"] == "no JSON"
    assert found[2]["meta_uid"] == 1 and found[3]["meta_meta_uid"] == 12


def strictly(line: bytes) -> Any:
    """Read as readers do that follow the standard: no Infinity, no NaN."""

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    return json.loads(line, parse_constant=refuse)


LARGE = 2**53 + 1  # the first integer that a double cannot hold


@pytest.mark.parametrize(
    ("metas", "expected"),
    [
        (["1e400", "-1e400", "NaN", '"a"'], ["1e400", "-1e400", "NaN", "a"]),
        (["[1e400]", "[Infinity]", "[]", "null"], [["1e400"], ["Infinity"], [], None]),
        (["1e400", "2.5", "1", "null"], ['"1e400"', "2.5", "1", None]),
        (["1", "2.5", "3", "-4"], [1.0, 2.5, 3.0, -4.0]),
        ([str(LARGE), "2.5", "1", "null"], [str(LARGE), "2.5", "1", None]),
        ([str(LARGE), str(-LARGE), "1", "null"], [LARGE, -LARGE, 1, None]),
        ([str(2**53), "2.5", str(2**60), "1"], [2.0**53, 2.5, 2.0**60, 1.0]),
        ([str(2**64 + 1), str(LARGE), "1", "null"], [str(2**64 + 1), str(LARGE), "1", None]),
    ],
)
def test_numbers_of_meta_are_json_and_lose_no_digit(
    tmp_path: Path, metas: list[str], expected: list[Any]
) -> None:
    folder = make_set(tmp_path, 1, 1, 1)
    folders.set_column(folder, 0, "meta", [f'{{"a": {value}}}' for value in metas])
    lines = (export(folder, "jsonl").folder / "train.jsonl").read_bytes().splitlines()
    found = [strictly(line)["a"] for line in lines]
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


def test_padding_is_refused_with_the_world_sizes_that_work(tmp_path: Path) -> None:
    folder = make_set(tmp_path, 2, 2, 1)  # 4 steps of 4 rows
    with pytest.raises(ShardError) as caught:
        export(folder, "block", world_size=3)
    assert "world_size=3 with micro_batch=2 gives ranks padding" in str(caught.value)
    assert "these world sizes work: 1, 2, 4, 8," in str(caught.value)
    assert "make reshard NAME=small WORLD_SIZE=3" in str(caught.value)
    assert not (tmp_path / "set-block").exists()
    with pytest.raises(ShardError, match="micro_batch=3 must divide"):
        export(folder, "block", micro_batch=3)


def test_only_an_export_is_replaced(tmp_path: Path) -> None:
    folder = make_set(tmp_path)
    with pytest.raises(ShardError, match="is no export of evenshard"):
        export(folder, "block", out=folder)
    mine = tmp_path / "mine"
    mine.mkdir()
    export(folder, "block", out=mine)  # an empty folder is taken
    export(folder, "jsonl", out=mine)
    assert sorted(path.name for path in mine.iterdir()) == [
        "README.md",
        "export.json",
        "train.jsonl",
    ]
    (mine / "export.json").write_text("{}")
    with pytest.raises(ShardError, match="would be overwritten; give another --out"):
        export(folder, "block", out=mine)


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "an export"])
def test_a_link_stays_a_link(tmp_path: Path, there: str) -> None:
    folder = make_set(tmp_path)
    disk, out = tmp_path / "disk", tmp_path / "elsewhere" / "out"
    out.parent.mkdir()
    out.symlink_to(disk)
    if there != "nothing":
        disk.mkdir()
    if there == "an export":
        export(folder, "jsonl", out=disk)
    done = export(folder, "block", out=out)
    assert done.folder == out and out.is_symlink() and not disk.is_symlink()
    assert sorted(path.name for path in disk.iterdir()) == [
        "README.md",
        "export.json",
        "train.parquet",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "elsewhere", "set"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_files_of_the_user_outlive_a_new_export(tmp_path: Path) -> None:
    folder = make_set(tmp_path)
    out = export(folder, "llamafactory").folder
    (out / "notes.txt").write_text("mine")
    export(folder, "block", out=out)
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "export.json",
        "notes.txt",
        "train.parquet",
    ]


def test_a_fault_leaves_the_older_export(tmp_path: Path) -> None:
    folder = make_set(tmp_path)
    before = row_ids(export(folder, "block").folder)
    table = folders.load_table(folder, 1)
    folders.store_table(folder, 1, table.drop_columns(["meta"]))
    with pytest.raises(ShardError, match="unlike a shard's"):
        export(folder, "block")
    assert row_ids(tmp_path / "set-block") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set-block"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_set(tmp_path)
    out = tmp_path / "there"
    arguments = ["--to", "repeat", "--out", str(out), "--repeat-rows", "64", "--micro-batch", "1"]
    assert main(["export", str(folder), *arguments]) == 0
    printed = capsys.readouterr().out
    assert str(out) in printed and "(total variation" in printed
    for words in ("what is lost:", "coverage", "only as repeats", "resume"):
        assert words in printed
    assert main(["export", str(folder), "--to", "block", "--world-size", "3"]) == 1
    assert "these world sizes work: 1, 2, 4, 8" in capsys.readouterr().err
    assert main(["export", str(folder), "--to", "block", "--allow-drop"]) == 1
    assert "to=block must come without repeat_rows and allow_drop" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["export", str(folder), "--to", "mosaic"])
    with pytest.raises(SystemExit, match="2"):
        main(["export", str(folder), "--to", "block", "--world-size", "0"])


def test_no_torch_is_loaded(tmp_path: Path) -> None:
    folder = make_set(tmp_path)
    code = (
        "import sys; from evenshard.__main__ import main;"
        f"codes = [main(['export', {str(folder)!r}, '--to', to]) for to in {TARGETS!r}];"
        "loaded = {'torch', 'datasets', 'transformers', 'ray'} & set(sys.modules);"
        "sys.exit(str(loaded) if loaded or any(codes) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
