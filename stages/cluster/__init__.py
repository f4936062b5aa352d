"""Groups of rows whose gradients point the same way, neither too small nor too large."""
