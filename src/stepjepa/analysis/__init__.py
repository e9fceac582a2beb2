"""Looking at what was trained: numbers from saved states, signs of collapse, figures.

It reads `data` and `modeling` at most; the functions take NumPy arrays and plain numbers.
"""
