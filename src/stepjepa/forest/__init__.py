"""The forest: one example's trunk, branches and targets, packed many to a row, and who sees whom in it."""
