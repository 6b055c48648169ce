"""Import every module of the installed joulecast; run with an isolated interpreter (-I).

Packages must import with the required dependencies alone. A module may ask for a package of an extra; it is then named.
"""

import importlib
import pkgutil
import sys
from pathlib import Path

EXTRAS = {"amdsmi", "numba", "pandas", "pynvml", "scipy", "tomlkit", "torch"}


def main() -> None:
    import joulecast

    if "site-packages" not in Path(joulecast.__file__).parts and "--anywhere" not in sys.argv:
        sys.exit(f"imported from {joulecast.__file__}, not from an installed wheel")
    packages, modules, lacking = 0, 0, []
    for module in pkgutil.walk_packages(joulecast.__path__, "joulecast."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if module.ispkg or (error.name or "").split(".")[0] not in EXTRAS:
                raise
            lacking.append(f"{module.name} ({error.name})")
        packages, modules = packages + module.ispkg, modules + 1
    for name in joulecast.__all__:
        getattr(joulecast, name)
    print(f"imported {modules} modules in {packages} sub-packages from {Path(joulecast.__file__).parent}")
    if lacking:
        print(f"modules that need an extra: {', '.join(lacking)}")


main()
