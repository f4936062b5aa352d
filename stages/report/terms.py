"""What distinguishes the texts of a cluster: words that are more frequent there than elsewhere."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

# Letters only: numbers and marks tell code from prose, but not one topic from another.
_WORD = re.compile(r"[^\W\d_]{3,24}")
PRIOR = 0.5
# A word of fewer texts of a cluster does not speak for it.
LEAST_TEXTS = 2


def words_of(text: str) -> set[str]:
    """Give the distinct words of a text, in lower case."""
    return set(_WORD.findall(text.lower()))


def top_terms(
    texts: Sequence[str], clusters: Sequence[int], num_clusters: int, *, count: int = 6
) -> list[list[str]]:
    """Find for each cluster the words that set it apart from all other texts.

    Words are ranked by the log odds of a text of the cluster holding the word against a text of
    the others, over its standard error ("Fightin' Words", Monroe, Colaresi and Quinn 2008, with a
    flat prior). No list of stop words is needed: what is frequent everywhere ranks low.

    Parameters
    ----------
    texts : sequence of str
        A sample of all texts.
    clusters : sequence of int
        Cluster of each.
    num_clusters : int
        How many there are; one without texts gets no words.
    count : int
        Words per cluster, at most.

    Returns
    -------
    list of list of str
        Best first; ties in order of the alphabet.
    """
    inside = [Counter[str]() for _ in range(num_clusters)]
    sizes = np.bincount(np.asarray(clusters, np.int64), minlength=num_clusters)
    for text, cluster in zip(texts, clusters, strict=True):
        inside[cluster].update(words_of(text))
    everywhere = Counter[str]()
    for counter in inside:
        everywhere.update(counter)
    total = int(sizes.sum())
    found = []
    for counter, size in zip(inside, sizes.tolist(), strict=True):
        scores = {
            word: _log_odds(here, size, everywhere[word] - here, total - size)
            for word, here in counter.items()
            if here >= LEAST_TEXTS and size < total  # one cluster of all is set apart from nothing
        }
        best = sorted((w for w, s in scores.items() if s > 0), key=lambda w: (-scores[w], w))
        found.append(best[:count])
    return found


def _log_odds(here: int, size: int, there: int, size_there: int) -> float:
    """Compare two shares of texts: log odds ratio over its standard error."""
    a, b = here + PRIOR, size - here + PRIOR
    c, d = there + PRIOR, size_there - there + PRIOR
    spread = np.sqrt(1 / a + 1 / b + 1 / c + 1 / d)
    return float((np.log(a / b) - np.log(c / d)) / spread)
