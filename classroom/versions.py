"""The versions of tiny_agent: which chapter holds which, load one, freeze one, and build the line of tags.

Main is the source: each chapter's folder holds the package as it stood, the newest chapter's package is the one at
the top. Does not move or delete a tag.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from .errors import ClassroomError

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = ROOT / "chapters"
IDENTITY = {"NAME": "tiny-agent", "EMAIL": "tiny-agent@example.invalid"}


def chapters(root: Path = ROOT) -> list[str]:
    """The chapters in order: `01_loop`, `02_context`, …; chapter N teaches version 0.N."""
    return sorted(p.name for p in (root / "chapters").iterdir() if re.fullmatch(r"\d\d_\w+", p.name))


def package(chapter: str, root: Path = ROOT) -> Path:
    """The folder of the package that a chapter teaches: its own copy, or the one at the top for the newest."""
    copy = root / "chapters" / chapter / "tiny_agent"
    return copy if copy.is_dir() else root / "tiny_agent"


def number(folder: Path) -> str:
    """The version string of a package, read and not imported: `0.1`."""
    found = re.search(r"""^__version__ = ["'](.+?)["']""", (folder / "__init__.py").read_text(encoding="utf-8"), re.M)
    if not found:
        raise ClassroomError(f'{folder.name}/__init__.py has no line like __version__ = "0.1".')
    return found[1]


def taught(chapter: str) -> str:
    """The version that a chapter teaches, without a patch number: `v0.1`."""
    return f"v0.{int(chapter[:2])}"


def teaches(chapter: str, version: str) -> bool:
    """Whether 0.N or 0.N.patch is the version of chapter N."""
    return version.split(".")[:2] == ["0", str(int(chapter[:2]))]


def version(tag: str) -> ModuleType:
    """One version as a module of its own, `version("v0.1")`, so that two can be loaded side by side."""
    for chapter in chapters():
        if teaches(chapter, tag.removeprefix("v")):
            folder = package(chapter)
            if teaches(chapter, number(folder)):
                return _load(f"tiny_agent_{tag.replace('.', '_')}", folder)
    known = ", ".join(map(taught, chapters()))
    raise ClassroomError(f"There is no version {tag!r} here. There are: {known}.")


def _load(name: str, folder: Path) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def freeze(root: Path = ROOT) -> str:
    """Copy the package at the top into its chapter, before the next version is begun. Returns what was done."""
    top = root / "tiny_agent"
    chapter = next((c for c in chapters(root) if teaches(c, number(top))), None)
    if chapter is None:
        raise ClassroomError(f"tiny_agent says it is {number(top)}, and no chapter teaches that version.")
    copy = root / "chapters" / chapter / "tiny_agent"
    if copy.is_dir():
        if contents(top) == contents(copy):
            return f"{chapter} holds tiny_agent {number(top)} already."
        raise ClassroomError(
            f"chapters/{chapter}/tiny_agent differs from tiny_agent. Raise the version at the top first, "
            "or delete the copy if it is the wrong one."
        )
    shutil.copytree(top, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return f"Copied tiny_agent {number(top)} into chapters/{chapter}. Now raise __version__ in tiny_agent/__init__.py."


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a package, by their path in it."""
    files = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(files)}


def tags(root: Path = ROOT) -> list[str]:
    """Build v0.1, v0.2, … as a line of commits from the last commit, and tag them. Returns a line a tag.

    The same commit gives the same ids. The work tree is left alone. Raises ClassroomError, with nothing tagged, where
    a chapter disagrees with itself or a tag of that name exists with other content.
    """
    if not (root / ".git").exists():
        raise ClassroomError("Tags need a git repository, and this folder is none (a zip download?). Clone it instead.")
    git = _git(root)
    built, parent = [], None
    with tempfile.TemporaryDirectory() as scratch:
        # Read from the commit, not from the work tree: what is not committed is in no tag.
        archive = Path(scratch) / "main"
        _unpack(git, archive, Path(scratch) / "index")
        for chapter in chapters(archive):
            tag = f"v{number(package(chapter, archive))}"
            _agree(chapter, tag, archive)
            tree = _tree(git, chapter, archive, Path(scratch) / "index")
            taken = git("rev-parse", "--verify", "--quiet", f"refs/tags/{tag}", check=False)
            existing = git("rev-parse", "--verify", "--quiet", f"refs/tags/{tag}^{{commit}}", check=False)
            if taken and not existing:
                raise ClassroomError(
                    f"There is a tag {tag} that is no commit, and tags are not moved. Remove it first."
                )
            if existing and git("rev-parse", f"{existing}^{{tree}}") != tree:
                changed = git("diff", "--stat=60", existing, tree).splitlines()[-1].strip()
                raise ClassroomError(
                    f"{tag} exists with other content ({changed}) and is not moved. Publish the change as a new patch: "
                    f"set __version__ of chapter {chapter} to the next one, like {_next_patch(tag)}."
                )
            date = git("show", "-s", "--format=%cI", "HEAD")
            new = existing or _commit(git, tree, parent, f"{tag}: {_title(archive, chapter)}", date)
            built.append((tag, new, bool(existing)))
            parent = new
    for tag, commit, old in built:
        if not old:
            git("update-ref", f"refs/tags/{tag}", commit, "")  # the empty old value: only where there is none
    lines = [f"{tag}  {commit[:12]}  {'as it was' if old else 'new'}" for tag, commit, old in built]
    if git("status", "--porcelain", "--untracked-files=no"):
        lines.append("Built from the last commit: what you changed since is in no tag.")
    return lines


def _git(root: Path):
    def git(*args: str, check: bool = True, env: dict[str, str] | None = None) -> str:
        return _run_git(root, args, check, env or {}).decode().strip()

    return git


def _run_git(root: Path, args: tuple[str, ...], check: bool, env: dict[str, str]) -> bytes:
    # Variables like GIT_DIR, which git sets in its hooks, would point at another repository.
    # A sparse checkout would hide from us what it hides from the work tree.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        line = ["git", "-C", str(root), "-c", "core.sparseCheckout=false", *args]
        done = subprocess.run(line, capture_output=True, env={**plain, **env})
    except FileNotFoundError:
        raise ClassroomError("Tags need git, and there is none on this machine. Install it first.") from None
    if check and done.returncode:
        raise ClassroomError(f"git {args[0]} failed: {done.stderr.decode().strip()}")
    return done.stdout


def _unpack(git, folder: Path, index: Path) -> None:
    env = {"GIT_INDEX_FILE": str(index)}
    git("read-tree", "HEAD", env=env)
    git("checkout-index", "--all", f"--prefix={folder}/", env=env)


def _cells(root: Path, chapter: str) -> list[dict]:
    notebook = root / "chapters" / chapter / f"{chapter}.ipynb"
    try:
        return json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise ClassroomError(f"chapters/{chapter}/{notebook.name} cannot be read as a notebook ({error!r}).") from None


def _agree(chapter: str, tag: str, root: Path) -> None:
    """A chapter's number, its package's version and its notebook's text name the same version, or it is refused."""
    n = int(chapter[:2])
    if not teaches(chapter, tag.removeprefix("v")):
        raise ClassroomError(f"Chapter {chapter} teaches v0.{n}, but its package says {tag}.")
    cells = _cells(root, chapter)
    text = "\n".join("".join(cell["source"]) for cell in cells)
    if f"v0.{n}" not in "".join(cells[0]["source"]):
        raise ClassroomError(f"The first cell of {chapter}.ipynb does not name v0.{n}.")
    for old, new in re.findall(r"git diff (v[\d.]+) (v[\d.]+)", text):
        steps = [(f"v0.{n - 1}", f"v0.{n}"), (f"v0.{n}", f"v0.{n + 1}")]
        if (old, new) not in steps:
            raise ClassroomError(
                f"{chapter}.ipynb shows `git diff {old} {new}`, which is not its own step or the next."
            )


def _tree(git, chapter: str, archive: Path, index: Path) -> str:
    """The tree of one version: shared files, chapters and tests up to it, and its package at the top."""
    env = {"GIT_INDEX_FILE": str(index)}
    git("read-tree", "HEAD", env=env)
    n = int(chapter[:2])
    later = [f"chapters/{c}" for c in chapters(archive) if int(c[:2]) > n]
    later += [f"tests/{p.name}" for p in (archive / "tests").glob("test_[0-9][0-9]_*.py") if int(p.name[5:7]) > n]
    own = f"chapters/{chapter}/tiny_agent"
    if (archive / own).is_dir():
        git("rm", "-r", "--quiet", "--cached", "tiny_agent", own, env=env)
        git("read-tree", "--prefix=tiny_agent/", f"HEAD:{own}", env=env)
    if later:
        git("rm", "-r", "--quiet", "--cached", *later, env=env)
    return git("write-tree", env=env)


def _commit(git, tree: str, parent: str | None, message: str, date: str) -> str:
    env = {f"GIT_{who}_{k}": v for who in ("AUTHOR", "COMMITTER") for k, v in {**IDENTITY, "DATE": date}.items()}
    return git(
        "-c",
        "i18n.commitEncoding=utf-8",
        "commit-tree",
        tree,
        *(["-p", parent] if parent else []),
        "-m",
        message,
        env=env,
    )


def _title(root: Path, chapter: str) -> str:
    return "".join(_cells(root, chapter)[0]["source"]).splitlines()[0].lstrip("# ")


def _next_patch(tag: str) -> str:
    major, minor, *patch = tag.removeprefix("v").split(".")
    return f"{major}.{minor}.{int(patch[0]) + 1 if patch else 1}"
