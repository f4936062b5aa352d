"""The rooms of the pipeline, in the order in which data walks through them."""
