"""The report: what came in, what was thrown out, what was kept, and how good it is."""
