"""Messages for people: they name the key, the value, the relation and the remedy."""

import pytest

from stages.contract.errors import (
    ConfigurationError,
    require,
    require_at_least,
    require_one_of,
    require_share,
)


def message_of(check: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        check(*args, **kwargs)  # type: ignore[operator]
    return str(caught.value)


def test_a_lower_bound_names_key_value_relation_and_remedy() -> None:
    assert message_of(require_at_least, "allocate.num_workers", 0, 1) == (
        "allocate.num_workers=0 must be >= 1; set allocate.num_workers=1 or more"
    )
    require_at_least("allocate.num_workers", 1, 1)


def test_a_lower_bound_refuses_what_is_no_number() -> None:
    assert "cluster.slack=nan" in message_of(require_at_least, "cluster.slack", float("nan"), 0.0)


def test_a_wrong_word_is_answered_with_all_words_and_the_nearest() -> None:
    found = message_of(require_one_of, "allocate.schedule", "pined", ("pinned", "auto", "dealt"))
    assert found == (
        "allocate.schedule=pined must be one of auto, dealt, pinned. "
        "Did you mean allocate.schedule=pinned?"
    )


def test_a_word_like_none_of_them_is_answered_without_a_guess() -> None:
    found = message_of(require_one_of, "allocate.schedule", "xyzzy", ("pinned", "auto"))
    assert found == "allocate.schedule=xyzzy must be one of auto, pinned."
    require_one_of("allocate.schedule", "auto", ("pinned", "auto"))


@pytest.mark.parametrize("value", [0.0, -0.1, 1.01, float("nan")])
def test_a_share_outside_its_interval_is_refused(value: float) -> None:
    found = message_of(require_share, "allocate.ratio", value)
    assert found == f"allocate.ratio={value} must lie in (0, 1]; 0.5 stands for one half"


def test_zero_is_a_share_only_where_it_is_allowed() -> None:
    require_share("rows.max_reject_fraction", 0.0, zero_allowed=True)
    require_share("allocate.ratio", 1.0)
    found = message_of(require_share, "rows.max_reject_fraction", 1.5, zero_allowed=True)
    assert "rows.max_reject_fraction=1.5 must lie in [0, 1]" in found


def test_any_other_condition_gives_its_message_as_it_is() -> None:
    require(True, "no")
    assert message_of(require, False, "a=1 must be b") == "a=1 must be b"
