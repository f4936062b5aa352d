"""The commands of the pages that no test runs here, each with the reason.

A command that is neither here nor runs is a failure, and so is a line here that no page has.
"""

CLUSTER = "needs a cluster of several machines"
BUCKET = "needs a bucket and its credentials"
GPU = "needs a GPU"
NETWORK = "fetches from the network"
FOLDER = "goes into the clone; the commands of the tests begin there"
OTHER = "needs a trainer that is not installed here"
ITSELF = "would run these tests inside themselves"
SERVES = "serves until Ctrl-C; tests/report opens its pages"

# Command, or its beginning where it ends in `...`: reason.
NOT_RUN = {
    "git clone ...": NETWORK,
    "cd evenshard": FOLDER,
    "make test": ITSELF,
    "make serve ...": SERVES,
    ".venv/bin/python -m pip install ...": NETWORK,
    "make curate DATASET=my.jsonl MODEL=path/to/model ARGS=compute=gpu1": GPU,
    "make submit ...": CLUSTER,
    "make submit-status ...": CLUSTER,
    "make submit-stop ...": CLUSTER,
    "sbatch ...": CLUSTER,
    """make curate ARGS='"store=\\"s3://bucket/store?region=eu-west-1\\""'""": BUCKET,
    "swift sft ...": OTHER,
    "... --dataloader-type single --calculate-per-token-loss": OTHER,
}
# Commands that need more than what curating installs, and the module.
NEEDS = {".venv/bin/torchrun ...": "trl", ".venv/bin/python build/ask.py": "trl"}


def reason(command: str) -> str:
    """Say why a command is not run; empty where it is."""
    return next((why for known, why in NOT_RUN.items() if is_meant(known, command)), "")


def is_meant(known: str, command: str) -> bool:
    """Say whether a line of the table means a command."""
    begins = known.removesuffix(" ...")
    return command == known or (begins != known and command.startswith(f"{begins} "))


def needed_by(command: str) -> str:
    """Name the module that a command cannot do without; empty where there is none."""
    return next((module for known, module in NEEDS.items() if is_meant(known, command)), "")
