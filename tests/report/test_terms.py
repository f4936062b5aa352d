from stages.report.terms import top_terms, words_of


def test_words_are_letters_in_lower_case_and_counted_once() -> None:
    assert words_of("The cat, the CAT; x1 42 größer") == {"the", "cat", "größer"}


def test_words_of_one_cluster_come_first_and_those_of_all_do_not_come() -> None:
    texts = ["the fox and hen", "the fox and egg", "the sum and fox", "the sum and log"] * 3
    terms = top_terms(texts, [0, 0, 1, 1] * 3, 2)
    # By hand: fox is in 6 of 6 texts against 3 of 6, egg in 3 of 6 against none: both are
    # log(13) / sqrt(2 / 3.5 + 2 + 2 / 13), and ties go by the alphabet.
    assert terms == [["egg", "fox", "hen"], ["sum", "log"]]


def test_a_word_of_a_single_text_does_not_speak_for_its_cluster() -> None:
    assert top_terms(["once here", "more there"], [0, 1], 2) == [[], []]


def test_a_cluster_without_texts_has_no_words() -> None:
    assert top_terms(["a word", "a word"], [1, 1], 3)[0] == []


def test_a_cluster_of_all_texts_is_set_apart_from_nothing() -> None:
    assert top_terms(["the same", "the same"], [0, 0], 1) == [[]]
