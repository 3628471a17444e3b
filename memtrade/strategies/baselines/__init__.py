"""The field's own planners, written after their papers, to compare ours with.

    sqrt_n.py      segments of equal cost
    greedy.py      swap what can be hidden, then what costs least per byte (Capuchin)
    rotor.py       the fastest persistent recomputation of a chain
    checkmate.py   recomputation as an integer programme

What they share: `chain.py` and `nodes.py` see a step as a chain or as a small graph, `dag.py` and
`rounding.py` find recomputations on it, `stages.py` writes the program.
"""
