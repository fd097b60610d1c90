"""Who may say what to an agent, and what becomes of everything else."""

from __future__ import annotations

import os
import stat

import pytest

from penstock.agent import wire
from penstock.agent.wire import Answered
from penstock.errors import BadRequest
from tests.agent.rig import Client, Lost, Rig


def refusal(client: Client) -> wire.TaskRefused:
    with pytest.raises(Lost):
        client.read_until(lambda: False)
    assert client.refused is not None
    return client.refused


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
def test_garbage_is_refused_and_harms_nobody(garbage: bytes) -> None:
    with Rig() as rig:
        good = rig.agent()
        bad = rig.connect(attach=False)
        try:
            bad.send_raw(garbage)
            assert not refusal(bad).stale
        except Lost:
            pass  # it was let go before it had said all
        assert good.start(rig.spec("true")).outcome is Answered.APPLIED
        assert good.wait("1/1/0").status == 0


def test_a_bad_member_or_signal_is_answered_and_not_obeyed() -> None:
    with Rig() as rig:
        client = rig.agent()
        for member in ("", "x" * 65, "ƒ" * 33):
            assert client.start(rig.spec("echo ran >> ran", member)).outcome is Answered.CONFLICT
        assert client.start(rig.spec("echo ran > ran; sleep 100", "../..")).outcome is Answered.APPLIED
        assert client.end("../..", 9999).outcome is Answered.CONFLICT
        assert sorted(os.listdir(rig.home / "tasks")) == ["m..%2F.."]


def test_an_older_epoch_is_refused_also_by_the_next_agent() -> None:
    with Rig() as rig:
        rig.agent(epoch=5)
        rig.kill_agent()
        rig.launch()
        old = rig.connect(attach=False)
        old.send(wire.Attach(wire.VERSION, 4))
        refused = refusal(old)
        assert refused.stale
        assert refused.detail == "epoch 4 is over: epoch 5 has been seen"


def test_a_command_of_an_older_epoch_is_not_obeyed() -> None:
    with Rig() as rig:
        client = rig.agent(epoch=5)
        client.send(wire.Start(1, 4, rig.spec("echo ran >> ran")))
        assert refusal(client).stale
        assert rig.files_of("1/1/0") == []


def test_the_newest_connection_is_the_one_that_counts() -> None:
    with Rig() as rig:
        first = rig.agent()
        second = rig.connect(epoch=2)
        with pytest.raises(Lost):
            first.start(rig.spec("echo ran >> ran"))
        assert second.start(rig.spec("true")).outcome is Answered.APPLIED
        assert second.wait("1/1/0").status == 0
        assert rig.lines("ran") == []


def test_there_is_one_agent_in_a_directory() -> None:
    with Rig() as rig:
        rig.agent()
        assert rig.launch().wait(10) == 3
        assert "another agent works in" in rig.log()


def test_a_message_that_is_too_long_or_no_text_is_not_sent() -> None:
    with Rig() as rig:
        for script in ("x" * wire.FRAME_MAX, "\udcff"):
            with pytest.raises(BadRequest):
                wire.encode(wire.Start(1, 1, rig.spec(script)))
