"""The lazy stand-in for rfc3987_syntax: in interpreters of their own, with a fake real package on the path."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jupyter_aicluster.agent import standin

SOURCE = Path(next(iter(standin.__path__))) / "rfc3987_syntax.py"
REAL = {
    "__init__.py": "print('loaded')\nfrom .helpers import *\nfrom .helpers import _hidden\n__version__ = '1.2'\n",
    "helpers.py": "print('helpers')\ngrammar = ['built']\ndef is_valid(text): return text != ''\n_hidden = 7\n",
}


@pytest.fixture
def real(tmp_path: Path) -> Path:
    package = tmp_path / "real" / "rfc3987_syntax"
    package.mkdir(parents=True)
    for name, text in REAL.items():
        (package / name).write_text(text)
    return package.parent


@pytest.fixture(params=["zip", "folder"])
def stand_in(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "zip":
        with zipfile.ZipFile(tmp_path / "bundle.zip", "w") as bundle:
            bundle.write(SOURCE, "rfc3987_syntax.py")
        return tmp_path / "bundle.zip"
    return folder_with_stand_in(tmp_path / "bundle")


def folder_with_stand_in(folder: Path) -> Path:
    folder.mkdir()
    (folder / "rfc3987_syntax.py").write_bytes(SOURCE.read_bytes())
    return folder


def python(code: str, *path: Path) -> str:
    """What a fresh interpreter without site-packages prints."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, cwd="/", capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1]


def test_import_loads_nothing_and_the_first_use_everything(stand_in: Path, real: Path) -> None:
    code = "import rfc3987_syntax as r; print('imported'); print(r.is_valid('x')); print(r.is_valid(''))"
    assert python(code, stand_in, real).split() == ["imported", "loaded", "helpers", "True", "False"]


def test_every_name_is_forwarded_also_private_ones(stand_in: Path, real: Path) -> None:
    code = """
import rfc3987_syntax as r
print(r.grammar, r._hidden)
import rfc3987_syntax as s
print(s.grammar is r.grammar, 'is_valid' in vars(r))
"""
    assert python(code, stand_in, real).splitlines()[-2:] == ["['built'] 7", "True True"]


def test_from_import_submodules_and_star(stand_in: Path, real: Path) -> None:
    assert python("from rfc3987_syntax import grammar; print(grammar)", stand_in, real).splitlines()[-1] == "['built']"
    assert python("from rfc3987_syntax import *; print(is_valid('x'))", stand_in, real).splitlines()[-1] == "True"
    assert python("from rfc3987_syntax.helpers import grammar; print(grammar)", stand_in, real).splitlines() == ["helpers", "['built']"]


def test_a_name_the_real_one_lacks_is_missing_as_before(stand_in: Path, real: Path) -> None:
    assert "cannot import name 'absent'" in python("from rfc3987_syntax import absent", stand_in, real)
    assert "no attribute 'absent'" in python("import rfc3987_syntax; rfc3987_syntax.absent", stand_in, real)


def test_without_the_real_one_it_is_an_import_error_as_before(stand_in: Path, tmp_path: Path) -> None:
    code = """
try:
    import rfc3987_syntax
except ImportError as error:
    print('import error', error.name)
"""
    assert python(code, stand_in, tmp_path / "empty") == "import error rfc3987_syntax\n"


def test_a_real_one_that_breaks_breaks_at_first_use_and_can_be_tried_again(stand_in: Path, real: Path) -> None:
    (real / "rfc3987_syntax" / "__init__.py").write_text("raise RuntimeError('broken')\n")
    code = """
import sys, rfc3987_syntax as r
for _ in range(2):
    try:
        r.grammar
    except RuntimeError as error:
        print(error)
print(sys.modules['rfc3987_syntax'] is r)
"""
    assert python(code, stand_in, real).split() == ["broken", "broken", "True"]


def test_its_version_is_forwarded_too(stand_in: Path, real: Path) -> None:
    assert python("import rfc3987_syntax as r; print(r.__version__)", stand_in, real).splitlines()[-1] == "1.2"


def test_two_bundles_on_the_path_as_when_a_cell_asks_for_a_cluster(stand_in: Path, real: Path, tmp_path: Path) -> None:
    second = folder_with_stand_in(tmp_path / "outer")
    assert python("import rfc3987_syntax as r; print(r.grammar)", stand_in, second, real).splitlines()[-1] == "['built']"


def test_jsonschema_takes_its_checker_and_nothing_is_loaded_before_it_is_called(stand_in: Path) -> None:
    """With the real jsonschema and the real rfc3987_syntax, as in an environment with JupyterLab."""
    code = """
import sys, jsonschema
print('rfc3987_syntax.syntax_helpers' in sys.modules)
checker = jsonschema.FormatChecker()
print(checker.conforms('http://example.org/ü', 'iri'), checker.conforms('not an iri', 'iri'))
print('rfc3987_syntax.syntax_helpers' in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(stand_in)}, cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True", "False", "True"]


def test_a_real_one_without_that_function_has_none_here_either(stand_in: Path, real: Path) -> None:
    assert "cannot import name 'is_valid_syntax'" in python("from rfc3987_syntax import is_valid_syntax", stand_in, real)
