"""The room where rows come in: files of any format and dialect, one conversation a row."""
