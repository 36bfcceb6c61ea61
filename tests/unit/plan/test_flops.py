"""Arithmetic counted by hand, and the rule of thumb of 6 operations a weight and token."""

import pytest

from ftppo.config_model import Model
from ftppo.plan.flops import training_flops


def test_every_product_is_counted_once_forward_and_twice_backward() -> None:
    model = Model(layers=1, hidden=8, ffn=10, heads=4, kv_heads=2)  # heads of 2
    q_k_v, out, mlp, output = 8 * (8 + 4 + 4), 8 * 8, 3 * 8 * 10, 8 * 5
    seen = 1 + 2 + 3  # keys, by three queries
    attention = 4 * 2 * 2 * seen * 2  # heads x their size x scores and values x pairs x multiply and add
    assert training_flops(model, 5, [3]) == 3 * (2 * 3 * (q_k_v + out + mlp + output) + attention)
    assert training_flops(model, 5, [3, 3]) == 2 * training_flops(model, 5, [3])
    assert training_flops(model, 5, []) == 0


def test_six_operations_a_weight_and_token_where_sequences_are_short() -> None:
    model = Model(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8)
    weights = 8.03e9 - 128256 * 4096  # Llama 3 8B, without its embedding
    assert training_flops(model, 128256, [1]) == pytest.approx(6 * weights, rel=1e-3)
