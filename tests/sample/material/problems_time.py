"""Word problems about time and speed. Each asserts its result by a second way of reckoning."""

# The multiplication and minus signs are meant.
# ruff: noqa: RUF001

from fractions import Fraction

from material.draw import Draw
from material.problem_parts import HE, SHE, Problem, solved


def journey(draw: Draw) -> Problem:
    vehicle, speed = draw.pick((("train", 90), ("bus", 60), ("lorry", 70), ("ferry", 25)))
    speed += draw.between(0, 3) * 5
    hours, more = draw.between(2, 6), draw.between(8, 48)
    first = speed * hours
    total = first + more
    assert Fraction(total - more, hours) == speed
    return solved(
        f"A {vehicle} travels at {speed} km/h for {hours} hours and then goes another {more} km. "
        "How far does it go altogether?",
        f"In {hours} hours it covers {speed} × {hours} = {first} km.",
        f"Adding the last part gives {first} + {more} = {total} km.",
        answer=f"The {vehicle} goes {total} km.",
    )


def ages(draw: Draw) -> Problem:
    young, times, ahead = draw.between(7, 12), draw.between(3, 5), draw.between(2, 9)
    old = young * times
    later = [young + ahead, old + ahead]
    both = sum(later)
    assert both == young * (times + 1) + 2 * ahead
    child, uncle = draw.pick(SHE), draw.pick(HE)
    return solved(
        f"{child} is {young} years old. Her uncle {uncle} is {times} times as old. What will "
        f"their ages add up to in {ahead} years?",
        f"{uncle} is now {times} × {young} = {old} years old.",
        f"In {ahead} years {child} will be {young} + {ahead} = {later[0]} and {uncle} will be "
        f"{old} + {ahead} = {later[1]}.",
        f"Together that is {later[0]} + {later[1]} = {both}.",
        answer=f"Their ages will add up to {both}.",
    )


def tank(draw: Draw) -> Problem:
    rate, minutes, inside = draw.between(4, 18), draw.between(5, 25), draw.between(10, 60)
    size = rate * minutes + inside
    missing = size - inside
    assert inside + rate * minutes == size
    return solved(
        f"A rain barrel holds {size} litres and already contains {inside} litres. A hose adds "
        f"{rate} litres a minute. After how many minutes is the barrel full?",
        f"The barrel still takes {size} − {inside} = {missing} litres.",
        f"The hose needs {missing} ÷ {rate} = {minutes} minutes for that.",
        answer=f"The barrel is full after {minutes} minutes.",
    )


def film(draw: Draw) -> Problem:
    hour, minute, length = draw.between(14, 20), draw.pick((5, 15, 20, 40)), draw.between(81, 150)
    start = hour * 60 + minute
    end = start + length
    clock = f"{end // 60}:{end % 60:02d}"
    hours, minutes = divmod(length, 60)
    carry, end_minute = divmod(minute + minutes, 60)
    assert clock == f"{hour + hours + carry}:{end_minute:02d}"
    return solved(
        f"A film starts at {hour}:{minute:02d} and lasts {length} minutes. When does it end?",
        f"It starts {hour} × 60 + {minute} = {start} minutes after midnight.",
        f"It ends {start} + {length} = {end} minutes after midnight.",
        f"That is {end // 60} full hours and {end % 60} minutes.",
        answer=f"The film ends at {clock}.",
    )
