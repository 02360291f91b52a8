"""Position schemes: one file each, acting at up to four points of a model."""
