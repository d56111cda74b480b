"""The names of EARL's own fragments of tensors: who reads a run file needs no torch for them."""

LOSSES = ("clip", "dual-clip", "cispo", "gspo")
