"""The grammar of the staged tree: what parses, what is refused and where, what is emitted, what the proof finds."""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import stages
import weave
from hypothesis import given
from hypothesis import strategies as st

Make = Callable[[dict[str, str]], Path]
CPP, PY = "csrc/runtime/a.cpp", "cookbook_backend/a.py"

GUARD = """\
// chapter 2
// %% head
#pragma once

namespace cookbook {

// %% guard
struct Guard {
  int device() const { return device_; }
#if COOKBOOK_CHAPTER < 4
  int stream() const { return -1; }  // no streams yet
#else
  int stream() const { return stream_; }
#endif

  // %% state
 private:
  int device_ = 0;

#if COOKBOOK_CHAPTER >= 4
  int stream_ = 0;

#ifdef DEBUG
  int debug_ = 0;
#endif
#endif
};

}  // namespace cookbook
"""


@pytest.mark.parametrize(
    ("path", "rows", "line", "why"),
    [
        (CPP, ["// %% a", "int x;"], 1, "want '// chapter N'"),
        (CPP, ["# chapter 1", "// %% a"], 1, "want '// chapter N'"),
        (CPP, ["// chapter 0", "// %% a"], 1, "want '// chapter N'"),
        (PY, ["// chapter 1", "# %% a"], 1, "want '# chapter N'"),
        (CPP, ["// chapter 1", "", "int x;", "// %% a"], 3, "a line before the first '// %% name'"),
        (PY, ["# chapter 1", "x = 1", "# %% a"], 2, "a line before the first '# %% name'"),
        (CPP, ["// chapter 1", "// %% a", "int x;", "// %% a"], 4, "a second cell 'a'"),
        (CPP, ["// chapter 1", "// %% a b"], 2, "want '// %% name'"),
        (CPP, ["// chapter 1", "//%% a"], 2, "want '// %% name'"),
        (PY, ["# chapter 1", "#%% a"], 2, "want '# %% name'"),
        (PY, ["# chapter 1", "# %%"], 2, "want '# %% name'"),
        (
            CPP,
            ["// chapter 1", "// %% a", "#if COOKBOOK_CHAPTER > 3", "#endif"],
            3,
            "want '#if COOKBOOK_CHAPTER >= N' or",
        ),
        (
            CPP,
            ["// chapter 1", "// %% a", "#if COOKBOOK_CHAPTER >= N", "#endif"],
            3,
            "want '#if COOKBOOK_CHAPTER >= N' or",
        ),
        (
            CPP,
            ["// chapter 1", "// %% a", "#ifdef COOKBOOK_CHAPTER", "#endif"],
            3,
            "want '#if COOKBOOK_CHAPTER >= N' or",
        ),
        (
            CPP,
            ["// chapter 1", "// %% a", "# if COOKBOOK_CHAPTER >= 2", "#endif"],
            3,
            "want '#if COOKBOOK_CHAPTER >= N' or",
        ),
        (PY, ["# chapter 1", "# %% a", "#if COOKBOOK_CHAPTER >= 2", "# endif"], 3, "want '# if COOKBOOK_CHAPTER >= N'"),
        (PY, ["# chapter 1", "# %% a", "# if COOKBOOK_CHAPTER < 2", "# endif"], 3, "'# if' is a comment"),
        (
            PY,
            ["# chapter 1", "# %% a", "# if COOKBOOK_CHAPTER >= 2", "# else", "# endif"],
            4,
            "'# else' is a comment",
        ),
        (PY, ["# chapter 1", "# %% a", "# if COOKBOOK_CHAPTER >= 2", "x = 1"], 3, "'# if' without '# endif'"),
        (PY, ["# chapter 1", "# %% a", "# endif"], 3, "'# endif' without '# if'"),
        (
            CPP,
            ["// chapter 1", "// %% a", "#if COOKBOOK_CHAPTER >= 2", "#ifdef X", "#endif"],
            3,
            "'#if' without '#endif'",
        ),
        (CPP, ["// chapter 1", "// %% a", "#endif"], 3, "'#endif' without '#if'"),
        (
            CPP,
            ["// chapter 1", "// %% a", "#if COOKBOOK_CHAPTER >= 2", "#elif X", "#endif"],
            4,
            "want '#else' or '#endif'",
        ),
        (
            CPP,
            ["// chapter 1", "// %% a", "#elif COOKBOOK_CHAPTER >= 2", "#endif"],
            3,
            "want '#if COOKBOOK_CHAPTER >= N' or",
        ),
        (
            CPP,
            ["// chapter 1", "// %% a", "#if COOKBOOK_CHAPTER >= 2", "#else", "#else", "#endif"],
            5,
            "a second '#else' for the '#if' of line 3",
        ),
        (CPP, ["// chapter 3", "// %% a", "#if COOKBOOK_CHAPTER >= 3", "#endif"], 3, "'>= 3' is always true here"),
        (CPP, ["// chapter 3", "// %% a", "#if COOKBOOK_CHAPTER < 3", "#endif"], 3, "'< 3' is never true here"),
        (
            CPP,
            ["// chapter 1", "// %% a", "#if COOKBOOK_CHAPTER < 3", "#if COOKBOOK_CHAPTER >= 3", "#endif", "#endif"],
            4,
            "'>= 3' is never true here",
        ),
    ],
)
def test_an_error_names_file_and_line(path: str, rows: list[str], line: int, why: str) -> None:
    with pytest.raises(stages.BookError, match=f"^{re.escape(f'{path}:{line}: {why}')}"):
        stages.parse(path, "\n".join(rows) + "\n")


def test_tests_need_no_cells() -> None:
    lines = stages.parse("tests/test_a.py", "# chapter 3\nx = 1\n# %% shown\ny = 2\n")
    assert [(x.text, x.cell, x.since) for x in lines if not x.mark] == [("x = 1", None, 3), ("y = 2", "shown", 3)]


def test_lines_have_intervals_and_cells() -> None:
    lines = {x.text.strip(): x for x in stages.parse("csrc/runtime/guard.h", GUARD)}
    assert [
        (x.cell, x.since, x.until)
        for x in (
            lines["#pragma once"],
            lines["int stream() const { return -1; }  // no streams yet"],
            lines["int stream() const { return stream_; }"],
            lines["#ifdef DEBUG"],
            lines["int debug_ = 0;"],
            lines["};"],
        )
    ] == [
        ("head", 2, 1000),
        ("guard", 2, 4),
        ("guard", 4, 1000),
        ("state", 4, 1000),
        ("state", 4, 1000),
        ("state", 2, 1000),
    ]
    assert not any(x.mark for x in lines.values() if x.text == "#ifdef DEBUG")
    assert sum(x.mark for x in stages.parse("csrc/runtime/guard.h", GUARD)) == 9


def test_stages_are_those_of_the_preprocessor() -> None:
    """A random nest of conditions, judged by the compiler that will build it."""
    compiler = shutil.which(os.environ.get("CXX") or "c++")
    assert compiler, "no C++ compiler: on Debian, install g++"
    choose, rows, word = random.Random(20260713), ["// chapter 1", "// %% a"], iter(range(10_000))

    def nest(since: int, until: int, depth: int) -> None:
        for _ in range(choose.randint(1, 4)):
            rows.append(f"word{next(word)};")
            inside = range(since + 1, min(until, 9))
            if depth and inside and choose.random() < 0.8:
                n, op, other = choose.choice(inside), choose.choice([">=", "<"]), choose.random() < 0.5
                rows.append(f"#if COOKBOOK_CHAPTER {op} {n}")
                nest(*((n, until) if op == ">=" else (since, n)), depth - 1)
                if other:
                    rows.append("#else")
                    nest(*((since, n) if op == ">=" else (n, until)), depth - 1)
                rows.append("#endif")
            elif depth:
                rows.extend(["#ifdef ELSEWHERE", f"word{next(word)};", "#else", f"word{next(word)};", "#endif"])

    for _ in range(12):
        nest(1, stages.NEVER, 4)
    text = "\n".join(rows) + "\n"
    lines = stages.parse(CPP, text)

    def preprocessed(code: str, *options: str) -> list[str]:
        command = [compiler, "-E", "-P", "-x", "c++", *options, "-"]
        return subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout.split()

    for n in range(1, 10):
        mine = "\n".join(x.text for x in stages.tidy(lines, n)) + "\n"
        assert preprocessed(mine) == preprocessed(text, f"-DCOOKBOOK_CHAPTER={n}")
    assert len(rows) > 200


@given(st.lists(st.sampled_from(["x = 1", "", "", "# if COOKBOOK_CHAPTER >= 2", "# endif"]), max_size=30))
def test_tidy_only_drops_blank_lines(rows: list[str]) -> None:
    depth, balanced = 0, []
    for row in rows:  # one level: no 'always true' inside
        if (depth and row.startswith("# if")) or (not depth and row == "# endif"):
            continue
        depth += row.startswith("# if") - (row == "# endif")
        balanced.append(row)
    lines = stages.parse(PY, "\n".join(["# chapter 1", "# %% a", *balanced, *["# endif"] * depth]) + "\n")
    for n in (1, 2):
        whole, tidied = [x for x in lines if x.at(n)], stages.tidy(lines, n)
        assert [x for x in tidied if x.text] == [x for x in whole if x.text]
        assert [x for x in whole if x in tidied] == tidied
        assert not tidied or (tidied[0].text and tidied[-1].text)


def test_a_clean_file_reads_as_if_written_at_its_stage(make: Make) -> None:
    root = make({"csrc/runtime/guard.h": GUARD})
    assert stages.tree(root, 1) == {}
    assert stages.tree(root, 2)["csrc/runtime/guard.h"].decode() == (
        "#pragma once\n\nnamespace cookbook {\n\nstruct Guard {\n"
        "  int device() const { return device_; }\n"
        "  int stream() const { return -1; }  // no streams yet\n\n"
        " private:\n  int device_ = 0;\n};\n\n}  // namespace cookbook\n"
    )
    assert stages.tree(root, 4)["csrc/runtime/guard.h"].decode() == (
        "#pragma once\n\nnamespace cookbook {\n\nstruct Guard {\n"
        "  int device() const { return device_; }\n"
        "  int stream() const { return stream_; }\n\n"
        " private:\n  int device_ = 0;\n\n  int stream_ = 0;\n\n"
        "#ifdef DEBUG\n  int debug_ = 0;\n#endif\n};\n\n}  // namespace cookbook\n"
    )


def test_emission_keeps_numbers_and_names_the_true_file(make: Make, tmp_path: Path) -> None:
    root, out = make({"csrc/runtime/guard.h": GUARD, PY: "# chapter 1\n# %% a\nx = 1\n"}), tmp_path / "out"
    stages.emit(root, 3, out, numbers=True)
    emitted = (out / "csrc/runtime/guard.h").read_text().splitlines()
    assert emitted[0] == f'#line 2 "{root / "csrc/runtime/guard.h"}"'
    for number, row in enumerate(GUARD.splitlines(), 1):
        assert number == 1 or emitted[number - 1] in ("", row)
    assert emitted[10] == "  int stream() const { return -1; }  // no streams yet"
    assert emitted[12] == ""
    assert (out / PY).read_text() == "\n\nx = 1\n"


def test_a_compiler_error_names_the_true_line(make: Make, tmp_path: Path) -> None:
    code = "// chapter 1\n// %% a\n#if COOKBOOK_CHAPTER >= 2\nint early;\n#endif\nint wrong = nothing;\n"
    root, out = make({CPP: code}), tmp_path / "out"
    stages.emit(root, 1, out, numbers=True)
    command = [shutil.which(os.environ.get("CXX") or "c++") or "", "-fsyntax-only", str(out / CPP)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"{root / CPP}:6:" in result.stderr


def test_unchanged_files_are_not_touched(make: Make, tmp_path: Path) -> None:
    files = {"csrc/runtime/guard.h": GUARD, "csrc/driver/driver.c": "int x;\n", PY: "# chapter 1\n# %% a\nx = 1\n"}
    root, out = make(files), tmp_path / "out"
    assert stages.emit(root, 2, out) == sorted(files)
    for name in files:
        os.utime(out / name, ns=(1, 1))
    assert stages.emit(root, 2, out) == []
    assert {(out / name).stat().st_mtime_ns for name in files} == {1}
    assert stages.emit(root, 4, out) == ["csrc/runtime/guard.h"]
    assert (out / PY).stat().st_mtime_ns == 1


def test_what_is_gone_is_removed(make: Make, tmp_path: Path) -> None:
    root, out = make({CPP: "// chapter 1\n// %% a\nint x;\n", "csrc/runtime/guard.h": GUARD}), tmp_path / "out"
    stages.emit(root, 2, out)
    (out / "csrc" / "built.so").write_text("left alone")
    (root / CPP).rename(root / "csrc/runtime/b.cpp")
    assert stages.emit(root, 1, out) == ["csrc/runtime/b.cpp", CPP, "csrc/runtime/guard.h"]
    files = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    assert files == [stages.MANIFEST, "csrc/built.so", "csrc/runtime/b.cpp"]


def test_the_driver_is_whole_and_an_empty_file_is_there(make: Make) -> None:
    driver = "// no chapter\n\n\n#if COOKBOOK_CHAPTER\n#endif\n"
    root = make({"csrc/driver/src/a.c": driver, "csrc/driver/build/a.o": "junk", "cookbook_backend/py.typed": ""})
    for numbers in (False, True):
        assert stages.tree(root, 1, numbers) == {
            "csrc/driver/src/a.c": driver.encode(),
            "cookbook_backend/py.typed": b"",
        }


PAGE_2 = "```{cell} csrc/runtime/guard.h head\n```\n```{cell} csrc/runtime/guard.h guard\n```\n"
PAGE_2 += "```{cell} csrc/runtime/guard.h state\n```\n"
PAGE_4 = "```{cell} csrc/runtime/guard.h guard\n:diff:\n```\n```{cell} csrc/runtime/guard.h state\n```\n"
BOOK = {
    "csrc/runtime/guard.h": GUARD,
    "tutorials/chapter-2.md": PAGE_2,
    "tutorials/chapter-3.md": "```{cell} csrc/runtime/guard.h head\n:again:\n```\n",
    "tutorials/chapter-4.md": PAGE_4,
}


def test_a_whole_book_has_no_problems(make: Make) -> None:
    assert stages.problems(make(BOOK)) == []


@pytest.mark.parametrize(
    ("page", "text", "problem"),
    [
        (
            "tutorials/chapter-2.md",
            PAGE_2.replace(" head", " state"),
            "cell head: chapter 2 changes 2 lines, shows it 0",
        ),
        ("tutorials/chapter-2.md", PAGE_2 + PAGE_2[:44], "cell head: chapter 2 changes 2 lines, shows it 2"),
        ("tutorials/chapter-3.md", PAGE_2[:44], "cell head: chapter 3 changes 0 lines, shows it 1"),
        ("tutorials/chapter-4.md", PAGE_4[:55], "cell state: chapter 4 changes 4 lines, shows it 0"),
        (
            "tutorials/chapter-4.md",
            PAGE_4.replace(":diff:", ":again:"),
            "cell guard: chapter 4 changes 2 lines, shows it 0",
        ),
        (
            "tests/test_a.py",
            "# chapter 3\nx = 1\n# %% shown\ny = 2\n",
            "cell shown: chapter 3 changes 1 lines, shows it 0",
        ),
        ("csrc/runtime/b.h", "// chapter 9\n// %% b\nint b;\n", "cell b: chapter 9 changes 1 lines, shows it 0"),
    ],
)
def test_the_proof_finds(make: Make, page: str, text: str, problem: str) -> None:
    assert any(problem in found for found in stages.problems(make({**BOOK, page: text})))


def test_what_only_the_repository_needs_is_in_no_chapter(make: Make) -> None:
    text = "# chapter 2\n# %% a\nx = 1\n# if COOKBOOK_CHAPTER >= 999\ny = 2\n# endif\n"
    page = "```{cell} pyproject.toml a\n```\n"
    root = make({**BOOK, "pyproject.toml": text, "tutorials/chapter-2.md": PAGE_2 + page})
    assert stages.problems(root) == []
    assert stages.tree(root, 4)["pyproject.toml"] == b"x = 1\n"


def test_weaving_writes_the_cells_and_finds_stale_ones(make: Make) -> None:
    root = make(BOOK)
    assert len(weave.weave(root, write=False)) == 6
    assert (root / "tutorials/chapter-4.md").read_text() == PAGE_4
    assert len(weave.weave(root, write=True)) == 6
    assert weave.weave(root, write=False) == []
    assert stages.problems(root) == []
    assert (root / "tutorials/chapter-4.md").read_text() == (
        "```{cell} csrc/runtime/guard.h guard\n:diff:\n\n"
        " struct Guard {\n"
        "   int device() const { return device_; }\n"
        "-  int stream() const { return -1; }  // no streams yet\n"
        "+  int stream() const { return stream_; }\n"
        "```\n```{cell} csrc/runtime/guard.h state\n"
        " private:\n  int device_ = 0;\n\n  int stream_ = 0;\n\n"
        "#ifdef DEBUG\n  int debug_ = 0;\n#endif\n};\n\n}  // namespace cookbook\n```\n"
    )
    (root / "csrc/runtime/guard.h").write_text(GUARD.replace("no streams yet", "none"))
    assert weave.weave(root, write=False) == [
        "tutorials/chapter-2.md:6: csrc/runtime/guard.h guard",
        "tutorials/chapter-4.md:1: csrc/runtime/guard.h guard",
    ]


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a\n```{cell} csrc/runtime/guard.h\n```\n", 2, "want '```{cell} path name'"),
        ("```{cell} csrc/runtime/guard.h head\n:lines: 3\n```\n", 2, "a cell has the options"),
        ("a\n\n```{cell} csrc/runtime/guard.h head\n", 3, "this fence is not closed"),
        ("```{cell} csrc/runtime/guard.h head\n```{doctest}\n```\n", 1, "this fence is not closed"),
        ("```{cell} csrc/runtime/other.h head\n```\n", 1, "there is no staged file csrc/runtime/other.h"),
        (
            "```{cell} csrc/runtime/guard.h tail\n```\n",
            1,
            "csrc/runtime/guard.h has no cell 'tail'; it has head, guard, state",
        ),
    ],
)
def test_a_fence_that_shows_nothing_is_named(make: Make, text: str, line: int, why: str) -> None:
    root = make({**BOOK, "tutorials/chapter-2.md": text})
    with pytest.raises(stages.BookError, match=f"^{re.escape(f'tutorials/chapter-2.md:{line}: {why}')}"):
        weave.weave(root, write=True)


def test_a_cell_before_its_chapter_is_named(make: Make) -> None:
    root = make({**BOOK, "tutorials/chapter-1.md": PAGE_2[:44]})
    with pytest.raises(stages.BookError, match=r"^tutorials/chapter-1\.md:1: .*'head' has no line as of chapter 1"):
        weave.weave(root, write=True)


def test_the_check_says_what_to_do(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make(BOOK))
    assert weave.main(["--check"]) == 1
    said = capsys.readouterr()
    assert "tutorials/chapter-2.md:1: csrc/runtime/guard.h head: differs from the code" in said.out
    assert said.err == "run: nox -s weave\n"
    assert weave.main([]) == 0
    assert weave.main(["--check"]) == 0


def test_status_is_read_from_its_fence() -> None:
    assert stages.status("- no\n```{status}\n+ a\n\n- b\n```\n+ no\n") == ["+ a", "- b"]


@pytest.mark.parametrize("text", ["# Streams\n", "---\na: b\n---\n\n# 4. Streams\n## More\n", "# Chapter 4: Streams\n"])
def test_title_is_the_first_heading(text: str) -> None:
    assert stages.title(text) == "Streams"
