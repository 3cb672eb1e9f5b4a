"""Where attention goes over a stream: the paper's figure 5, as numbers and as pictures."""
