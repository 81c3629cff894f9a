"""What JSON gives, as a value that cannot be changed."""

from typing import Any, NoReturn


class FrozenDict(dict[str, Any]):
    """A dict that refuses every change; `{**this, key: value}` is an ordinary one with another value."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("a report cannot be changed: make another one with dataclasses.replace")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type["FrozenDict"], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)  # else pickle and deepcopy would fill an empty one


def frozen(value: Any) -> Any:
    """Dicts frozen all the way down; what is no dict stays as it is, for a check of its kind to find."""
    if isinstance(value, FrozenDict) or not isinstance(value, dict):
        return value
    return FrozenDict({key: frozen(each) for key, each in value.items()})


def tupled(value: Any) -> Any:
    """Lists as tuples; what is no list stays as it is, for a check of its kind to find."""
    return tuple(map(tupled, value)) if isinstance(value, list) else value
