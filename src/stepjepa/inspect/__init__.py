"""One record of a packed row (its tokens, segments, pairs, and who sees whom) for the terminal, the figure and the page."""
