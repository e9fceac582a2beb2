"""Analysis of trained models: the states of both views, measures of them, signs of collapse, and figures.

`run` loads the models, `states` runs them, and `geometry` and `prediction` compute measures from NumPy arrays.
"""
