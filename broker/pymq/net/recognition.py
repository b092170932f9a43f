"""What listens at a port, found out by speaking other protocols to it than ours."""

import socket
import ssl

from pymq.protocol.addresses import split_address

#: What HTTP/2 clients, gRPC's among them, begin with: the preface and empty SETTINGS.
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


def recognized(address: str, timeout_s: float) -> str | None:
    """Return ``"gRPC"`` or ``"TLS"`` if that is what a port speaks; ``None``: neither, or nobody.

    Blocks, up to twice ``timeout_s``.
    """
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout_s) as plain:
            plain.sendall(_HTTP2)
            start = plain.recv(9)
        if len(start) == 9 and start[3] in (4, 7) and not any(start[5:]):
            return "gRPC"
    except OSError:
        pass
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout_s) as plain,
            context.wrap_socket(plain) as wrapped,
        ):
            return "gRPC" if wrapped.selected_alpn_protocol() == "h2" else "TLS"
    except ssl.SSLError as error:
        # A server that wants a certificate of ours speaks TLS, too.
        reason = error.reason or ""
        return "TLS" if "CERTIFICATE" in reason or "ALERT" in reason else None
    except OSError:
        return None
