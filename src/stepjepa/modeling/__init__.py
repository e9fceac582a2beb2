"""Models: loading, predictor tokens, the forward passes, readouts and export."""
