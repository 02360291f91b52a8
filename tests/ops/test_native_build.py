"""Building and loading native code: what is built, kept, refused, and said where there is none."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
import torch

from fresh import Fresh, weft
from weft.core.errors import UnsupportedError
from weft.ops.attention import ATTENTION, AttentionCall
from weft.ops.native import build
from weft.ops.native.library import VARIABLE, Missing, NativeLibrary, describe, instructions, loaded, why_not

LIBRARY = loaded()
assert isinstance(LIBRARY, NativeLibrary), f"the tests need a C compiler: {LIBRARY.detail}"


def script(folder: Path, text: str) -> str:
    """An executable file that stands for a compiler: of the shell, since a build runs it for each source and set of
    instructions, and Python would take ten times as long to start."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o700)
    return str(path)


WRITES = 'while [ $# -gt 0 ] && [ "$1" != -o ]; do shift; done; printf library > "$2"'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a compiler that writes a file at once."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", script(tmp_path, WRITES))
    return tmp_path / "cache" / "native"


def refused() -> build.BuildError:
    with pytest.raises(build.BuildError) as caught:
        build.library()
    assert len(caught.value.short) <= 40, "tables have room for no more"
    return caught.value


def test_a_build_is_kept_and_taken_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build.library()
    assert path.parent.parent == cache and path.read_text() == "library"
    assert sorted(each.name for each in path.parent.iterdir()) == ["build.json", "libweft.so"]
    Path(os.environ["CC"]).write_text("#!/bin/false\n")
    assert build.library() == path, "the compiler is not asked again"
    assert [each.name for each in cache.iterdir()] == [path.parent.name]


def test_every_set_is_compiled_with_its_flags_and_common_code_once(cache: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    script(tmp_path, f'echo "$*" >> "{lines}"\n{WRITES}')
    build.library()
    said = lines.read_text().splitlines()
    for name in build.sets():
        lines_of = [line for line in said if f"-DSET={name} " in line]
        sources = [path.name for path in build.SOURCES.glob("*.c") if path.name not in build.COMMON]
        assert len(lines_of) == len(sources)
        assert all(sum(f"/{source} " in line for line in lines_of) == 1 for source in sources)
        assert all(flag in line.split() for line in lines_of for flag in (*build.FLAGS, *build.SETS[name]))
    assert all(sum(source in line for line in said) == 1 for source in build.COMMON)
    assert sum("-shared" in line for line in said) == 1


def test_sets_that_the_compiler_does_not_know_are_left_out(cache: Path, tmp_path: Path) -> None:
    """GCC 9 has no -mavx512bf16."""
    lines = tmp_path / "lines"
    script(tmp_path, f'echo "$*" >> "{lines}"\ncase " $* " in\n'
           f"*' -mavx512bf16 '*) echo 'error: unrecognized option' >&2; exit 1;;\nesac\n{WRITES}")
    found = build.compiled(build.library())
    assert found == tuple(name for name in build.sets() if name != "avx512_bf16")
    assert not any("-DSET=avx512_bf16 " in line for line in lines.read_text().splitlines())


def test_the_name_of_a_build_follows_from_the_sources(cache: Path, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(build.SOURCES, tmp_path / "sources")
    before = build.library()
    monkeypatch.setattr(build, "SOURCES", tmp_path / "sources")
    assert build.library() == before
    with (tmp_path / "sources" / "product.h").open("a") as file:
        file.write("\n")
    assert build.library() != before


def test_two_that_build_at_once_both_have_it(cache: Path) -> None:
    found: list[Path] = []
    together = [threading.Thread(target=lambda: found.append(build.library())) for _ in range(4)]
    for each in together:
        each.start()
    for each in together:
        each.join()
    assert len(found) == 4 and len(set(found)) == 1
    assert [each.name for each in cache.iterdir()] == [found[0].parent.name], "no draft is left"


def test_a_build_that_was_changed_is_not_loaded_and_not_replaced(cache: Path) -> None:
    path = build.library()
    path.write_text("something else")
    error = refused()
    assert error.short == "its build is not as it was made"
    assert error.detail == (f"{path.parent} was changed or is another user's, so it is not loaded. Move it away, "
                            "and it is built again.")
    assert path.read_text() == "something else"
    (path.parent / build.RECORD).write_text("[")
    assert refused().short == error.short


def test_a_build_that_others_may_change_is_not_loaded(cache: Path) -> None:
    path = build.library()
    path.parent.chmod(0o777)
    assert refused().short == "its build is not as it was made"


def test_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    error = refused()
    assert error.short == "no C compiler is here"
    assert error.detail.startswith("none of no-such-compiler is on the path. Install one, or name one in the variable ")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    assert refused().detail.startswith("none of cc, gcc, clang is on the path.")
    assert not cache.exists()


def test_a_compiler_that_fails(cache: Path, tmp_path: Path) -> None:
    path = script(tmp_path, "echo 'x.c:3: error: no such flag' >&2\nexit 4")
    error = refused()
    assert error.short == "the C compiler fails"
    assert error.detail == (f"{path} ends with status 4: x.c:3: error: no such flag. Name another one in the variable "
                            "CC.")
    assert list(cache.iterdir()) == []


def test_a_compiler_that_does_not_end(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SECONDS", 0.3)
    path = script(tmp_path, "exec sleep 60")
    error = refused()
    assert error.short == "the C compiler does not end"
    assert error.detail == f"{path} took more than 0.3 s. Name another one in the variable CC."


def test_a_cache_that_cannot_be_used(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    error = refused()
    assert error.short == "its cache folder cannot be used"
    assert error.detail.endswith("Name a folder that can be written to in the variable WEFT_CACHE_DIR.")


@pytest.mark.parametrize(("variables", "place"), [
    ({"WEFT_CACHE_DIR": "one"}, "one/native"), ({"XDG_CACHE_HOME": "two"}, "two/weft/native"),
    ({"HOME": "three"}, "three/.cache/weft/native")])
def test_where_builds_are_kept(variables: dict[str, str], place: str, tmp_path: Path,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WEFT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    assert build.cache_folder() == tmp_path / place


def test_the_instruction_set_is_the_best_one_or_that_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert instructions() == LIBRARY.sets[0] and LIBRARY.sets[-1] == "baseline"
    for name in LIBRARY.sets:
        monkeypatch.setenv(VARIABLE, name)
        assert instructions() == name and why_not() is None
        assert describe().startswith(f"{name}, ") and str(LIBRARY.path) in describe()
    monkeypatch.setenv(VARIABLE, "mmx")
    assert why_not() == "WEFT_CPU_CAPABILITY is unknown"
    assert describe() == ("none, WEFT_CPU_CAPABILITY is unknown: WEFT_CPU_CAPABILITY is 'mmx'. Give one of "
                          "amx, avx512_bf16, avx512, avx2, baseline, or leave it out.")


def test_a_set_that_the_processor_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.ops.native.library.loaded", lambda: LIBRARY._replace(sets=("avx2", "baseline")))
    monkeypatch.setenv(VARIABLE, "avx512")
    assert instructions() == Missing(
        "the processor has no avx512", "WEFT_CPU_CAPABILITY is 'avx512', and this processor supports avx2, baseline. "
        "Give one of them, or leave it out.")


def test_a_library_that_cannot_be_loaded(cache: Path) -> None:
    path = build.library()
    found = loaded.__wrapped__()
    assert isinstance(found, Missing) and found.short == "its library cannot be loaded"
    assert found.detail.endswith(f"Move {path.parent} away, and it is built again.")


def test_forms_give_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.ops.native.library.loaded", lambda: Missing("the C compiler fails", "cc: error"))
    q, k = torch.zeros(2, 200, 4, 8), torch.zeros(2, 200, 2, 8)
    call = AttentionCall(q, k, k, 1.0)
    assert "native: the C compiler fails" in ATTENTION.choose(call).passed
    with pytest.raises(UnsupportedError, match=r"kernels\.attention: the form 'native' of 'attention' cannot serve "
                                               r"this call: the C compiler fails\. Those that can: (flex, )?sdpa, "
                                               r"reference\."):
        ATTENTION(call, "native")


def test_doctor_says_why_there_is_none(tmp_path: Path) -> None:
    variables = {"CC": script(tmp_path, "echo 'error: broken' >&2\nexit 1"), "COLUMNS": "200",
                 "WEFT_CACHE_DIR": str(tmp_path / "cache")}
    told = Fresh(weft, "doctor", "--no-measure", folder=tmp_path, environment=variables).end()
    assert told.returncode == 0, told.stderr
    said = " ".join(told.stdout.split())
    assert "native code none, the C compiler fails: " in said and "status 1: error: broken." in said
