"""Scripts as tokens: rows of fixed length, and who sees whom in them."""
