"""Which of the files of a run is meant by a name that somebody wrote."""

from collections.abc import Sequence

from stages.contract.errors import DataError
from stages.contract.shown import first_of, one_line


def file_meant(names: Sequence[str], asked: str) -> str | None:
    """Find the file that a name means: by its name as it was read, or by the end of a path.

    Parameters
    ----------
    names : sequence of str
        Names of the run's files, each a path under the folder of the data set.
    asked : str
        One of them, a longer path that ends in one, or the end of one.

    Returns
    -------
    str or None
        The name that is equal, else the one that shares the longest end; None if there is none.

    Raises
    ------
    DataError
        If several files share as long an end.
    """
    if asked in names:
        return asked
    # What both share is the whole of the shorter one.
    shared = {
        name: min(len(name), len(asked))
        for name in names
        if asked.endswith(f"/{name}") or name.endswith(f"/{asked}")
    }
    longest = max(shared.values(), default=0)
    found = sorted(name for name, length in shared.items() if length == longest)
    if len(found) > 1:
        raise DataError(
            f"{one_line(asked)} must be one file of this run, and {len(found)} go by that name: "
            f"{first_of(found)}; write more of the path, such as {one_line(found[0])}"
        )
    return found[0] if found else None
