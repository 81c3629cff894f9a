"""The one error of this package."""


class PruningError(ValueError):
    """Something that cannot work as asked: one line with what was wrong, which value, and what to do."""
