"""JSON Web Tokens (RFC 7519) that tests make up."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

NAME = "https://issuer.example"


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _coded(value.to_bytes((value.bit_length() + 7) // 8))


@dataclass
class Issuer:
    """An issuer of tokens. Attributes: key_id: `kid` of its key."""

    key_id: str = "one"
    _key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    @property
    def jwks(self) -> str:
        """Its JSON Web Key Set (RFC 7517)."""
        public = self._key.public_key().public_numbers()
        kind = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": self.key_id}
        return json.dumps({"keys": [{**kind, "n": _number(public.n), "e": _number(public.e)}]})

    def token(self, **claims: Any) -> str:
        """Returns a token that is valid for a minute; `claims` replace its own."""
        now = int(time.time())
        content = {"iss": NAME, "aud": "inflight", "iat": now, "exp": now + 60, **claims}
        head = {"alg": "RS256", "typ": "JWT", "kid": self.key_id}
        signed = ".".join(_coded(json.dumps(part).encode()) for part in (head, content))
        return f"{signed}.{_coded(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"
