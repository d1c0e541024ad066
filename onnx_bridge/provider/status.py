"""The state of ONNX Runtime's provider on this machine, as checks of ``runtime status``."""

from __future__ import annotations

from collections.abc import Iterator

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.migraphx.install.status import Check
from onnx_bridge.provider import environment as environments
from onnx_bridge.provider.provider import Provider


def provider_checks() -> Iterator[Check]:
    """Load the provider of each environment once, in a process of its own; without an environment, check nothing."""
    for environment in environments.installed():
        provider = None
        try:
            provider = Provider(environment)
            provider.version()
            yield Check("ok", f"{environment.path}: {provider.note}")
        except BridgeError as error:
            yield Check("warn", f"{environment.path} does not load: {error.what}", error.hint)
        finally:
            if provider is not None:
                provider.close()
