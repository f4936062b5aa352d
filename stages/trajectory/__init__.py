"""A short warm-up of the model, and the loss of every row at a few points of it."""
