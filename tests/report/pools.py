"""Six rows in two clusters, four of them kept on two workers, small enough to count by hand."""

import numpy as np

from stages.report.numbers import Pool

POOL = Pool(
    row_ids=np.array([10, 11, 12, 20, 21, 22]),
    cluster=np.array([0, 0, 0, 0, 1, 1], np.int32),
    distance=np.array([0.3, 0.1, 0.3, 0.2, 0.5, 0.4], np.float32),
    multiplicity=np.array([1, 1, 3, 1, 1, 1]),
    num_tokens=np.array([10, 20, 30, 40, 50, 60]),
    loss=np.array([1, 2, 3, 4, 5, 7], np.float32),
    kept=np.array([0, 2, 4, 5]),
    weight=np.array([0.5, 1.0, 1.0, 1.5]),
    worker=np.array([0, 1, 0, 1]),
    position=np.array([0, 0, 1, 1]),
    num_clusters=2,
    num_workers=2,
    rows_per_step=1,
)
