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


def test_a_users_script_is_typed(tmp_path, root):
    for name, text in (("good", GOOD), ("wrong", WRONG)):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    # Both at once, with what the type check of the whole package has stored: from nothing it takes half a minute.
    command = [sys.executable, "-m", "mypy", tmp_path / "good.py", tmp_path / "wrong.py"]
    found = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root).stdout
    assert found.count("wrong.py:") == found.count("error:") == 3, found
