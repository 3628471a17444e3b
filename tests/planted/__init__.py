"""Planted out-of-memory errors: the cause is known, memory really runs out, the page is read."""
