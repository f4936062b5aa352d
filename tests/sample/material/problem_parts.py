"""What the word problem templates share."""

from material.draw import Draw

Problem = tuple[str, str]

SHE = ("Mia", "Zoë", "Amara", "Priya", "Chloé", "Nadia", "Ingrid", "Leila")
HE = ("José", "Björn", "Kofi", "Łukasz", "Omar", "Tomás", "Wei", "Daniel")


def person(draw: Draw) -> tuple[str, str]:
    """Return a name and its pronoun."""
    name = draw.pick(SHE + HE)
    return name, "she" if name in SHE else "he"


def solved(question: str, *steps: str, answer: str) -> Problem:
    """Return the question and a text that numbers the steps and ends with the answer."""
    numbered = [f"Step {number}: {step}" for number, step in enumerate(steps, start=1)]
    return question, "\n".join([*numbered, f"Answer: {answer}"])
