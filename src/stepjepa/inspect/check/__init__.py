"""What a data set holds, what a model will see of it, and what to know before training on it (``stepjepa check``)."""
