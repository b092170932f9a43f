"""Long lists of comparisons as one look into a set.

Programs write ``n = '1' OR n = '2' OR ...`` where ``n IN ('1', '2', ...)`` would do. Evaluated one
by one, each of thousands of comparisons costs every message half a microsecond.

What is folded decides the same: which part of an OR or AND is evaluated first does not matter as
long as none of them can fail. A comparison with a number fails where the property is not one, and
then so do all others of that property with numbers of that kind: they are folded if they follow one
another.
"""

from pymq.filter.sql_tree import (
    NUMBERS,
    AllOf,
    AnyOf,
    Cast,
    Constant,
    Equal,
    Kind,
    Member,
    Negative,
    Node,
    Not,
    Ordering,
    Property,
    Search,
    children,
)

#: A property, and the kind of what it is compared with.
_Key = tuple[str, Kind]


def folded(tree: Node) -> Node:
    """Return a tree that decides the same, with comparisons of one property folded."""
    match tree:
        case AnyOf(parts=parts):
            kept = _folded_parts(parts, negated=False)
            return kept[0] if len(kept) == 1 else AnyOf(kept)
        case AllOf(parts=parts):
            kept = _folded_parts(parts, negated=True)
            return kept[0] if len(kept) == 1 else AllOf(kept)
        case Not(operand=operand):
            return Not(folded(operand))
        case Negative(operand=operand):
            return Negative(folded(operand))
        case Equal(left=left, right=right):
            return Equal(folded(left), folded(right))
        case Ordering(symbol=symbol, left=left, right=right):
            return Ordering(symbol, folded(left), folded(right))
        case Search(word=word, operand=operand, text=text, negated=negated):
            return Search(word, folded(operand), text, negated)
        case Constant() | Property() | Cast() | Member():
            return tree


def weight(tree: Node) -> int:
    """Return how many nodes a message may have evaluated: about so many half microseconds."""
    count, nodes = 0, [tree]
    while nodes:
        node = nodes.pop()
        count += not isinstance(node, Constant | Property)
        nodes += children(node)
    return max(count, 1)


def _folded_parts(parts: tuple[Node, ...], *, negated: bool) -> tuple[Node, ...]:
    """Fold the parts of an OR; ``negated``: those of an AND."""
    kept: list[Node] = []
    run: dict[_Key, list[Member]] = {}
    for part in parts:
        one = _member(part, negated)
        if one is None:
            kept += _joined(run)
            run = {}
            kept.append(folded(part))
            continue
        key = one.operand.name, one.kind
        if run and key not in run and not (one.kind is Kind.TEXT and _is_safe(run)):
            kept += _joined(run)
            run = {}
        run.setdefault(key, []).append(one)
    return (*kept, *_joined(run))


def _is_safe(run: dict[_Key, list[Member]]) -> bool:
    """Can none of these comparisons fail?"""
    return all(kind is Kind.TEXT for _, kind in run)


def _joined(run: dict[_Key, list[Member]]) -> list[Node]:
    return [
        Member(
            members[0].operand,
            frozenset().union(*(one.values for one in members)),
            members[0].negated,
            members[0].kind,
        )
        for members in run.values()
    ]


def _member(part: Node, negated: bool) -> Member | None:
    """Return a part of an OR, or of an AND if ``negated``, as a look into a set; None: it is not.

    ``'x' = p`` is not: where there is no ``p`` it is false, and ``p = 'x'`` unknown.
    """
    if isinstance(part, Member):
        return part if part.negated is negated else None
    if negated:
        if not isinstance(part, Not):
            return None
        part = part.operand
    match part:
        case Equal(left=Property() as operand, right=Constant(kind=kind, value=value)):
            if kind is Kind.TEXT or kind in NUMBERS:
                assert isinstance(value, str | int | float)
                return Member(operand, frozenset((value,)), negated, kind)
    return None
