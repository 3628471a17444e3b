"""Sweeps that come with memtrade, and the steps that only they run."""
