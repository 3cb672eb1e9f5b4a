"""Scripts made visible and audible, on the CPU or a GPU."""
