# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests: an authority, and what it signs. Made with the openssl program."""
import pathlib
import subprocess


def _openssl(*args):
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)


class Authority:
    def __init__(self, folder, name="authority"):
        self.folder = pathlib.Path(folder)
        self.cert, self.key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", 2,
                 "-subj", f"/CN={name}", "-keyout", self.key, "-out", self.cert)

    def sign(self, name):
        """(certificate, key) for localhost and 127.0.0.1."""
        cert, key, request, extra = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr", "ext"))
        extra.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
                 "-keyout", key, "-out", request)
        _openssl("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self.key, "-CAcreateserial", "-days", 2,
                 "-extfile", extra, "-out", cert)
        return cert, key
