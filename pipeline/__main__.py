"""The edge: `python -m pipeline [curate|compare|dry-run|reshard|...] [key=value ...]`.

Errors meant for people end with one sentence and exit status 2; anything else is a fault and
keeps its traceback.
"""

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evenshard.__main__ import main as evenshard_main
from pipeline.progress import LineHandler
from stages.contract.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from pipeline.config import Config

log = logging.getLogger("pipeline")

COMMANDS = (
    *("curate", "compare", "dry-run", "reshard", "verify"),
    *("report", "serve", "explain"),
    *("submit", "submit-status", "submit-stop"),
)

QUIET = "--quiet"

USAGE = """python -m pipeline [COMMAND] [--quiet] [key=value ...]

  curate    rows -> screen -> tokens -> embed -> cluster -> allocate -> shards (the default)
  compare   one pass, then every selector at every budget of compare.budgets, beside random
  dry-run   rows and tokens only, no model: counts, rejects, an estimate, the first rows
  reshard   the settings of the run `name=...` again, with those given here on top
  verify    check every promise of the folder of the run `name=...`
  report    write the report of the run `name=...` again, from its artifacts
  serve     the report and a table of all rows of the run `name=...`, on 127.0.0.1 (port=8765)
  explain   the life of the row `row=...` of the run `name=...`: an id, a uid, or file:line
  submit    curate on the Ray cluster of address=http://head:8265, and follow its log
            (python=... follow=false pip=true); submit-status and submit-stop (id=...)
  --quiet   the closing table and errors, nothing else
  --cfg     print the composed configuration and stop
  --help    print this

Keys and their defaults (groups: model, compute, tracking, experiment, allocate.selector):
"""


def main(arguments: Sequence[str]) -> int:
    """Run one command and return the exit status."""
    command, overrides, flags = split_arguments(arguments)
    logging.basicConfig(
        level=logging.ERROR if QUIET in flags else logging.INFO,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
        handlers=[LineHandler(sys.stderr)],
    )
    for noisy in ("httpx", "datasets", "transformers", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.ERROR if QUIET in flags else logging.WARNING)
    started = time.monotonic()
    try:
        return _run(command, overrides, flags)
    except (ConfigurationError, DataError) as error:
        log.error("error: %s", error)
        return 2
    except KeyboardInterrupt:
        log.error("stopped after %.0f s; finished parts are kept, run again", _since(started))
        return 130


def split_arguments(arguments: Sequence[str]) -> tuple[str, list[str], set[str]]:
    """Tell the command, the overrides and the flags apart."""
    words = [word for word in arguments if not word.startswith("--")]
    flags = {word for word in arguments if word.startswith("--")}
    command = words[0] if words and "=" not in words[0] else "curate"
    overrides = words[1:] if words and "=" not in words[0] else words
    return command, overrides, flags


def _run(command: str, overrides: list[str], flags: set[str]) -> int:
    from omegaconf import OmegaConf

    from pipeline.config import check_paths, compose, compose_raw
    from pipeline.reshard import earlier_overrides

    if command not in COMMANDS:
        raise ConfigurationError(f"{command} must be one of {', '.join(COMMANDS)}; see --help")
    unknown = flags - {"--help", "--cfg", QUIET}
    if unknown:
        raise ConfigurationError(f"{sorted(unknown)[0]} is not an option; see --help")
    if "--help" in flags:
        print(USAGE + OmegaConf.to_yaml(compose_raw([])))
        return 0
    if command.startswith("submit"):
        return _on_cluster(command, overrides)
    if command == "reshard":
        overrides = earlier_overrides(overrides)
    if "--cfg" in flags:
        print(OmegaConf.to_yaml(compose_raw(overrides), resolve=True))
        return 0
    if command == "verify":
        return evenshard_main(["verify", str(compose_raw(overrides).out)])
    if command in ("report", "serve", "explain"):
        return _look(command, overrides)
    if command == "compare":
        from pipeline.comparison import compare_overrides

        overrides = compare_overrides(overrides)
    config = compose(overrides)
    if command == "dry-run":
        return _dry_run(config, overrides)
    check_paths(config, overrides)
    if command == "compare":
        from pipeline.compare import run_compare

        log.info("comparing methods on %s", config.rows.path)
        print(run_compare(config))
        return 0
    return _curate(config, overrides)


def _dry_run(config: "Config", overrides: list[str]) -> int:
    """Take the rows as far as their tokens, and say what a run would meet."""
    from pipeline.config import check_folder, check_inputs
    from pipeline.dry_run import describe
    from pipeline.plan import run_stages

    check_inputs(config)
    log.info("dry run over %s", config.rows.path)
    print(describe(config, run_stages(config, last="tokens")))
    try:
        check_folder(config, overrides)
    except ConfigurationError as error:  # nothing is written there now
        log.warning("curate would stop: %s", error)
    return 0


def _curate(config: "Config", overrides: list[str]) -> int:
    """Run every stage, publish, and tell of it."""
    from pipeline.plan import run_plan
    from pipeline.report import report_of
    from pipeline.summary import summary
    from pipeline.tracking import require_tracker, track
    from stages.report.write import require_library

    if config.report:
        require_library()
    require_tracker(config.tracking)
    log.info("curating %s into %s", config.rows.path, Path(config.out))
    report = run_plan(config, overrides)
    print(summary(report))
    if config.report:
        artifacts = {name: step.artifact for name, step in report.steps.items()}
        page = report_of(report.out, artifacts, report.manifest)
        print(f"  {page}  # what came in, what was kept, and how good it is")
    track(config.tracking, report)
    return 0


def _on_cluster(command: str, words: list[str]) -> int:
    """Send a run to a cluster, or look after those that are there."""
    from pipeline.submit import submit, submit_status, submit_stop

    verbs = {"submit": submit, "submit-status": submit_status, "submit-stop": submit_stop}
    return verbs[command](words)


def _look(command: str, overrides: list[str]) -> int:
    """Show a finished run: nothing is computed anew."""
    if command == "report":
        from pipeline.report import report_run

        print(report_run(overrides))
    elif command == "explain":
        from pipeline.explain import explain_row

        print(explain_row(overrides))
    else:
        from pipeline.serve import serve_run

        serve_run(overrides)
    return 0


def _since(started: float) -> float:
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
