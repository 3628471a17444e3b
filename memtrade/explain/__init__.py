"""Out of memory, explained: what the error says, what caused it, and what would fit."""
