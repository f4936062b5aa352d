"""What every room agrees on: schemas, finished folders, fingerprints, errors."""
