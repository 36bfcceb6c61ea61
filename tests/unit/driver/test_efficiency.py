"""What is padding counts against the micro-batches as actors cut them; what is not, as the model's own arithmetic."""

import pytest
import torch

from ftppo.config import Algo, Cluster, Config, Model, Parallel, Rollout, Train
from ftppo.driver.efficiency import efficiency, padding_share
from ftppo.plan.flops import training_flops
from ftppo.plan.topology import Layout
from ftppo.types import Batch

LENGTHS = [8, 8, 4, 4, 2, 2, 2, 2]
SEQ, VOCAB = 8, 50


def batch() -> Batch:
    place = torch.arange(SEQ)
    response = (place < torch.tensor(LENGTHS)[:, None]).float()
    a, b, c, d, e = torch.zeros(5, len(LENGTHS), SEQ)
    return Batch(a.long(), response, a, b, c, d, e, float(response.sum()), len(LENGTHS))


def config(micro_tokens: int | None = None, **sections: object) -> Config:
    train = Train(mini_batch=8, prompts=8, epochs=2, micro_batch=2, micro_tokens=micro_tokens)
    whole = {"rollout": Rollout(max_prompt=4, max_response=4), "train": train} | sections
    return Config(**whole)  # type: ignore[arg-type]


def test_without_a_token_budget_all_is_padded_to_the_longest_possible() -> None:
    assert padding_share(batch(), 0, config(), 1) == 1 - sum(LENGTHS) / (len(LENGTHS) * SEQ)


@pytest.mark.parametrize("dp", [1, 2])
def test_micro_batches_by_length_are_padded_to_their_own(dp: int) -> None:
    assert padding_share(batch(), 0, config(micro_tokens=16, parallel=Parallel(dp=dp)), dp) == 0.0
    wide = config(micro_tokens=16, parallel=Parallel(dp=dp, tp=4))  # widths are multiples of 4
    assert padding_share(batch(), 0, wide, dp) == pytest.approx(1 - 32 / 40)


def test_the_models_under_training_count_once_an_epoch_for_each_device() -> None:
    model, layout = Model(), Layout(dp=2, tp=2)
    given = config(cluster=Cluster(peak_tflops=1e-3), parallel=Parallel(dp=2, tp=2))
    both = 2 * (training_flops(model, VOCAB, LENGTHS) + training_flops(model, 1, LENGTHS))
    found = efficiency(batch(), 0, 0.5, given, layout, VOCAB)
    assert found["update_tflops"] == pytest.approx(both / 0.5 / 4 / 1e12)
    assert found["mfu"] == pytest.approx(both / 0.5 / 4 / 1e9)
    alone = efficiency(batch(), 0, 0.5, config(algo=Algo(advantage="grpo")), Layout(), VOCAB)
    assert alone["update_tflops"] == pytest.approx(2 * training_flops(model, VOCAB, LENGTHS) / 0.5 / 1e12)
    assert alone["mfu"] is None, "nobody has said what the device can do"
