"""The names of EARL's own fragments of tensors: who reads a run file needs no torch for them."""

LOSSES = ("clip", "dual-clip", "cispo", "gspo")
# With the first, no token is weighted.
IMPORTANCE = ("behaviour", "truncated", "masked", "decoupled", "sequence-truncated", "sequence-masked")
CREDITS = ("discounted", "gae")
# Credits that need a critic.
WITH_CRITIC = frozenset({"gae"})
