"""Templates of strangers: they run no code, and do not run for ever."""

import signal
import threading
import time
from pathlib import Path

import pytest

from stages.contract.errors import ConfigurationError
from stages.tokens import limit
from stages.tokens.limit import TooSlow, limited
from stages.tokens.messages import RowRejected
from stages.tokens.render import Template, choose_template, render_row
from tests.tiny import CHATML
from tests.tokens.samples import encoder, turns

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ONLY_LONG = "{% if messages | length > 2 %}" + LOOPS + "{% endif %}" + CHATML
ESCAPES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__.os.popen('touch escaped').read() }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "attr filter": "{{ messages | attr('__class__') }}",
    "function": "{{ raise_exception.__globals__['json'] }}",
    "namespace": "{% set n = namespace() %}{% set n.__class__ = 1 %}",
}
TWO = turns("Hi", "Hello.")


@pytest.fixture
def half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates get half a second; the default is bound where the function is made."""
    monkeypatch.setattr(limit.limited.__wrapped__, "__defaults__", (0.5,))


def choose(source: str) -> Template:
    return choose_template("test", source, encoder().tokenizer)


def render(source: str, messages: list[dict[str, str]]) -> str:
    return render_row(
        messages,
        "{}",
        template=Template("test", source, source),
        tokenizer=encoder().tokenizer,
        special=encoder().special,
    ).text


def test_a_template_that_does_not_end_stops_the_run_before_any_row(half_a_second: None) -> None:
    with pytest.raises(ConfigurationError, match="does not end for a question and an answer"):
        choose(LOOPS)


def test_a_template_that_does_not_end_for_a_row_rejects_that_row(half_a_second: None) -> None:
    choose(ONLY_LONG)
    assert "Hello." in render(ONLY_LONG, TWO)
    with pytest.raises(RowRejected, match=r"more than 0\.5 s of computing"):
        render(ONLY_LONG, turns("Hi", "Hello.", "Bye", "See you."))


def test_a_range_above_the_sandboxs_is_an_error_of_each_row_and_no_wait() -> None:
    source = "{% for i in range(10**9) %}{% endfor %}".replace("10**9", "1000000000")
    choose(source)
    with pytest.raises(RowRejected, match="Range too big"):
        render(source, TWO)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 9**9**9 }}",
        "\n{% for i in range(10**9) %}{% endfor %}",
        "{% set n = 9 %}{{ n ** n }}",
    ],
)
def test_a_power_is_refused_unread_since_nothing_could_stop_it(source: str) -> None:
    with pytest.raises(ConfigurationError, match=f"a power in line {1 + source.count(chr(10))}"):
        choose(source)


@pytest.mark.parametrize(
    "source",
    ["{{ dict(**{'a': 1}) }}", "{{ dict(messages[0], **{'a': 1}).role }}", "**{{ 1 }}**{# 2**3 #}"],
)
def test_what_looks_like_a_power_and_is_none_is_let_through(source: str) -> None:
    choose(source)


@pytest.mark.parametrize("name", ESCAPES)
def test_a_template_cannot_reach_python(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    choose(ESCAPES[name])
    with pytest.raises(RowRejected, match=r"unsafe|SecurityError|undefined|underscore|: 0 char"):
        render(ESCAPES[name], TWO)
    assert not list(tmp_path.iterdir())


def test_the_clock_stops_and_the_handler_of_others_comes_back() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    with limited(0.05):
        pass
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    assert signal.getsignal(signal.SIGVTALRM) is before
    with pytest.raises(TooSlow), limited(0.05):
        while True:
            pass


def test_a_thread_that_is_not_the_main_one_works_without_a_clock() -> None:
    said: list[str] = []

    def work() -> None:
        with limited(0.01):
            said.append(render(CHATML, TWO))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "Hello." in said[0]
