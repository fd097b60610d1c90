"""How to reach an API server and who we are there: from a kubeconfig, or from inside a cluster.

A kubeconfig is read as kubectl reads it: the files of KUBECONFIG are merged, the first to define a name wins,
paths are relative to the file that has them. What we cannot do (login by password, the old login plugins) is
refused when it is read, not when the first request fails.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml

from penstock.errors import BadRequest
from penstock.kube.credentials import (
    Anonymous,
    Credential,
    ExecCommand,
    ExecPlugin,
    FixedToken,
    TokenFile,
    checked_api_version,
)
from penstock.kube.tls import TlsConfig

__all__ = ["Access", "find_access", "from_kubeconfig", "in_cluster"]

_SIZE_MAX_BYTES: Final = 8 << 20
_FILES_MAX: Final = 64
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Access:
    """`server` has no slash at its end. `headers` go with every request: whom we act for."""

    server: str
    tls: TlsConfig = field(default_factory=TlsConfig)
    credential: Credential = field(default_factory=Anonymous)
    namespace: str = "default"
    proxy: str = ""
    headers: tuple[tuple[str, str], ...] = ()


class _Exec(msgspec.Struct, rename="camel", kw_only=True):
    command: str
    api_version: str
    args: list[str] | None = None
    env: list[dict[str, str]] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None


class _Cluster(msgspec.Struct, rename="kebab", kw_only=True):
    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _User(msgspec.Struct, rename="kebab", kw_only=True):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    auth_provider: dict[str, object] | None = None
    exec: _Exec | None = None
    as_user: str | None = msgspec.field(default=None, name="as")
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, object] | None = None


class _Context(msgspec.Struct, rename="kebab", kw_only=True):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class _NamedCluster(msgspec.Struct, kw_only=True):
    name: str
    cluster: _Cluster | None = None


class _NamedUser(msgspec.Struct, kw_only=True):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct, kw_only=True):
    name: str
    context: _Context | None = None


class _File(msgspec.Struct, rename="kebab", kw_only=True):
    kind: str | None = None
    current_context: str | None = None
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


@dataclass(slots=True)
class _Merged:
    """Everything by name, each with the file it came from."""

    sources: tuple[Path, ...]
    current: str = ""
    clusters: dict[str, tuple[Path, _Cluster]] = field(default_factory=dict)
    users: dict[str, tuple[Path, _User]] = field(default_factory=dict)
    contexts: dict[str, tuple[Path, _Context]] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return os.pathsep.join(str(source) for source in self.sources)


def find_access(path: Path | None = None, context: str = "") -> Access:
    """What was asked for; else the cluster that we are in; else the kubeconfig of the user."""
    if path is not None or context:
        return from_kubeconfig(path, context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (_SERVICE_ACCOUNT / "token").exists():
        return in_cluster()
    return from_kubeconfig(None, "")


def in_cluster(root: Path = _SERVICE_ACCOUNT, environ: Mapping[str, str] | None = None) -> Access:
    """As the service account of our pod. Its token rotates, and is read again when it does."""
    variables = os.environ if environ is None else environ
    host = variables.get("KUBERNETES_SERVICE_HOST", "")
    port = variables.get("KUBERNETES_SERVICE_PORT", "") or "443"
    if not host:
        raise BadRequest(
            "this is no pod of a cluster",
            where="KUBERNETES_SERVICE_HOST",
            found="nothing",
            expected="the address of the API server, as the kubelet sets it",
        )
    if not port.isascii() or not port.isdigit():
        raise BadRequest("bad port", where="KUBERNETES_SERVICE_PORT", found=port, expected="a number")
    for name in ("token", "ca.crt"):
        if not (root / name).is_file():
            raise BadRequest(
                "the service account has no such file",
                where=str(root / name),
                found="nothing",
                expected="a service account that is mounted (automountServiceAccountToken)",
            )
    namespace = "default"
    if (root / "namespace").is_file():
        namespace = (root / "namespace").read_text().strip() or namespace
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(server, TlsConfig(ca_file=root / "ca.crt"), TokenFile(root / "token"), namespace)


def from_kubeconfig(path: Path | None = None, context: str = "") -> Access:
    """`path` alone if it is given; else the files of KUBECONFIG, else the one in the home directory."""
    merged = _merge(_sources(path), must_exist=path is not None)
    name = context or merged.current
    if not name:
        raise BadRequest(
            "no context is chosen",
            where=merged.where,
            found="no current-context",
            expected=_one_of(merged.contexts),
        )
    if name not in merged.contexts:
        raise BadRequest("no such context", where=merged.where, found=name, expected=_one_of(merged.contexts))
    file, chosen = merged.contexts[name]
    place = f"{file}: contexts[{name}]"
    if not chosen.cluster or chosen.cluster not in merged.clusters:
        raise BadRequest(
            "no such cluster",
            where=f"{place}.cluster",
            found=chosen.cluster or "nothing",
            expected=_one_of(merged.clusters),
        )
    if chosen.user and chosen.user not in merged.users:
        raise BadRequest(
            "no such user", where=f"{place}.user", found=chosen.user, expected=_one_of(merged.users)
        )
    cluster_file, cluster = merged.clusters[chosen.cluster]
    user_file, user = merged.users[chosen.user] if chosen.user else (file, _User())
    cluster_place = f"{cluster_file}: clusters[{chosen.cluster}].cluster"
    user_place = f"{user_file}: users[{chosen.user}].user"
    server = _server(cluster.server, f"{cluster_place}.server")
    tls = _tls((cluster_file, cluster, cluster_place), (user_file, user, user_place))
    return Access(
        server,
        tls,
        _credential(user_file, user, user_place, cluster, tls),
        chosen.namespace or "default",
        _proxy(cluster.proxy_url or "", f"{cluster_place}.proxy-url"),
        _acting_for(user, user_place),
    )


def _sources(path: Path | None) -> tuple[Path, ...]:
    if path is not None:
        return (path.expanduser().absolute(),)
    named = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if len(named) > _FILES_MAX:
        raise BadRequest(
            "too many files", where="KUBECONFIG", found=str(len(named)), expected=f"at most {_FILES_MAX}"
        )
    if named:
        return tuple(Path(part).expanduser().absolute() for part in named)
    return (Path.home() / ".kube" / "config",)


def _merge(sources: tuple[Path, ...], *, must_exist: bool) -> _Merged:
    merged = _Merged(sources)
    found_any = False
    for source in sources:
        try:
            file = _read(source)
        except FileNotFoundError as error:
            if must_exist:
                raise BadRequest(
                    "the file is not there", where=str(source), expected="a kubeconfig"
                ) from error
            continue
        found_any = True
        merged.current = merged.current or file.current_context or ""
        for cluster in file.clusters or ():
            merged.clusters.setdefault(cluster.name, (source, cluster.cluster or _Cluster()))
        for user in file.users or ():
            merged.users.setdefault(user.name, (source, user.user or _User()))
        for context in file.contexts or ():
            merged.contexts.setdefault(context.name, (source, context.context or _Context()))
    if not found_any:
        raise BadRequest(
            "there is no kubeconfig",
            where=merged.where,
            found="nothing",
            expected="a file there, in KUBECONFIG, or named by an option",
        )
    return merged


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Scalars are texts, whatever they look like; the structures below say what they mean."""


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]
)


def _read(source: Path) -> _File:
    try:
        with source.open("rb") as file:
            data = file.read(_SIZE_MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadRequest("the file cannot be read", where=str(source), found=error.strerror or "") from error
    if len(data) > _SIZE_MAX_BYTES:
        raise BadRequest(
            "the file is too long", where=str(source), expected=f"at most {_SIZE_MAX_BYTES} bytes"
        )
    try:
        tree = yaml.load(data, Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise BadRequest(
            "not YAML",
            where=f"{source}{line}",
            found=" ".join(str(getattr(error, "problem", error)).split()),
            expected="a kubeconfig",
        ) from error
    if tree is None:
        return _File()
    try:
        found = msgspec.convert(tree, _File, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        what, _, place = str(error).partition(" - at `$")
        raise BadRequest(
            "not a kubeconfig", where=f"{source}: {place.strip('`.') or 'the top'}", found=what
        ) from error
    if found.kind not in (None, "", "Config"):
        raise BadRequest(
            "not a kubeconfig", where=f"{source}: kind", found=found.kind or "", expected="Config"
        )
    return found


def _server(server: str | None, where: str) -> str:
    text = server or ""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise BadRequest("not an address", where=where, found=text or "nothing", expected="https://host:port")
    return text.rstrip("/")


def _proxy(text: str, where: str) -> str:
    if text and not text.startswith(("http://", "https://")):
        raise BadRequest(
            "this kind of proxy is not supported", where=where, found=text, expected="http:// or https://"
        )
    return text


def _tls(of_cluster: tuple[Path, _Cluster, str], of_user: tuple[Path, _User, str]) -> TlsConfig:
    cluster_file, cluster, cluster_place = of_cluster
    user_file, user, user_place = of_user
    insecure = bool(cluster.insecure_skip_tls_verify)
    ca_data = _data(cluster.certificate_authority_data, f"{cluster_place}.certificate-authority-data")
    if insecure and (ca_data or cluster.certificate_authority):
        raise BadRequest(
            "a certificate authority makes no sense where nothing is verified",
            where=f"{cluster_place}.insecure-skip-tls-verify",
            found="true",
            expected="one of the two",
        )
    certificate_data = _data(user.client_certificate_data, f"{user_place}.client-certificate-data")
    key_data = _data(user.client_key_data, f"{user_place}.client-key-data")
    has_certificate = bool(certificate_data or user.client_certificate)
    if has_certificate != bool(key_data or user.client_key):
        raise BadRequest(
            "a client certificate and its key go together",
            where=user_place,
            found="a certificate alone" if has_certificate else "a key alone",
            expected="client-certificate(-data) and client-key(-data)",
        )
    return TlsConfig(
        verify=not insecure,
        ca_file=None if ca_data else _beside(cluster_file, cluster.certificate_authority),
        ca_data=ca_data,
        certificate_file=None if certificate_data else _beside(user_file, user.client_certificate),
        key_file=None if key_data else _beside(user_file, user.client_key),
        certificate_data=certificate_data,
        key_data=key_data,
        server_name=cluster.tls_server_name or "",
    )


def _credential(file: Path, user: _User, where: str, cluster: _Cluster, tls: TlsConfig) -> Credential:
    if user.auth_provider is not None:
        raise BadRequest(
            "login plugins of the old kind are not supported",
            where=f"{where}.auth-provider",
            found=str(user.auth_provider.get("name", "")),
            expected="exec, a token, or a client certificate",
        )
    if user.username or user.password:
        raise BadRequest(
            "login by password is not supported",
            where=f"{where}.username",
            found=user.username or "a password",
            expected="exec, a token, or a client certificate",
        )
    token_file = _beside(file, user.token_file)
    if token_file is not None:
        return TokenFile(token_file)  # kubectl too prefers it to a token that stands beside it
    if user.token:
        return FixedToken(user.token)
    if user.exec is not None:
        return ExecPlugin(_command(file, user.exec, f"{where}.exec", cluster, tls))
    return Anonymous()


def _command(file: Path, stanza: _Exec, where: str, cluster: _Cluster, tls: TlsConfig) -> ExecCommand:
    version = checked_api_version(stanza.api_version, f"{where}.apiVersion")
    if not stanza.command:
        raise BadRequest("no command", where=f"{where}.command", expected="a program")
    if stanza.interactive_mode == "Always":
        raise BadRequest(
            "the plugin wants a terminal, and a scheduler has none",
            where=f"{where}.interactiveMode",
            found="Always",
            expected="Never or IfAvailable",
        )
    env = []
    for index, entry in enumerate(stanza.env or ()):
        if "name" not in entry:
            raise BadRequest("no name", where=f"{where}.env[{index}]", expected="name and value")
        env.append((entry["name"], entry.get("value", "")))
    command = stanza.command
    if os.sep in command:
        command = str(_beside(file, command))
    return ExecCommand(
        version,
        command,
        tuple(stanza.args or ()),
        tuple(env),
        stanza.install_hint or "",
        _cluster_info(cluster, tls) if stanza.provide_cluster_info else None,
        where,
    )


def _cluster_info(cluster: _Cluster, tls: TlsConfig) -> dict[str, object]:
    info: dict[str, object] = {"server": cluster.server or ""}
    ca = tls.ca_data
    if tls.ca_file is not None:
        try:
            ca = tls.ca_file.read_bytes()
        except OSError as error:
            raise BadRequest(
                "the file cannot be read", where=str(tls.ca_file), found=error.strerror or ""
            ) from error
    if ca:
        info["certificate-authority-data"] = base64.b64encode(ca).decode()
    if not tls.verify:
        info["insecure-skip-tls-verify"] = True
    if tls.server_name:
        info["tls-server-name"] = tls.server_name
    if cluster.proxy_url:
        info["proxy-url"] = cluster.proxy_url
    return info


def _acting_for(user: _User, where: str) -> tuple[tuple[str, str], ...]:
    if user.as_user_extra:
        raise BadRequest(
            "extra fields of impersonation are not supported",
            where=f"{where}.as-user-extra",
            expected="as, as-uid and as-groups alone",
        )
    if not user.as_user:
        return ()
    headers = [("Impersonate-User", user.as_user)]
    if user.as_uid:
        headers.append(("Impersonate-Uid", user.as_uid))
    headers.extend(("Impersonate-Group", group) for group in user.as_groups or ())
    return tuple(headers)


def _beside(file: Path, text: str | None) -> Path | None:
    """A path of a kubeconfig: relative ones start where the file is."""
    return file.parent / text if text else None


def _data(text: str | None, where: str) -> bytes:
    if not text:
        return b""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest("not base64", where=where, found=str(error), expected="PEM in base64") from error


_V = TypeVar("_V")


def _one_of(names: Mapping[str, _V]) -> str:
    return "one of " + ", ".join(sorted(names)) if names else "at least one to be defined"
