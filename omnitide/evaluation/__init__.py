"""Evaluation: benchmarks with the files as their authors lay them out, and what is made of them."""
