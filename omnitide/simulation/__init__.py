"""Retention and paging on a stream without a model: what each choice keeps, moves and costs."""
