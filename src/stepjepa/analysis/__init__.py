"""Looking at what was trained: states of both views, numbers from them, signs of collapse, figures.

It reads `data`, `forest` and `modeling` at most. `collect` runs a model; all the rest takes NumPy arrays and plain numbers.
"""
