"""All word problems, with every sum that is written out in an answer recomputed."""

# The multiplication and minus signs are meant.
# ruff: noqa: RUF001

import re
from collections.abc import Callable
from fractions import Fraction

from material.draw import Draw
from material.problem_parts import Problem
from material.problems_counting import legs, packing, reading, recipe, scores, sharing
from material.problems_money import discount, fence, shop_change, wages
from material.problems_time import ages, film, journey, tank

SUM = re.compile(r"((?:€?\d+ [+−×÷] )+€?\d+) = €?(\d+)")
OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": lambda a, b: a + b,
    "−": lambda a, b: a - b,
    "×": lambda a, b: a * b,
    "÷": lambda a, b: a / b,
}

# How many problems each template gives.
TEMPLATES = {
    shop_change: 14,
    packing: 11,
    sharing: 10,
    journey: 9,
    reading: 8,
    ages: 7,
    discount: 7,
    fence: 6,
    tank: 6,
    scores: 6,
    wages: 5,
    recipe: 5,
    legs: 4,
    film: 4,
}


def check_sums(answer: str) -> int:
    """Recompute each sum in an answer and return how many there are."""
    found = SUM.findall(answer)
    for left, right in found:
        first, *rest = left.replace("€", "").split()
        value = Fraction(first)
        # Left to right is right here: no sum has a product after a plus or minus.
        for sign, number in zip(rest[::2], rest[1::2], strict=True):
            value = OPERATIONS[sign](value, Fraction(number))
        assert value == int(right), answer
    return len(found)


def problems(draw: Draw) -> list[Problem]:
    """Return the problems of all templates, no two alike."""
    out: dict[str, str] = {}
    for template, count in TEMPLATES.items():
        wanted = len(out) + count
        while len(out) < wanted:
            question, answer = template(draw)
            assert check_sums(answer) == answer.count(" = ") > 0, answer
            out[question] = answer
    return list(out.items())
