"""The forest: the trunk, branches and targets of each example, their packing into rows, and which token sees which."""
