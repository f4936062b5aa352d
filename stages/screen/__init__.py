"""Between rows and tokens: duplicates become one row that counts for all, benchmark leaks go."""
