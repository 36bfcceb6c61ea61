"""How well an iteration's update used its devices. Comes in: its Batch and its seconds; goes out: three metrics."""

from ftppo.config import Config
from ftppo.driver.minibatch import mini_batch
from ftppo.plan.flops import training_flops
from ftppo.plan.packing import packs_of
from ftppo.plan.topology import Layout
from ftppo.types import Batch, lengths_of


def efficiency(
    batch: Batch, iteration: int, update_s: float, config: Config, layout: Layout, vocab_size: int
) -> dict[str, float | None]:
    """`padding`, `update_tflops` and `mfu` of IterationMetrics. Where the layout changed on the way, as in the last."""
    lengths = lengths_of(batch.response)
    outputs = [vocab_size, 1] if config.algo.needs_critic else [vocab_size]
    flops = config.train.epochs * sum(training_flops(config.model, one, lengths) for one in outputs)
    tflops = flops / 1e12 / max(update_s, 1e-9) / layout.world
    peak = config.cluster.peak_tflops
    return {
        "padding": padding_share(batch, iteration, config, layout.dp),
        "update_tflops": tflops,
        "mfu": tflops / peak if peak else None,
    }


def padding_share(batch: Batch, iteration: int, config: Config, dp: int) -> float:
    """How much of what the models run over in all steps of the iteration is padding: 0 to 1."""
    num_steps = config.train.epochs * (len(batch.tokens) // config.train.mini_batch)
    num_tokens = num_computed = 0
    for number in range(num_steps):
        for share in mini_batch(batch, number, iteration, config, dp).split(dp):
            lengths = lengths_of(share.response)
            num_tokens += sum(lengths)
            num_computed += sum(len(pack.rows) * pack.width for pack in packs_of(lengths, config, share.num_micro))
    return 1 - num_tokens / num_computed
