"""Word problems about numbers of things. Each asserts its result by a second way of reckoning."""

# The multiplication and minus signs are meant.
# ruff: noqa: RUF001

from fractions import Fraction

from material.draw import Draw
from material.problem_parts import Problem, person, solved


def packing(draw: Draw) -> Problem:
    per_box, boxes, left = draw.between(6, 24), draw.between(4, 15), draw.between(2, 5)
    maker, things, box = draw.pick(
        (
            ("baker", "rolls", "crate"),
            ("farmer", "eggs", "tray"),
            ("gardener", "bulbs", "bag"),
            ("printer", "postcards", "packet"),
        )
    )
    packed = per_box * boxes
    total = packed + left
    assert divmod(total, per_box) == (boxes, left)
    return solved(
        f"A {maker} puts {per_box} {things} in each {box} and fills {boxes} {box}s. After that "
        f"{left} {things} are left over. How many {things} were there in all?",
        f"The full {box}s hold {boxes} × {per_box} = {packed} {things}.",
        f"Add the ones left over: {packed} + {left} = {total}.",
        answer=f"There were {total} {things}.",
    )


def sharing(draw: Draw) -> Problem:
    name, pronoun = person(draw)
    friends, each = draw.between(3, 9), draw.between(4, 18)
    left = draw.between(1, friends - 1)
    things = draw.pick(("stickers", "marbles", "cherries", "walnuts", "stamps"))
    total = friends * each + left
    given = total - left
    assert divmod(total, friends) == (each, left)
    return solved(
        f"{name} shares {total} {things} equally among {friends} friends and keeps what cannot be "
        f"shared. How many does each friend get, and how many does {pronoun} keep?",
        f"The largest multiple of {friends} that fits in {total} is {friends} × {each} = {given}.",
        f"The rest is {total} − {given} = {left}.",
        answer=f"Each friend gets {each} and {name} keeps {left}.",
    )


def reading(draw: Draw) -> Problem:
    name, pronoun = person(draw)
    daily, days, done = draw.between(12, 30), draw.between(5, 14), draw.between(21, 95)
    pages = daily * days + done
    left = pages - done
    assert done + sum([daily] * days) == pages
    return solved(
        f"{name} is reading a book of {pages} pages and has finished {done} of them. From now on "
        f"{pronoun} reads {daily} pages a day. How many more days will it take?",
        f"There are {pages} − {done} = {left} pages left.",
        f"At {daily} pages a day that takes {left} ÷ {daily} = {days} days.",
        answer=f"{name} needs {days} more days.",
    )


def scores(draw: Draw) -> Problem:
    name, pronoun = person(draw)
    first, second, average = draw.between(61, 95), draw.between(61, 95), draw.between(72, 84)
    third = 3 * average - first - second
    if not 55 <= third <= 100:
        return scores(draw)
    total = first + second + third
    assert (first - average) + (second - average) + (third - average) == 0
    return solved(
        f"{name} scored {first}, {second} and {third} points in three tests. What average did "
        f"{pronoun} reach?",
        f"The points add up to {first} + {second} + {third} = {total}.",
        f"Divide by the number of tests: {total} ÷ 3 = {average}.",
        answer=f"The average is {average} points.",
    )


def recipe(draw: Draw) -> Problem:
    dish, thing, each = draw.pick(
        (("pancakes", "flour", 60), ("carrot soup", "carrots", 90), ("dal", "lentils", 75))
    )
    few = draw.between(2, 4)
    many = few + draw.between(2, 7)
    given, needed = few * each, many * each
    assert Fraction(given, few) == Fraction(needed, many)
    return solved(
        f"A recipe for {dish} for {few} people needs {given} g of {thing}. How many grams of "
        f"{thing} are needed for {many} people?",
        f"One person needs {given} ÷ {few} = {each} g.",
        f"For {many} people that is {many} × {each} = {needed} g.",
        answer=f"{many} people need {needed} g of {thing}.",
    )


def legs(draw: Draw) -> Problem:
    hens, goats = draw.between(8, 30), draw.between(3, 16)
    on_two, on_four = hens * 2, goats * 4
    total = on_two + on_four
    assert total == 2 * (hens + goats) + 2 * goats
    return solved(
        f"There are {hens} hens and {goats} goats in a yard. How many legs do they have together?",
        f"A hen has two legs, so the hens have {hens} × 2 = {on_two}.",
        f"A goat has four legs, so the goats have {goats} × 4 = {on_four}.",
        f"Together that is {on_two} + {on_four} = {total}.",
        answer=f"They have {total} legs.",
    )
