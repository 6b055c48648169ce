"""A user's script is type-checked against the public functions, and a wrong one is found."""

import subprocess
import sys

GOOD = """
import joulecast as jc

gpu = jc.gpu("h200-sxm")
kernel = gpu.predict(jc.Gemm(m=8192, n=8192, k=8192, dtype="bf16"), power_limit_w=500)
seconds: float = kernel.time_s
parts: dict[str, float] = dict(kernel.energy_by_component_j)
iteration = jc.predict("plan.toml", ["power.power_limit_w=500"])
joules: float = iteration.energy_j
points = [(p.time_s, p.energy_j) for p in jc.front("plan.toml").points]
try:
    jc.compare(["a.toml", "b.toml"]).to_dict()
except jc.InputError as error:
    print(error.file, error.key, error.remedy)
"""
WRONG = """
import joulecast as jc

name: int = jc.predict("plan.toml").energy_j
jc.Gemm(m="8192", n=8192, k=8192)
jc.predict("plan.toml").energy
"""


#: The package as mypy takes what is installed: its types count, its bodies are not checked again.
SETTINGS = """
[mypy]
strict = true
mypy_path = {root}/src
cache_dir = {root}/.mypy_cache/of-users
[mypy-joulecast.*]
ignore_errors = true
"""


def test_a_users_script_is_typed(tmp_path, root):
    for name, text in (("good.py", GOOD), ("wrong.py", WRONG), ("mypy.ini", SETTINGS.format(root=root))):
        (tmp_path / name).write_text(text, encoding="utf-8")
    # Both at once: reading the package's types takes longer than checking them.
    scripts = [tmp_path / "good.py", tmp_path / "wrong.py"]
    command = [sys.executable, "-m", "mypy", "--config-file", tmp_path / "mypy.ini", *scripts]
    found = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root).stdout
    assert found.count("wrong.py:") == found.count("error:") == 3, found
