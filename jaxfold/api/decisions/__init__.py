"""Typed decisions: probabilities of labels, without generated text."""
