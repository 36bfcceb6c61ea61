"""Weights from a checkpoint that Megatron-Core has written by itself, in its format "torch_dist", by ranges of tensors.

A folder without a manifest: what lies where stands in a pickle, which is read with care, and there are no checksums.
"""
