"""Fidelity: the pipeline against plain restatements of the paper and of autograd."""
