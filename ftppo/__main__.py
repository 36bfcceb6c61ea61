"""`python -m ftppo [overrides]`. Comes in: Hydra overrides; goes out: a run and its exit status.

The only file that knows Hydra: presets and overrides become a plain dict here, and load_config makes a Config of it.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ftppo.config import Config, load_config
from ftppo.errors import ConfigError, FtppoError

CONFIG_DIR = Path(__file__).resolve().parent.parent / "configs"

FAILED, BAD_CONFIG, INTERRUPTED = 1, 2, 130

OmegaConf.register_new_resolver("div", lambda whole, part: whole // part, replace=True)  # for presets


def main(argv: Sequence[str] | None = None) -> int:
    """Run what `argv` asks for. Returns 0 finished, 1 failed, 2 bad configuration, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        config = load_config(compose_raw(arguments.overrides))
        if arguments.cfg:
            print(OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json"))), end="")
            return 0
        return _run(config)
    except ConfigError as error:
        print(f"ftppo: this configuration cannot run\n  {error}", file=sys.stderr)
        return BAD_CONFIG
    except FtppoError as error:
        print(f"ftppo: failed\n  {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("ftppo: interrupted", file=sys.stderr)
        return INTERRUPTED


def presets() -> dict[str, list[str]]:
    """The presets of each config group."""
    folders = sorted(entry for entry in CONFIG_DIR.iterdir() if entry.is_dir())
    return {folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in folders}


def compose_raw(overrides: Sequence[str]) -> dict[str, Any]:
    """What configs/ and `overrides` say, as a plain dict, not yet checked. Raises ConfigError."""
    if not (CONFIG_DIR / "config.yaml").is_file():
        raise ConfigError("configs", str(CONFIG_DIR), "is missing; install with `pip install -e .` from the repository")
    words = [_word(override) for override in _parse(overrides)]
    try:
        with initialize_config_dir(config_dir=str(CONFIG_DIR), version_base=None):
            composed = compose("config", overrides=words)
        for key in sorted(OmegaConf.missing_keys(composed)):
            raise ConfigError(key, "???", f"the chosen preset leaves this to you: {key}=...")
        raw = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError("overrides", list(overrides), str(error)) from error
    assert isinstance(raw, dict)
    return {str(key): value for key, value in raw.items()}


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            parsed += parser.parse_overrides([text])
        except OverrideParseException as error:
            key, _, value = text.partition("=")
            remedy = f"is not in Hydra's grammar; quote the value, for example '{key}=\"...\"' ({_first_line(error)})"
            raise ConfigError(key, value, remedy) from error
    return parsed


def _word(override: Override) -> str:
    """The override as Hydra is to see it.

    A value is forced in even where no preset mentions its key, so that load_config alone says which keys there are.
    """
    text, key = str(override.input_line), override.key_or_group
    if key.split(".")[0] == "hydra":
        raise ConfigError(key, override.value(), "Hydra's own settings have no effect here; run.dir says where runs go")
    if any(part.isdigit() for part in key.split(".")):
        raise ConfigError(key, override.value(), "is one entry of a list; give the whole list, KEY=[{...}, {...}]")
    if override.is_sweep_override():
        raise ConfigError(key, text.partition("=")[2], "is a sweep; start one run for each value")
    groups = presets()
    if key in groups:
        _check_preset(key, override.value(), groups[key])
        return text.lstrip("+")
    return text if override.is_delete() else "++" + text.lstrip("+")


def _check_preset(group: str, choice: object, known: Sequence[str]) -> None:
    if choice is None or choice in known:
        return
    near = difflib.get_close_matches(str(choice), known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(group, choice, f"{hint}presets of {group}: {', '.join(known)}")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _run(config: Config) -> int:
    if not config.run.ray_logs:
        # Ray reads these when it is imported. We tell of a fault once; Ray would repeat it for every call in flight.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "died or was killed")
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    # Ray and torch take seconds to import: a configuration that cannot run is answered before.
    from ftppo.driver.launch import run

    return run(config)


def _parser() -> argparse.ArgumentParser:
    groups = "\n".join(f"  {group:<11} {', '.join(names)}" for group, names in presets().items())
    parser = argparse.ArgumentParser(
        prog="python -m ftppo",
        description="Fault-tolerant PPO for language models on Ray and Megatron-Core.",
        epilog=f"config groups and their presets (group=preset):\n{groups}\n\n"
        "exit status: 0 finished, 1 failed, 2 bad configuration, 130 interrupted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    help_text = (
        "Hydra overrides: group=preset or key=value, for example experiment=demo parallel.dp=4 train.iterations=20"
    )
    parser.add_argument("overrides", nargs="*", metavar="override", help=help_text)
    parser.add_argument("--cfg", action="store_true", help="print the whole configuration as YAML and stop")
    return parser


if __name__ == "__main__":
    sys.exit(main())
