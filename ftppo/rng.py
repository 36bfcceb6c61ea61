"""Seeds for every draw in a run. Comes in: what the draw is for; goes out: a seed that hangs on that alone."""

import hashlib

import torch


def seed_for(*what: object) -> int:
    """A 63-bit seed from the parts' text, e.g. seed_for(seed, iteration, "rollout", sample)."""
    text = "/".join(str(part) for part in what)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*what: object) -> torch.Generator:
    """A CPU generator seeded by `seed_for(*what)`."""
    return torch.Generator().manual_seed(seed_for(*what))
