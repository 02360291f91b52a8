"""One file a family: tiny models of odd shapes, as values of its configuration class in transformers."""
