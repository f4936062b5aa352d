"""The report of the training benchmark: its JSON, its table and sentences in the docs, its plot."""

from collections.abc import Sequence

import numpy as np

from benchmarks import results
from benchmarks.results import Figure, put_into_docs, report
from benchmarks.training_figures import (
    CONTROL,
    Line,
    Mean,
    Summary,
    curve,
    final,
    last_quarter,
    speed_of,
    summarise,
)
from benchmarks.training_plot import COLORS, plot
from benchmarks.training_regime import Regime

FIRST_TUNING_SEED = 1000
PAPERS_HEADLINE = 0.696  # reduction of training time, CluSTER (arXiv 2609.12584)
SAME_STEPS = 0.03  # relative difference up to which two runs have as many
AT_NO_LOSS = 0.01  # of the loss of all rows: as near as a run must end for its time to count
HEADINGS = (
    "method | kept | seeds | rows | tokens an epoch | steps | gradient error | held-out loss | "
    "macro | gain kept | beside uniform | selection tokens | whole run saved: tokens, seconds | "
    "tokens, seconds to 95% of the gain | saved | tokens, seconds to loss + 1% | saved"
)


def write_report(every: Sequence[Line], regime: Regime, command: str, name: str) -> None:
    """Write the results, the plot, and the part of docs/benchmarks.md of one regime.

    Parameters
    ----------
    every : sequence of dict
        All lines; those of other regimes and of tuning are told apart by their settings.
    regime : Regime
        The one to report.
    command : str
        What makes the figures.
    name : str
        Of the regime: of its files, and of its part of the docs.
    """
    lines = [
        line
        for line in every
        if line["regime"] == regime.facts and line["seed"] < FIRST_TUNING_SEED
    ]
    summaries = summarise(lines)
    if not summaries:
        return
    report(name, command, figures_of(lines, summaries))
    results.DOCS.with_name(f"{name}.svg").write_text(draw(lines, summaries), encoding="utf-8")
    text = [
        f"`{command}`",
        "",
        *regime_sentences(lines),
        *tuning_sentences(every, regime),
        "",
        *table(summaries),
    ]
    text += ["", f"![held-out loss against tokens]({name}.svg)", "", *verdict(summaries)]
    put_into_docs(name, "\n".join(text))


def figures_of(lines: Sequence[Line], summaries: Sequence[Summary]) -> list[Figure]:
    """Turn summaries into figures; what is held against uniform has its 95% interval to beat."""
    whole = [line for line in lines if line["method"] == "all"]
    quarter = float(np.mean([last_quarter(line) for line in whole]))
    found = [Figure("all rows: share of the gain in the last quarter", quarter, None, "lower")]
    for one in summaries:
        label = f"{one.method} at {one.budget}"
        found += [
            Figure(f"{label}: held-out loss", one.loss.value, None, "lower"),
            Figure(f"{label}: held-out loss, macro over sources", one.macro.value, None, "lower"),
            Figure(f"{label}: share of the gain of all rows", one.share.value, None, "higher"),
            Figure(f"{label}: gradient error", one.gradient_error, None, "lower"),
        ]
        if one.beside_uniform is not None and one.beside_uniform.count > 1:
            text = f"{label}: loss less that of uniform, against its 95% interval about 0"
            bar = -one.beside_uniform.t95 * one.beside_uniform.error
            found.append(Figure(text, one.beside_uniform.value, bar, "lower"))
        if one.ends_like_all(AT_NO_LOSS):
            text = f"{label}: share of the seconds of the whole run saved, against the paper's"
            found.append(Figure(text, one.saved[1], PAPERS_HEADLINE, "higher"))
        for target, text in (("gain95", "95% of the gain"), ("loss101", "loss + 1%")):
            reach = one.to_target[target]
            if reach is not None and one.method != "all":
                text = f"{label}: share of the seconds saved to {text}, against the paper's"
                found.append(Figure(text, reach[3], PAPERS_HEADLINE, "higher"))
    return found


def regime_sentences(lines: Sequence[Line]) -> list[str]:
    """Say what was trained on what, and how saturated all rows were."""
    regime = lines[0]["regime"]
    whole = [line for line in lines if line["method"] == "all"]
    quarter = np.mean([last_quarter(line) for line in whole])
    tokens = np.mean([line["pool_tokens"] for line in lines])
    return [
        f"A pool of {regime['pool_rows']} rows ({tokens:.0f} tokens, at most "
        f"{regime['max_length']} a row), {regime['epochs']} epochs, 4 workers of about "
        f"{regime['micro_batch']} rows a step, learning rate {regime['learning_rate']:g}. Before "
        f"fine-tuning the held-out loss is {lines[0]['start']['plain']:.4f} (macro "
        f"{lines[0]['start']['macro']:.4f}). The last quarter of the steps of all rows brings "
        f"{quarter:.1%} of its gain. Seconds are at one speed, the median run's "
        f"{speed_of(lines):.0f} tokens a CPU second of one thread, and a selection's own by the "
        f"median of its seeds. Selection tokens are those of training that cost as much: a forward "
        f"pass counts a third.",
    ]


def tuning_sentences(every: Sequence[Line], regime: Regime) -> list[str]:
    """Say where all rows of the tuning pool ended at other learning rates and epochs."""
    told = {}
    for name, label in (("learning_rate", "learning rates"), ("epochs", "epochs")):
        ends = {
            line["regime"][name]: final(line)
            for line in every
            if line["seed"] >= FIRST_TUNING_SEED
            and {**line["regime"], name: 0} == {**regime.facts, name: 0}
        }
        told[label] = ", ".join(f"{value:g}: {loss:.4f}" for value, loss in sorted(ends.items()))
    return [
        "On all rows of a pool of its own the held-out loss ends, by learning rate, at "
        f"{told['learning rates']}; by epochs, at {told['epochs']}."
    ]


def table(summaries: Sequence[Summary]) -> list[str]:
    """Lay summaries into a table, the best first in every budget."""
    count = HEADINGS.count("|") + 1
    lines = [f"| {HEADINGS} |", "| --- | --- |" + " ---: |" * (count - 2)]
    budgets = list(dict.fromkeys(one.budget for one in summaries))
    ordered = sorted(summaries, key=lambda one: (budgets.index(one.budget), one.loss.value))
    return [*lines, *(f"| {' | '.join(_cells(one))} |" for one in ordered)]


def verdict(summaries: Sequence[Summary]) -> list[str]:
    """Say which methods beat uniform, and its control, beyond two standard errors and more."""
    told = []
    for budget in dict.fromkeys(one.budget for one in summaries):
        here = [one for one in summaries if one.budget == budget]
        for field, name in (("beside_uniform", "uniform"), ("beside_control", CONTROL)):
            told += [sentence] if (sentence := _beyond(here, field, name)) else []
    return [*told, headline(summaries)]


def _beyond(summaries: Sequence[Summary], field: str, name: str) -> str:
    """Say which methods of a budget differ from one of them; nothing where no two seeds pair."""
    steps = next((one.steps for one in summaries if one.method == name), 0.0)
    sure = [(one, diff) for one in summaries if (diff := getattr(one, field)) and diff.count > 1]
    if not sure or (name == CONTROL and len(sure) == 1):
        return ""
    lists = []
    for word, side in (("better", -1), ("worse", 1)):
        found = [
            f"`{one.method}`{'*' * (diff.beyond(diff.t95) == side)}{_other_steps(one, steps)}"
            for one, diff in sure
            if diff.beyond(2.0) == side
        ]
        lists.append(f"{word} than `{name}`: {', '.join(found) or 'none'}")
    return (
        f"At {summaries[0].budget}, beyond two standard errors of the paired difference (* beyond "
        f"its 95% interval by Student's t): {'; '.join(lists)}."
    )


def _other_steps(one: Summary, steps: float) -> str:
    """Tell the steps of a method that makes more or fewer than it is compared with."""
    differs = abs(one.steps / steps - 1) > SAME_STEPS
    return f" ({one.steps:.0f} steps against {steps:.0f})" if differs else ""


def headline(summaries: Sequence[Summary]) -> str:
    """Say what whole runs save that end as low as all rows do, beside the paper's figure."""
    able = [one for one in summaries if one.ends_like_all(AT_NO_LOSS)]
    runs = ", ".join(
        f"`{one.method}` at {one.budget} saves {one.saved[1]:.0%} of the seconds "
        f"({one.saved[0]:.0%} of the tokens)"
        for one in sorted(able, key=lambda one: -one.saved[1])
    )
    found = f"are: {runs}" if able else "there are none"
    return (
        f"Of whole runs that end within {AT_NO_LOSS:.0%} of the loss of all rows, selection "
        f"counted, {found}. The paper states {PAPERS_HEADLINE:.1%}."
    )


def draw(lines: Sequence[Line], summaries: Sequence[Summary]) -> str:
    """Draw the course of all rows, and the ends of the methods with the most budgets.

    They are as many as there are colours; the table has the others.
    """
    whole = [curve(line)[1:] for line in lines if line["method"] == "all"]
    course = np.mean(whole, axis=0)  # (points, 3)
    drawn = {"all rows, as it trains": [(float(t), float(loss)) for t, _, loss in course]}
    for one in summaries:
        if one.method != "all":
            spent = one.selection_tokens + one.trained_tokens
            drawn.setdefault(one.method, []).append((spent, one.loss.value))
    by_budgets = sorted(drawn.items(), key=lambda item: -len(item[1]))
    return plot(
        {name: sorted(points) for name, points in by_budgets[: len(COLORS)]},
        x_label="tokens of training, selection included",
        y_label="held-out loss at the end, nats",
    )


def _cells(one: Summary) -> list[str]:
    cells = [f"`{one.method}`", one.budget, str(one.loss.count), f"{one.rows:.0f}"]
    cells += [f"{one.tokens:.0f}", f"{one.steps:.0f}", f"{one.gradient_error:.3f}"]
    cells += [_told(one.loss, 4), _told(one.macro, 4), _told(one.share, 3)]
    cells.append("" if one.beside_uniform is None else _told(one.beside_uniform, 4))
    cells.append(f"{one.selection_tokens:.0f}")
    cells.append(f"{one.saved[0]:.0%}, {one.saved[1]:.0%}")
    for reach in one.to_target.values():
        if reach is None:
            cells += ["not reached", ""]
        else:
            cells += [f"{reach[0]:.0f}, {reach[1]:.0f}", f"{reach[2]:.0%}, {reach[3]:.0%}"]
    return cells


def _told(mean: Mean, digits: int) -> str:
    spread = "" if mean.count < 2 else f" +- {mean.error:.{digits}f}"
    return f"{mean.value:.{digits}f}{spread}"
