"""Tests that fail where a training step takes more memory: a plugin for pytest, and what it asks.

pytest imports this package in every session, so there is nothing in it that takes time.
"""
