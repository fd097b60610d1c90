"""Address and credentials of an API server, from a kubeconfig or from a pod's service account.

A kubeconfig is read as kubectl does: the files of KUBECONFIG are merged, the first definition of a name wins,
and paths are relative to their file. Proxies are chosen as by kubectl, too. Unsupported authentication
(passwords, auth-provider plugins) is rejected when the kubeconfig is read, not when the first request fails.
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
    StaticToken,
    TokenFile,
    check_api_version,
)
from penstock.kube.proxy import check_proxy, proxy_of_environment
from penstock.kube.tls import TlsConfig

__all__ = ["Access", "find_access", "from_kubeconfig", "in_cluster"]

_SIZE_MAX_BYTES: Final = 8 << 20
_FILES_MAX: Final = 64
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Access:
    """`server` has no trailing slash. `headers` are sent with every request (impersonation)."""

    server: str
    tls: TlsConfig = field(default_factory=TlsConfig)
    credential: Credential = field(default_factory=Anonymous)
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


class _NamedCluster(msgspec.Struct, kw_only=True):
    name: str
    cluster: _Cluster | None = None


class _NamedUser(msgspec.Struct, kw_only=True):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct, kw_only=True):
    name: str
    context: _Context | None = None


class _KubeconfigFile(msgspec.Struct, rename="kebab", kw_only=True):
    kind: str | None = None
    current_context: str | None = None
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


@dataclass(slots=True)
class _MergedConfig:
    """The entries of all files by name, each with its file."""

    sources: tuple[Path, ...]
    current: str = ""
    clusters: dict[str, tuple[Path, _Cluster]] = field(default_factory=dict)
    users: dict[str, tuple[Path, _User]] = field(default_factory=dict)
    contexts: dict[str, tuple[Path, _Context]] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return os.pathsep.join(str(source) for source in self.sources)


def find_access(path: Path | None = None, context: str = "") -> Access:
    """The given kubeconfig or context; otherwise the service account of the pod; otherwise KUBECONFIG."""
    if path is not None or context:
        return from_kubeconfig(path, context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (_SERVICE_ACCOUNT / "token").exists():
        return in_cluster()
    return from_kubeconfig(None, "")


def in_cluster(root: Path = _SERVICE_ACCOUNT, environ: Mapping[str, str] | None = None) -> Access:
    """Access by the service account of this pod. A rotated token is picked up."""
    variables = os.environ if environ is None else environ
    host = variables.get("KUBERNETES_SERVICE_HOST", "")
    port = variables.get("KUBERNETES_SERVICE_PORT", "") or "443"
    if not host:
        raise BadRequest(
            "not running in a pod",
            where="KUBERNETES_SERVICE_HOST",
            found="nothing",
            expected="the address of the API server, which the kubelet sets in every container",
        )
    if not port.isascii() or not port.isdigit():
        raise BadRequest("invalid port", where="KUBERNETES_SERVICE_PORT", found=port, expected="a number")
    for name in ("token", "ca.crt"):
        if not (root / name).is_file():
            raise BadRequest(
                "file of the service account is missing",
                where=str(root / name),
                found="nothing",
                expected="a mounted service account token (automountServiceAccountToken)",
            )
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    proxy = proxy_of_environment(server, variables)
    return Access(server, TlsConfig(ca_file=root / "ca.crt"), TokenFile(root / "token"), proxy)


def from_kubeconfig(path: Path | None = None, context: str = "") -> Access:
    """Reads `path`; without it, the files of KUBECONFIG; without those, `~/.kube/config`."""
    merged = _merge(_sources(path), must_exist=path is not None)
    name = context or merged.current
    if not name:
        raise BadRequest(
            "no context is selected",
            where=merged.where,
            found="no current-context",
            expected=_one_of(merged.contexts),
        )
    if name not in merged.contexts:
        raise BadRequest("no such context", where=merged.where, found=name, expected=_one_of(merged.contexts))
    file, selected = merged.contexts[name]
    context_path = f"{file}: contexts[{name}]"
    if not selected.cluster or selected.cluster not in merged.clusters:
        raise BadRequest(
            "no such cluster",
            where=f"{context_path}.cluster",
            found=selected.cluster or "nothing",
            expected=_one_of(merged.clusters),
        )
    if selected.user and selected.user not in merged.users:
        raise BadRequest(
            "no such user", where=f"{context_path}.user", found=selected.user, expected=_one_of(merged.users)
        )
    cluster_file, cluster = merged.clusters[selected.cluster]
    user_file, user = merged.users[selected.user] if selected.user else (file, _User())
    cluster_path = f"{cluster_file}: clusters[{selected.cluster}].cluster"
    user_path = f"{user_file}: users[{selected.user}].user"
    server = _server(cluster.server, f"{cluster_path}.server")
    tls = _tls((cluster_file, cluster, cluster_path), (user_file, user, user_path))
    return Access(
        server,
        tls,
        _credential(user_file, user, user_path, cluster, tls),
        check_proxy(cluster.proxy_url or "", f"{cluster_path}.proxy-url")
        or proxy_of_environment(server, os.environ),
        _impersonation_headers(user, user_path),
    )


def _sources(path: Path | None) -> tuple[Path, ...]:
    if path is not None:
        return (path.expanduser().absolute(),)
    named = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if len(named) > _FILES_MAX:
        raise BadRequest(
            "too many kubeconfig files",
            where="KUBECONFIG",
            found=str(len(named)),
            expected=f"at most {_FILES_MAX}",
        )
    if named:
        return tuple(Path(part).expanduser().absolute() for part in named)
    return (Path.home() / ".kube" / "config",)


def _merge(sources: tuple[Path, ...], *, must_exist: bool) -> _MergedConfig:
    merged = _MergedConfig(sources)
    any_exists = False
    for source in sources:
        try:
            file = _read(source)
        except FileNotFoundError as error:
            if must_exist:
                raise BadRequest("no such file", where=str(source), expected="a kubeconfig") from error
            continue
        any_exists = True
        merged.current = merged.current or file.current_context or ""
        for cluster in file.clusters or ():
            merged.clusters.setdefault(cluster.name, (source, cluster.cluster or _Cluster()))
        for user in file.users or ():
            merged.users.setdefault(user.name, (source, user.user or _User()))
        for context in file.contexts or ():
            merged.contexts.setdefault(context.name, (source, context.context or _Context()))
    if not any_exists:
        raise BadRequest(
            "no kubeconfig found",
            where=merged.where,
            expected="an existing file, named by --kubeconfig or KUBECONFIG",
        )
    return merged


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Loads all scalars as strings; msgspec converts them to the types of the structs above."""


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]
)


def _read(source: Path) -> _KubeconfigFile:
    try:
        with source.open("rb") as file:
            data = file.read(_SIZE_MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadRequest("cannot read the file", where=str(source), found=error.strerror or "") from error
    if len(data) > _SIZE_MAX_BYTES:
        raise BadRequest(
            "the file is too large", where=str(source), expected=f"at most {_SIZE_MAX_BYTES} bytes"
        )
    try:
        document = yaml.load(data, Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise BadRequest(
            "invalid YAML",
            where=f"{source}{line}",
            found=" ".join(str(getattr(error, "problem", error)).split()),
            expected="a kubeconfig",
        ) from error
    if document is None:
        return _KubeconfigFile()
    try:
        config = msgspec.convert(document, _KubeconfigFile, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        problem, _, path = str(error).partition(" - at `$")
        raise BadRequest(
            "not a kubeconfig", where=f"{source}: {path.strip('`.') or 'top level'}", found=problem
        ) from error
    if config.kind not in (None, "", "Config"):
        raise BadRequest(
            "not a kubeconfig", where=f"{source}: kind", found=config.kind or "", expected="Config"
        )
    return config


def _server(server: str | None, where: str) -> str:
    text = server or ""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise BadRequest(
            "invalid server address", where=where, found=text or "nothing", expected="https://host:port"
        )
    return text.rstrip("/")


def _tls(cluster_entry: tuple[Path, _Cluster, str], user_entry: tuple[Path, _User, str]) -> TlsConfig:
    cluster_file, cluster, cluster_path = cluster_entry
    user_file, user, user_path = user_entry
    insecure = bool(cluster.insecure_skip_tls_verify)
    ca_data = _data(cluster.certificate_authority_data, f"{cluster_path}.certificate-authority-data")
    if insecure and (ca_data or cluster.certificate_authority):
        raise BadRequest(
            "a certificate authority together with insecure-skip-tls-verify",
            where=f"{cluster_path}.insecure-skip-tls-verify",
            found="true",
            expected="only one of certificate-authority and insecure-skip-tls-verify",
        )
    certificate_data = _data(user.client_certificate_data, f"{user_path}.client-certificate-data")
    key_data = _data(user.client_key_data, f"{user_path}.client-key-data")
    has_certificate = bool(certificate_data or user.client_certificate)
    if has_certificate != bool(key_data or user.client_key):
        raise BadRequest(
            "a client certificate without a key, or a key without a certificate",
            where=user_path,
            found="only a certificate" if has_certificate else "only a key",
            expected="client-certificate(-data) and client-key(-data)",
        )
    return TlsConfig(
        verify=not insecure,
        ca_file=None if ca_data else _resolve(cluster_file, cluster.certificate_authority),
        ca_data=ca_data,
        certificate_file=None if certificate_data else _resolve(user_file, user.client_certificate),
        key_file=None if key_data else _resolve(user_file, user.client_key),
        certificate_data=certificate_data,
        key_data=key_data,
        server_name=cluster.tls_server_name or "",
    )


def _credential(file: Path, user: _User, where: str, cluster: _Cluster, tls: TlsConfig) -> Credential:
    if user.auth_provider is not None:
        raise BadRequest(
            "auth-provider plugins are not supported",
            where=f"{where}.auth-provider",
            found=str(user.auth_provider.get("name", "")),
            expected="exec, a token, or a client certificate",
        )
    if user.username or user.password:
        raise BadRequest(
            "password authentication is not supported",
            where=f"{where}.username",
            found=user.username or "a password",
            expected="exec, a token, or a client certificate",
        )
    token_file = _resolve(file, user.token_file)
    if token_file is not None:
        return TokenFile(token_file)  # As in kubectl, takes precedence over `token`.
    if user.token:
        return StaticToken(user.token)
    if user.exec is not None:
        return ExecPlugin(_exec_command(file, user.exec, f"{where}.exec", cluster, tls))
    return Anonymous()


def _exec_command(
    file: Path, exec_config: _Exec, where: str, cluster: _Cluster, tls: TlsConfig
) -> ExecCommand:
    version = check_api_version(exec_config.api_version, f"{where}.apiVersion")
    if not exec_config.command:
        raise BadRequest(
            "no command", where=f"{where}.command", found="nothing", expected="the path or name of a program"
        )
    if exec_config.interactive_mode == "Always":
        raise BadRequest(
            "the exec plugin requires a terminal, which a scheduler does not have",
            where=f"{where}.interactiveMode",
            found="Always",
            expected="Never or IfAvailable",
        )
    env = []
    for index, entry in enumerate(exec_config.env or ()):
        if "name" not in entry:
            raise BadRequest(
                "environment variable without a name",
                where=f"{where}.env[{index}]",
                expected="name and value",
            )
        env.append((entry["name"], entry.get("value", "")))
    command = exec_config.command
    if os.sep in command:
        command = str(_resolve(file, command))
    return ExecCommand(
        version,
        command,
        tuple(exec_config.args or ()),
        tuple(env),
        exec_config.install_hint or "",
        _cluster_info(cluster, tls) if exec_config.provide_cluster_info else None,
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
                "cannot read the file", where=str(tls.ca_file), found=error.strerror or ""
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


def _impersonation_headers(user: _User, where: str) -> tuple[tuple[str, str], ...]:
    if user.as_user_extra:
        raise BadRequest(
            "impersonation with extra fields is not supported",
            where=f"{where}.as-user-extra",
            expected="only as, as-uid and as-groups",
        )
    if not user.as_user:
        return ()
    headers = [("Impersonate-User", user.as_user)]
    if user.as_uid:
        headers.append(("Impersonate-Uid", user.as_uid))
    headers.extend(("Impersonate-Group", group) for group in user.as_groups or ())
    return tuple(headers)


def _resolve(file: Path, text: str | None) -> Path | None:
    """A path in a kubeconfig is relative to the directory of that kubeconfig."""
    return file.parent / text if text else None


def _data(text: str | None, where: str) -> bytes:
    if not text:
        return b""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(
            "invalid base64", where=where, found=str(error), expected="base64-encoded PEM"
        ) from error


_V = TypeVar("_V")


def _one_of(names: Mapping[str, _V]) -> str:
    return "one of " + ", ".join(sorted(names)) if names else "at least one definition"
