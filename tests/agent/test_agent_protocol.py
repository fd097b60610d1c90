"""The agent protocol: access, epochs, and the rejection of invalid input."""

from __future__ import annotations

import os
import stat

import pytest

from penstock.agent import wire
from penstock.agent.wire import CommandOutcome
from penstock.errors import BadRequest
from tests.agent.rig import Client, Lost, Rig


def rejection(client: Client) -> wire.CommandRejected:
    with pytest.raises(Lost):
        client.read_until(lambda: False)
    assert client.rejected is not None
    return client.rejected


def test_only_the_owner_may_connect() -> None:
    with Rig() as rig:
        rig.agent()
        assert stat.S_IMODE(os.stat(rig.socket).st_mode) == 0o600


@pytest.mark.parametrize(
    "garbage",
    [
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"{}\n",
        b'{"type":"start"}\n',
        b"\xff\xfe\x00\n",
        b'{"type":"attach","version":99,"epoch":1}\n',
        b'{"type":"release","epoch":1,"members":[]}\n',
        b"[" * 100_000 + b"\n",
        b"x" * (wire.FRAME_MAX + 10) + b"\n",
    ],
    ids=range(9),
)
def test_invalid_input_is_rejected_and_other_connections_continue(garbage: bytes) -> None:
    with Rig() as rig:
        good = rig.agent()
        bad = rig.connect(attach=False)
        try:
            bad.send_raw(garbage)
            assert not rejection(bad).stale
        except Lost:
            pass  # disconnected before it had sent everything
        assert good.start(rig.spec("true")).outcome is CommandOutcome.APPLIED
        assert good.wait("1/1/0").status == 0


def test_an_invalid_member_or_signal_is_a_conflict() -> None:
    with Rig() as rig:
        client = rig.agent()
        for member in ("", "x" * 65, "ƒ" * 33):
            assert client.start(rig.spec("echo ran >> ran", member)).outcome is CommandOutcome.CONFLICT
        assert client.start(rig.spec("echo ran > ran; sleep 100", "../..")).outcome is CommandOutcome.APPLIED
        assert client.end("../..", 9999).outcome is CommandOutcome.CONFLICT
        assert sorted(os.listdir(rig.directory / "tasks")) == ["m..%2F.."]


def test_an_older_epoch_is_rejected_also_by_the_next_agent() -> None:
    with Rig() as rig:
        rig.agent(epoch=5)
        rig.kill_agent()
        rig.launch()
        old = rig.connect(attach=False)
        old.send(wire.Attach(wire.VERSION, 4))
        rejected = rejection(old)
        assert rejected.stale
        assert rejected.detail == "epoch 4 has ended: the agent has seen epoch 5"


def test_a_command_of_an_older_epoch_is_rejected() -> None:
    with Rig() as rig:
        client = rig.agent(epoch=5)
        client.send(wire.StartTask(1, 4, rig.spec("echo ran >> ran")))
        assert rejection(client).stale
        assert rig.files_of("1/1/0") == []


def test_only_the_latest_connection_is_served() -> None:
    with Rig() as rig:
        first = rig.agent()
        second = rig.connect(epoch=2)
        with pytest.raises(Lost):
            first.start(rig.spec("echo ran >> ran"))
        assert second.start(rig.spec("true")).outcome is CommandOutcome.APPLIED
        assert second.wait("1/1/0").status == 0
        assert rig.lines("ran") == []


def test_a_second_agent_in_a_directory_exits() -> None:
    with Rig() as rig:
        rig.agent()
        assert rig.launch().wait(10) == 3
        assert "another agent runs in" in rig.log()


def test_a_message_that_is_too_long_or_not_unicode_is_not_sent() -> None:
    with Rig() as rig:
        for script in ("x" * wire.FRAME_MAX, "\udcff"):
            with pytest.raises(BadRequest):
                wire.encode(wire.StartTask(1, 1, rig.spec(script)))
