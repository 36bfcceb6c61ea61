"""Whether what a rank raises is another one's fault. Comes in: an exception; goes out: whether it came of talking."""

import traceback


def in_communication(error: BaseException) -> bool:
    """Whether it was raised while talking to other ranks: by place and words, as gloo has no exception of its own."""
    frames = traceback.extract_tb(error.__traceback__)
    places = ("torch/distributed/", "megatron/core/pipeline_parallel/p2p_communication.py")
    there = bool(frames) and any(place in frames[-1].filename for place in places)
    words = ("gloo/transport", "NCCL", "Connection closed by peer", "Connection reset by peer")
    return isinstance(error, RuntimeError) and (there or any(word in str(error) for word in words))
