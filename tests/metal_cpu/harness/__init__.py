"""Metal kernels on a CPU: the source that MLX generates, compiled by clang, run thread by thread.

`launcher.MetalOnCpu` launches kernels as the MLX backend's own launcher does on a Mac. It refuses
what Metal would refuse or leave undefined, and counts the bytes that each buffer gave and took.
Import `launcher` only where `availability.why_not()` is None.
"""
