"""Versions of the packages that decide a run's bytes."""

import importlib.metadata
import platform

PACKAGES = (
    "datasketch",
    "numpy",
    "pyarrow",
    "scikit-learn",
    "tokenizers",
    "torch",
    "transformers",
)


def package_versions() -> dict[str, str]:
    """Look up the installed versions, of Python too, without importing any package."""
    from evenshard import __version__

    versions = {"evenshard": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions
