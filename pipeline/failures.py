"""Parts that could not be made, gathered until the others are done."""

from stages.contract.parts import PartSpec


class PartsFailed(RuntimeError):
    """Some parts could not be made; the others are kept."""


class Failures:
    """Parts that failed, told in one error when the others are done."""

    def __init__(self, num_parts: int) -> None:
        self.num_parts = num_parts
        self.first: tuple[PartSpec, BaseException] | None = None
        self.count = 0

    def add(self, spec: PartSpec, error: BaseException) -> None:
        """Note a part that failed."""
        self.first = self.first or (spec, error)
        self.count += 1

    def raise_if_any(self) -> None:
        """Tell of all.

        Raises
        ------
        PartsFailed
            If a part failed.
        """
        if self.first is None:
            return
        spec, error = self.first
        raise PartsFailed(
            f"{self.count} of {self.num_parts} parts failed; the others are kept and will be "
            f"reused. First: part {spec.index} (rows {spec.start} to {spec.stop - 1}): "
            f"{type(error).__name__}: {error}"
        ) from error
