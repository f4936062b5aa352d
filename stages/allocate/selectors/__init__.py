"""Ways to choose rows, one file each. A new one is a new file: its name is its name.

Each file holds one dataclass with a method `select`; see `stages.allocate.candidates`.
"""

import importlib
import inspect
import pkgutil
from functools import cache


@cache
def selector_classes() -> dict[str, type]:
    """Find the selector of every file of this folder, by file name.

    Raises
    ------
    TypeError
        If a file does not define exactly one class with a method `select`.
    """
    found = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        classes = [
            value
            for _, value in inspect.getmembers(module, inspect.isclass)
            if value.__module__ == module.__name__ and hasattr(value, "select")
        ]
        if len(classes) != 1:
            raise TypeError(
                f"{module.__name__} must define one class with a method `select`, "
                f"it defines {len(classes)}"
            )
        found[module_info.name] = classes[0]
    return found
