"""Starts a run and accounts for its end. Comes in: a Config; goes out: an exit status, and the files of the run.

What would stop the run is asked before an actor starts: the task, the store, whether and what to resume.
"""

import contextlib
import functools
import signal
from pathlib import Path

from ftppo.checkpoint.huggingface import reader as huggingface
from ftppo.checkpoint.stores import config_digest
from ftppo.checkpoint.torchdist import reader as torchdist
from ftppo.classifier import KEY as CLASSIFIER
from ftppo.classifier import classifier_of
from ftppo.clock import SystemClock
from ftppo.config import Config
from ftppo.config_errors import about
from ftppo.driver.announce import announce
from ftppo.driver.cluster import connect
from ftppo.driver.datafiles import read_rows
from ftppo.driver.display import make_display
from ftppo.driver.estate import find_estate
from ftppo.driver.lending import Lending
from ftppo.driver.report import write_report
from ftppo.driver.runfiles import BEGUN, ENDED, REPORT, RunFiles, sole_driver
from ftppo.driver.saver import Saver
from ftppo.driver.supervisor import Supervisor
from ftppo.errors import ConfigError, FtppoError
from ftppo.storage.url import preflight
from ftppo.tasks.build import build_tasks, build_tokenizer
from ftppo.tasks.pretrained import check_same_tokens

FINISHED, FAILED, INTERRUPTED = 0, 1, 130


def run(config: Config) -> int:
    """Train as `config` says. Returns the exit status; the last line printed says where the report is."""
    clock = SystemClock()
    folder = Path(config.run.dir).resolve() / config.run.name
    config = _with_absolute_urls(config, folder)
    tokenizer = build_tokenizer(config.task, config.model)
    tasks = build_tasks(config, tokenizer, functools.partial(read_rows, config))
    config = config.model_copy(update={"task": config.task.model_copy(update={"digest": tasks.digest})})
    check_models(config, tokenizer.vocab_size)
    saver = Saver(config, clock)
    preflight(saver.store)
    resume = _wants_resume(config, saver)
    signal.signal(signal.SIGTERM, _interrupt)
    with sole_driver(folder), connect(config) as cluster, contextlib.ExitStack() as at_end:
        at_end.callback(tasks.close)
        lending = None if cluster.own else Lending(config)
        estate = find_estate(lending, config, clock) if lending is not None else None
        files = at_end.enter_context(RunFiles(folder, clock, resume or estate is not None))
        signal.signal(signal.SIGTERM, _interrupt)  # again: Ray has put its own in place, which aborts
        files.record(BEGUN)
        files.config(config.model_dump(mode="json"))
        display = make_display(config.run.progress, clock)
        supervisor = Supervisor(config, clock, files, display, saver)
        try:
            for note in tasks.notes:
                announce(files, display, "prompts_left_out", note)
            if tasks.scorer is not None:
                tasks.scorer.tell = functools.partial(announce, files, display, "answers_without_score")
            supervisor.run(cluster, tasks, tokenizer, resume or estate is not None, lending, estate)
            status = FINISHED
        except BaseException as error:
            supervisor.reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or repr(error)
            status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
            if not isinstance(error, KeyboardInterrupt | FtppoError):
                raise  # a fault of ours: the files say that the run failed, the traceback says why
        finally:
            summary = supervisor.summary("finished" if supervisor.reason is None else "failed")
            files.summary(summary)
            files.record(ENDED, summary.status)
            write_report(folder)
            display.finish(summary, folder / REPORT)
    return status


def _interrupt(*_: object) -> None:
    """SIGTERM is taken as Ctrl-C is: stop cleanly."""
    raise KeyboardInterrupt


def _with_absolute_urls(config: Config, folder: Path) -> Config:
    """The config with URLs that mean the same in every process."""
    url, weights = config.checkpoint.url, config.model.weights
    places = {
        "checkpoint": {"url": str(folder / "checkpoints") if url is None else _absolute(url)},
        "model": {"weights": None if weights is None else _absolute(weights)},
    }
    return config.model_copy(
        update={section: getattr(config, section).model_copy(update=keys) for section, keys in places.items()}
    )


def _absolute(url: str) -> str:
    return url if "://" in url else str(Path(url).resolve())


def check_models(config: Config, vocab_size: int) -> None:
    """Raise ConfigError where a folder is not what the config takes it for. `vocab_size` is the tokenizer's."""
    if config.model.weights is not None:
        torchdist.check_weights(config, config.model.vocab or vocab_size)
    elif config.model.path is not None:
        huggingface.check_weights(config.model)
    if config.reward.path is not None:
        found = classifier_of(config.reward.path)
        with about(CLASSIFIER):
            huggingface.check_weights(found, classifies=True)
        check_same_tokens(config.reward.path, config.model)


def _wants_resume(config: Config, saver: Saver) -> bool:
    """Whether to go on from a checkpoint. Raises ConfigError where run.resume and what is stored do not agree."""
    manifest = saver.latest()
    if config.run.resume == "must" and manifest is None:
        raise ConfigError("run.resume", "must", f"there is no checkpoint in {saver.store.url}: take auto to start anew")
    if config.run.resume == "never" and manifest is not None:
        remedy = (
            f"{saver.store.url} holds the checkpoint of step {manifest.step}: take another run.name, or auto to go on"
        )
        raise ConfigError("run.resume", "never", remedy)
    if manifest is not None and manifest.config_digest != config_digest(config):
        remedy = "take another run.name, or the old keys and data"
        raise ConfigError(
            "run.name", config.run.name, f"the checkpoint in {saver.store.url} is of another configuration: {remedy}"
        )
    return manifest is not None
