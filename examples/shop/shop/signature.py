"""How the payment platform signs its calls: HMAC-SHA256 over all fields, sorted by name."""

import hashlib
import hmac
from collections.abc import Mapping


def sign(fields: Mapping[str, str], secret: str) -> str:
    """Return the signature of a call, in hexadecimal.

    Args:
        fields: name to text; ``signature`` itself is left out.
        secret: what platform and shop share.
    """
    text = "&".join(f"{name}={fields[name]}" for name in sorted(fields) if name != "signature")
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def is_signed(fields: Mapping[str, str], signature: str, secret: str) -> bool:
    """Is it the platform's signature? Takes as long for a wrong one, whatever is wrong."""
    return hmac.compare_digest(sign(fields, secret).encode(), signature.encode())
