"""Shared by engines and trainer: decoders, tokenizer, tensor-parallel slices, checkpoints."""
