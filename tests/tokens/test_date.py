"""A template that writes the day gets the one of the settings, never that of the run."""

import datetime as clock
from pathlib import Path

import pytest
from transformers.utils import chat_template_utils

from stages.contract.errors import ConfigurationError
from stages.tokens.render import DATE
from stages.tokens.stage import TokensConfig, identity, load_encoder
from tests.tokens.samples import turns
from tests.tokens.test_stage import settings_of

# As Llama 3 does, in the header and, by a macro, in a turn.
DATED = (
    "{% macro today() %}{{ strftime_now('%Y-%m-%d') }}{% endmacro %}"
    "{%- if strftime_now is defined %}Today Date: {{ strftime_now('%d %b %Y') }}\n{% endif %}"
    "{% for m in messages %}[{{ m.role }} {{ today() }}] {{ m.content }}<|im_end|>\n{% endfor %}"
)


class NextYear(clock.datetime):
    """A clock of another day."""

    @classmethod
    def now(cls, tz: clock.tzinfo | None = None) -> "NextYear":
        return cls(2031, 5, 6, tzinfo=tz)


def ids_of(template: Path, **told: str) -> list[int]:
    encoder = load_encoder(settings_of(template=str(template), **told))
    [encoded] = encoder.encode([(turns("Hi", "Hello."), "{}")])
    found: list[int] = encoded.input_ids.tolist()  # type: ignore[union-attr]
    text = encoder.tokenizer.decode(found)
    day = clock.date.fromisoformat(told.get("date", DATE))
    assert f"Today Date: {day:%d %b %Y}" in text and f"[user {day.isoformat()}]" in text
    return found


def test_the_day_of_the_run_is_not_in_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "dated.jinja"
    template.write_text(DATED, encoding="utf-8")
    first = ids_of(template)
    monkeypatch.setattr(chat_template_utils, "datetime", NextYear)
    assert ids_of(template) == first
    assert ids_of(template, date="2030-01-02") != first
    one, other = (settings_of(date=day) for day in (DATE, "2030-01-02"))
    assert identity(one) != identity(other)


@pytest.mark.parametrize("day", ["", "today", "26 Jul 2024", "2024-7-26", "2024-02-30", "20240726"])
def test_a_date_is_a_day(day: str) -> None:
    with pytest.raises(ConfigurationError, match=r"tokens\.date="):
        TokensConfig(date=day)


@pytest.mark.parametrize(
    "asked", ["{{ strftime_now(form) }}", "{% set f = strftime_now %}{{ f('%Y') }}"]
)
def test_another_way_to_the_day_of_the_run_is_refused(tmp_path: Path, asked: str) -> None:
    template = tmp_path / "dated.jinja"
    template.write_text(DATED + asked, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"strftime_now .* tokens\.date="):
        load_encoder(settings_of(template=str(template)))
