"""What engines and trainer share: decoders, tokenizer, tensor-parallel slices, checkpoints."""
