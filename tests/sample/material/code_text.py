"""Functions on text. The answer to a request is the function's own source.

Each entry of TASKS is the function, arguments and the result they must give, and one or two
wordings of the request.
"""


def reverse_words(sentence: str) -> str:
    """Return the sentence with its words in reverse order."""
    return " ".join(reversed(sentence.split()))


def is_palindrome(text: str) -> bool:
    """Say whether the letters and digits read the same both ways."""
    letters = [c.lower() for c in text if c.isalnum()]
    return letters == letters[::-1]


def count_vowels(text):
    """Count the letters a, e, i, o and u, in either case."""
    return sum(1 for c in text.lower() if c in "aeiou")


def are_anagrams(first: str, second: str) -> bool:
    """Say whether both phrases use the same letters equally often."""

    def letters(text: str) -> list[str]:
        return sorted(text.replace(" ", "").lower())

    return letters(first) == letters(second)


def caesar(text: str, shift: int) -> str:
    """Shift each ASCII letter along the alphabet, leaving the rest alone."""
    out = []
    for c in text:
        if c.isascii() and c.isalpha():
            start = ord("a") if c.islower() else ord("A")
            c = chr((ord(c) - start + shift) % 26 + start)
        out.append(c)
    return "".join(out)


def longest_word(sentence):
    """Return the longest word; the first one wins a tie."""
    words = sentence.split()
    return max(words, key=len) if words else ""


def remove_digits(text):
    """Return the text without its digits."""
    return "".join(c for c in text if not c.isdigit())


def to_snake_case(name: str) -> str:
    """Turn a camelCase name into snake_case."""
    out = ""
    for i, c in enumerate(name):
        if c.isupper() and i > 0:
            out += "_"
        out += c.lower()
    return out


def run_lengths(text: str) -> list[tuple[str, int]]:
    """Return (character, repeats) for each run of equal characters."""
    runs: list[tuple[str, int]] = []
    for c in text:
        if runs and runs[-1][0] == c:
            runs[-1] = (c, runs[-1][1] + 1)
        else:
            runs.append((c, 1))
    return runs


def shorten(text, limit):
    """Return at most limit characters, ending in … if text was cut."""
    if len(text) <= limit:
        return text
    return text[: limit - 1] + "…"


def common_prefix(words: list[str]) -> str:
    """Return the longest prefix that all the words share."""
    if not words:
        return ""
    first, last = min(words), max(words)
    for i, c in enumerate(first):
        if last[i] != c:
            return first[:i]
    return first


def word_counts(text: str) -> dict[str, int]:
    """Map each lower-case word to the number of times it occurs."""
    counts: dict[str, int] = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts


def parse_pairs(line: str) -> dict[str, str]:
    """Parse 'a=1; b=2' into a dictionary."""
    pairs = (part.split("=", 1) for part in line.split(";") if "=" in part)
    return {key.strip(): value.strip() for key, value in pairs}


def is_balanced(text: str) -> bool:
    """Say whether every bracket is closed in the right order."""
    closing = {")": "(", "]": "[", "}": "{"}
    stack = []
    for c in text:
        if c in closing.values():
            stack.append(c)
        elif c in closing and (not stack or stack.pop() != closing[c]):
            return False
    return not stack


def initials(full_name):
    """Return the initials, such as A.K.L. for Ada King Lovelace."""
    return "".join(part[0].upper() + "." for part in full_name.split())


TASKS = [
    (
        (reverse_words, ("the old cat",), "cat old the"),
        "Write a Python function that reverses the order of the words in a sentence.",
        "How can I put the words of a string in reverse order in Python?",
    ),
    (
        (is_palindrome, ("Never odd or even!",), True),
        "Write a Python function that checks whether a text is a palindrome. "
        "Ignore case, spaces and punctuation.",
        "I need a palindrome test in Python that only looks at letters and digits.",
    ),
    (
        (count_vowels, ("Orange juice",), 6),
        "Count the vowels in a string with a Python function.",
        "Give me a short Python function that returns how many of the letters a, e, i, o and u "
        "a text has.",
    ),
    (
        (are_anagrams, ("Dirty room", "Dormitory"), True),
        "Write a function in Python that tells whether two phrases are anagrams of each other.",
        "Check in Python if two strings use the same letters, ignoring spaces and case.",
    ),
    (
        (caesar, ("Zebra, x!", 3), "Cheud, a!"),
        "Implement the Caesar cipher in Python for a given shift.",
        "Write a Python function that shifts every letter of a text by n places in the alphabet.",
    ),
    (
        (longest_word, ("a quiet morning walk",), "morning"),
        "Return the longest word of a sentence, or an empty string if there is none.",
    ),
    (
        (remove_digits, ("r2d2 room 14",), "rd room "),
        "Write a Python function that removes all digits from a string.",
    ),
    (
        (to_snake_case, ("totalPageCount",), "total_page_count"),
        "Convert a camelCase identifier to snake_case in Python.",
        "Write a function that renames things like maxValue to max_value.",
    ),
    (
        (run_lengths, ("aabccc",), [("a", 2), ("b", 1), ("c", 3)]),
        "Write a run-length encoder in Python that returns a list of (character, count) pairs.",
    ),
    (
        (shorten, ("evenings", 5), "even…"),
        "Cut a text to a given length in Python and mark the cut with an ellipsis (…).",
    ),
    (
        (common_prefix, (["flower", "flow", "flight"],), "fl"),
        "Find the longest common prefix of a list of strings in Python.",
    ),
    (
        (word_counts, ("to be or not to be",), {"to": 2, "be": 2, "or": 1, "not": 1}),
        "Count how often each word occurs in a text. Use plain Python and no imports.",
        "Write a Python function that returns a dictionary of word frequencies.",
    ),
    (
        (parse_pairs, ("a=1; b = two;",), {"a": "1", "b": "two"}),
        "Write a Python function that parses a line such as 'a=1; b=2' into a dictionary.",
    ),
    (
        (is_balanced, ("f(a[1], {2: 3})",), True),
        "Check in Python whether the brackets in a string are balanced.",
    ),
    (
        (initials, ("ada king lovelace",), "A.K.L."),
        "Write a Python function that returns the initials of a full name.",
    ),
]
