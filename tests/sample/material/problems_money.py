"""Word problems about money. Each asserts its result by a second way of reckoning."""

# The multiplication and minus signs are meant.
# ruff: noqa: RUF001

from material.draw import Draw
from material.problem_parts import Problem, person, solved


def shop_change(draw: Draw) -> Problem:
    name, pronoun = person(draw)
    count, price = draw.between(3, 9), draw.between(2, 11)
    things = draw.pick(("notebooks", "mugs", "plants", "tickets", "candles", "scarves"))
    cost = count * price
    note = min(note for note in (20, 50, 100) if note > cost)
    change = note - cost
    assert change + sum([price] * count) == note
    ending = draw.pick(
        (f"How much change does {pronoun} get?", "How many euros does the cashier give back?")
    )
    return solved(
        f"{name} buys {count} {things} at €{price} each and pays with a €{note} note. {ending}",
        f"{count} {things} at €{price} each cost {count} × €{price} = €{cost}.",
        f"The change is what is left of the note: €{note} − €{cost} = €{change}.",
        answer=f"{name} gets €{change} back.",
    )


def discount(draw: Draw) -> Problem:
    price, percent = draw.between(2, 12) * 20, draw.pick((10, 15, 20, 25, 30, 40))
    thing = draw.pick(("coat", "bicycle helmet", "rucksack", "desk", "pair of boots"))
    off = price * percent // 100
    new = price - off
    assert new * 100 == price * (100 - percent)
    return solved(
        f"A {thing} normally costs €{price}. In the sale it is {percent}% cheaper. "
        "What does it cost in the sale?",
        f"{percent}% of €{price} is €{price} × {percent} ÷ 100 = €{off}.",
        f"Take the discount off the old price: €{price} − €{off} = €{new}.",
        answer=f"The {thing} costs €{new} in the sale.",
    )


def fence(draw: Draw) -> Problem:
    name, _ = person(draw)
    width, price = draw.between(5, 14), draw.between(6, 15)
    length = width + draw.between(3, 9)
    half = length + width
    around = 2 * half
    cost = around * price
    assert cost == price * (length + width + length + width)
    return solved(
        f"{name} puts a fence around a rectangular garden that is {length} m long and {width} m "
        f"wide. The fence costs €{price} per metre. What is the total cost?",
        f"One long and one short side make {length} + {width} = {half} m.",
        f"The whole fence is twice as long: 2 × {half} = {around} m.",
        f"It costs {around} × €{price} = €{cost}.",
        answer=f"The fence costs €{cost}.",
    )


def wages(draw: Draw) -> Problem:
    name, pronoun = person(draw)
    rate, hours, days = draw.between(12, 24), draw.between(4, 8), draw.between(3, 5)
    time = hours * days
    pay = time * rate
    assert pay == days * (hours * rate)
    place = draw.pick(("in a library", "in a bicycle shop", "at a bakery"))
    return solved(
        f"{name} works {place}, {hours} hours on each of {days} days a week, and earns €{rate} an "
        f"hour. How much does {pronoun} earn in a week?",
        f"A week has {days} × {hours} = {time} working hours.",
        f"The pay for these is {time} × €{rate} = €{pay}.",
        answer=f"{name} earns €{pay} a week.",
    )
