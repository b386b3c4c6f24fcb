"""The wheel, the sdist and the container: built, checked, and used where neither the source tree nor torch is."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pages import ROOT, serving

pytest.importorskip("build")
pytestmark = pytest.mark.slow

FIRST_STEPS = """
import sys

import multibit
from multibit import Run, Split, build_indices, export_run, extract_features, load_image_encoder, load_text_encoder
from multibit.data.sample import load_sample

assert multibit.__file__.startswith(sys.prefix), multibit.__file__
data = load_sample()
data = data.take(range(0, len(data), 100))
store = extract_features(data, load_image_encoder("efficientnet-lite0"), load_text_encoder("all-minilm-l6-v2"), "features")
split = Split.draw(len(store), query=10, train=30, validation=0, seed=1)  # a score would compile more kernels
run = Run.create("run", store, split, epochs=1)
for name, index in build_indices(run, store).items():
    index.save(f"run/index/{name}.mbx")
export_run(run, "model")
"""  # noqa: E501
SEARCH = ("search", "model", "a red flower", "--index", "run/index", "--bits", "32", "--json")


def ran(*command: object, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints that succeeds, in an environment that does not know the source tree."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(environment or {})
    result = subprocess.run(list(map(str, command)), cwd=cwd, env=known, capture_output=True, text=True)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel made from it."""
    folder = tmp_path_factory.mktemp("dist")
    ran("scripts/package.sh", folder)
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the wheel, and with the installed dependencies but not the source tree."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    # .pth files of these folders, such as the one of the source tree, are not read
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    program = folder / "bin" / "python"
    ran(sys.executable, "-m", "pip", "--python", program, "install", "--no-deps", "--no-compile", wheel)
    return folder / "bin"


@pytest.fixture(scope="session")
def project(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first steps of the demo leave: features, a run with its indices, and the exported model."""
    folder = tmp_path_factory.mktemp("project")
    ran(installed / "python", "-c", FIRST_STEPS, cwd=folder)
    return folder


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with nothing but what the Dockerfile installs: no torch, no encoder packages.

    The dependencies are links to those of this environment, which pip has installed with the same constraints.
    """
    extras = re.search(r'"\.\[([a-z,]+)\]"', (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert extras
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    ran(*pip, "install", "--no-deps", "--no-compile", wheel)
    packages = next(folder.glob("lib/python*/site-packages"))
    (mine,) = distributions(name="multibit", path=[str(packages)])
    for each in map(distribution, required(mine, extras[1].split(","))):
        for name in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():  # some packages share a folder
                (packages / name).symlink_to(str(each.locate_file(name)))
    return folder / "bin"


def required(package: Distribution, extras: Iterable[str]) -> set[str]:
    """Names of what a package needs here with some of its extras, directly or not."""
    waiting, known = [(package, extra) for extra in extras], set()
    while waiting:
        each, extra = waiting.pop()
        for need in map(Requirement, each.requires or ()):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                found = {(canonicalize_name(need.name), wanted) for wanted in ("", *need.extras)} - known
                known |= found
                waiting += [(distribution(name), wanted) for name, wanted in found]
    return {name for name, _ in known}


def test_the_sdist_makes_the_wheel_of_the_tree(wheel: Path, tmp_path: Path):
    ran(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"multibit"}
    assert not [name for name in names if "test" in name or name.endswith((".pyc", ".npz"))]
    needed = {"py.typed", "__init__.pyi", "sample/openclipart/items.jsonl", "serve/page/index.html"}
    assert {f"multibit/{name}" for name in needed} <= set(names)


def test_no_path_of_this_machine_is_published(dist: Path):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        private = [path.encode() for path in (str(ROOT), sys.prefix)]
        found = [name for name, file in files.items() if file and any(path in file.read() for path in private)]
    assert found == []
    kept = {name.split("/")[1] for name in files}
    assert kept <= {path.name for path in ROOT.iterdir() if path.name != "site"} | {"PKG-INFO"}


def test_the_first_steps_and_a_search_run_from_the_wheel(installed: Path, project: Path):
    found = [json.loads(line) for line in ran(installed / "multibit", *SEARCH, cwd=project).splitlines()]
    assert len(found) == 10 and found[0]["labels"]


def test_a_model_is_searched_without_torch(bare: Path, installed: Path, project: Path):
    assert "search" in ran(bare / "multibit", "--help", cwd=project)
    assert "128 bits" in ran(bare / "multibit", "info", "run/index/image.mbx", cwd=project)
    assert ran(bare / "multibit", *SEARCH, cwd=project) == ran(installed / "multibit", *SEARCH, cwd=project)
    assert not list(bare.parent.glob("lib/*/site-packages/torch*"))


def test_the_container_files_are_valid():
    ran(Path(sys.executable).with_name("hadolint"), "Dockerfile")
    ran(Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", "compose.yaml")


def test_the_command_of_the_image_serves_and_leaves_its_data_alone(
    bare: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    final = text.rpartition("FROM ")[2]
    instructions = dict(re.findall(r"^(ENV|ENTRYPOINT|CMD|HEALTHCHECK) +(.*)$", final, re.MULTILINE))
    words = [*json.loads(instructions["ENTRYPOINT"]), *json.loads(instructions["CMD"])]
    environment = dict(pair.split("=", 1) for pair in instructions["ENV"].split())
    environment = {name: value.replace("/tmp", str(tmp_path)) for name, value in environment.items()}
    monkeypatch.delenv("PYTHONPATH", raising=False)
    environment |= {"PATH": f"{bare}:{os.environ['PATH']}", "MULTIBIT_TOKEN": "secret"}
    before = sorted((path, path.stat().st_mtime_ns) for path in project.rglob("*"))
    program, *arguments = (word.replace("/data", str(project)) for word in words)
    with serving(arguments, (str(shutil.which(program, path=str(bare))),), **environment) as address:
        health = json.loads(instructions["HEALTHCHECK"].partition("CMD ")[2])
        ran(bare / health[0], health[1], health[2].replace("http://127.0.0.1:8080", address))
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"{address}/v1/info")
        with urlopen(Request(f"{address}/v1/info", headers={"Authorization": "Bearer secret"})) as answer:
            assert json.load(answer)["bits"] == 128
    assert before == sorted((path, path.stat().st_mtime_ns) for path in project.rglob("*"))
