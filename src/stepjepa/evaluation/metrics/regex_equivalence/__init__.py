"""Whether two regular expressions match the same texts: parsing, the alphabet they tell apart, and the comparison."""
