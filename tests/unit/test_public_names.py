"""The public names: listed once in the order of the flow, and loaded on first use."""

import re
import subprocess
import sys

import multibit


def names_of_the_documentation():
    (listing,) = re.findall(r"flow:\n\n(.*?)\n\nNames are loaded", multibit.__doc__, flags=re.DOTALL)
    lines = [line.split(maxsplit=1)[-1] if line[0] != " " else line for line in listing.splitlines()]
    return re.findall(r"\w+", " ".join(lines))


def test_the_documentation_lists_every_public_name_once():
    listed = names_of_the_documentation()
    assert sorted(listed) == sorted(multibit.__all__)


def test_every_public_name_can_be_loaded():
    assert all(getattr(multibit, name) is not None for name in multibit.__all__)


def test_importing_the_package_imports_neither_torch_nor_numba():
    code = "import sys, multibit; print([name for name in ('torch', 'numba', 'numpy') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
