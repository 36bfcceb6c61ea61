"""reasoning-gym by name: an endless seeded stream, the dataset's scorer, and errors that say what to do."""

import logging
import subprocess
import sys
from typing import Any

import pytest

from ftppo.errors import ConfigError, TaskError
from ftppo.tasks.gym import GymTask

WORDS: dict[str, Any] = {"min_word_len": 3, "max_word_len": 4}


def _task(seed: int = 0, name: str = "spell_backward", template: str = "{word}", **args: Any) -> GymTask:
    return GymTask(name, args or WORDS, template, seed)


def test_prompts_hang_on_seed_and_index_alone() -> None:
    forward, backward = _task(3, size=7, **WORDS), _task(3, size=7, **WORDS)
    indices = [0, 6, 7, 100, 12345]
    ahead = [forward.prompt(i).text for i in indices]
    assert [backward.prompt(i).text for i in reversed(indices)] == ahead[::-1]
    other = _task(4, size=7, **WORDS)
    assert [other.prompt(i).text for i in indices] != ahead


def test_the_stream_neither_ends_nor_repeats_at_a_block_nor_shifts_between_seeds() -> None:
    task, neighbour = _task(0, size=50, **WORDS), _task(1, size=50, **WORDS)
    first, second = ([task.prompt(start + i).text for i in range(50)] for start in (0, 50))
    other = [neighbour.prompt(i).text for i in range(50)]
    assert len({*first, *second, *other}) > 140  # of 6,298 words, so a few may come twice
    assert task.prompt(10**7).index == 10**7


def test_scores_are_the_datasets_own() -> None:
    task = _task()
    prompt = task.prompt(5)
    right = task.answer(prompt)
    assert right == prompt.text[::-1]
    assert task.score(prompt, right) == 1.0
    assert 0 < task.score(prompt, right[0]) < 1
    assert task.score(prompt, "") == 0.0


def test_template_takes_question_and_metadata() -> None:
    one_digit = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    prompt = GymTask("chain_sum", one_digit, "{num_terms}:{expression}=", 0).prompt(0)
    assert prompt.text == f"2:{prompt.entry['metadata']['expression']}="
    assert _task(template="{question}").prompt(0).text.startswith("Spell this word backward")


@pytest.mark.parametrize("template", ["{wrod}", "{}", "{word[9]}", "{word.x}", "{word", "{word:d}"])
def test_template_errors_name_the_fields(template: str) -> None:
    with pytest.raises(ConfigError, match=r"there are: difficulty, question, .*word, word_len") as caught:
        _task(template=template)
    assert caught.value.key == "task.template"


def test_unknown_dataset_names_the_near_ones() -> None:
    with pytest.raises(ConfigError, match="spell_backward") as caught:
        GymTask("spell_backwards", {}, "{question}", 0)
    assert caught.value.key == "task.name"
    with pytest.raises(ConfigError, match="DATASETS"):
        GymTask("qqqq", {}, "{question}", 0)


@pytest.mark.parametrize(
    ("args", "key", "says"),
    [
        ({"word_length": 3}, "task.args", "max_word_len, min_word_len"),
        ({"min_word_len": 5, "max_word_len": 4}, "task.args", "must be >="),
        ({"seed": 1}, "task.args.seed", "leave it out"),
        ({"size": 0}, "task.args.size", "above 0"),
    ],
)
def test_arguments_are_refused_by_name(args: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        GymTask("spell_backward", args, "{word}", 0)
    assert caught.value.key == key


def test_an_answer_the_scorer_stumbles_on_is_worth_nothing(caplog: pytest.LogCaptureFixture) -> None:
    task = GymTask("prime_factorization", {}, "{question}", 0)  # int() on every part of the answer
    prompt = task.prompt(0)
    with caplog.at_level(logging.WARNING):
        assert [task.score(prompt, junk) for junk in ("x", "[1", "\ufffd")] == [0.0, 0.0, 0.0]
    assert len(caplog.records) == 1
    assert task.score(prompt, task.answer(prompt)) == 1.0


def test_a_dataset_without_answers_cannot_warm_up() -> None:
    task = GymTask("rubiks_cube", {}, "{question}", 0)
    with pytest.raises(TaskError, match="warmup_steps=0"):
        task.answer(task.prompt(0))


def test_importing_the_room_does_not_import_the_library() -> None:
    heavy = ("reasoning_gym", "ray", "megatron", "hydra")
    code = f"import sys, ftppo.tasks.build, ftppo.algo.batch; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
