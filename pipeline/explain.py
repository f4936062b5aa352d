"""`explain`: the life of one row, from its file and line to its worker, or to where it ended."""

from collections.abc import Sequence

from pipeline.report import open_run
from stages.contract.errors import ConfigurationError
from stages.report.lookup import explain


def explain_row(arguments: Sequence[str]) -> str:
    """Tell the story of the row that `row=` names, in the run that `name=` or `out=` names.

    Parameters
    ----------
    arguments : sequence of str
        Overrides of the configuration, and `row=<row id, uid, or file:line>`.

    Raises
    ------
    ConfigurationError
        If no row is named, or there is no such run.
    DataError
        If the run has no such row.
    """
    rows = [word.removeprefix("row=") for word in arguments if word.startswith("row=")]
    if not rows or not rows[-1]:
        raise ConfigurationError(
            "explain needs row=...: a row id, a uid, or file:line (ROW=... with make)"
        )
    run = open_run([word for word in arguments if not word.startswith("row=")])
    return explain(run.artifacts, run.manifest, rows[-1])
