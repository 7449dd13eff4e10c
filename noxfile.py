"""The commands of the book. `nox -l` lists them; `nox -s chapter-1` is the one to begin with.

All sessions share one environment, `build/env`, made on first use from the groups of pyproject.toml and made anew when
they change. Set COOKBOOK_ENV to a virtual environment of your own to use that one as it is.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nox

ROOT = Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

import built
import clean
import stages
import weave as weaver

BUILD = ROOT / "build"
GROUPS = ("torch", "build", "test", "recipes", "docs", "lint")  # torch first: its pin decides what else fits
PAGES = stages.chapters(ROOT)
LAST = max(PAGES, default=0)

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "none"
nox.options.sessions = [f"chapter-{LAST}"] if PAGES else ["book"]


# The environment


def requirements(group: str) -> list[str]:
    """What a dependency group of pyproject.toml asks for."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8")).get("dependency-groups", {})
    found: list[str] = []
    for entry in table.get(group, []):
        found += [entry] if isinstance(entry, str) else requirements(entry["include-group"])
    return found


def environment(session: nox.Session) -> Path:
    """The folder of the shared environment, made or made anew when needed."""
    if own := os.environ.get("COOKBOOK_ENV"):
        path = Path(own).resolve()
        if not (path / "bin" / "python").exists():
            session.error(f"COOKBOOK_ENV={own} has no bin/python: name a virtual environment, or unset it")
        return path
    path, stamp = BUILD / "env", BUILD / "env" / "requirements.stamp"
    wanted = {group: requirements(group) for group in GROUPS}
    key = hashlib.sha256(repr((wanted, sys.version, sys.base_prefix)).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == key:
        return path
    print(f"nox: making {path.relative_to(ROOT)}, once; PyTorch is the large part of it", flush=True)
    shutil.rmtree(path, ignore_errors=True)
    with advice(session, "the environment cannot be made: on Debian, install python3-venv"):
        session.run(sys.executable, "-m", "venv", str(path))
    for group, packages in wanted.items():
        if packages:
            with advice(session, f"pip cannot install the group {group!r} of pyproject.toml: see its message above"):
                session.run(str(path / "bin" / "python"), "-m", "pip", "install", *packages)
    stamp.write_text(key)
    return path


@contextmanager
def advice(session: nox.Session, hint: str) -> Iterator[None]:
    """Say what to do when the commands inside fail."""
    try:
        yield
    except nox.command.CommandFailed:
        session.error(hint)


@contextmanager
def timed(part: str, times: dict[str, float]) -> Iterator[None]:
    """Note how long a part of a session takes."""
    start = time.perf_counter()
    yield
    times[part] = time.perf_counter() - start


def run(
    session: nox.Session,
    hint: str,
    *command: str | Path,
    cwd: Path = ROOT,
    env: dict[str, str] | None = None,
    success: Sequence[int] = (0,),
) -> None:
    """Run a command with the shared environment's tools first in PATH; `hint` says what to do when it fails."""
    bin_ = environment(session) / "bin"
    path = os.pathsep.join([str(bin_), os.environ.get("PATH", "")])
    name = str(command[0])
    program = name if name.startswith("/") else shutil.which(name, path=path)
    if not program:
        packages = {"clang-format": "clang-format (or the group `lint` of pyproject.toml)", "g++": "g++"}
        session.error(f"{name} is not installed: on Debian, install {packages.get(name, name)}")
    with session.chdir(cwd), advice(session, hint):
        variables = {"PATH": path, "VIRTUAL_ENV": str(bin_.parent), **(env or {})}
        session.run(program, *map(str, command[1:]), env=variables, success_codes=success)


# The book


def look_or_weave(session: nox.Session, write: bool) -> None:
    """Bring the pages up to date, or only look and refuse stale ones."""
    try:
        stale = weaver.weave(ROOT, write)
    except stages.BookError as error:
        session.error(f"{error}; mend that line")
    for fence in stale:
        print(f"{fence}: {'woven' if write else 'differs from the code'}", flush=True)
    if stale and not write:
        session.error("the fences above do not hold their cells: run `nox -s weave`, look at the difference, commit it")


@nox.session
def weave(session: nox.Session) -> None:
    """Write the code's text into the {cell} fences of the chapters (-- --check: only look)."""
    if unknown := set(session.posargs) - {"--check"}:
        session.error(f"weave takes --check and nothing else, not {' '.join(unknown)}")
    look_or_weave(session, write="--check" not in session.posargs)


@nox.session
def book(session: nox.Session) -> None:
    """Prove that the chapters show every line of the backend, and test the book machine (a second)."""
    hint = "each line above names a file or page and what is wrong with it; stale fences: run `nox -s weave`"
    run(session, hint, "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *BOOK_TESTS, *session.posargs)


BOOK_TESTS = [
    ROOT / "docs" / "tests" / f"test_{name}.py" for name in ("book", "stages", "built", "new", "device_module")
]


# The chapters


def compilers(session: nox.Session) -> None:
    """A missing compiler is reported here, by its package's name, instead of by CMake."""
    if not os.environ.get("CXX") and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        session.error("no C++ compiler: on Debian, install g++ (version 12 or later); or set CXX to yours")


def cmake(session: nox.Session, source: Path, work: Path, options: dict[str, str], times: dict[str, float]) -> None:
    """Configure when something about the configuration is new, then build."""
    compilers(session)
    env = {"CCACHE_BASEDIR": str(work.parent), "CCACHE_NOHASHDIR": "1"}
    if shutil.which("ccache"):
        options = {**options, "CMAKE_CXX_COMPILER_LAUNCHER": "ccache"}
    else:
        print("nox: without ccache each chapter compiles everything again: on Debian, install ccache", flush=True)
    arguments = [f"-D{name}={value}" for name, value in options.items()]
    stamp, key = work / "configured.stamp", repr((arguments, os.environ.get("CXX"), os.environ.get("CXXFLAGS")))
    with timed("configure", times):
        if not stamp.exists() or stamp.read_text() != key:
            hint = f"CMake cannot configure {source.relative_to(ROOT)}: the first `CMake Error` above says why"
            run(session, hint, "cmake", "--fresh", "-G", "Ninja", "-S", source, "-B", work, *arguments, env=env)
            stamp.write_text(key)
    with timed("build", times):
        hint = "the compiler's first error above names the true file: mend it there, not in build/"
        run(session, hint, "cmake", "--build", work, env=env)


def build(session: nox.Session, n: int, times: dict[str, float]) -> Path:
    """The tree as of a chapter, built; returns the folder to put on PYTHONPATH."""
    work = BUILD / str(n)
    source = work / "src"
    with timed("emit", times):
        try:
            changed = stages.emit(ROOT, n, source, numbers=True)
        except stages.BookError as error:
            session.error(str(error))
    print(f"nox: chapter {n}: {len(changed)} files are new or changed in {source.relative_to(ROOT)}", flush=True)
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "Python_EXECUTABLE": str(environment(session) / "bin" / "python"),
        "COOKBOOK_PACKAGE_DIR": str(source / "cookbook_backend"),
    }
    cmake(session, source, work / "cmake", options, times)
    built.register(source)
    return source


def pytest(session: nox.Session, what: str, hint: str, source: Path, paths: list[Path], report: Path) -> int:
    """Run pytest in a fresh process against a built tree; nothing having run is a failure. Returns how many passed."""
    report.unlink(missing_ok=True)
    # The examples of a page share their variables, so they run in one process; tests take two. COOKBOOK_XDIST=0: one.
    workers = ["-n", "2"] if what == "test" and os.environ.get("COOKBOOK_XDIST") != "0" else []
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", *workers]
    options += [argument for argument in session.posargs if argument != "--again"]
    # The working directory is the tree itself, so that a Python started by a test finds the built package too.
    run(session, hint, "pytest", *options, *paths, cwd=source, env={"PYTHONPATH": str(source)}, success=(0, 5))
    suites = list(ElementTree.parse(report).iter("testsuite"))
    passed = sum(int(s.get("tests", 0)) - int(s.get("skipped", 0)) for s in suites)
    if passed == 0:
        session.error(f"no {what} ran in {', '.join(p.name for p in paths)}: the chapter proves nothing")
    return passed


def staged_tests(session: nox.Session, n: int, source: Path) -> str:
    """Run a chapter's staged tests, unless nothing has changed since they passed; `-- --again` runs them anyway."""
    stamp, key = BUILD / str(n) / "tests.stamp", built.fingerprint(source, environment(session))
    again = bool(session.posargs) or bool(os.environ.get("CI"))
    if not again and stamp.exists() and (before := stamp.read_text("utf-8").split())[0] == key:
        print(f"nox: nothing changed since {before[1]} tests passed; to run them again: -- --again", flush=True)
        return f"{before[1]} tests passed before"
    stamp.unlink(missing_ok=True)
    hint = f"a staged test fails as of chapter {n}; build/{n}/src/tests has it under its own line numbers"
    passed = pytest(session, "test", hint, source, [source / "tests"], BUILD / str(n) / "tests.xml")
    if set(session.posargs) <= {"--again"}:
        stamp.write_text(f"{key} {passed}", "utf-8")
    return f"{passed} tests passed"


def chapter(session: nox.Session, n: int) -> None:
    """Build and run one chapter."""
    times: dict[str, float] = {}
    with timed("weave", times):
        look_or_weave(session, write=not os.environ.get("CI"))
    source = build(session, n, times)
    with timed("doctests", times):
        hint = f"an example of {PAGES[n].name} does not give what the page says: the line above names it"
        examples = pytest(session, "example", hint, source, [PAGES[n]], BUILD / str(n) / "doctests.xml")
    with timed("tests", times):
        tests_ = staged_tests(session, n, source)
    print("\n" + ", ".join(f"{part} {seconds:.1f} s" for part, seconds in times.items()))
    print(f"Chapter {n}: {examples} examples and {tests_}. What works now (+) and what does not yet (-):")
    print("\n".join(f"  {line}" for line in stages.status(PAGES[n].read_text("utf-8"))), flush=True)


def session_of(n: int) -> Callable[[nox.Session], None]:
    """The session of a chapter, with its title as the description that `nox -l` shows."""

    def session_(session: nox.Session) -> None:
        chapter(session, n)

    title = stages.title(PAGES[n].read_text("utf-8"))
    session_.__doc__ = f"Build the backend as of chapter {n}, run its page and its tests: {title}."
    return session_


for number in PAGES:
    nox.session(name=f"chapter-{number}", tags=["chapters"])(session_of(number))


# The notes


def html(session: nox.Session, program: str, *options: str | Path) -> None:
    """Run Sphinx, with the finished backend on the path so that the recipes can run."""
    env: dict[str, str] = {}
    if any((ROOT / "tutorials" / "recipes").glob("recipe_*.py")):
        env["PYTHONPATH"] = str(build(session, LAST, {}))
    hint = "Sphinx's first warning above names the page and line; a warning fails the build"
    run(session, hint, program, "-W", "--keep-going", "-b", "html", *options, ROOT, BUILD / "html", env=env)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the rendered notes into build/html; a warning or a dangling link is an error."""
    look_or_weave(session, write=not os.environ.get("CI"))
    html(session, "sphinx-build", "-n", *session.posargs)
    print(f"nox: open {BUILD / 'html' / 'index.html'}", flush=True)


@nox.session
def site(session: nox.Session) -> None:
    """Test how pages are rendered, then read the built notes in a headless browser."""
    hint = "the browser test says what it saw; it needs Debian's chromium and chromium-driver, and `nox -s docs` first"
    suites = [ROOT / "docs" / "tests" / f"test_{name}.py" for name in ("pages", "site")]
    run(session, hint, "pytest", "-q", "-p", "no:cacheprovider", *suites)


@nox.session
def serve(session: nox.Session) -> None:
    """Show the notes on http://127.0.0.1:8000 and build them anew whenever a page or the code changes."""
    watch = [w for folder in ("csrc", "cookbook_backend", "tests") for w in ("--watch", str(ROOT / folder))]
    ignore = ["--ignore", str(BUILD), "--ignore", "*/__pycache__/*", "--ignore", "*.so"]
    before = shlex.join([sys.executable, str(ROOT / "docs" / "_ext" / "weave.py")])
    options: list[str | Path] = [*watch, *ignore, "--pre-build", before, *session.posargs, ROOT, BUILD / "html"]
    run(session, "the port may be taken: nox -s serve -- --port 8001", "sphinx-autobuild", *options)


# Your own backend


@nox.session
def new(session: nox.Session) -> None:
    """Start a backend of your own: nox -s new -- mychip --chapter 6 --to ../mychip."""
    where = Path(getattr(session, "invoked_from", os.getcwd()))
    try:
        print(clean.main(ROOT, where, session.posargs), flush=True)
    except (clean.Refused, stages.BookError) as error:
        session.error(str(error))


@nox.session(name="new-tests")
def new_tests(session: nox.Session) -> None:
    """Start backends under other names and build one of them with pip, away from this repository."""
    compilers(session)
    env = {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache"} if shutil.which("ccache") else {}
    hint = "a tree that `nox -s new` makes is broken: the test's own message says which step failed"
    run(session, hint, "pytest", "-q", "-s", "-p", "no:cacheprovider", ROOT / "docs" / "tests" / "test_new.py", env=env)


# Quality


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types: ruff, mypy --strict, clang-format."""
    run(session, "run: ruff check --fix .", "ruff", "check", ".")
    run(session, "run: ruff format .", "ruff", "format", "--check", ".")
    written = (
        "docs/_ext",
        "docs/tests",
        "conf.py",
        "noxfile.py",
        "cookbook_backend",
        "cookbook_autoload",
        "conformance",
    )
    typed = [p for p in written if (ROOT / p).exists()]
    options: list[str | Path] = ["--strict", "--explicit-package-bases", "--cache-dir", BUILD / "mypy"]
    run(session, "mypy names file and line", "mypy", *options, *typed, env={"MYPYPATH": str(ROOT / "docs" / "_ext")})
    sources = sorted(p for top in ("csrc", "tests") for p in stages.files(ROOT, top) if p.suffix in stages.CPP)
    run(session, "run: clang-format -i on the files named above", "clang-format", "--dry-run", "-Werror", *sources)


@nox.session
def sanitize(session: nox.Session) -> None:
    """Test the driver as it is and under the address, undefined-behaviour and thread sanitizers; then the runtime."""
    if not any(Path(folder, "doctest", "doctest.h").exists() for folder in ("/usr/include", "/usr/local/include")):
        session.warn("these tests need the header of doctest: on Debian, install doctest-dev")
    for kind in session.posargs or ("none", "address", "undefined", "thread"):
        options = {"COOKBOOK_SANITIZE": "" if kind == "none" else kind, "COOKBOOK_DRIVER_TESTS": "ON"}
        sanitized(session, "driver", kind, ROOT / stages.DRIVER, options)
    # The runtime is compiled against PyTorch's headers, which takes longer: as often as it finds something new.
    for kind in (k for k in ("address", "thread") if not session.posargs or k in session.posargs):
        python = str(environment(session) / "bin" / "python")
        options = {"COOKBOOK_SANITIZE": kind, "Python_EXECUTABLE": python}
        sanitized(session, "runtime", kind, ROOT / "tests" / "cpp", options)


def sanitized(session: nox.Session, what: str, kind: str, source: Path, options: dict[str, str]) -> None:
    """Build a project's C++ tests with a sanitizer and run them."""
    print(f"nox: the {what}'s tests, sanitizer: {kind}", flush=True)
    times: dict[str, float] = {}
    work = BUILD / "sanitize" / (kind if what == "driver" else f"{what}-{kind}")
    cmake(session, source, work, {"CMAKE_BUILD_TYPE": "RelWithDebInfo", **options}, times)
    hint = f"see the first failure above; a report of the {kind} sanitizer says what it found and where"
    with timed("tests", times):
        run(session, hint, "ctest", "--test-dir", work, "--output-on-failure", "--no-tests=error")
    print("nox: " + ", ".join(f"{part} {seconds:.1f} s" for part, seconds in times.items()), flush=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the performance claims on the last chapter's build: benchmarks/{calls,steps,allocator,graphs}.py."""
    scripts = [ROOT / "benchmarks" / f"{name}.py" for name in ("calls", "steps", "allocator", "graphs")]
    source = build(session, LAST, {})
    for script in scripts:
        hint = f"{script.name}: see above"
        run(session, hint, "python", script, *session.posargs, cwd=source, env={"PYTHONPATH": str(source)})


@nox.session
def tests(session: nox.Session) -> None:
    """Run everything, in the order in which a failure is cheapest to understand."""
    parts = ["book", "lint", *(f"chapter-{n}" for n in PAGES), "sanitize", "docs", "site", "new-tests"]
    needs = {"sanitize": ROOT / stages.DRIVER / "CMakeLists.txt", "site": ROOT / "docs" / "tests" / "test_site.py"}
    if missing := [f"{path.relative_to(ROOT)} (for {part})" for part, path in needs.items() if not path.exists()]:
        session.error(f"missing: {', '.join(missing)}")
    for part in parts:
        session.notify(part)
