"""OmniTide as a model of other people's evaluation harnesses. None of them is imported here."""
