"""An exec plugin for tests, which counts its runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from penstock.kube.credentials import ExecCommand, ExecPlugin

V1 = "client.authentication.k8s.io/v1"
PLUGIN = """
import json, os, pathlib, sys
here = pathlib.Path(sys.argv[1])
count = int((here / "count").read_text()) + 1 if (here / "count").exists() else 1
(here / "count").write_text(str(count))
(here / "info").write_text(os.environ["KUBERNETES_EXEC_INFO"])
exec((here / "body").read_text())
"""
PRINT_TOKEN = """
status = {"token": f"token-{count}", **json.loads(os.environ.get("MORE", "{}"))}
print(json.dumps({"apiVersion": os.environ["VERSION"], "kind": "ExecCredential", "status": status}))
"""


class Plugin:
    def __init__(self, directory: Path, body: str = PRINT_TOKEN) -> None:
        self.directory = directory
        (directory / "plugin.py").write_text(PLUGIN)
        (directory / "body").write_text(body)

    def exec_config(self, version: str = V1, **more: Any) -> dict[str, Any]:
        env = [{"name": "VERSION", "value": version}, {"name": "MORE", "value": json.dumps(more)}]
        args = ["plugin.py", str(self.directory)]
        args[0] = str(self.directory / args[0])
        return {"apiVersion": version, "command": sys.executable, "args": args, "env": env}

    def credential(self, **more: Any) -> ExecPlugin:
        found = self.exec_config(**more)
        env = tuple((entry["name"], entry["value"]) for entry in found["env"])
        command = ExecCommand(
            V1, found["command"], tuple(found["args"]), env, "Install it.", where="users[u]"
        )
        return ExecPlugin(command, timeout_s=5.0)

    @property
    def runs(self) -> int:
        return int((self.directory / "count").read_text())
