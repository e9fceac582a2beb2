"""Solutions from a teacher model: questions in, responses whose final answer is right out."""
