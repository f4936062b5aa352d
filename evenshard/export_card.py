"""What a reader of an export is told: how to read it, and what of the set it has lost."""

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

Target = Literal["block", "strided", "repeat", "ms-swift", "llamafactory", "jsonl"]


class Losses(TypedDict):
    """What of the set an export cannot hold, or holds only if the trainer is set up for it."""

    coverage: str
    weights: str
    resume: str


@dataclass(frozen=True)
class Job:
    """The job that the order of a file is made for."""

    world_size: int
    micro_batch: int
    accumulation: int

    @property
    def step_rows(self) -> int:
        """Rows of an optimizer step over all ranks."""
        return self.world_size * self.micro_batch * self.accumulation

    def __str__(self) -> str:
        return (
            f"{self.world_size} ranks x micro-batch {self.micro_batch} x accumulation "
            f"{self.accumulation}"
        )


@dataclass(frozen=True)
class Words:
    """What is said of one kind of export; `uses` are lines of Markdown."""

    title: str
    uses: tuple[str, ...]
    weights: str


BLOCK_USES = (
    'HF Trainer, TRL: `train_sampling_strategy="sequential"`, `remove_unused_columns=False`; '
    "TRL besides `shuffle_dataset=False`, `packing=False`.",
    "Accelerate: `DataLoader(dataset, batch_size=<micro-batch>, shuffle=False)` through `prepare`, "
    "without `split_batches` and `dispatch_batches`.",
    "axolotl: `shuffle_merged_datasets: false`, `curriculum_sampling: true`, "
    "`sample_packing: false`.",
    "Megatron-LM: `--dataloader-type single`.",
)
COLUMN_WEIGHTS = (
    "in the column `weight`, which a stock trainer does not read: unless the loss multiplies by "
    "it, all weights are lost; `evenshard export --to repeat` needs no weights"
)
OWN_TEXT = "the trainer renders and cuts the text itself, so its template and maximum length decide"
WORDS: dict[Target, Words] = {
    "block": Words(
        "Blocks of one micro-batch per rank follow each other",
        BLOCK_USES,
        COLUMN_WEIGHTS,
    ),
    "strided": Words(
        "Rank r takes the rows r, r + W, r + 2 W and so on",
        (
            "torch: `DistributedSampler(dataset, shuffle=False)`.",
            "torchtune: `shuffle: False`, `packed: False`.",
            "NeMo Automodel: `shuffle: false`, no packed sequences.",
        ),
        COLUMN_WEIGHTS,
    ),
    "repeat": Words(
        "Unweighted: rows come in whole repeats instead of weights",
        (
            "Any trainer that keeps the order of rows; with one that shuffles, the repeats still "
            "hold, and coverage does not.",
            *BLOCK_USES,
            "LLaMA-Factory: `disable_shuffling: true`.",
        ),
        "only as repeats, every `weight` is 1; do not weigh the rows again. A trainer that "
        "averages over tokens counts long rows more than short ones",
    ),
    "ms-swift": Words(
        "Answers carry their row's weight as `loss_scale` (ms-swift 4.2 or newer)",
        (
            "`--is_binary_loss_scale false`, always: in the binary mode all weights are lost, and "
            "silently.",
            "`--dataset_shuffle false --train_dataloader_shuffle false`, and no packing.",
            "Read in its source, not run: without shuffling rank r takes the rows r, r + W and so "
            "on, which is the order here. Releases before that gave each rank one contiguous "
            "piece, and steps then do not cover the clusters.",
        ),
        "as `loss_scale` of every answer. The objective is token_hf: the sum over tokens of weight "
        "times loss, divided by the unweighted number of trained tokens of the step. Long rows "
        "count more than under `sample`, and the denominator is not the weighted one of `token`; "
        + OWN_TEXT,
    ),
    "llamafactory": Words(
        "Messages with `loss_weight` on the last answer, and an entry of dataset_info.json",
        (
            "`disable_shuffling: true`, `packing: false`, and `dataset_dir` as this folder; the "
            "name of the data set is in dataset_info.json.",
            "v0 leaves out, with a warning, rows whose turns do not alternate between user and "
            "assistant; the order of all later rows then shifts.",
        ),
        "not trained with: v0 reads no weights. v1 reads `messages[-1].loss_weight`, but divides "
        "by the weights' sum in each rank's own micro-batch, so a weight that is constant there "
        "cancels. The honest way into LLaMA-Factory is `evenshard export --to repeat`; " + OWN_TEXT,
    ),
    "jsonl": Words(
        "One JSON object a row",
        (
            "For programs of your own. The order is that of `block`; columns of the input that "
            "are named like one of ours are called `meta_<name>`.",
        ),
        "in `weight`, which no trainer reads by itself; " + OWN_TEXT,
    ),
}


def losses(target: Target, job: Job) -> Losses:
    """Say what an export loses for the job it is made for."""
    order = (
        f"holds only for {job}, unshuffled, unpacked, not cut again; every epoch repeats this order"
    )
    if target == "repeat":
        order = (
            "clusters come evenly along the file, but no step is promised its floor or ceiling; "
            "shuffling loses it"
        )
    return Losses(
        coverage=order,
        weights=WORDS[target].weights,
        resume=(
            f"only by skipping whole steps of {job.step_rows} rows in the trainer; another world "
            f"size or micro-batch needs another export"
        ),
    )


def build_card(
    target: Target, job: Job, facts: dict[str, Any], figures: dict[str, str], lost: Losses
) -> str:
    """Write a data-set card with which `datasets.load_dataset` reads the folder.

    The hash of the file stands in its first lines, since `datasets` names what it has read by
    them and by the folder's last name: without it an older export would be read again.

    Parameters
    ----------
    target : str
        Kind of the export.
    job : Job
        What its order is made for.
    facts : dict
        What export.json holds.
    figures : dict
        Names and texts of the rows of a table.
    lost : Losses
        What the export loses.
    """
    words = WORDS[target]
    lines = ["---", "configs:", "- config_name: default"]
    lines += [f"  description: sha256 {facts['sha256']}", "  data_files:", "  - split: train"]
    lines += [f"    path: {facts['file']}", "tags:", f"- evenshard-{target}", "---", ""]
    lines += [f"# {facts['set']['name']}, for {target}", ""]
    lines += [f"{words.title}. Made by `evenshard export` from a set of weighted shards.", ""]
    lines += ["| | |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in figures.items()), ""]
    lines += ["## Use", "", f"Made for {job}.", "", *(f"- {use}" for use in words.uses), ""]
    lines += ["## What is lost", "", *(f"- **{k}**: {v}." for k, v in lost.items())]
    return "\n".join(lines) + "\n"
