"""A proxy that ends TLS, as nginx or Caddy do, and adds headers to each request."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NAME = "agents.example.org"
BOUND = 60.0


def make_certificate(directory: Path) -> Path:
    """Write a key and a certificate of `NAME` into one file."""
    file = directory / "proxy.pem"
    words = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={NAME}".split()
    words += ["-addext", f"subjectAltName=DNS:{NAME}", "-keyout", str(file), "-out", str(directory / "c.pem")]
    subprocess.run(words, check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + (directory / "c.pem").read_bytes())
    return file


@contextmanager
def tls_proxy(upstream: int, certificate: Path, added: Mapping[str, str]) -> Iterator[int]:
    """Serve TLS on a port, which is given, and pass requests on to a port with these headers added."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._pass_on()

        def do_GET(self) -> None:
            self._pass_on()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {**dict(self.headers.items()), **added}
            connection = HTTPConnection("127.0.0.1", upstream, timeout=BOUND)
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"transfer-encoding", "connection"}:
                    self.send_header(name, value)
            self.end_headers()  # HTTP/1.0: the end of the connection ends the body
            while piece := answer.read1(1 << 16):
                self.wfile.write(piece)
                self.wfile.flush()
            connection.close()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


class ProxyConnection(HTTPSConnection):
    """A connection to the proxy by its public name, which no name server knows."""

    def __init__(self, port: int, certificate: Path) -> None:
        context = ssl.create_default_context(cafile=str(certificate))
        super().__init__(NAME, port, timeout=BOUND, context=context)
        self._tls, self._port = context, port

    def connect(self) -> None:
        """Connect to the port on this machine."""
        plain = socket.create_connection(("127.0.0.1", self._port), BOUND)
        self.sock = self._tls.wrap_socket(plain, server_hostname=NAME)
