"""`pkm commission`: the walk, and how each of its steps is done."""
