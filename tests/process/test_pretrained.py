"""Models of transformers on a mesh: the same logits, the same answers, no byte read too many; and back again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ftppo.config import Checkpoint, Model
from ftppo.driver.prompts import assemble
from ftppo.export import main
from ftppo.plan.topology import Layout
from ftppo.tasks.tokenizer import padded
from ftppo.types import RolloutResult, Scores
from tests.process import calls, case, pretrained
from tests.process.case import LAYOUTS, ONE, difference
from tests.process.mesh import Mesh
from tests.process.pretrained import FAMILIES
from tests.process.world import World, whole

TOLERANCE = 1e-4
CHOSEN = {"one": ONE} | {name: LAYOUTS[name] for name in ("tp2", "pp2", "cp2", "tp2pp2")}


@dataclass(frozen=True)
class Origin:
    """A model of transformers, the folder it is in, and its logits [n, seq, vocab] on the given sequences."""

    model: Any
    folder: Path
    logits: Tensor


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Origin]:
    found = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        model = pretrained.make(family, folder)
        found[family] = Origin(model, folder, _logits(model))
    return found


@pytest.mark.parametrize("layout", CHOSEN.values(), ids=CHOSEN.keys())
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_transformers_is_the_same_here(
    mesh: Mesh, origins: dict[str, Origin], family: str, layout: Layout
) -> None:
    origin = origins[family]
    with World(mesh, pretrained.config(origin.folder, layout)) as world:
        found = [each for each in mesh.run(world.slots, pretrained.logits, case.sequences().tokens) if each is not None]
        scores, samples = world.score(case.sequences()), world.rollout(case.request())
        state = whole(box for boxes in world.boxes() for box in boxes)
        read = mesh.run(world.slots, pretrained.read_again)
    _assert_same_logits(found, scores, origin.logits)
    _assert_greedy(samples, origin.model)
    trunk = [key for key in state if pretrained.is_policy(key) and key != "output_layer.weight"]
    assert all(torch.equal(state[key], state[f"critic.{key}"]) for key in trunk)
    assert not state["critic.output_layer.weight"].any()
    vocab = origin.logits.shape[-1]
    padding = 2 * (padded(vocab) - vocab) * 64  # of embedding and output: in no file
    assert all(held - padding <= num_bytes / 4 <= held for num_bytes, held in read), (
        "a rank reads what it holds, no more"
    )


@pytest.mark.parametrize(
    ("family", "dtype"), [*((each, "fp32") for each in FAMILIES), ("llama", "bf16"), ("qwen2", "bf16")]
)
def test_what_comes_in_goes_out_bit_for_bit(
    mesh: Mesh, origins: dict[str, Origin], family: str, dtype: str, tmp_path: Path
) -> None:
    origin, folder = origins[family], origins[family].folder
    if dtype == "bf16":
        folder = tmp_path / "origin"
        pretrained.make(family, folder, torch.bfloat16)
    knobs = Checkpoint(url=str(tmp_path / "checkpoints"))
    config = pretrained.config(folder, LAYOUTS["tp2pp2"], model=Model(dtype=dtype), checkpoint=knobs)
    with World(mesh, config) as world:
        world.save(5)
    out = tmp_path / "out"
    assert main([str(knobs.url), str(out), "--shard-gib", "1e-4"]) == 0
    assert len(list(out.glob("*.safetensors"))) > 1
    assert _equal(_weights(out), _weights(folder))
    loaded = _load(out)
    assert loaded.config.to_diff_dict() == _load(folder).config.to_diff_dict()
    if dtype == "fp32":
        assert torch.equal(_logits(loaded), origin.logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_began_here_loads_in_transformers(mesh: Mesh, family: str, tmp_path: Path) -> None:
    scaling = {"kind": "llama3", "factor": 4.0, "original_length": 16} if family == "llama" else None
    window, head_dim = (case.SEQ if family == "mistral" else None), (32 if family == "qwen3" else None)
    model = case.config(ONE).model.model_copy(
        update={"family": family, "window": window, "head_dim": head_dim, "tie_embeddings": family == "qwen2"}
    )
    model = Model.model_validate(model.model_dump() | {"rope_scaling": scaling})
    knobs = Checkpoint(url=str(tmp_path / "checkpoints"))
    with World(mesh, case.config(LAYOUTS["tp2pp2"], model=model, checkpoint=knobs)) as world:
        found = mesh.run(world.slots, pretrained.logits, case.sequences().tokens)
        world.save(5)
    assert main([f"{knobs.url}/step-00000005", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert difference(found[-1], _logits(_load(tmp_path / "out"))) < TOLERANCE


def _assert_same_logits(found: list[Tensor], scores: Scores, wanted: Tensor) -> None:
    vocab = wanted.shape[-1]
    for logits in found:
        assert difference(logits[..., :vocab], wanted) < TOLERANCE
        assert (logits[..., vocab:] < -1e8).all(), "padding of the vocabulary has no probability"
    assert difference(scores.logprobs, _logprobs(wanted)) < TOLERANCE
    assert torch.equal(scores.logprobs, scores.ref_logprobs), "the reference begins as the policy"


def _assert_greedy(samples: RolloutResult, model: Any) -> None:
    """Each token drawn is the one that `model` finds likeliest after those before it."""
    given = assemble(case.request(), samples, calls.PAD, case.config(ONE).rollout)
    likeliest = _logits(model, given.tokens).argmax(-1).roll(1, dims=1)
    answered = given.response.bool()
    assert torch.equal(given.tokens[answered], likeliest[answered])
    assert samples.lengths.max() == case.RESPONSE and len(samples.tokens.unique()) > 10


def _logits(model: Any, tokens: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(case.sequences().tokens if tokens is None else tokens).logits
    return logits


def _logprobs(logits: Tensor) -> Tensor:
    """Of each response token, by the logits before it."""
    given = case.sequences()
    shifted = logits[:, :-1].log_softmax(-1).gather(-1, given.tokens[:, 1:, None]).squeeze(-1)
    return torch.nn.functional.pad(shifted, (1, 0)) * given.response


def _load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()


def _weights(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def _equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    assert found.keys() == wanted.keys()
    return all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor) for name, tensor in wanted.items()
    )
