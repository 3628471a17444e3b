"""Nodes of swaps and reservations, run by TensorFlow."""

import tensorflow as tf

from memtrade.tf.swap import empty_node, size_node


def test_a_reservation_of_more_than_2_gib_is_read_without_touching_it() -> None:
    nodes = [empty_node("reserve", 3 << 30)]
    nodes.append(size_node("release", nodes[-1].name))
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef(node=nodes), name="")
        with tf.compat.v1.Session(graph=graph) as session:
            assert session.run("release:0") == (3 << 30) // 4  # numbers of four bytes
