"""A backend of your own: the clean tree, its other name, what is refused, and one that is built away from here."""

import keyword
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable
from pathlib import Path

import clean
import pytest
import stages

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = list(stages.chapters(ROOT))
Make = Callable[[dict[str, str]], Path]

STATUS = "```{status}\n+ `torch.device('cookbook')` works\n- no tensors yet\n```\n"
BOOK = {
    "csrc/scaffolding/cookbook_device.h": "// chapter 1\n// %% a\n"
    "namespace cookbook {}  // COOKBOOK_DEVICE, CookbookGuard\n#if COOKBOOK_CHAPTER >= 2\nint two;\n#endif\n",
    "csrc/driver/include/cookbook_driver.h": "int cookbookInit();\n",
    "cookbook_backend/__init__.py": '# chapter 1\n# %% a\nname = "cookbook"\n',
    "cookbook_backend/py.typed": "",
    "tests/test_device.py": "# chapter 1\nimport cookbook_backend\n",
    "LICENSE": "Copyright the PyTorch Backend Cookbook contributors\n",
    "tutorials/chapter-1.md": "# Scaffolding\n" + STATUS,
    "tutorials/chapter-2.md": "# Operators\n" + STATUS,
}


def texts(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text("utf-8") for p in folder.rglob("*") if p.is_file()}


def new(root: Path, *args: str) -> str:
    return clean.main(root, root.parent, list(args))


def test_a_tree_is_renamed_throughout(make: Make) -> None:
    root = make(BOOK)
    said = new(root, "my_chip", "--chapter", "1", "--to", "away/chip")
    files = texts(root.parent / "away/chip")
    assert f"{len(files)} files written to {root.parent / 'away/chip'}" in said
    assert files.pop("LICENSE") == BOOK["LICENSE"]
    readme = files.pop("README.md")
    assert files == {
        "csrc/scaffolding/my_chip_device.h": "namespace my_chip {}  // MY_CHIP_DEVICE, MyChipGuard\n",
        "csrc/driver/include/my_chip_driver.h": "int my_chipInit();\n",
        "my_chip_backend/__init__.py": 'name = "my_chip"\n',
        "my_chip_backend/py.typed": "",
        "tests/test_device.py": "import my_chip_backend\n",
    }
    assert 'chapter 1 ("Scaffolding") of the PyTorch Backend Cookbook' in " ".join(readme.split())
    assert "* `torch.device('my_chip')` works\n* not yet: no tensors yet\n" in readme
    assert os.listdir(root.parent / "away") == ["chip"]


def test_the_last_chapter_is_the_default_and_an_empty_folder_is_taken(make: Make) -> None:
    root = make(BOOK)
    to = root.parent / "chip"
    to.mkdir()
    new(root, "mychip", "--to", str(to))
    assert "int two;" in texts(to)["csrc/scaffolding/mychip_device.h"]
    assert (to.stat().st_mode & 0o777) == 0o755


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("MyChip", "is no device name"),
        ("chip2", "reads no digits"),
        ("2chip", "is no device name"),
        ("my-chip", "is no device name"),
        ("my chip", "is no device name"),
        ("my__chip", "is no device name"),
        ("_chip", "is no device name"),
        ("chip_", "is no device name"),
        ("", "is no device name"),
        ("größe", "is no device name"),
        ("chip\n", "is no device name"),
        ("../chip", "is no device name"),
        ("namespace", "already a word of C++"),
        ("co_await", "already a word of C++"),
        ("lambda", "already a word of Python"),
        ("match", "already a word of Python"),
        ("std", "already a namespace, macro or function"),
        ("at", "already a namespace, macro or function"),
        ("linux", "already a namespace, macro or function"),
        ("cuda", "already a device type"),
        ("ve", "already a device type"),
        ("privateuseone", "already a device type"),
        ("torch", "already a Python module"),
        ("test", "already a Python module"),
        ("json", "already a Python module"),
        ("relu", "already an attribute of torch"),
        ("nn", "already an attribute of torch"),
        ("stride", "already an attribute of torch"),
        ("mpsboard", "torch.load would take its tensors"),
    ],
)
def test_a_name_is_refused_and_nothing_written(make: Make, name: str, why: str) -> None:
    root = make(BOOK)
    before = sorted(root.parent.iterdir())
    with pytest.raises(clean.Refused, match=re.escape(why)):
        new(root, name, "--to", "chip")
    assert sorted(root.parent.iterdir()) == before


@pytest.mark.parametrize("name", ["mychip", "my_chip", "vega", "acme", "cookbook", "metachip", "x"])
def test_a_good_name_is_taken(name: str) -> None:
    clean.check_name(name)


def test_words_of_python_are_names_that_the_pattern_lets_through() -> None:
    for word in keyword.kwlist:
        with pytest.raises(clean.Refused):
            clean.check_name(word)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["mychip", "--chapter", "3", "--to", "chip"], "there is no chapter 3: the book has chapters 1 to 2"),
        (["mychip", "--chapter", "0", "--to", "chip"], "there is no chapter 0"),
        (["mychip", "--chapter", "two", "--to", "chip"], "invalid int value: 'two'"),
        (["mychip"], "the following arguments are required: --to"),
        (["--to", "chip"], "the following arguments are required: name"),
        (["mychip", "--to", "book"], "exists and is not an empty folder"),
        (["mychip", "--to", "book/LICENSE"], "exists and is not an empty folder"),
        (["mychip", "--to", "book/LICENSE/chip"], "cannot be made"),
    ],
)
def test_an_order_is_refused_and_nothing_written(make: Make, args: list[str], why: str) -> None:
    root = make(BOOK)
    before = texts(root.parent)
    with pytest.raises(clean.Refused, match=re.escape(why)):
        new(root, *args)
    assert texts(root.parent) == before


def test_a_failure_half_way_leaves_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(BOOK)

    def full(source: object, target: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        new(root, "mychip", "--to", "chip")
    assert os.listdir(root.parent) == ["book"]


def test_a_binary_file_is_refused(make: Make) -> None:
    root = make(BOOK)
    (root / "csrc/driver/logo.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(clean.Refused, match=r"csrc/driver/logo\.png is no text"):
        new(root, "mychip", "--to", "chip")


def test_a_zip_holds_the_clean_tree_and_is_stable(make: Make) -> None:
    root = make(BOOK)
    first, second = root.parent / "a" / "1.zip", root.parent / "2.zip"
    clean.archive(root, 1, first)
    clean.archive(root, 1, second)
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as file:
        assert {f"cookbook-chapter-1/{p}" for p in clean.tree(root, 1)} == set(file.namelist())
        assert b"CHAPTER" not in file.read("cookbook-chapter-1/csrc/scaffolding/cookbook_device.h")


# The real tree


@pytest.mark.parametrize("chapter", CHAPTERS)
@pytest.mark.parametrize("name", ["mychip", "acme_npu"])
def test_nothing_of_the_book_is_left(chapter: int, name: str) -> None:
    files = clean.tree(ROOT, chapter, name)
    assert {"README.md", "LICENSE", "pyproject.toml", "CMakeLists.txt", f"{name}_backend/__init__.py"} <= set(files)
    assert any(path.startswith("tests/test_") for path in files)
    assert not [path for path in files if "cookbook" in path.lower()]
    credit = re.compile(r"PyTorch Backend Cookbook")
    left = re.compile(rf"cookbook|%%|(//|#) chapter \d+$|{name}_CHAPTER", re.IGNORECASE)
    found = [
        f"{path}:{number}: {row.strip()}"
        for path, data in files.items()
        for number, row in enumerate(data.decode().split("\n"), 1)
        if left.search(credit.sub("", row)) and not path.startswith(("README.md", "LICENSE", "csrc/driver/"))
    ]
    assert found == []
    for path in ("README.md", "LICENSE", *(p for p in files if p.startswith("csrc/driver/"))):
        assert "cookbook" not in credit.sub("", files[path].decode()).lower(), path


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_clean_tree_is_formatted(chapter: int, tmp_path: Path) -> None:
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    tools = {tool: shutil.which(tool, path=path) for tool in ("clang-format", "ruff")}
    assert all(tools.values()), f"install the group 'lint' of pyproject.toml: {tools}"
    tree = clean.tree(ROOT, chapter)
    for path, data in tree.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    cpp = [path for path in tree if path.endswith(stages.CPP) and not path.startswith(stages.DRIVER)]
    for command in (
        [tools["clang-format"], "--dry-run", "-Werror", *cpp],
        [tools["ruff"], "format", "--no-cache", "--diff", "--line-length", "120", "cookbook_backend", "tests"],
    ):
        result = subprocess.run([str(c) for c in command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


# Slow ones: they need torch and a compiler


@pytest.mark.slow
def test_the_names_that_torch_has_are_listed() -> None:
    code = """if True:
        import re, torch
        names = {n for n in {*dir(torch), *dir(torch.Tensor)} if re.fullmatch("[a-z]+(_[a-z]+)*", n)}
        print(*sorted(names - {"cookbook", "is_cookbook"}))
    """
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    have = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env
    ).stdout.split()
    assert clean.TAKEN.read_text("utf-8").split() == have


@pytest.mark.slow
@pytest.mark.parametrize(("name", "accepted"), [("mychip", True), ("my_chip", True), ("chip2", False)])
def test_torch_agrees_about_the_letters_of_a_name(name: str, accepted: bool) -> None:
    code = f"import torch; torch.utils.rename_privateuse1_backend({name!r}); torch.device('{name}:0')"
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert (result.returncode == 0) == accepted, result.stderr


@pytest.mark.slow
def test_a_tree_builds_and_passes_its_tests_away_from_here(tmp_path: Path) -> None:
    """The way of its README, but into a folder, as the shared environment must stay as it is."""
    tree, site = tmp_path / "mychip", tmp_path / "site"
    clean.main(ROOT, tmp_path, ["mychip", "--to", "mychip"])
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("COOKBOOK_")}
    env["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), env["PATH"]])
    env |= {"CCACHE_BASEDIR": str(tree), "CCACHE_NOHASHDIR": "1"}  # the same tree elsewhere is not compiled again
    pip = [sys.executable, "-m", "pip", "install", "-v", "-C", "build-dir=build", "--no-build-isolation", "--no-deps"]
    # Their output is shown as it comes: nox -s new-tests runs pytest -s, and this takes minutes on a cold cache.
    subprocess.run([*pip, "--target", str(site), "."], cwd=tree, env=env, check=True)
    shutil.rmtree(tree / "mychip_backend")  # so that only the installed one can be imported
    env["PYTHONPATH"] = str(site)
    report = tmp_path / "report.xml"
    test = [sys.executable, "-P", "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run(test, cwd=tree, env=env, check=True)
    suite = next(ElementTree.parse(report).iter("testsuite"))
    assert int(suite.attrib["tests"]) > int(suite.attrib["skipped"])
