"""Sizes that carry their formula, with guards; polynomials evaluated on grids."""
