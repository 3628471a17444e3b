"""Pipelined training: a step cut into stages, each with a device of its own.

    design/     on paper: partition, schedule, stages, memory and time. No TensorFlow
    tf/         the pipelined step as one TensorFlow graph
    measure/    the processes of a trial, what they say to each other, and its record
    results/    tables and pictures
    commands/   `memtrade pipeline` and `memtrade partition`

Each part may import what the room of its name may (`memtrade.tf`, `memtrade.measure`, ...).
"""
