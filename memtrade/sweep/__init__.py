"""Sweeps: many trials out of one TOML file, here or on a Ray cluster, resumed where they stopped.

    file ──grid──► trials ──runner──► those to run ──runner | cluster──► records, as each one ends

A sweep keeps no state of its own: what has run is what has a record.
"""
