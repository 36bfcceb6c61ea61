"""run.sh with stand-in Pythons on a PATH of its own: which one it takes, when it installs, what it starts."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Writes each call as one line of $LOG. As `-m venv` it leaves a copy of itself, as pip it fails if told to.
STAND_IN = """#!/bin/bash
echo "$(basename "$0") $*" >>"$LOG"
case "$*" in
  *"-m venv "*) mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" ;;
  *"-m pip install"*) [[ -z "${FAIL_PIP:-}" ]] ;;
  *"-m pytest"*) exit 5 ;;
esac
"""
SHIM = '#!/bin/bash\necho "pyenv: $(basename "$0"): command not found" >&2\nexit 127\n'
TOO_OLD = "#!/bin/bash\nexit 1\n"  # what the version check answers
CHECK = '#!/bin/bash\necho "$(basename "$0") $*" >>"$LOG"\n'


class Sandbox:
    """A copy of run.sh in a folder of its own, and a PATH with nothing on it but what the script may call."""

    def __init__(self, root: Path) -> None:
        self.repo, self.bin, self.elsewhere = root / "my repo", root / "bin", root / "elsewhere"
        for folder in (self.repo, self.bin, self.elsewhere):
            folder.mkdir()
        shutil.copy(ROOT / "run.sh", self.repo)
        (self.repo / "pyproject.toml").write_text("one\n")
        for tool in ("bash", "basename", "cat", "cksum", "cp", "dirname", "env", "mkdir", "rm"):
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)
        self.log = root / "log"
        self.environment = {"PATH": str(self.bin), "HOME": str(root / "home"), "LOG": str(self.log)}

    def put(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the script from another folder; the calls of the stand-ins are in `calls()` afterwards."""
        self.log.write_text("")
        return subprocess.run(
            ["bash", str(self.repo / "run.sh"), *arguments],
            cwd=self.elsewhere, env=self.environment | environment,
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()

    def installs(self) -> list[str]:
        return [call for call in self.calls() if " pip install " in call]


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


@pytest.fixture
def ready(sandbox: Sandbox) -> Sandbox:
    sandbox.put(sandbox.bin / "python3.12", STAND_IN)
    return sandbox


def test_first_run_installs_and_the_second_starts_at_once(ready: Sandbox) -> None:
    first = ready.run()
    assert first.returncode == 0, first.stderr
    assert "a few minutes" in first.stderr
    assert [call.split()[-1] for call in ready.installs()] == ["repo"]
    assert ready.calls()[-1] == "python -m ftppo experiment=demo"
    second = ready.run("seed=1")
    assert ready.calls() == ["python -m ftppo experiment=demo seed=1"]
    assert second.stderr == ""


@pytest.mark.parametrize("word", ["experiment=smoke", "+experiment=smoke", "~experiment"])
def test_an_experiment_of_ones_own_replaces_the_demo(ready: Sandbox, word: str) -> None:
    ready.run("seed=1", word)
    assert ready.calls()[-1] == f"python -m ftppo seed=1 {word}"


def test_a_shim_that_fails_is_passed_over(sandbox: Sandbox) -> None:
    sandbox.put(sandbox.bin / "python3.12", SHIM)
    sandbox.put(sandbox.bin / "python3", TOO_OLD)
    sandbox.put(sandbox.bin / "python3.13", STAND_IN)
    assert sandbox.run().returncode == 0
    assert sandbox.calls()[0].startswith("python3.13 -c ")


def test_a_version_manager_s_own_folder_is_searched(sandbox: Sandbox) -> None:
    sandbox.put(sandbox.bin / "python3.12", SHIM)
    sandbox.put(Path(sandbox.environment["HOME"]) / ".pyenv/versions/3.12.1/bin/python3", STAND_IN)
    assert sandbox.run().returncode == 0
    assert sandbox.installs()


def test_without_python_it_says_what_to_install(sandbox: Sandbox) -> None:
    sandbox.put(sandbox.bin / "python3", TOO_OLD)
    done = sandbox.run()
    assert done.returncode == 1
    assert "no Python 3.12 or newer" in done.stderr
    assert "apt install python3.12" in done.stderr
    assert not (sandbox.repo / ".venv").exists()


def test_an_interrupted_set_up_is_done_again(ready: Sandbox) -> None:
    failed = ready.run(FAIL_PIP="1")
    assert failed.returncode == 1
    assert "again to retry" in failed.stderr
    assert ready.calls()[-1].split()[:4] == ["python", "-m", "pip", "install"]
    assert ready.run().returncode == 0
    assert len(ready.installs()) == 1


def test_a_changed_pyproject_installs_again_and_keeps_the_extras(ready: Sandbox) -> None:
    ready.run("test", "tests/unit")
    (ready.repo / "pyproject.toml").write_text("two\n")
    ready.run()
    assert [call.split()[-1] for call in ready.installs()] == ["repo[test]"]


def test_tests_need_more_than_the_program_and_serve_it_too(ready: Sandbox) -> None:
    ready.run()
    ready.run("test", "tests/unit")
    assert [call.split()[-1] for call in ready.installs()] == ["repo[test]"]
    ready.run()
    assert ready.installs() == []


def test_a_venv_whose_python_is_gone_is_made_anew(ready: Sandbox) -> None:
    ready.run()
    (ready.repo / ".venv/bin/python").unlink()
    assert ready.run().returncode == 0
    assert len(ready.installs()) == 1


def test_pytest_arguments_leave_the_checks_out_and_its_status_comes_through(ready: Sandbox) -> None:
    done = ready.run("test", "-k", "two words")
    assert done.returncode == 5
    assert ready.calls()[-1] == "python -m pytest -k two words"


def test_without_arguments_the_source_is_checked_first(sandbox: Sandbox, tmp_path: Path) -> None:
    venv = tmp_path / "ready venv"
    sandbox.put(venv / "bin/python", STAND_IN)
    for check in ("ruff", "mypy", "lint-imports"):
        sandbox.put(venv / "bin" / check, CHECK)
    assert sandbox.run("test", FTPPO_VENV=str(venv)).returncode == 5
    assert [call.rstrip() for call in sandbox.calls()] == [
        "ruff check", "ruff format --check", "mypy", "lint-imports",
        "python -m pytest --numprocesses 2 --no-loadscope-reorder",
    ]  # fmt: skip
    sandbox.put(venv / "bin/mypy", "#!/bin/bash\nexit 3\n")
    assert sandbox.run("test", FTPPO_VENV=str(venv)).returncode == 3
    assert not any("pytest" in call for call in sandbox.calls())


def test_a_ready_venv_is_used_as_it_is(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.put(tmp_path / "venv/bin/python", STAND_IN)
    assert sandbox.run("bench", "--quick", FTPPO_VENV=str(tmp_path / "venv")).returncode == 0
    assert sandbox.calls() == ["python -m tests.bench --quick"]
    assert not (sandbox.repo / ".venv").exists()


def test_a_ready_venv_that_is_none_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    done = sandbox.run(FTPPO_VENV=str(tmp_path))
    assert done.returncode == 1
    assert "FTPPO_VENV" in done.stderr


def test_help_needs_nothing(sandbox: Sandbox) -> None:
    done = sandbox.run("--help")
    assert done.returncode == 0
    assert "bash run.sh test" in done.stdout
    assert not (sandbox.repo / ".venv").exists()


def test_ci_runs_the_tests() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert 'run.sh" test' in (ROOT / ".ci/run").read_text()
