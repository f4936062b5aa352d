"""Every mistake in the configuration stops before any work, names its key and says what to do."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from pipeline import submit
from pipeline.__main__ import main
from pipeline.config import Config, check_paths, compose, settings_of
from pipeline.reshard import earlier_overrides, merge
from stages.allocate.selectors.cluster_balanced import ClusterBalanced
from stages.allocate.selectors.matched import Matched
from stages.allocate.selectors.uniform import Uniform
from stages.contract.errors import ConfigurationError
from tests.conftest import ROOT, SAMPLE
from tests.evenshard.folders import load_manifest, store_manifest, write_set

MISTAKES = [
    (["allocate.ratoi=0.5"], ["allocate.ratoi", "did you mean allocate.ratio"]),
    (["allocte.ratio=0.5"], ["allocte.ratio", "did you mean allocate.ratio"]),
    (["allocate.ratio=1.5"], ["allocate.ratio=1.5", "(0, 1]"]),
    (["allocate.ratio=0"], ["allocate.ratio=0", "(0, 1]"]),
    (["allocate.ratio=abc"], ["allocate.ratio=abc", "a number"]),
    (["allocate.ratio=0.5", "allocate.budget=50%"], ["allocate.ratio=0.5", "allocate.budget=50%"]),
    (["allocate.budget=half"], ["allocate.budget=half", "2000rows"]),
    (["allocate.budget=150%"], ["allocate.budget=150%", "(0%, 100%]"]),
    (["allocate.budget=0"], ["allocate.budget=0", ">= 1"]),
    (["allocate.budget"], ["allocate.budget", "key=value"]),
    (["allocate.num_workers=0"], ["allocate.num_workers=0", ">= 1"]),
    (["allocate.num_workers=2.5"], ["allocate.num_workers=2.5", "a whole number"]),
    (["allocate.schedule=fixed"], ["allocate.schedule=fixed", "pinned"]),
    (["allocate.selector=best"], ["selector=best", "cluster_balanced", "uniform"]),
    (["allocate.selector.keep=near"], ["allocate.selector.keep=near", "nearest"]),
    (
        ["allocate/selector=uniform", "allocate.selector.keep=nearest"],
        ["allocate.selector.keep", "allocate.selector=uniform has no options", "cluster_balanced"],
    ),
    (
        ["allocate.selector.keep=random", "allocate.selector.power=0"],
        ["allocate.selector.power is not", "cluster_balanced has the options keep", "=matched"],
    ),
    (
        ["allocate.selector.power=0", "allocate.selector=stratified"],
        ["allocate.selector.power is not", "stratified has the options quota, spread", "=matched"],
    ),
    (["allocate.selector.rigde=1"], ["=matched has the options", "mean allocate.selector.ridge?"]),
    (
        ["allocate.selector.keep=random", "allocate.selector=cluster_balanced", "allocate.ratoi=1"],
        ["allocate.ratoi is not a key", "did you mean allocate.ratio?"],
    ),
    (["allocate.selector.ridge=much"], ["allocate.selector.ridge=much must be a number"]),
    (["allocate.objective=rank", "allocate.schedule=dealt"], ["allocate.objective=rank", "pinned"]),
    (["allocate.schedule=pinned", "cluster.num_clusters=6"], ["cluster.num_clusters=6", "dealt"]),
    (["allocate.objective=rank", "cluster.num_clusters=6"], ["allocate.objective=rank", "=6"]),
    (
        ["allocate.objective=rank", "cluster.num_clusters=8", "allocate.micro_batch=4"],
        ["allocate.objective=rank", "cluster.num_clusters=8", "allocate.micro_batch=4"],
    ),
    (["cluster.slack=inf"], ["cluster.slack=inf", "cluster.num_clusters"]),
    (["seed=20260101123456"], ["seed=20260101123456", "2**32"]),
    (["cluster.seed=-1"], ["cluster.seed=-1", "2**32"]),
    (["model.path=stages/missing"], ["model.path=stages/missing", "does not exist"]),
    (["rows.path=my file (1).jsonl"], ["rows.path=my file (1).jsonl", "quote the value"]),
    (["rows.path=a,b.jsonl"], ["rows.path=a,b.jsonl", "quote the value"]),
    (["cluster.num_clusters=0"], ["cluster.num_clusters=0", ">= 1"]),
    (["cluster.num_clusters=2.5"], ["cluster.num_clusters=2.5", "whole number"]),
    (["cluster.num_clusters=4", "cluster.fit_rows=2"], ["cluster.fit_rows=2", ">= 4"]),
    (["embed.feature=gradient"], ["embed.feature=gradient", "target_row"]),
    (["embed.rows_per_part=0"], ["embed.rows_per_part=0"]),
    (["model.dtype=bf16"], ["model.dtype=bf16", "bfloat16"]),
    (["model.path=/no/such/folder"], ["model.path=/no/such/folder", "does not exist"]),
    (["model=hf"], ["model.path", "model=hf"]),
    (["tokens.template=alpca"], ["tokens.template=alpca", "alpaca"]),
    (["tokens.max_length=abc"], ["tokens.max_length=abc", "whole number"]),
    (["tokens.on_too_long=cut"], ["tokens.on_too_long=cut", "keep_answer"]),
    (["rows.dialect=alpacca"], ["rows.dialect=alpacca", "alpaca"]),
    (["screen.duplicates=drop"], ["screen.duplicates=drop", "collapse, keep"]),
    (["screen.near_duplicates=yes"], ["screen.near_duplicates=yes", "off, report"]),
    (["screen.near_threshold=0"], ["screen.near_threshold=0", "(0, 1]"]),
    (["screen.near_threshold=80"], ["screen.near_threshold=80", "(0, 1]"]),
    (["screen.benchmarks=a.jsonl"], ["must be a list", "screen.benchmarks=[a.jsonl]"]),
    (["screen.ngram=0"], ["screen.ngram=0", ">= 1"]),
    (["screen.on_leak=dorp"], ["screen.on_leak=dorp", "screen.on_leak=drop"]),
    (["screen.benchmark=[a.jsonl]"], ["screen.benchmark", "did you mean screen.benchmarks"]),
    (
        ["screen.near_duplicates=collapse", "screen.duplicates=keep"],
        ["screen.near_duplicates=collapse", "screen.duplicates=keep"],
    ),
    (["rows.max_reject_fraction=2"], ["rows.max_reject_fraction=2"]),
    (["compute=gpu9"], ["compute=gpu9", "gpu8"]),
    (["compute.workers=-1"], ["compute.workers=-1", ">= 0"]),
    (["compute.workers=0", "compute.address=auto"], ["compute.address=auto", "compute.workers"]),
    (["experiment=papr"], ["experiment=papr", "paper"]),
    (["name=a/b"], ["name=a/b"]),
    (["out=s3://bucket/set"], ["out=s3://bucket/set", "no URL", "copy it afterwards"]),
    (["models=gs://bucket/models"], ["models=gs://bucket/models", "no URL"]),
    (["+foo=3"], ["+foo=3", "cannot be added"]),
    (["~seed=0"], ["~seed=0"]),
    (["foo=3"], ["foo is not a key"]),
]


@pytest.mark.parametrize(("overrides", "words"), MISTAKES, ids=lambda v: " ".join(v))
def test_a_mistake_names_key_value_and_remedy(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        compose(overrides)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rows.path=nope.jsonl"], ["rows.path=nope.jsonl", "does not exist"]),
        (["rows.path=stages/missing"], ["rows.path=stages/missing", "does not exist"]),
        (["rows.path=Makefile"], ["rows.path=Makefile"]),
        (["screen.benchmarks=[no.jsonl]"], ["screen.benchmarks=no.jsonl", "does not exist"]),
        (["screen.benchmarks=[tests/*.nope]"], ["screen.benchmarks=tests/*.nope", "not exist"]),
        (["screen.benchmarks=[Makefile]"], ["screen.benchmarks=Makefile", ".jsonl"]),
        (["screen.benchmarks=[tests]"], ["screen.benchmarks=tests", "is a folder"]),
        (["out=stages"], ["out=stages", "did not write"]),
        (["out=Makefile"], ["out=Makefile", "folder"]),
        (["out=Makefile/set"], ["Makefile/set cannot be written", "Not a directory", "another"]),
    ],
)
def test_paths_are_checked_before_any_work(
    overrides: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigurationError) as caught:
        check_paths(compose(overrides))
    assert all(word in str(caught.value) for word in words), caught.value


def test_defaults_in_conf_are_those_of_the_code() -> None:
    composed = dataclasses.asdict(compose([]))
    coded = dataclasses.asdict(Config())
    coded["rows"]["path"] = "data/sample/sample.jsonl"
    coded["cluster"] |= {"restore_count": "no", "num_clusters": None, "feature": "head_sketch"}
    # What measurement found best; the plain code starts from the paper's selector.
    coded["allocate"]["selector"] = dataclasses.asdict(Matched())
    coded["embed"]["also"] = ["head_sketch"]
    coded["compute"]["workers"] = composed["compute"]["workers"]
    assert composed == coded


def test_every_key_of_a_section_is_written_in_conf() -> None:
    for section in ("rows", "screen", "tokens", "embed", "cluster", "allocate"):
        written = yaml.safe_load((ROOT / "conf" / section / "default.yaml").read_text())
        fields = {field.name for field in dataclasses.fields(getattr(Config(), section))}
        assert set(written) == fields - {"selector"}


def test_clusters_do_not_follow_the_workers() -> None:
    found = compose(["allocate.num_workers=8"]).cluster
    assert (found.num_clusters, found.restore_count) == (None, "no")


@pytest.mark.parametrize(
    "needs_them",
    [
        "allocate.selector=cluster_balanced",
        "allocate.selector.keep=nearest",
        "allocate.schedule=pinned",
        "allocate.objective=rank",
    ],
)
def test_clusters_are_the_workers_where_that_is_the_rule(needs_them: str) -> None:
    found = compose(["allocate.num_workers=8", needs_them]).cluster
    assert (found.num_clusters, found.restore_count) == (8, "yes")
    free = compose(["allocate.num_workers=8", needs_them, "cluster.num_clusters=32"])
    assert (free.cluster.num_clusters, free.cluster.restore_count) == (32, "no")


@pytest.mark.parametrize(
    ("overrides", "feature"),
    [
        ([], "head_sketch"),
        (["allocate.schedule=pinned"], "head_sketch"),
        (["embed.also=[]", "allocate.selector=uniform"], None),
        (["embed.feature=hidden_mean"], None),
        (["cluster.feature=target_row"], "target_row"),
        (["allocate.selector=cluster_balanced"], None),
        (["experiment=paper"], None),
    ],
)
def test_by_which_feature_rows_are_clustered(overrides: list[str], feature: str | None) -> None:
    assert compose(overrides).cluster.feature == feature


def test_one_seed_reaches_every_section() -> None:
    config = compose(["seed=7"])
    sections = (config.rows, config.screen, config.embed, config.cluster, config.allocate)
    assert [section.seed for section in sections] == [7] * 5


def test_the_name_of_a_run_is_that_of_its_data() -> None:
    config = compose(['rows.path="some where/my set.v2.jsonl"'])
    assert (config.name, config.out) == ("my-set", "data/curated/my-set")


def test_a_selector_is_chosen_with_a_dot_or_a_slash() -> None:
    assert isinstance(compose(["allocate.selector=uniform"]).allocate.selector, Uniform)
    assert isinstance(compose(["allocate/selector=uniform"]).allocate.selector, Uniform)
    assert compose(["allocate.selector.keep=mixed"]).allocate.selector == ClusterBalanced(
        keep="mixed"
    )


@pytest.mark.parametrize("text", ["2000", "2000rows", "0.5", "50%", "300000tokens", "1", "1.0"])
def test_a_budget_keeps_the_text_it_was_written_as(text: str) -> None:
    assert compose([f"allocate.budget={text}"]).allocate.budget == text


def test_the_paper_is_one_experiment() -> None:
    config = compose(["experiment=paper", "allocate.num_workers=8"])
    cluster, allocate = config.cluster, config.allocate
    assert (config.screen.duplicates, config.embed.feature) == ("keep", "target_row")
    assert (cluster.num_clusters, cluster.n_init, cluster.min_rows) == (8, 10, 0)
    assert (cluster.normalize, cluster.center, cluster.slack) == (True, False, 0.5)
    assert (allocate.ratio, allocate.micro_batch) == (1.0, 1)
    assert (allocate.schedule, allocate.objective) == ("pinned", "rank")
    assert allocate.selector == ClusterBalanced(keep="farthest")


def test_a_budget_takes_the_place_of_an_experiments_ratio() -> None:
    allocate = compose(["experiment=paper", "allocate.budget=50%"]).allocate
    assert (allocate.ratio, allocate.budget) == (None, "50%")
    with pytest.raises(ConfigurationError, match="exclude each other"):
        compose(["experiment=paper", "allocate.budget=50%", "allocate.ratio=0.5"])


def test_the_paper_beside_random_is_one_more_override() -> None:
    assert compose(["experiment=paper", "allocate.selector=uniform"]).allocate.selector == Uniform()


def test_another_data_set_of_the_same_name_does_not_replace_a_set(tmp_path: Path) -> None:
    paths = {}
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        paths[place] = tmp_path / place / "train.jsonl"
        paths[place].write_text('{"prompt": "p", "completion": "c"}\n')
    out = tmp_path / "out"
    out.mkdir()
    settings = {"rows": {"path": str(paths["a"])}}
    write_set(out)
    store_manifest(out, {**load_manifest(out), "settings": settings})
    config = compose([f"rows.path={paths['b']}"])
    config.out = str(out)
    with pytest.raises(ConfigurationError, match=r"give this run another name"):
        check_paths(config)
    check_paths(config, ["name=train"])
    config.rows.path = str(tmp_path / "b" / ".." / "a" / "train.jsonl")
    check_paths(config)


def of_another_data_set(tmp_path: Path) -> tuple[str, str]:
    """Publish a set of other rows; give the overrides of the folder, and of new rows."""
    rows = tmp_path / "train.jsonl"
    rows.write_text('{"prompt": "p", "completion": "c"}\n')
    write_run(tmp_path / "out", f"rows.path={tmp_path / 'other' / 'train.jsonl'}")
    return f"out={tmp_path / 'out'}", f"rows.path={rows}"


class Jobs:
    """A cluster that takes jobs and runs none."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def submit_job(self, *, entrypoint: str, runtime_env: object, metadata: object) -> str:
        self.sent.append(entrypoint)
        return "job"


SUBMITTED = ("address=http://head:8265", "compute.workers=1", "follow=false")


def test_a_submitted_job_does_not_replace_the_set_of_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is told to every job, since it runs elsewhere; the user has named none."""
    out, rows = of_another_data_set(tmp_path)
    jobs = Jobs()
    monkeypatch.setattr(submit, "job_client", lambda address: jobs)
    monkeypatch.setattr(submit, "paths_of_here", lambda overrides, root: [out])
    with pytest.raises(ConfigurationError, match="would replace; give this run another name"):
        submit.submit([*SUBMITTED, rows])
    assert jobs.sent == []
    assert submit.submit([*SUBMITTED, rows, "name=train"]) == 0
    assert len(jobs.sent) == 1 and out in jobs.sent[0]


def test_a_job_may_write_where_this_machine_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    out = tmp_path / "file" / "out"
    jobs = Jobs()
    monkeypatch.setattr(submit, "job_client", lambda address: jobs)
    assert submit.submit([*SUBMITTED, f"out={out}"]) == 0
    assert len(jobs.sent) == 1
    with pytest.raises(ConfigurationError, match="cannot be written"):
        check_paths(compose([f"out={out}"]))


def test_settings_are_plain_values_with_the_class_of_the_selector() -> None:
    settings = settings_of(compose(["allocate.selector=uniform"]))
    assert settings["allocate"]["selector"] == {"class": "Uniform"}
    assert settings["rows"]["path"] == "data/sample/sample.jsonl"


def test_later_overrides_replace_earlier_ones_of_the_same_key() -> None:
    earlier = ["rows.limit=40", "allocate.ratio=0.5", "allocate/selector=uniform"]
    assert merge(earlier, ["allocate.num_workers=8"]) == [*earlier, "allocate.num_workers=8"]
    assert merge(earlier, ["allocate.budget=8rows"]) == [
        "rows.limit=40",
        "allocate/selector=uniform",
        "allocate.budget=8rows",
    ]
    assert merge(["model.path=/m", "compute.workers=2"], ["model=smollm2", "compute=local"]) == [
        "model=smollm2",
        "compute=local",
    ]
    assert merge(["allocate.selector.keep=nearest"], ["allocate.selector=uniform"]) == [
        "allocate.selector=uniform"
    ]
    assert merge(earlier, ["allocate.selector=cluster_balanced"]) == [
        "rows.limit=40",
        "allocate.ratio=0.5",
        "allocate.selector=cluster_balanced",
    ]


def write_run(out: Path, *overrides: str) -> None:
    """Publish a small set that says it was made by these overrides."""
    settings = settings_of(compose(overrides))
    write_set(out)
    store_manifest(out, {**load_manifest(out), "settings": settings, "overrides": list(overrides)})


@pytest.mark.parametrize(
    ("made", "asked", "selector"),
    [
        ([], [], "Matched"),
        ([], ["allocate.selector.power=0"], "Matched"),
        ([], ["allocate.selector.keep=nearest"], "ClusterBalanced"),
        ([], ["allocate.selector=uniform"], "Uniform"),
        ([], ["experiment=paper"], "ClusterBalanced"),
        (["allocate.selector.keep=random"], [], "ClusterBalanced"),
        (["allocate.selector.keep=random"], ["allocate.selector.keep=mixed"], "ClusterBalanced"),
        (["allocate.selector.keep=random"], ["allocate.selector=stratified"], "Stratified"),
        (["experiment=paper"], ["allocate.num_workers=2"], "ClusterBalanced"),
        (["experiment=paper", "allocate.selector=uniform"], ["seed=1"], "Uniform"),
        (
            ["allocate.selector=uncertainty"],
            ["allocate.selector.keep=smallest"],
            "Uncertainty",
        ),
    ],
    ids=str,
)
def test_a_reshard_keeps_the_selector_that_the_run_used(
    tmp_path: Path, made: list[str], asked: list[str], selector: str
) -> None:
    write_run(tmp_path, *made)
    config = compose(earlier_overrides([f"out={tmp_path}", *asked]))
    assert type(config.allocate.selector).__name__ == selector
    if not asked:
        assert config.allocate.selector == compose(made).allocate.selector


def test_an_option_of_another_selector_is_refused_by_the_name_of_the_runs_own(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "allocate.selector.keep=random")
    with pytest.raises(ConfigurationError) as caught:
        compose(earlier_overrides([f"out={tmp_path}", "allocate.selector.power=0"]))
    message = str(caught.value)
    assert "allocate.selector.power is not a key" in message
    assert "allocate.selector=cluster_balanced has the options keep" in message


def test_the_selector_of_a_run_is_not_that_of_a_later_default(tmp_path: Path) -> None:
    """A run without a word on its selector, made when the default was another."""
    write_run(tmp_path)
    manifest = load_manifest(tmp_path)
    manifest["settings"]["allocate"]["selector"] = {"class": "Uniform"}
    store_manifest(tmp_path, manifest)
    overrides = earlier_overrides([f"out={tmp_path}", "allocate.num_workers=2"])
    assert compose(overrides).allocate.selector == Uniform()


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"format_version": 2}, "has format_version=2, this evenshard reads 1"),
        ({"workers": None}, "workers"),
        ({"settings": {}}, "rows"),
        ({"settings": {"rows": []}}, "cannot be read"),
    ],
    ids=str,
)
def test_a_set_that_cannot_be_read_is_not_replaced(
    tmp_path: Path, changed: dict[str, object], words: str, named: bool
) -> None:
    """By whatever command: what would be lost is not known."""
    write_run(tmp_path)
    store_manifest(tmp_path, {**load_manifest(tmp_path), **changed})
    config = compose([f"out={tmp_path}"])
    with pytest.raises(ConfigurationError, match=r"holds a set that cannot be read") as caught:
        check_paths(config, [f"out={tmp_path}"] if named else [])
    assert words in str(caught.value) and "another name=" in str(caught.value)
    assert main([f"out={tmp_path}", f"rows.path={SAMPLE}"]) == 2
