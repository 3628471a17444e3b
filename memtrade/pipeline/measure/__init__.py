"""A pipelined trial: its processes, what they say to each other, and its record."""
