"""Reports on data sets (`check`), and one row as training sees it, in a terminal, a figure and a page (`view`)."""
