"""What it costs to bring tensors from where they were produced to where they are consumed, way by way."""
