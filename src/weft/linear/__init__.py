"""The one seam of linear maps: what a model projects by, what may be made of it, and what is put in its place."""
