"""The line of tags: built from a commit, the same every time, refused where a chapter disagrees with itself."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import classroom
from classroom import ClassroomError, versions
from classroom.versions import CHAPTERS, ROOT

NOBODY = {f"GIT_{who}_{what}": "test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(root, *args):
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(root), *args], capture_output=True, text=True, env={**plain, **NOBODY}, check=True
    )
    return done.stdout.strip()


def commit(root):
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "work")


@pytest.fixture
def whole(tmp_path):
    """This project as it stands in the work tree, committed in a repository of its own."""
    root = tmp_path / "a project"
    junk = shutil.ignore_patterns(".git", ".venv", ".ci", "__pycache__", "*.egg-info", ".*_cache")
    shutil.copytree(ROOT, root, ignore=junk)
    git(tmp_path, "init", "-q", "-b", "main", str(root))
    commit(root)
    return root


@pytest.fixture
def project(whole):
    """The same when it had one chapter."""
    copy = whole / "chapters" / "01_loop" / "tiny_agent"
    if copy.is_dir():
        shutil.rmtree(whole / "tiny_agent")
        copy.rename(whole / "tiny_agent")
    for later in [*(whole / "chapters").glob("0[2-9]_*"), *(whole / "tests").glob("test_0[2-9]_*")]:
        shutil.rmtree(later) if later.is_dir() else later.unlink()
    git(whole, "add", "-A")
    git(whole, "commit", "-q", "--allow-empty", "-m", "one chapter")
    return whole


def add_chapter_two(root):
    """The next version, begun the way a maintainer does: freeze, raise the version, a notebook, a test."""
    versions.freeze(root)
    init = root / "tiny_agent" / "__init__.py"
    init.write_text(init.read_text().replace('__version__ = "0.1"', '__version__ = "0.2"'))
    (root / "chapters" / "02_next").mkdir()
    text = "# The next step\n\nVersion `v0.2`. See `git diff v0.1 v0.2 -- tiny_agent`."
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    nbformat.write(notebook, root / "chapters" / "02_next" / "02_next.ipynb")
    (root / "tests" / "test_02_next.py").write_text("")
    commit(root)


def files(root, tag):
    return git(root, "ls-tree", "-r", "--name-only", tag).splitlines()


# --- loading


def test_a_version_is_loaded_by_its_tag_beside_any_other():
    module = classroom.version("v0.1")
    assert module.__version__.startswith("0.1")
    assert module is classroom.version("v0.1")
    assert module.run.__module__ == "tiny_agent_v0_1.agent"


def test_a_version_that_is_not_there_is_said_with_those_that_are():
    with pytest.raises(ClassroomError, match=r"There is no version 'v9.9' here. There are: v0\.1"):
        classroom.version("v9.9")


def test_two_versions_are_loaded_side_by_side(project, monkeypatch):
    add_chapter_two(project)
    program = "import classroom as c; print(c.version('v0.1').__version__, c.version('v0.2').__version__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=project,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert done.stdout.split() == ["0.1", "0.2"]


# --- freezing


def test_freeze_copies_the_package_into_its_chapter_once(project):
    chapter = versions.chapters(project)[-1]
    assert versions.freeze(project).startswith("Copied tiny_agent 0.")
    copy = project / "chapters" / chapter / "tiny_agent"
    assert (copy / "agent.py").read_bytes() == (project / "tiny_agent" / "agent.py").read_bytes()
    assert versions.freeze(project) == f"{chapter} holds tiny_agent {versions.number(copy)} already."


def test_freeze_refuses_to_write_over_a_copy_that_differs(project):
    versions.freeze(project)
    (project / "tiny_agent" / "agent.py").write_text("other")
    with pytest.raises(ClassroomError, match="Raise the version at the top first"):
        versions.freeze(project)


def test_freeze_refuses_a_version_that_no_chapter_teaches(project):
    init = project / "tiny_agent" / "__init__.py"
    init.write_text(re.sub(r'__version__ = ".*"', '__version__ = "0.77"', init.read_text()))
    with pytest.raises(ClassroomError, match=r"0\.77, and no chapter teaches"):
        versions.freeze(project)


# --- tags


def test_the_tags_are_a_line_and_each_holds_its_version_and_nothing_later(project):
    add_chapter_two(project)
    versions.tags(project)
    assert git(project, "tag").split() == ["v0.1", "v0.2"]
    assert git(project, "rev-parse", "v0.2^") == git(project, "rev-parse", "v0.1")
    assert '__version__ = "0.1"' in git(project, "show", "v0.1:tiny_agent/__init__.py")
    assert '__version__ = "0.2"' in git(project, "show", "v0.2:tiny_agent/__init__.py")
    assert not [f for f in files(project, "v0.1") if "02_next" in f or f.startswith("chapters/01_loop/tiny_agent")]
    assert {"tests/test_02_next.py", "chapters/01_loop/tiny_agent/agent.py"} <= set(files(project, "v0.2"))
    assert {"Makefile", "README.md", "classroom/__init__.py", "tests/test_01_loop.py"} <= set(files(project, "v0.1"))
    assert git(project, "diff", "--name-only", "v0.1", "v0.2", "--", "tiny_agent") == "tiny_agent/__init__.py"


def test_the_same_commit_gives_the_same_ids_in_any_clone_shallow_or_sparse(project, tmp_path):
    add_chapter_two(project)
    first = versions.tags(project)
    git(tmp_path, "clone", "-q", "--depth", "1", "--no-tags", project.as_uri(), "clone")
    assert versions.tags(tmp_path / "clone") == first
    git(tmp_path, "clone", "-q", "--no-tags", project.as_uri(), "sparse")
    git(tmp_path / "sparse", "sparse-checkout", "set", "tests")
    assert versions.tags(tmp_path / "sparse") == first
    assert [line.replace("new", "as it was") for line in first] == versions.tags(project)


def test_the_work_tree_and_what_is_not_committed_are_left_alone(project):
    (project / "tiny_agent" / "agent.py").write_text("not committed")
    (project / "new.txt").write_text("new")
    before = git(project, "status", "--porcelain")
    versions.tags(project)
    assert git(project, "status", "--porcelain") == before
    assert "not committed" not in git(project, "show", "v0.1:tiny_agent/agent.py")


def test_a_tag_with_other_content_is_never_moved_and_nothing_is_tagged(project):
    versions.tags(project)
    tagged = git(project, "rev-parse", "v0.1")
    (project / "README.md").write_text("changed")
    add_chapter_two(project)
    with pytest.raises(ClassroomError, match=r"v0\.1 exists with other content .*like 0\.1\.1"):
        versions.tags(project)
    assert git(project, "rev-parse", "v0.1") == tagged
    assert git(project, "tag") == "v0.1"


def test_a_tag_of_that_name_that_is_no_commit_is_never_moved(project):
    git(project, "tag", "v0.1", "HEAD:README.md")
    with pytest.raises(ClassroomError, match="that is no commit, and tags are not moved"):
        versions.tags(project)
    assert git(project, "cat-file", "-t", "v0.1") == "blob"


def test_an_annotated_tag_with_the_same_content_keeps_its_note(project):
    versions.tags(project)
    commit_id = git(project, "rev-parse", "v0.1")
    git(project, "tag", "-f", "-a", "-m", "my note", "v0.1", commit_id)
    assert versions.tags(project)[0].endswith("as it was")
    assert git(project, "cat-file", "-t", "v0.1") == "tag"


def test_settings_of_git_neither_move_the_tags_nor_ask_for_a_signature(project, tmp_path, monkeypatch):
    first = versions.tags(project)
    git(project, "tag", "-d", "v0.1")
    git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    for name, value in [("tag.gpgSign", "true"), ("commit.gpgSign", "true"), ("i18n.commitEncoding", "latin1")]:
        git(project, "config", name, value)
    assert versions.tags(project) == first
    assert git(tmp_path / "other", "tag") == ""


def test_a_patch_of_an_old_version_gets_a_tag_of_its_own(project):
    versions.tags(project)
    init = project / "tiny_agent" / "__init__.py"
    init.write_text(init.read_text().replace('__version__ = "0.1"', '__version__ = "0.1.1"'))
    commit(project)
    versions.tags(project)
    assert git(project, "tag").split() == ["v0.1", "v0.1.1"]


def test_swapped_versions_are_refused(project):
    add_chapter_two(project)
    for folder, version in [("chapters/01_loop/tiny_agent", "0.2"), ("tiny_agent", "0.1")]:
        init = project / folder / "__init__.py"
        init.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', init.read_text()))
    commit(project)
    with pytest.raises(ClassroomError, match=r"01_loop teaches v0\.1, but its package says v0\.2"):
        versions.tags(project)
    assert git(project, "tag") == ""


def test_a_notebook_that_names_another_version_or_another_step_is_refused(project):
    add_chapter_two(project)
    notebook = project / "chapters" / "02_next" / "02_next.ipynb"
    whole = notebook.read_text()
    for wrong, said in [("`v0.2`", "does not name v0.2"), ("git diff v0.1 v0.2", "which is not its own step")]:
        notebook.write_text(
            whole.replace(wrong, wrong.replace("v0.2", "v0.3")).replace("diff v0.1 v0.2", "diff v0.1 v0.3")
        )
        commit(project)
        with pytest.raises(ClassroomError, match=said):
            versions.tags(project)


def test_a_download_without_git_is_told_why(tmp_path):
    with pytest.raises(ClassroomError, match="this folder is none"):
        versions.tags(tmp_path)


def test_without_git_it_is_said_in_a_line(project, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ClassroomError, match="Tags need git"):
        versions.tags(project)


@pytest.mark.parametrize("line", ["__version__ = '0.1'", '__version__ = "0.1"  # the loop'])
def test_a_version_line_in_another_hand_is_read(tmp_path, line):
    (tmp_path / "__init__.py").write_text(line)
    assert versions.number(tmp_path) == "0.1"


def test_a_package_without_a_version_and_a_notebook_that_is_none_are_said_in_a_line(project):
    notebook = project / "chapters" / "01_loop" / "01_loop.ipynb"
    for file, text, said in [
        (notebook, "{}", "cannot be read as a notebook"),
        (versions.package("01_loop", project) / "__init__.py", "", "has no line like __version__"),
    ]:
        file.write_text(text)
        commit(project)
        with pytest.raises(ClassroomError, match=said):
            versions.tags(project)


# A package changes only together with its version: raise the patch number, then write the new digest here.
RELEASED = {"0.1": "3221ca4db84b93dd", "0.2": "bccfb733d4afb7bc", "0.3": "32a5b3c28b48c23a", "0.4": "e7cdbd5a0e16412a"}


def test_a_released_package_is_what_it_was_to_the_byte():
    for chapter in versions.chapters():
        folder = versions.package(chapter)
        digest = hashlib.sha256(repr(versions.contents(folder)).encode()).hexdigest()[:16]
        assert (versions.number(folder), digest) in RELEASED.items()


def test_the_newest_tag_holds_what_main_holds(whole):
    """So its tests need not be run again."""
    *_, newest = versions.tags(whole)
    assert git(whole, "diff", "--stat", newest.split()[0], "main") == ""


@pytest.mark.parametrize("chapter", versions.chapters()[:-1])
def test_every_older_tag_passes_its_own_tests_and_notebooks_in_a_worktree(whole, chapter):
    versions.tags(whole)
    tree = whole.parent / "tree"
    git(whole, "worktree", "add", "-q", "--detach", str(tree), f"v{versions.number(versions.package(chapter))}")
    own = [str(p.relative_to(tree)) for p in sorted((tree / "tests").glob("test_[0-9][0-9]_*.py"))]
    env = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env", *own, "chapters"],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    where = "import tiny_agent, classroom; print(tiny_agent.__file__, classroom.__file__)"
    used = subprocess.run([sys.executable, "-c", where], cwd=tree, env=env, capture_output=True, text=True)
    assert all(Path(p).is_relative_to(tree) for p in used.stdout.split()), used.stdout


def test_the_chapters_of_this_tree_agree_with_their_versions():
    for chapter in versions.chapters():
        versions._agree(chapter, f"v{versions.number(versions.package(chapter))}", CHAPTERS.parent)
