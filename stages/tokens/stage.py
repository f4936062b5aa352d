"""The stage that writes token ids and labels, part by part as the rows lie."""

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import (
    DataError,
    require,
    require_at_least,
    require_one_of,
    require_share,
)
from stages.contract.fingerprint import file_sha256, section_params
from stages.contract.parts import Facts, Outcome, PartSpec, Receipt, Run, Spread, Worker, part_name
from stages.contract.rejects import ROW_COLUMNS, reject_rows
from stages.contract.stage import Stage, work_through
from stages.contract.tables import Layout
from stages.tokens.encode import Encoded, Encoder, Rejected
from stages.tokens.mend import MENDS, REJECT
from stages.tokens.render import DATE, TEMPLATES, choose_template
from stages.tokens.special import CHOICES, SpecialTokens
from stages.tokens.tally import (
    changes_table,
    complaint,
    count_all,
    count_part,
    notices,
    tokens_table,
)
from stages.tokens.tokenizer import begins_with_bos, load_tokenizer, tokenizer_files
from stages.tokens.truncate import POLICIES

log = logging.getLogger(__name__)

# Rows that are rendered and tokenised together: enough to keep the tokenizer's threads busy.
ROWS_PER_SLICE = 256

PLACE = ["row_id", "source_file", "source_line"]


@dataclass(kw_only=True)
class TokensConfig:
    """Settings of the section `tokens`.

    Attributes
    ----------
    template : str
        `chat` (the tokenizer's own), alpaca, magicoder, chatml, plain, or a path that ends
        in `.jinja`.
    max_length : int
        Most tokens of a row.
    on_too_long : str
        `truncate` cuts from the right, `keep_answer` cuts the prompt from its left, `reject`
        leaves the row out.
    on_template_error : str
        What is done to a row that the template refuses: merge_system, join_turns, skip_turn, or
        several joined by `+`, the last to be tried last; `reject` leaves it out. A row that they
        cannot mend is rejected.
    special_in_text : str
        What special tokens are that stand in the text of a row: `text` or `special`.
    date : str
        The day that a template is told which writes one, as those of Llama 3 do. It is not the
        day of the run, on which the bytes would depend.
    max_reject_fraction : float
        Share of rejected rows above which the run stops.
    """

    template: str = "chat"
    max_length: int = 2048
    on_too_long: str = "truncate"
    on_template_error: str = "merge_system+join_turns"
    special_in_text: str = "text"
    date: str = DATE
    max_reject_fraction: float = 0.1

    def __post_init__(self) -> None:
        """Check what can be checked without rows."""
        if self.template.endswith(".jinja"):
            require(
                Path(self.template).is_file(),
                f"tokens.template={self.template} must be an existing file; there is none",
            )
        else:
            require_one_of("tokens.template", self.template, ["chat", *TEMPLATES])
        require_at_least("tokens.max_length", self.max_length, 2)
        require_one_of("tokens.on_too_long", self.on_too_long, POLICIES)
        require_one_of("tokens.special_in_text", self.special_in_text, CHOICES)
        self._check_mends()
        require(
            _is_day(self.date),
            f"tokens.date={self.date} must be a day as {DATE}; set tokens.date={DATE}",
        )
        require_share("tokens.max_reject_fraction", self.max_reject_fraction, zero_allowed=True)

    def _check_mends(self) -> None:
        names = self.on_template_error.split("+")
        for name in names:
            require_one_of("tokens.on_template_error", name, [*MENDS, REJECT])
        require(
            len(set(names)) == len(names) and (len(names) == 1 or REJECT not in names),
            f"tokens.on_template_error={self.on_template_error} must name each policy once, and "
            f"reject alone; set tokens.on_template_error=merge_system+join_turns",
        )

    @property
    def mends(self) -> tuple[str, ...]:
        """Policies for rows that the template refuses, in the order in which they are tried."""
        return tuple(name for name in self.on_template_error.split("+") if name != REJECT)


@dataclass(frozen=True)
class TokensSettings:
    """What the stage is given.

    Attributes
    ----------
    tokens : TokensConfig
        Its section.
    tokenizer : Path
        A local folder.
    """

    tokens: TokensConfig
    tokenizer: Path


def load_encoder(settings: TokensSettings) -> Encoder:
    """Load the tokenizer and the template, or say at once what is wrong with them."""
    tokens = settings.tokens
    tokenizer = load_tokenizer(settings.tokenizer)
    file = _template_file(tokens.template)
    source = None if file is None else file.read_text(encoding="utf-8")
    return Encoder(
        tokenizer,
        choose_template(tokens.template, source, tokenizer, tokens.date),
        max_length=tokens.max_length,
        on_too_long=tokens.on_too_long,
        adds_bos=begins_with_bos(tokenizer),
        special=SpecialTokens(tokenizer),
        special_in_text=tokens.special_in_text,
        on_template_error=tokens.mends,
    )


def identity(settings: TokensSettings) -> Facts:
    """Name everything that decides the bytes: the section, the tokenizer, the template."""
    folder = settings.tokenizer
    params = section_params(settings.tokens)
    params["tokenizer"] = {
        file.relative_to(folder).as_posix(): file_sha256(file) for file in tokenizer_files(folder)
    }
    template = _template_file(settings.tokens.template)
    if template is not None:
        params["template_sha256"] = file_sha256(template)
        if settings.tokens.template not in TEMPLATES:
            params["template"] = "file"  # its place is not part of what it says
    return params


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _template_file(name: str) -> Path | None:
    """Give the file of a template, or None for the tokenizer's own."""
    if name == "chat":
        return None
    if name in TEMPLATES:
        return Path(__file__).parent / "templates" / f"{name}.jinja"
    return Path(name)


@dataclass(frozen=True)
class MakeWorker:
    """Makes the worker of one process, which loads its own tokenizer."""

    settings: TokensSettings
    rows: Artifact
    screen: Artifact
    draft: Draft

    def __call__(self) -> Worker:
        """Load the tokenizer and give the function that works on a part."""
        encoder = load_encoder(self.settings)
        return partial(tokenize_part, encoder, self.rows, self.screen, self.draft)


def tokenize_part(
    encoder: Encoder, rows: Artifact, screen: Artifact, draft: Draft, spec: PartSpec
) -> Receipt:
    """Encode the kept rows of one part and write them, and the rejected ones beside them."""
    table = rows.read(ROW_COLUMNS, start=spec.start, stop=spec.stop)
    screened = screen.read(["row_id"], start=spec.start, stop=spec.stop)["row_id"]
    table = table.filter(pc.is_in(table["row_id"], value_set=screened.combine_chunks()))
    kept: list[tuple[int, Encoded]] = []
    kept_at: list[int] = []
    refused: list[int] = []
    rejects: list[Rejected] = []
    for start in range(0, table.num_rows, ROWS_PER_SLICE):
        records = table.slice(start, ROWS_PER_SLICE).to_pylist()
        outcomes = encoder.encode([(record["messages"], record["meta"]) for record in records])
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, Encoded):
                kept.append((records[index]["row_id"], outcome))
                kept_at.append(start + index)
            else:
                refused.append(start + index)
                rejects.append(outcome)
    stats = count_part(kept, rejects)
    sides = {}
    places = table.select(PLACE).take(pa.array(kept_at, pa.int64()))
    changes = changes_table(places, [encoded for _, encoded in kept])
    if changes.num_rows:
        sides[f"changes-{spec.index:05d}.parquet"] = changes
    if rejects:
        sides[_rejects_name(spec.index)] = reject_rows(
            table.take(refused),
            stage="tokens",
            reasons=[rejected.reason for rejected in rejects],
            details=[rejected.detail for rejected in rejects],
        )
    return draft.write_part(
        spec,
        tokens_table(kept),
        layout=Layout(),
        sides=sides,
        tokens=stats["tokens"],
        stats=stats,
    )


def run(
    settings: TokensSettings, inputs: Mapping[str, Artifact], draft: Draft, spread: Spread
) -> Run:
    """Encode all rows that the screen kept.

    Raises
    ------
    ConfigurationError
        If the tokenizer or the template cannot be used.
    DataError
        If too many rows are rejected, or all.
    """
    load_encoder(settings)
    rows, screen = inputs["rows"], inputs["screen"]
    parts = tuple(
        PartSpec(part.index, part.start, part.stop, part_name(part.index)) for part in rows.parts
    )
    make = MakeWorker(settings, rows, screen, draft)
    receipts = yield from work_through(draft, parts, make, spread)
    wrong = complaint(
        receipts,
        max_reject_fraction=settings.tokens.max_reject_fraction,
        max_length=settings.tokens.max_length,
    )
    if wrong is not None:
        fault, remedy = wrong
        raise DataError("\n  ".join([fault, *_first_rejects(draft, receipts)]) + f"\n{remedy}")
    facts = count_all(receipts)
    log.info(
        "tokens: %d rows kept, %d rejected%s, %d truncated (%.0f%% of their targets kept), "
        "%d kept up to their last answer",
        facts["kept"],
        facts["rejected"],
        f" {facts['rejects_by_reason']}" if facts["rejected"] else "",
        facts["truncated"],
        100 * facts["truncated_kept_share"],
        facts["trailing_user_dropped"],
    )
    for notice in notices(facts, settings.tokens.special_in_text):
        log.warning("tokens: %s", notice)
    return Outcome(parts, facts)


def _rejects_name(index: int) -> str:
    return f"rejects-{index:05d}.parquet"


def _first_rejects(draft: Draft, receipts: Sequence[Receipt], most: int = 5) -> list[str]:
    files = (draft.file(_rejects_name(r.index)) for r in receipts if r.stats["rejected"])
    lines = (
        f"{reject['file']}:{reject['line']} {reject['reason']} ({reject['detail']})"
        for file in files
        for reject in pq.read_table(file).to_pylist()
    )
    return list(itertools.islice(lines, most))


TOKENS = Stage(name="tokens", version=3, reads=("screen", "rows"), identity=identity, run=run)
