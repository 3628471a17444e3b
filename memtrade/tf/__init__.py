"""The only package that touches TensorFlow: steps, extraction, rewriting, host transfer."""
