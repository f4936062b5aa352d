import pytest

from stages.rows.dialects import DIALECTS, Columns, Conversation, Problem


def said(dialect: str, row: Columns) -> list[tuple[str, str]]:
    (item,) = DIALECTS[dialect].convert(row)
    assert isinstance(item, Conversation), item
    return [(m["role"], m["content"]) for m in item.messages]


def rest(dialect: str, row: Columns) -> Columns:
    (item,) = DIALECTS[dialect].convert(row)
    assert isinstance(item, Conversation), item
    return item.rest


def reason(dialect: str, row: Columns) -> str:
    (item,) = DIALECTS[dialect].convert(row)
    assert isinstance(item, Problem), item
    return item.reason


def ask(*turns: tuple[str, object]) -> Columns:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def test_messages_are_taken_as_they_are() -> None:
    row = {**ask(("system", "S"), ("user", " U\n"), ("assistant", "A ")), "tools": "[]", "id": 3}
    assert said("messages", row) == [("system", "S"), ("user", " U\n"), ("assistant", "A ")]
    assert rest("messages", row) == {"tools": "[]", "id": 3}


def test_messages_keep_the_list_that_says_more() -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
    items = [{"role": "user", "content": "U"}, call, {"role": "tool", "content": "4C"}]
    row = {"messages": items}
    assert said("messages", row) == [("user", "U"), ("assistant", ""), ("tool", "4C")]
    assert rest("messages", row) == {"messages": items}


def test_text_parts_are_joined_and_other_parts_refused() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert said("messages", ask(("user", parts), ("assistant", "A")))[0] == ("user", "a b")
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    assert reason("messages", ask(("user", image), ("assistant", "A"))) == "not_text"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": []}, "no_messages"),
        ({}, "no_messages"),
        ({"messages": "text"}, "no_messages"),
        ({"messages": ["text"]}, "not_a_message"),
        (ask(("critic", "x"), ("teller", "A")), "unknown_role"),
        ({"messages": [{"content": "x"}]}, "unknown_role"),
        ({"messages": [{"role": 7, "content": "x"}]}, "unknown_role"),
        (ask(("user", "U")), "no_assistant_turn"),
        (ask(("user", " \n"), ("assistant", "A")), "empty_user_turn"),
        (ask(("user", None), ("assistant", "A")), "empty_user_turn"),
        (ask(("user", 7), ("assistant", "A")), "not_text"),
    ],
)
def test_messages_that_are_no_conversation(row: Columns, expected: str) -> None:
    assert reason("messages", row) == expected


def test_roles_in_any_capitals_and_roles_that_nobody_knows() -> None:
    row = ask(("System", "S"), ("USER", "U"), ("critic", "C"), ("Model", "A"))
    assert [role for role, _ in said("messages", row)] == ["system", "user", "critic", "assistant"]


def test_sharegpt_roles() -> None:
    names = ["system", "human", "function_call", "observation", "gpt", "user", "chatgpt", "bot"]
    row = {"conversations": [{"from": name, "value": name} for name in names]}
    roles = [role for role, _ in said("sharegpt", row)]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"] + ["assistant"] * 2
    row = {"conversations": [{"role": "tool_response", "content": "x"}, {"role": "gpt"}]}
    assert said("sharegpt", row) == [("tool", "x"), ("assistant", "")]


def test_sharegpt_system_column_comes_first_unless_there_is_one() -> None:
    turns = [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A", "weight": 0}]
    row = {"conversations": turns, "system": "S"}
    assert said("sharegpt", row)[0] == ("system", "S")
    assert rest("sharegpt", row) == {
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "U"},
            {"role": "assistant", "content": "A", "weight": 0},
        ]
    }
    own = {"conversations": [{"from": "system", "value": "own"}, *turns], "system": "S"}
    assert said("sharegpt", own)[0] == ("system", "own")
    assert rest("sharegpt", own)["system"] == "S"


@pytest.mark.parametrize(
    ("row", "user"),
    [
        ({"instruction": "I", "input": "x\n", "output": "O"}, "I\n\nx\n"),
        ({"instruction": "I", "context": "x", "response": "O"}, "I\n\nx"),
        ({"instruction": "I ", "input": " \n", "output": "O"}, "I "),
        ({"instruction": "I", "output": "O"}, "I"),
        ({"instruction": "", "input": "x", "output": "O"}, "x"),
    ],
)
def test_alpaca(row: Columns, user: str) -> None:
    assert said("alpaca", row) == [("user", user), ("assistant", "O")]
    assert rest("alpaca", {**row, "system": "S"}) == {}
    assert said("alpaca", {**row, "system": "S"})[0] == ("system", "S")
    assert rest("alpaca", {**row, "system": " "}) == {"system": " "}


def test_alpaca_problems_and_empty_answers() -> None:
    assert reason("alpaca", {"instruction": "", "output": "O"}) == "empty_user_turn"
    assert reason("alpaca", {"instruction": "I", "output": 7}) == "not_text"
    assert said("alpaca", {"instruction": "I"})[1] == ("assistant", "")
    assert said("alpaca", {"instruction": "I", "output": ""})[1] == ("assistant", "")


def test_prompt_completion_as_text_and_as_messages() -> None:
    expected = [("user", "P"), ("assistant", "C")]
    assert said("prompt_completion", {"prompt": "P", "completion": "C"}) == expected
    prompt = [{"role": "user", "content": "P"}]
    completion = [{"role": "assistant", "content": "C"}]
    row = {"prompt": prompt, "completion": completion}
    assert said("prompt_completion", row) == expected
    assert said("prompt_completion", {"prompt": prompt, "completion": "C"}) == expected
    with_system = {**row, "system": "S"}
    assert said("prompt_completion", with_system) == [("system", "S"), *expected]
    calling = [{"role": "assistant", "tool_calls": []}]
    row = {"prompt": prompt, "completion": calling}
    assert rest("prompt_completion", row) == {"messages": prompt + calling}


def test_question_answer_and_magicoder() -> None:
    assert said("question_answer", {"question": "Q", "answer": "A"})[1] == ("assistant", "A")
    row = {"problem": "P", "solution": "S", "lang": "c"}
    assert said("magicoder", row) == [("user", "P"), ("assistant", "S")]
    assert rest("magicoder", row) == {"lang": "c"}
    assert said("magicoder", {"instruction": "I", "response": "R"})[0] == ("user", "I")


def test_instances_give_one_row_each() -> None:
    instances = [{"input": "", "output": "a"}, {"input": "x", "output": "b"}, 7]
    items = list(
        DIALECTS["instances"].convert({"instruction": "I", "instances": instances, "id": "t"})
    )
    assert [m["content"] for m in items[0].messages] == ["I", "a"]  # type: ignore[union-attr]
    assert [m["content"] for m in items[1].messages] == ["I\n\nx", "b"]  # type: ignore[union-attr]
    assert items[0].rest == {"id": "t"}  # type: ignore[union-attr]
    assert isinstance(items[2], Problem)
    assert reason("instances", {"instruction": "I", "instances": []}) == "no_messages"


def test_natural_instructions() -> None:
    row = {"Definition": ["D", "E"], "input": "x", "output": ["a"], "id": "t"}
    assert said("natural_instructions", row) == [("user", "D\nE\n\nx"), ("assistant", "a")]
    assert rest("natural_instructions", row) == {"id": "t"}
    several = {**row, "output": ["a", "b"]}
    assert said("natural_instructions", several)[1] == ("assistant", "a")
    assert rest("natural_instructions", several) == {"id": "t", "output": ["a", "b"]}
    assert reason("natural_instructions", {**row, "Definition": [7]}) == "not_text"


def test_marked_text() -> None:
    text = "<|user|> U \n<|eos|> <|ai|> A <|eos|> <|user|> V <|eos|> <|ai|>  <|eos|> <|eod|>"
    expected = [("user", "U \n"), ("assistant", "A"), ("user", "V"), ("assistant", "")]
    assert said("marked_text", {"text": text}) == expected
    assert reason("marked_text", {"text": "before " + text}) == "text_outside_markers"
    assert reason("marked_text", {"text": text + " after"}) == "text_outside_markers"
    assert reason("marked_text", {"text": ""}) == "no_messages"
