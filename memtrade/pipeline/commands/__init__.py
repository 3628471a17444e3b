"""The commands of pipelines. None of them imports TensorFlow."""
