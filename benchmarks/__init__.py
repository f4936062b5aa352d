"""One file per measured claim; each prints a table and writes benchmarks/results/<name>.json."""
