"""Where figures go: a JSON file per benchmark, and the tables of docs/benchmarks.md from them.

`python -m benchmarks.results` writes the tables again from the files.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.versions import package_versions

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"
OWN_LAYOUT = ("training", "training-same", "training-smollm2")  # too wide for a figure a line


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes
    ----------
    figure : str
        What was measured.
    value : float
        What came out.
    target : float or None
        What it is held against, where it is.
    better : str
        lower or higher.
    """

    figure: str
    value: float
    target: float | None
    better: str

    @property
    def met(self) -> bool | None:
        """Whether the target was reached; None where there is none."""
        if self.target is None:
            return None
        return self.value <= self.target if self.better == "lower" else self.value >= self.target


def report(name: str, command: str, figures: Sequence[Figure]) -> None:
    """Print the figures, write them, and put their table into the docs."""
    rows = [{**asdict(figure), "met": figure.met} for figure in figures]
    RESULTS.mkdir(exist_ok=True)
    result = {
        "benchmark": name,
        "command": command,
        "versions": package_versions(),
        "rows": rows,
    }
    text = json.dumps(result, indent=1, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    table = markdown(command, figures)
    print(table)
    put_into_docs(name, table)


def markdown(command: str, figures: Sequence[Figure]) -> str:
    """Lay figures out as a table under the command that made them."""
    lines = [f"`{command}`", "", "| figure | value | target | met |", "| --- | ---: | ---: | --- |"]
    for figure in figures:
        target = "" if figure.target is None else f"{figure.target:.3g}"
        met = {True: "yes", False: "no", None: ""}[figure.met]
        lines.append(f"| {figure.figure} | {figure.value:.3g} | {target} | {met} |")
    return "\n".join(lines)


def table_of(name: str) -> str:
    """Lay out a benchmark's file as its table."""
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    figures = [
        Figure(row["figure"], row["value"], row["target"], row["better"]) for row in result["rows"]
    ]
    return markdown(result["command"], figures)


def plain_tables() -> list[str]:
    """Name the benchmarks whose part of the docs is just the table of their file."""
    return sorted(path.stem for path in RESULTS.glob("*.json") if path.stem not in OWN_LAYOUT)


def put_into_docs(name: str, table: str) -> None:
    """Replace the text between the two marks of a benchmark in docs/benchmarks.md."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = DOCS.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    DOCS.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    for benchmark in plain_tables():
        put_into_docs(benchmark, table_of(benchmark))
