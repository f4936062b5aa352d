"""One Parquet file per data-parallel worker, and the folder that outlives the run."""
