"""How long hypothesis looks: the same examples on every run, ten times as many if asked.

`HYPOTHESIS_PROFILE=thorough pytest tests/property` also draws new examples each time.

Hypothesis prefers numbers and texts that it finds in the source of loaded modules. Which modules are loaded
depends on the tests that ran before in the same process, and with several processes on how busy the machine
is. So the same examples on every run need that this is off.

`nohup` ignores SIGHUP, and a shell without job control starts background processes with SIGINT ignored;
children inherit both. Tests send these signals, so they get their usual effect here.
"""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

_SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)

_ALWAYS = settings(deadline=None, suppress_health_check=_SLOW_IS_FINE, phases=_PHASES)

settings.register_profile("default", _ALWAYS, derandomize=True, max_examples=100)
settings.register_profile("thorough", _ALWAYS, max_examples=1000)
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
settings.load_profile(_PROFILE)
if _PROFILE == "default":
    assert callable(providers._get_local_constants), "hypothesis has another name for it"
    providers._get_local_constants = Constants

for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)
