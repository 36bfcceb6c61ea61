"""The processes that judge: what hangs, crashes or floods is met once, and nothing of it is left."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ftppo.config_task import Judge
from ftppo.errors import ConfigError, TaskError
from ftppo.tasks.pool import Failure, JudgePool
from tests.sandbox import ROOT

MODULE = '''
import asyncio, os, re, signal, subprocess, sys, time
from pathlib import Path

def length(answer, entry):
    return len(answer)

def slow(answer, entry):
    time.sleep(0.002 * (entry["number"] * 7919 % 5))
    return entry["number"]

def hungry(answer, entry):
    return len(bytearray(int(answer) * 2**20)) / 2**20

async def meet(answer, entry):
    """Waits until as many are at it as the answer says."""
    folder = Path(entry["folder"])
    (folder / str(entry["number"])).touch()
    while len(list(folder.iterdir())) < int(answer):
        await asyncio.sleep(0.01)
    return 1.0

async def later(answer, entry):
    await asyncio.sleep(float(answer))
    return 1.0

def strange(answer, entry):
    """Does what the answer says; leaves its process id and that of a child of its own."""
    child = subprocess.Popen(["sleep", "1000"])
    with open(entry["log"], "a") as log:
        print(os.getpid(), child.pid, file=log)
    match answer:
        case "fine":
            print("not a message")
            child.kill(), child.wait()
            return 0.5
        case "sleep":
            time.sleep(1000)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            re.match("(a+)+$", "a" * 60 + "b")  # holds the interpreter's lock
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            sys.exit(3)
        case "once":
            mark = Path(entry["log"]).with_suffix(".mark")
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return 0.25
        case "raise":
            raise KeyError("level")
        case "nan":
            return float("nan")
        case _:
            return answer
'''

type Make = Callable[..., JudgePool]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "rewards_for_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return "rewards_for_test"


@pytest.fixture
def make(module: str) -> Iterator[Make]:
    """make(function, **knobs): a pool that runs it; closed at the end, with no process left."""
    pools: list[JudgePool] = []

    def made(function: str, **knobs: Any) -> JudgePool:
        pools.append(JudgePool("task.reward", f"{module}.{function}", {}, Judge(**{"timeout_s": 20} | knobs)))
        return pools[-1]

    yield made
    for pool in pools:
        pool.close()
    assert [one for one in psutil.Process().children(recursive=True) if "ftppo.tasks.judge" in one.cmdline()] == []


def test_verdicts_are_in_the_order_of_the_answers_whoever_makes_them(make: Make) -> None:
    asked = [("", {"number": number}) for number in range(100)]
    assert [make("slow", processes=num).judge(asked) for num in (1, 3)] == [list(range(100))] * 2


def test_a_coroutine_is_waited_for(make: Make) -> None:
    pool = make("later", timeout_s=1.0, processes=2)
    assert pool.judge([("0.01", {}), ("1000", {}), ("0", {})]) == [
        1.0,
        Failure("took longer than judge.timeout_s=1"),
        1.0,
    ]


def test_large_answers_and_entries_pass(make: Make) -> None:
    pool = make("length")
    assert pool.judge([("x" * 3_000_000, {"more": "y" * 3_000_000})]) == [3_000_000]
    assert pool.judge([]) == []


def test_memory_has_a_limit_where_one_is_given(make: Make) -> None:
    pool = make("hungry", memory_mb=512)
    assert pool.judge([("100", {}), ("600", {}), ("1", {})]) == [100.0, Failure("raised MemoryError: "), 1.0]
    assert make("hungry").judge([("600", {})]) == [600.0]


def test_answers_are_judged_side_by_side(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "met"
    folder.mkdir()
    asked = [("4", {"folder": str(folder), "number": number}) for number in range(4)]
    assert make("meet", processes=4, timeout_s=60).judge(asked) == [1.0] * 4


STRANGE = {
    "fine": 0.5,
    "sleep": Failure("took longer than judge.timeout_s=2"),
    "segfault": Failure("ended the process that judges (exit code -11)"),
    "deaf": Failure("took longer than judge.timeout_s=2"),
    "exit": Failure("ended the process that judges (exit code 3)"),
    "once": 0.25,
    "raise": Failure("raised KeyError: 'level'"),
    "nan": Failure("returned nan: return a finite number"),
    "text": Failure("returned a str, not a number: return a float"),
}


def pids(log: Path) -> list[int]:
    return [int(word) for word in log.read_text().split()] if log.exists() else []


def assert_gone(log: Path) -> None:
    """Whoever judged, and what it started, ends within a moment."""
    until = time.monotonic() + 20
    while alive := [pid for pid in pids(log) if psutil.pid_exists(pid) and not _is_zombie(pid)]:
        assert time.monotonic() < until, alive
        time.sleep(0.05)


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.timeout(240)
def test_a_function_that_hangs_or_crashes_costs_its_own_answer_alone(make: Make, tmp_path: Path) -> None:
    log = tmp_path / "log"
    pool = make("strange", timeout_s=2.0, processes=2)
    verdicts = pool.judge([(answer, {"log": str(log)}) for answer in STRANGE])
    assert dict(zip(STRANGE, verdicts, strict=True)) == STRANGE
    assert pool.judge([("fine", {"log": str(log)})]) == [0.5]
    pool.close()
    assert_gone(log)
    assert pool.judge([("fine", {"log": str(log)})]) == [0.5], "closed is not the end"


@pytest.mark.parametrize("answer", ["sleep", "deaf"])
def test_nothing_is_left_when_the_driver_is_killed(module: str, tmp_path: Path, answer: str) -> None:
    log = tmp_path / "log"
    code = f"""
    import sys
    sys.path.insert(0, {str(tmp_path)!r})
    from ftppo.config_task import Judge
    from ftppo.tasks.pool import JudgePool
    pool = JudgePool("task.reward", "{module}.strange", {{}}, Judge(timeout_s=1000))
    pool.judge([({answer!r}, {{"log": {str(log)!r}}})] * 2)
    """
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT)
    until = time.monotonic() + 60
    while len(pids(log)) < 4:
        assert time.monotonic() < until and driver.poll() is None
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    assert_gone(log)


def test_processes_that_others_kill_between_two_iterations_are_no_answers_fault(make: Make) -> None:
    pool = make("slow", processes=3)
    asked = [("", {"number": number}) for number in range(30)]
    pool.judge(asked)
    judges = [one for one in psutil.Process().children() if "ftppo.tasks.judge" in one.cmdline()]
    assert len(judges) == 3
    for one in judges:
        os.killpg(one.pid, signal.SIGKILL)
    until = time.monotonic() + 20
    while not all(_is_zombie(one.pid) for one in judges):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert pool.judge(asked) == list(range(30))


def test_a_start_that_fails_once_is_tried_again(make: Make, tmp_path: Path) -> None:
    pool, log = make("strange", processes=1, timeout_s=20), tmp_path / "log"
    source = (tmp_path / "rewards_for_test.py").read_text()
    mark = tmp_path / "started"
    guard = f"import os\nif not os.path.exists({str(mark)!r}):\n    open({str(mark)!r}, 'w')\n    os._exit(4)\n"
    (tmp_path / "rewards_for_test.py").write_text(guard + source)
    entry = {"log": str(log)}
    assert pool.judge([("exit", entry), ("fine", entry)]) == [STRANGE["exit"], 0.5] and mark.exists()
    (tmp_path / "rewards_for_test.py").write_text("import os; os._exit(4)")
    with pytest.raises(TaskError, match="before it was ready"):
        pool.judge([("exit", entry), ("fine", entry)])


def test_an_interrupt_leaves_no_process(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    pool, log = make("strange", timeout_s=1000.0), tmp_path / "log"
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 2.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            pool.judge([("sleep", {"log": str(log)})])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert_gone(log)


def test_a_module_that_hangs_or_ends_the_process_when_imported(make: Make, tmp_path: Path) -> None:
    (tmp_path / "rewards_for_test.py").write_text("import time; time.sleep(1000)")
    with pytest.raises(TaskError, match=r"took longer than judge\.start_s=1 before it was ready"):
        make("length", start_s=1.0)
    (tmp_path / "rewards_for_test.py").write_text("import os; os._exit(4)")
    with pytest.raises(TaskError, match=r"ended the process that judges \(exit code 4\) before it was ready"):
        make("length")
    (tmp_path / "rewards_for_test.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        make("length")


def test_the_process_is_light(module: str) -> None:
    heavy = ("torch", "ray", "numpy", "sympy", "pydantic", "hydra")
    code = f"import sys, ftppo.tasks.judge, ftppo.tasks.matching; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr
