"""Weights in Hugging Face's format, in and out, by ranges of tensors.

Own code on safetensors, as all it takes is a table of names: a bridge would bring transformers and compiled extras into
every actor, and would have one rank read what the others hold.
"""
