"""Pictures of one packed row: its tokens, segments, pairs and who sees whom. Reads data and forest, loads no torch."""
