"""The one line a user meets when a chosen hook needs a package that is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from speedtronic.core.errors import MissingExtraError


def check_extra(package: str, *, feature: str) -> None:
    """Refuse early, while the run is built, what would fail at its first event.

    Args:
        package: Import name, also the name of our extra.
        feature: What the user chose.

    Raises:
        MissingExtraError: ``package`` is not installed.
    """
    if find_spec(package) is None:
        raise MissingExtraError(
            f"logging.hooks: {feature} needs the package {package}, which is not installed; "
            f"run: pip install 'speedtronic[{package}]'"
        )
