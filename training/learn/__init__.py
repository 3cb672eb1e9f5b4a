"""How the model is trained: data, loss, optimiser, budget, log."""
