"""Benchmarks: how long attention, copies, tokens, updates and sessions take, beside their floors.

`cli/bench.py` reads what to measure into a `Settings`; each module named after a benchmark turns
that into a `Report`. Nothing here is imported by the rest of the package.
"""
