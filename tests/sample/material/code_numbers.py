"""Functions on numbers; see code_text for the form of TASKS."""


def factorial(n: int) -> int:
    """Return n! = 1 * 2 * ... * n, with 0! = 1."""
    if n < 0:
        raise ValueError("n must not be negative")
    result = 1
    for k in range(2, n + 1):
        result *= k
    return result


def is_prime(n: int) -> bool:
    """Say whether n is prime, by trying divisors up to its square root."""
    if n < 2:
        return False
    d = 2
    while d * d <= n:
        if n % d == 0:
            return False
        d += 1
    return True


def gcd(a: int, b: int) -> int:
    """Return the greatest common divisor by Euclid's algorithm."""
    while b:
        a, b = b, a % b
    return abs(a)


def fibonacci(n: int) -> list[int]:
    """Return the first n Fibonacci numbers, starting with 0 and 1."""
    numbers = []
    a, b = 0, 1
    for _ in range(n):
        numbers.append(a)
        a, b = b, a + b
    return numbers


def digit_sum(n):
    """Return the sum of the decimal digits; the sign is ignored."""
    return sum(int(d) for d in str(abs(n)))


def is_leap_year(year: int) -> bool:
    """Centuries are leap years only if they divide by 400."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def to_fahrenheit(celsius: float) -> float:
    """Convert a temperature from degrees Celsius to Fahrenheit."""
    return celsius * 9 / 5 + 32


def clamp(value, low, high):
    """Return value, or the nearest end of the range if it is outside."""
    return max(low, min(value, high))


def mean(numbers):
    """Return the arithmetic mean of a non-empty list."""
    if not numbers:
        raise ValueError("no numbers given")
    return sum(numbers) / len(numbers)


def median(numbers):
    """Return the middle value, or the mean of the two middle values."""
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def collatz_steps(n: int) -> int:
    """Count the Collatz steps from a positive n down to 1."""
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def to_binary(n: int) -> str:
    """Return a non-negative integer in base two."""
    digits = ""
    while n > 0:
        digits = str(n % 2) + digits
        n //= 2
    return digits or "0"


def primes_up_to(limit: int) -> list[int]:
    """Sieve of Eratosthenes."""
    is_prime = [True] * (limit + 1)
    for n in range(2, int(limit**0.5) + 1):
        if is_prime[n]:
            for multiple in range(n * n, limit + 1, n):
                is_prime[multiple] = False
    return [n for n in range(2, limit + 1) if is_prime[n]]


def divisors(n: int) -> list[int]:
    """Return all positive divisors of n in increasing order."""
    return [d for d in range(1, n + 1) if n % d == 0]


def to_roman(n: int) -> str:
    """Write an integer from 1 to 3999 as a Roman numeral."""
    values = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
    symbols = "M CM D CD C XC L XL X IX V IV I".split()
    out = ""
    for value, symbol in zip(values, symbols, strict=True):
        out += symbol * (n // value)
        n %= value
    return out


def format_seconds(seconds: int) -> str:
    """Format a number of seconds as h:mm:ss."""
    minutes, s = divmod(seconds, 60)
    h, m = divmod(minutes, 60)
    return f"{h}:{m:02d}:{s:02d}"


TASKS = [
    (
        (factorial, (6,), 720),
        "Write a Python function that computes the factorial of n with a loop.",
        "Compute n! in Python without recursion and reject negative numbers.",
    ),
    (
        (is_prime, (97,), True),
        "Write a Python function that checks whether a number is prime.",
        "How do I test in Python if an integer is a prime? Trial division is fine.",
    ),
    (
        (gcd, (84, -36), 12),
        "Write Euclid's algorithm for the greatest common divisor in Python.",
        "Compute the gcd of two integers in Python without the math module.",
    ),
    (
        (fibonacci, (8,), [0, 1, 1, 2, 3, 5, 8, 13]),
        "Return a list of the first n Fibonacci numbers in Python.",
        "Write a Python function for the Fibonacci sequence, starting at 0.",
    ),
    (
        (digit_sum, (-4093,), 16),
        "Add up the decimal digits of an integer in Python.",
    ),
    (
        (is_leap_year, (1900,), False),
        "Write a Python function that says whether a year is a leap year (Gregorian).",
        "Implement the leap year rule in Python.",
    ),
    (
        (to_fahrenheit, (37,), 98.6),
        "Write a Python function that converts °C to °F.",
    ),
    (
        (clamp, (12, 0, 10), 10),
        "Limit a number to a range in Python.",
        "Write a function clamp(value, low, high) in Python.",
    ),
    (
        (mean, ([2, 4, 9],), 5.0),
        "Write a Python function for the arithmetic mean that rejects an empty list.",
    ),
    (
        (median, ([7, 1, 4, 2],), 3.0),
        "Compute the median of a list of numbers in Python without importing anything.",
        "Write a median function in Python that also works for an even number of values.",
    ),
    (
        (collatz_steps, (6,), 8),
        "Write a Python function that counts the steps of the Collatz sequence from n to 1.",
    ),
    (
        (to_binary, (10,), "1010"),
        "Convert a non-negative integer to a binary string in Python without bin().",
    ),
    (
        (primes_up_to, (20,), [2, 3, 5, 7, 11, 13, 17, 19]),
        "List all primes up to a limit with the sieve of Eratosthenes in Python.",
    ),
    (
        (divisors, (12,), [1, 2, 3, 4, 6, 12]),
        "Write a Python function that lists the positive divisors of n.",
    ),
    (
        (to_roman, (1994,), "MCMXCIV"),
        "Convert an integer to a Roman numeral in Python.",
    ),
    (
        (format_seconds, (3725,), "1:02:05"),
        "Write a Python function that formats a duration in seconds as h:mm:ss.",
    ),
]
