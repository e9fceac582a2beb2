"""Evaluation: generating answers and comparing them with the references."""
