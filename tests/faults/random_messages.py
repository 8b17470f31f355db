"""Random messages of every type, built from the types' own bounds: well formed, and mostly senseless."""

import random
from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import inspect

from bootstrap.codec import encode
from bootstrap.messages import Envelope, Message

MAX_ITEMS = 3  # of any list, mapping or text: frames of real size, mostly
_EDGE_CHANCE = 0.2  # of a value at one of its bounds


def message_types() -> list[type]:
    """Every type of the wire's union."""
    return list(Message.__args__)  # type: ignore[attr-defined]


class RandomMessages:
    """One seed's endless supply."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._builders: dict[type, inspect.Type] = {}

    def frame(self, kind: type) -> bytes:
        """An encoded envelope around a body of `kind`."""
        envelope = self.instance(Envelope, body=self.instance(kind))
        return encode(envelope)

    def instance(self, kind: type, **fixed: Any) -> Any:
        """A valid instance of a struct; `fixed` fields are as given."""
        info = self._builders.setdefault(kind, inspect.type_info(kind))
        assert isinstance(info, inspect.StructType)
        values = {}
        for field in info.fields:
            if field.name in fixed:
                values[field.name] = fixed[field.name]
            elif field.required or self._dice.random() < 0.7:
                values[field.name] = self._value(field.type)
        return kind(**values)

    def _value(self, kind: inspect.Type) -> Any:
        while isinstance(kind, inspect.Metadata):
            kind = kind.type
        return self._BUILDERS[type(kind)](self, kind)

    def _struct(self, kind: inspect.StructType) -> Any:
        return self.instance(kind.cls)

    def _union(self, kind: inspect.UnionType) -> Any:
        return self._value(self._dice.choice(kind.types))

    def _int(self, kind: inspect.IntType) -> int:
        low = kind.ge if kind.ge is not None else 0 if kind.gt is None else kind.gt + 1
        high = kind.le if kind.le is not None else (1 << 63) if kind.lt is None else kind.lt - 1
        if self._dice.random() < _EDGE_CHANCE:
            return self._dice.choice((low, high))
        return self._dice.randint(low, min(high, low + 300))

    def _float(self, kind: inspect.FloatType) -> float:
        low = kind.ge if kind.ge is not None else -1e6 if kind.gt is None else kind.gt + 1e-6
        high = 1e6 if kind.le is None else kind.le
        return self._dice.uniform(low, high)

    def _size(self, kind: Any) -> int:
        low = kind.min_length or 0
        high = low + MAX_ITEMS if kind.max_length is None else kind.max_length
        return self._dice.randint(low, max(low, min(high, low + MAX_ITEMS)))

    def _str(self, kind: inspect.StrType) -> str:
        pattern = kind.pattern or ""
        if "tcp" in pattern:
            return f"tcp://127.0.0.1:{self._dice.randint(1, 65535)}"
        if "0-9a-f" in pattern:
            return f"{self._dice.getrandbits(64):016x}"
        return "".join(self._dice.choices("ab0.-_", k=self._size(kind)))

    def _bytes(self, kind: inspect.BytesType) -> bytes:
        return self._dice.randbytes(self._size(kind))

    def _items(self, kind: Any) -> tuple[Any, ...]:
        return tuple(self._value(kind.item_type) for _ in range(self._size(kind)))

    def _tuple(self, kind: inspect.TupleType) -> tuple[Any, ...]:
        return tuple(self._value(item) for item in kind.item_types)

    def _dict(self, kind: inspect.DictType) -> dict[Any, Any]:
        size = range(self._size(kind))
        return {self._value(kind.key_type): self._value(kind.value_type) for _ in size}

    def _enum(self, kind: inspect.EnumType) -> Any:
        return self._dice.choice(list(kind.cls))

    def _literal(self, kind: inspect.LiteralType) -> Any:
        return self._dice.choice(kind.values)

    _BUILDERS: ClassVar[dict[type, Callable[..., Any]]] = {
        inspect.StructType: _struct,
        inspect.UnionType: _union,
        inspect.IntType: _int,
        inspect.FloatType: _float,
        inspect.StrType: _str,
        inspect.BytesType: _bytes,
        inspect.VarTupleType: _items,
        inspect.ListType: _items,
        inspect.TupleType: _tuple,
        inspect.DictType: _dict,
        inspect.EnumType: _enum,
        inspect.LiteralType: _literal,
        inspect.BoolType: lambda self, kind: self._dice.random() < 0.5,
        inspect.NoneType: lambda self, kind: None,
        inspect.AnyType: lambda self, kind: self._dice.choice((None, 1, "x", [1], {"a": 1})),
    }
