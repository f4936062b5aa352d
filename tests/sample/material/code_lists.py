"""Functions on lists and dictionaries; see code_text for the form of TASKS."""


def unique(items):
    """Drop repeats and keep the first of each in order."""
    return list(dict.fromkeys(items))


def flatten(nested):
    """Return the items of a nested list as one flat list."""
    flat = []
    for item in nested:
        if isinstance(item, list):
            flat.extend(flatten(item))
        else:
            flat.append(item)
    return flat


def chunks(items: list, size: int) -> list[list]:
    """Split items into lists of the given size; the last may be shorter."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def rotate(items: list, k: int) -> list:
    """Move the first k items to the end."""
    if not items:
        return []
    k %= len(items)
    return items[k:] + items[:k]


def second_largest(numbers):
    """Return the second largest of the distinct numbers."""
    distinct = sorted(set(numbers))
    if len(distinct) < 2:
        raise ValueError("need two different numbers")
    return distinct[-2]


def merge_sorted(a: list[int], b: list[int]) -> list[int]:
    """Merge two sorted lists into one sorted list."""
    merged, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        if a[i] <= b[j]:
            merged.append(a[i])
            i += 1
        else:
            merged.append(b[j])
            j += 1
    return merged + a[i:] + b[j:]


def binary_search(items: list[int], target: int) -> int:
    """Return the index of target in a sorted list, or -1."""
    low, high = 0, len(items) - 1
    while low <= high:
        middle = (low + high) // 2
        if items[middle] == target:
            return middle
        if items[middle] < target:
            low = middle + 1
        else:
            high = middle - 1
    return -1


def running_totals(numbers):
    """Return the sum of the first 1, 2, 3, ... numbers."""
    totals, total = [], 0
    for number in numbers:
        total += number
        totals.append(total)
    return totals


def find_pair(numbers: list[int], target: int) -> tuple[int, int] | None:
    """Return two of the numbers that add up to target."""
    seen = set()
    for number in numbers:
        if target - number in seen:
            return target - number, number
        seen.add(number)
    return None


def transpose(matrix):
    """Turn the rows of a matrix into columns."""
    return [list(column) for column in zip(*matrix, strict=True)]


def group_by_length(words: list[str]) -> dict[int, list[str]]:
    """Map each length to the words that have it, in order."""
    groups: dict[int, list[str]] = {}
    for word in words:
        groups.setdefault(len(word), []).append(word)
    return groups


def dot(a, b):
    """Return the dot product of two vectors of equal length."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def bubble_sort(items: list) -> list:
    """Return a sorted copy by swapping neighbours that are out of order."""
    items = list(items)
    for end in range(len(items) - 1, 0, -1):
        for i in range(end):
            if items[i] > items[i + 1]:
                items[i], items[i + 1] = items[i + 1], items[i]
    return items


def invert(mapping: dict) -> dict:
    """Return a dictionary from value to key; values must be unique."""
    return {value: key for key, value in mapping.items()}


TASKS = [
    (
        (unique, ([3, 1, 3, 2, 1],), [3, 1, 2]),
        "Remove duplicates from a list in Python and keep the order.",
        "Write a Python function that keeps only the first occurrence of each item.",
    ),
    (
        (flatten, ([1, [2, [3, []], 4]],), [1, 2, 3, 4]),
        "Flatten a list of lists of any depth in Python.",
        "Write a recursive Python function that turns a nested list into a flat one.",
    ),
    (
        (chunks, ([1, 2, 3, 4, 5], 2), [[1, 2], [3, 4], [5]]),
        "Split a list into chunks of a given size in Python.",
        "Write a Python function that cuts a list into pieces of n items. The last may be shorter.",
    ),
    (
        (rotate, ([1, 2, 3, 4], 5), [2, 3, 4, 1]),
        "Rotate a list to the left by k places in Python.",
    ),
    (
        (second_largest, ([5, 9, 9, 2],), 5),
        "Find the second largest distinct number in a list with Python.",
    ),
    (
        (merge_sorted, ([1, 4, 6], [2, 4, 9]), [1, 2, 4, 4, 6, 9]),
        "Merge two sorted lists into one sorted list in Python.",
    ),
    (
        (binary_search, ([1, 3, 5, 8, 13], 8), 3),
        "Write a binary search in Python that returns the index, or -1 if the item is missing.",
        "Find a number in a sorted Python list in logarithmic time.",
    ),
    (
        (running_totals, ([3, 1, 4],), [3, 4, 8]),
        "Write a Python function that returns the running totals of a list.",
    ),
    (
        (find_pair, ([4, 9, 2, 7], 11), (9, 2)),
        "Find two numbers in a list that add up to a target, in one pass, in Python.",
    ),
    (
        (transpose, ([[1, 2, 3], [4, 5, 6]],), [[1, 4], [2, 5], [3, 6]]),
        "Transpose a matrix given as a list of rows in Python.",
        "Swap the rows and columns of a nested Python list.",
    ),
    (
        (group_by_length, (["ox", "cat", "an"],), {2: ["ox", "an"], 3: ["cat"]}),
        "Group the words of a list by their length in Python.",
    ),
    (
        (dot, ([1, 2, 3], [4, 5, 6]), 32),
        "Write a Python function for the dot product of two vectors of equal length.",
    ),
    (
        (bubble_sort, ([4, 1, 3, 2],), [1, 2, 3, 4]),
        "Implement bubble sort in Python. Do not change the list that is passed in.",
        "Show me bubble sort as a Python function.",
    ),
    (
        (invert, ({"a": 1, "b": 2},), {1: "a", 2: "b"}),
        "Swap the keys and values of a dictionary in Python.",
    ),
]
