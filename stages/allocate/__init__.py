"""Which rows are kept, with what weight, and when each worker sees them."""
