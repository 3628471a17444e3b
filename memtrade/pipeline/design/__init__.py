"""Pipelined training on paper: partitions, schedules, what they need and how long they take.

    partitioner.py which forward op stands on which stage, and what crosses between stages
    schedule.py    which stage works on which micro-batch when: GPipe, 1F1B
    stages.py      a stage's own StepGraph, cut out of the whole step's, and its plan
    arena.py       a stage's whole step on a simulated allocator
    predict.py     memory per stage, bubble and throughput of a schedule on a device
    report.py      how well a partition is balanced

All of it is pure: no TensorFlow.
"""
