"""`regex_equivalence`: the generated regular expression matches the same texts as the reference.

`syntax` parses, `language` compares, `metric` is the metric.
"""
