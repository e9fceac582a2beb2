"""One record of a packed row (its tokens, segments, pairs, and who sees whom), read by terminal, figure and page."""
