"""One forward pass per row: a gradient feature and the signals that selection needs."""
