"""The model in PyTorch, batched, and its checkpoint in the published layout."""
