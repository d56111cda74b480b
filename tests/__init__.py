"""Tests by kind: unit, contract, integration; `support` is what they share."""
