"""`python -m ftppo.checkpoint`: what it prints, what it removes, and its exit status."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ftppo.checkpoint.__main__ import main
from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.manifest import Manifest, manifest_key
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.tables import age, moment, size, table
from ftppo.storage.local import LocalStore

from .conftest import Save

type State = Callable[[float], list[list[Piece]]]
type Outcome = tuple[int, list[str], str]  # exit status, lines, what stderr says

LEFT = "step-00000030/attempt-000001-x"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "checkpoints")


@pytest.fixture
def manifests(store: LocalStore, save: Save, state: State) -> dict[int, Manifest]:
    """Steps 10, 20, 30 of iterations 1, 2, 3; and an attempt that never became step 30."""
    store.put(f"{LEFT}/__0_0.distcp", b"never published")
    layout = {"dp": 2, "tp": 2, "pp": 1, "cp": 1}
    return {step: save(store, state(step), step=step, iteration=step // 10, layout=layout) for step in (10, 20, 30)}


@pytest.fixture
def ask(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def asked(verb: str, *options: str) -> Outcome:
        capsys.readouterr()
        status = main([verb, store.url, *options])
        said = capsys.readouterr()
        return status, said.out.splitlines(), said.err

    return asked


type Ask = Callable[..., Outcome]


def damage(store: LocalStore, manifest: Manifest) -> str:
    """Cut an object short; its key."""
    key = f"{manifest.prefix}/__1_0.distcp"
    store.put(key, store.get(key)[:-1])
    return key


@pytest.mark.usefixtures("manifests")
def test_list_shows_what_is_published_and_what_is_not(ask: Ask) -> None:
    status, lines, said = ask("list")
    assert (status, said) == (0, "")
    words = [line.split() for line in lines]
    assert words[0] == ["STEP", "ITERATION", "LAYOUT", "SIZE", "OBJECTS", "WRITTEN", "AGE", "STATE"]
    assert [(line[:3], line[-1]) for line in words[1:] if line[-1] == "published"] == [
        (["30", "3", "dp2tp2"], "published"),
        (["20", "2", "dp2tp2"], "published"),
        (["10", "1", "dp2tp2"], "published"),
    ]
    (unpublished,) = [line for line in lines if LEFT in line]
    assert unpublished.split()[:4] == ["30", "15", "B", "1"] and "unpublished" in unpublished
    assert len({line.index("STATE") if "STATE" in line else line.rindex("  ") + 2 for line in lines}) == 1


def test_list_marks_a_manifest_that_cannot_be_read(store: LocalStore, manifests: dict[int, Manifest], ask: Ask) -> None:
    store.put(manifest_key(20), b"{")
    status, lines, _ = ask("list")
    assert status == 1
    (line,) = [line for line in lines if "unreadable" in line]
    assert line.startswith("  20 ") and "step-00000020/manifest.json is no manifest" in line
    assert any(f"unpublished: {manifests[20].prefix}" in line for line in lines)


def test_nothing_there_is_fine_to_list_and_not_to_verify_or_show(store: LocalStore, ask: Ask) -> None:
    store.put("somebody/else", b"")
    assert ask("list") == (0, [f"no checkpoint in {store.url}"], "")
    assert ask("prune", "--keep", "1") == (0, [f"nothing to do in {store.url}"], "")
    for verb in ("verify", "show"):
        assert ask(verb) == (1, [], f"python -m ftppo.checkpoint: {store.url}: no checkpoint\n")


@pytest.mark.usefixtures("manifests")
@pytest.mark.parametrize("verb", ["verify", "show"])
def test_a_step_that_is_not_there_is_named(store: LocalStore, ask: Ask, verb: str) -> None:
    told = f"python -m ftppo.checkpoint: {store.url}: no checkpoint of step 5; there are [30, 20, 10]\n"
    assert ask(verb, "--step", "5") == (1, [], told)


def test_verify_names_what_is_damaged(store: LocalStore, manifests: dict[int, Manifest], ask: Ask) -> None:
    whole = ["STEP  STATE  PROBLEM", "  30  whole", "  20  whole", "  10  whole"]
    assert ask("verify") == ask("verify", "--deep") == (0, whole, "")
    key = damage(store, manifests[20])
    status, lines, _ = ask("verify")
    assert status == 1 and [line.split()[:3] for line in lines[1:]] == [
        ["30", "whole"],
        ["20", "damaged", key],
        ["10", "whole"],
    ]
    assert ask("verify", "--step", "30")[0] == 0 and ask("verify", "--step", "20")[0] == 1


def test_only_deep_reads_the_content(store: LocalStore, manifests: dict[int, Manifest], ask: Ask) -> None:
    key = f"{manifests[30].prefix}/__0_0.distcp"
    data = store.get(key)
    store.put(key, bytes([data[0] ^ 1]) + data[1:])
    assert ask("verify", "--step", "30")[0] == 0
    status, lines, _ = ask("verify", "--step", "30", "--deep")
    assert status == 1 and lines[1] == f"  30  damaged  {key} has other content than was written"


def test_show_tells_what_the_manifest_says(manifests: dict[int, Manifest], ask: Ask) -> None:
    status, lines, _ = ask("show")
    about = dict(line.split(maxsplit=1) for line in lines[1 : lines.index("")])
    assert status == 0 and about["step"] == "30" and about["layout"] == "dp2tp2"
    assert (about["folder"], about["state.cursor"]) == (manifests[30].prefix, "30")
    objects = {line.split()[0]: line.split()[1:] for line in lines[lines.index("") + 2 :]}
    assert objects == {entry.name: [str(entry.size), entry.crc32] for entry in manifests[30].objects}
    assert ask("show", "--step", "10")[1][1:] != lines[1:]


def test_show_lists_tensors_where_asked(store: LocalStore, manifests: dict[int, Manifest], ask: Ask) -> None:
    status, lines, _ = ask("show", "--step", "20", "--tensors")
    header, *tensors = lines[len(lines) - lines[::-1].index("") :]
    assert status == 0 and header.split() == ["TENSOR", "DTYPE", "SHAPE", "BOXES", "BYTES"]
    assert [line.split("  ")[0] for line in tensors] == ["b", "w"]
    assert "[4, 6]" in tensors[1] and tensors[1].split()[-2] == "2" and "[]" in tensors[0]
    store.delete(f"{manifests[20].prefix}/index.json")
    status, _, said = ask("show", "--step", "20", "--tensors")
    assert status == 1 and "index.json is missing" in said and said.count("\n") == 1


@pytest.mark.usefixtures("manifests")
def test_prune_says_what_goes_and_a_dry_run_removes_nothing(store: LocalStore, ask: Ask) -> None:
    before = list(store.list())
    status, planned, _ = ask("prune", "--keep", "1", "--every", "2", "--older-than", "0", "--dry-run")
    assert status == 0 and list(store.list()) == before
    assert [re.split(" {2,}", line)[:2] for line in planned[1:]] == [
        ["kept", "step 20"],
        ["kept", "step 30"],
        ["would remove", "step 10"],
        ["would remove", LEFT],
    ]
    status, done, _ = ask("prune", "--keep", "1", "--every", "2", "--older-than", "0")
    gone = [line.replace("would remove", "removed").split() for line in planned[3:]]
    assert status == 0 and [line.split() for line in done[3:]] == gone
    assert Catalog(store).steps() == [30, 20] and not store.list(LEFT)
    assert all(Catalog(store).verify(step, deep=True) == [] for step in (20, 30))


@pytest.mark.usefixtures("manifests")
def test_prune_leaves_young_attempts_and_uploads_alone(store: LocalStore, ask: Ask) -> None:
    store.start_upload(f"{LEFT}/__1_0.distcp", 1024)
    ask("prune", "--keep", "3")
    assert [info.key for info in store.list(LEFT)] == [f"{LEFT}/__0_0.distcp"]
    status, lines, _ = ask("prune", "--keep", "3", "--older-than", "0")
    assert status == 0 and lines[-1].split() == ["removed", "1", "unfinished", "uploads"]
    assert not store.list(LEFT) and Catalog(store).steps() == [30, 20, 10]


@pytest.mark.parametrize("how", ["object", "manifest"])
def test_a_whole_checkpoint_never_goes_for_a_damaged_one(
    store: LocalStore, manifests: dict[int, Manifest], ask: Ask, how: str
) -> None:
    if how == "object":
        damage(store, manifests[30])
    else:
        store.put(manifest_key(30), b"")
    status, lines, _ = ask("prune", "--keep", "1", "--older-than", "0")
    assert status == 1 and any(line.startswith("damaged, left alone") and "step 30" in line for line in lines)
    assert Catalog(store).steps() == [30, 20] and Catalog(store).verify(20, deep=True) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "arguments are required: list | verify | show | prune"),
        (["list"], "arguments are required: URL"),
        (["mend", "x"], "invalid choice: 'mend'"),
        (["prune", "x"], "arguments are required: --keep"),
        (["prune", "x", "--keep", "0"], "argument --keep: '0' must be a whole number, 1 or more"),
        (["prune", "x", "--keep", "1", "--older-than", "-1"], "argument --older-than"),
        (["verify", "x", "--step", "last"], "argument --step: 'last' must be a whole number, 0 or more"),
        (["list", "x", "--dep"], "unrecognized arguments: --dep"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == "" and told in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("/no/such/folder", "there is no such folder"),
        ("ftp://host/x", "unknown scheme 'ftp'"),
        ("s3://me:secret@bucket/x", "holds credentials"),
    ],
)
def test_a_url_that_cannot_be_reached_is_one_line_and_status_2(
    url: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", url]) == 2
    said = capsys.readouterr()
    assert said.out == "" and told in said.err and said.err.count("\n") == 1 and "secret" not in said.err


@pytest.mark.parametrize("verb", ["list", "verify", "show", "prune"])
def test_help_tells_the_exit_status(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0 and "exit status: 0 fine; 1 a problem" in capsys.readouterr().out


@pytest.mark.usefixtures("manifests")
def test_it_starts_without_torch_ray_and_megatron(store: LocalStore) -> None:
    code = (
        "import sys; from ftppo.checkpoint.__main__ import main\n"
        f"assert main(['show', {store.url!r}, '--tensors']) == main(['verify', {store.url!r}, '--deep']) == 0\n"
        "sys.exit(' '.join(sorted({'torch', 'ray', 'megatron', 'hydra', 'boto3', 'gcsfs'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == "" and "TENSOR" in done.stdout


def test_columns_are_aligned_and_lines_end_clean() -> None:
    assert table(("A", "LONG"), [("x", 5), ("yyy", 12345)]) == "A     LONG\nx        5\nyyy  12345"
    assert table(("A", "B"), [("x", ""), ("yy", "z")]) == "A   B\nx\nyy  z"


def test_numbers_are_for_people() -> None:
    assert [size(number) for number in (0, 1023, 1536, 3 * 2**30)] == ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]
    assert [age(number) for number in (-1.0, 90.0, 3600.0, 7200.0, 200_000.0)] == [
        "0 s",
        "90 s",
        "60 min",
        "2 h",
        "2 days",
    ]
    assert moment(0.0) == "1970-01-01 00:00:00Z"


def test_sizes_have_the_unit_that_suits_them() -> None:
    assert [size(1023), size(3 * 2**20), size(2.5 * 2**40)] == ["1023 B", "3.0 MiB", "2.5 TiB"]
