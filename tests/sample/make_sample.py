"""Write the sample data set: python tests/sample/make_sample.py OUT.jsonl."""

import argparse
import inspect
import json
from collections import Counter
from pathlib import Path

from material import (
    code_lists,
    code_numbers,
    code_text,
    extractions,
    phrases,
    questions_daily,
    questions_science,
    rewrites,
    units,
    word_problems,
)
from material.draw import Draw

Row = dict[str, str]

SEED = 20

# Source: rows made, exact copies, near copies.
PLAN = {
    "math/word_problems": (102, 5, 3),
    "code/python_functions": (65, 3, 2),
    "general/questions": (47, 2, 1),
    "convert/units": (33, 1, 1),
    "extract/json": (24, 1, 0),
    "rewrite/style": (19, 0, 1),
    "lang/phrases": (10, 0, 0),
}


EXTRACT_WORDINGS = (
    "Read the sentence and return a JSON object with the keys {}. Numbers are not quoted.",
    "Extract the fields {} from the sentence. Answer with one small JSON object and nothing else.",
)


def make_row(source: str, instruction: str, given: str, output: str) -> Row:
    return {"instruction": instruction, "input": given, "output": output, "source": source}


def code_rows() -> list[Row]:
    rows = []
    for task, *requests in code_text.TASKS + code_numbers.TASKS + code_lists.TASKS:
        function, arguments, expected = task
        assert function(*arguments) == expected, function.__name__
        answer = inspect.getsource(function).rstrip()
        rows += [make_row("code/python_functions", request, "", answer) for request in requests]
    return rows


def extraction_rows() -> list[Row]:
    rows = []
    for number, (fields, sentence, values) in enumerate(extractions.EXTRACTIONS):
        assert all(str(value) in sentence for value in values), sentence
        answer = json.dumps(dict(zip(fields, values, strict=True)), ensure_ascii=False)
        names = ", ".join(fields[:-1]) + " and " + fields[-1]
        instruction = EXTRACT_WORDINGS[number % 2].format(names)
        rows.append(make_row("extract/json", instruction, sentence, answer))
    return rows


def plain_rows(draw: Draw) -> list[Row]:
    """Return the rows of every source, none of them twice."""
    rows = [make_row("math/word_problems", q, "", a) for q, a in word_problems.problems(draw)]
    rows += code_rows()
    asked = questions_daily.QUESTIONS + questions_science.QUESTIONS
    rows += [make_row("general/questions", q, "", a) for q, a in asked]
    rows += [make_row("convert/units", q, "", a) for q, a in units.conversions()]
    rows += extraction_rows()
    rows += [make_row("rewrite/style", *item) for item in rewrites.REWRITES]
    rows += [make_row("lang/phrases", *item) for item in phrases.PHRASES]
    return rows


def near_copy(row: Row, style: int) -> Row:
    """Change only the case or the spacing of the instruction."""
    text = row["instruction"]
    changed = (
        text.lower(),
        text.replace(" ", "  ", 3),
        f" {text[0].lower()}{text[1:]} ",
        text.upper(),
    )[style % 4]
    assert changed != text
    return {**row, "instruction": changed}


def build() -> list[Row]:
    draw = Draw(SEED)
    plain = plain_rows(draw)
    normal = {" ".join(f"{r['instruction']} {r['input']}".lower().split()) for r in plain}
    assert len(normal) == len(plain)
    assert Counter(r["source"] for r in plain) == {s: made for s, (made, _, _) in PLAN.items()}
    rows = list(plain)
    near = 0
    for source, (_, exact_copies, near_copies) in PLAN.items():
        picked = draw.shuffled([r for r in plain if r["source"] == source])
        rows += picked[:exact_copies]
        for row in picked[exact_copies : exact_copies + near_copies]:
            rows.append(near_copy(row, near))
            near += 1
    return draw.shuffled(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the sample data set.")
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in build()]
    out.write_bytes("".join(lines).encode())


if __name__ == "__main__":
    main()
