"""What a visitor's browser keeps between two pages: what came of the last form, and its fields.

It is in cookies, so that nobody sees what another visitor was told, and no link can make the page
say anything. Whatever a browser sends is taken for text: the template escapes it.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from fastapi import Request, Response

TOLD = "told"
FORM = "form"
#: A sentence about the last form is of no use after this long.
TOLD_S = 60
#: Of each text, in characters: browsers keep 4,096 bytes of a cookie.
LENGTH_MAX = 300
FIELDS_LENGTH_MAX = 64


@dataclass(frozen=True, slots=True)
class Visitor:
    """What a browser has sent.

    Attributes:
        told: what came of the last form; empty after ``TOLD_S``.
        form: the fields of the next order, as they were in the last one.
    """

    told: str = ""
    form: Mapping[str, str] = field(default_factory=dict)


def visitor_of(request: Request) -> Visitor:
    """Return what the cookies of a request say; nothing if they make no sense."""
    told = _decoded(request.cookies.get(TOLD, ""))
    form = _decoded(request.cookies.get(FORM, ""))
    return Visitor(
        told if isinstance(told, str) else "",
        {str(name): str(value) for name, value in form.items()} if isinstance(form, dict) else {},
    )


def tell(response: Response, told: str) -> None:
    """Have the visitor's next pages say something."""
    _set(response, TOLD, told[:LENGTH_MAX], TOLD_S)


def remember(response: Response, form: Mapping[str, str]) -> None:
    """Have the visitor's next form begin with these fields."""
    _set(response, FORM, {name: form[name][:FIELDS_LENGTH_MAX] for name in form}, None)


def _set(response: Response, name: str, value: object, age_s: int | None) -> None:
    text = base64.urlsafe_b64encode(json.dumps(value).encode()).decode()
    response.set_cookie(name, text, max_age=age_s, httponly=True, samesite="lax")


def _decoded(text: str) -> object:
    try:
        found: object = json.loads(base64.urlsafe_b64decode(text))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return found
