"""ARPA files of n-gram models, the exchange format of SRILM, KenLM and others."""
