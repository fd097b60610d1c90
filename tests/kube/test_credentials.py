"""Token files and exec plugins, and how their credentials are renewed."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.kube.access import Access, from_kubeconfig
from penstock.kube.client import KubeClient
from penstock.kube.credentials import ExecCommand, ExecPlugin, TokenFile
from penstock.kube.errors import Unauthorized, Unreachable
from tests.kube.exec_plugin import PRINT_TOKEN, V1, Plugin
from tests.kube.fake_api import status
from tests.kube.kubeconfigs import SERVER, config, write
from tests.kube.raw_server import QUICK, Request, ResponseWriter, raw_server


class TestTokenFile:
    def test_a_changed_token_file_is_read_again(self, tmp_path: Path) -> None:
        credential = TokenFile(tmp_path / "token")
        with pytest.raises(Unreachable, match="cannot read the token"):
            asyncio.run(credential.identity())
        for token in ("first", "second one"):
            (tmp_path / "token").write_text(token)
            assert asyncio.run(credential.identity()).token == token
        (tmp_path / "token").write_text("")  # In the middle of a write.
        assert asyncio.run(credential.identity()).token == "second one"

    def test_a_replaced_token_of_the_same_length_is_noticed(self, tmp_path: Path) -> None:
        credential = TokenFile(tmp_path / "token")
        for token in ("first", "other"):
            (tmp_path / "new").write_text(token)
            (tmp_path / "new").rename(tmp_path / "token")
            assert asyncio.run(credential.identity()).token == token

    def test_a_rejected_token_is_read_again_although_its_file_looks_unchanged(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text("first")
        before = file.stat()
        credential = TokenFile(file)
        first = asyncio.run(credential.identity())
        file.write_text("other")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert credential.invalidate(first)
        assert asyncio.run(credential.identity()).token == "other"

    def test_a_rotated_token_is_used(self, tmp_path: Path) -> None:
        """Rotates as the kubelet does: creates a directory and replaces a symbolic link by rename."""

        async def scenario() -> None:
            valid = "first"

            async def handler(request: Request, response: ResponseWriter) -> None:
                if request.headers.get("authorization") == f"Bearer {valid}":
                    response.send(200, {"gitVersion": "v1.36.3"})
                else:
                    response.send(401, status(401, "Unauthorized"))

            for name in ("first", "second"):
                (tmp_path / name).mkdir()
                (tmp_path / name / "token").write_text(name)
            (tmp_path / "data").symlink_to("first")
            async with raw_server(handler) as server:
                access = Access(server.url, credential=TokenFile(tmp_path / "data" / "token"))
                async with KubeClient(access, retries=QUICK) as client:
                    assert (await client.get("/version", dict[str, str]))["gitVersion"] == "v1.36.3"
                    valid = "second"
                    with pytest.raises(Unauthorized):
                        await client.get("/version", dict[str, str])
                    (tmp_path / "new").symlink_to("second")
                    (tmp_path / "new").rename(tmp_path / "data")
                    await client.get("/version", dict[str, str])
                    (tmp_path / "data").unlink()  # The last token stays in use.
                    await client.get("/version", dict[str, str])

        asyncio.run(scenario())


class TestPlugin:
    @pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
    def test_the_plugin_token_is_used_and_renewed_after_a_401(self, tmp_path: Path, version: str) -> None:
        async def scenario() -> None:
            plugin = Plugin(tmp_path)
            valid = "token-1"

            async def handler(request: Request, response: ResponseWriter) -> None:
                if request.headers.get("authorization") == f"Bearer {valid}":
                    response.send(201, {"gitVersion": "v1"})
                else:
                    response.send(401, status(401, "Unauthorized"))

            async with raw_server(handler) as server:
                user = {"exec": {**plugin.exec_config(version), "provideClusterInfo": True}}
                access = from_kubeconfig(write(tmp_path / "config", config({"server": server.url}, user)))
                async with KubeClient(access, retries=QUICK) as client:
                    await asyncio.gather(*(client.get("/version", dict[str, str]) for _ in range(5)))
                    assert plugin.runs == 1
                    valid = "token-2"
                    await asyncio.gather(*(client.create("/x", {}) for _ in range(5)))
                    assert plugin.runs == 2, "several 401 responses run the plugin once"
                    valid = "none"
                    with pytest.raises(Unauthorized):
                        await client.get("/version", dict[str, str])
                    assert plugin.runs == 3
                info = json.loads((tmp_path / "info").read_text())
                assert info["apiVersion"] == version
                assert info["spec"] == {"interactive": False, "cluster": {"server": server.url}}

        asyncio.run(scenario())

    def test_a_late_401_for_an_old_token_does_not_invalidate_the_new_one(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            plugin = Plugin(tmp_path)
            credential = plugin.credential()
            old = await credential.identity()
            assert credential.invalidate(old)
            new = await credential.identity()
            assert credential.invalidate(old)
            assert await credential.identity() is new
            assert plugin.runs == 2

        asyncio.run(scenario())

    def test_a_plugin_path_is_relative_to_the_kubeconfig(self, tmp_path: Path) -> None:
        plugin = Plugin(tmp_path)
        exec_config = plugin.exec_config()
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").symlink_to(exec_config["command"])
        user = {"exec": {**exec_config, "command": "bin/python"}}
        access = from_kubeconfig(write(tmp_path / "config", config(SERVER, user)))
        assert asyncio.run(access.credential.identity()).token == "token-1"

    def test_a_token_is_renewed_before_it_expires(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            now = datetime.now(UTC)
            plugin = Plugin(tmp_path)
            ends = (now + timedelta(seconds=100)).strftime("%Y-%m-%dT%H:%M:%SZ")
            offset_s = 0.0
            credential = plugin.credential(expirationTimestamp=ends)
            credential._wall_clock = lambda: now.timestamp() + offset_s
            assert (await credential.identity()).token == "token-1"
            offset_s = 80.0
            assert (await credential.identity()).token == "token-1"
            offset_s = 95.0
            assert (await credential.identity()).token == "token-2"

        asyncio.run(scenario())

    def test_a_valid_token_stays_in_use_while_the_plugin_fails(self, tmp_path: Path) -> None:
        """The plugin fails in the last seconds of its token: requests go on until the token expires."""

        async def scenario() -> None:
            now = datetime.now(UTC)
            offset_s = 0.0
            ends = (now + timedelta(seconds=300)).isoformat()
            plugin = Plugin(tmp_path)

            async def handler(request: Request, response: ResponseWriter) -> None:
                if request.headers.get("authorization") == "Bearer token-1":
                    response.send(200, {"gitVersion": "v1"})
                else:
                    response.send(401, status(401, "Unauthorized"))

            async with raw_server(handler) as server:
                credential = plugin.credential(expirationTimestamp=ends)
                credential._wall_clock = lambda: now.timestamp() + offset_s
                async with KubeClient(Access(server.url, credential=credential), retries=QUICK) as client:
                    await client.get("/version", dict[str, str])
                    (tmp_path / "body").write_text("sys.exit('the issuer is down')")
                    for later_s in (280.0, 281.0, 299.0):
                        offset_s = later_s
                        await client.get("/version", dict[str, str])
                    assert plugin.runs == 3, "the second request follows the first too soon for another run"
                    offset_s = 300.0
                    with pytest.raises(Unreachable, match="the issuer is down"):
                        await client.get("/version", dict[str, str])
                    (tmp_path / "body").write_text(PRINT_TOKEN.replace("token-{count}", "token-1"))
                    await client.get("/version", dict[str, str])

        asyncio.run(scenario())

    def test_a_rejected_token_is_not_used_although_the_plugin_fails(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            plugin = Plugin(tmp_path)
            ends = (datetime.now(UTC) + timedelta(seconds=300)).isoformat()
            credential = plugin.credential(expirationTimestamp=ends)
            credential.invalidate(await credential.identity())
            (tmp_path / "body").write_text("sys.exit('the issuer is down')")
            with pytest.raises(Unreachable, match="the issuer is down"):
                await credential.identity()

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            ("sys.exit('please log in')", "exited with 1: please log in"),
            ("print('hello')", "did not print an ExecCredential"),
            ("print('{}')", "printed no kind of no version"),
            (
                PRINT_TOKEN.replace('os.environ["VERSION"]', '"x/v9"'),
                f"of x/v9, expected ExecCredential of {V1}",
            ),
            (PRINT_TOKEN.replace("token-{count}", ""), "neither a token nor a certificate"),
            (
                PRINT_TOKEN.replace('"token":', '"clientCertificateData":'),
                "printed a certificate without a key",
            ),
            (PRINT_TOKEN.replace('"token"', '"expirationTimestamp": "soon", "token"'), "expected RFC 3339"),
        ],
    )
    def test_errors_of_the_plugin_are_reported(self, tmp_path: Path, body: str, text: str) -> None:
        with pytest.raises(Unreachable) as caught:
            asyncio.run(Plugin(tmp_path, body).credential().identity())
        assert text in str(caught.value)
        assert "users[u]" in str(caught.value)

    def test_a_plugin_that_is_not_installed(self) -> None:
        command = ExecCommand(V1, "no-such-plugin", install_hint="Get it from the shop.")
        with pytest.raises(Unreachable, match=r"no-such-plugin cannot be executed.*Get it from the shop"):
            asyncio.run(ExecPlugin(command).identity())

    def test_a_plugin_that_hangs_is_killed(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            plugin = Plugin(
                tmp_path, "(here / 'pid').write_text(str(os.getpid())); import time; time.sleep(60)"
            )
            credential = plugin.credential()
            credential._timeout_s = 1.0
            with pytest.raises(Unreachable, match="took longer than 1 s"):
                await credential.identity()
            for _ in range(100):
                await asyncio.sleep(0.01)
                if not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists():
                    return
            raise AssertionError("the plugin is still running")

        asyncio.run(scenario())
